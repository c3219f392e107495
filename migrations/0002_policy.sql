-- Settings, filled in by an administrator: channels (wallets, payment providers), scenes (kinds of business), custom
-- assets; and the identity of the cluster that may hand out actions. Spans end in _ms, milliseconds.

create table paylatch.channel (
    channel text primary key
        constraint channel_name check (channel ~ '^[a-z][a-z0-9_]{0,31}$'),
    max_in_flight integer
        constraint max_in_flight_positive check (max_in_flight > 0),
    rate_per_second integer
        constraint rate_positive check (rate_per_second between 1 and 1000000),
    ramp_ms bigint not null default 60000
        constraint ramp_not_negative check (ramp_ms between 0 and 86400000),
    refund_share_percent integer not null default 25
        constraint refund_share_is_percent check (refund_share_percent between 0 and 100),
    breaker_threshold integer not null default 20
        constraint breaker_threshold_positive check (breaker_threshold > 0),
    breaker_open_ms bigint not null default 10000
        constraint breaker_open_positive check (breaker_open_ms between 1 and 86400000),
    breaker_probes integer not null default 5
        constraint breaker_probes_positive check (breaker_probes between 1 and 1000),
    call_timeout_ms integer not null default 10000
        constraint call_timeout_positive check (call_timeout_ms between 1 and 600000),
    can_resend boolean not null default true,
    can_close_charge boolean not null default false,
    resend_window_ms bigint not null default 86400000
        constraint resend_window_not_negative check (resend_window_ms between 0 and 31622400000),
    not_found_final_after_ms bigint
        constraint not_found_final_after_positive check (not_found_final_after_ms between 1 and 31622400000),
    webhook_trust text not null default 'hint'
        constraint webhook_trust_known check (webhook_trust in ('hint', 'evidence')),
    webhook_keep_days integer not null default 90
        constraint webhook_keep_days_bounded check (webhook_keep_days between 1 and 3660)
);
comment on table paylatch.channel is 'A wallet or payment provider. Its name is the key of [wallet.NAME] in the daemon''s configuration.';
comment on column paylatch.channel.max_in_flight is 'Wallet calls under way at once, over all daemons; null: no limit.';
comment on column paylatch.channel.rate_per_second is 'Wallet calls handed out a second, over all daemons; null: no limit.';
comment on column paylatch.channel.ramp_ms is 'How long the rate takes to come back after an outage.';
comment on column paylatch.channel.refund_share_percent is 'The part of each grant that refunds may take before charges.';
comment on column paylatch.channel.breaker_threshold is 'So many calls in a row without an answer open the breaker.';
comment on column paylatch.channel.call_timeout_ms is 'The longest a wallet call may take. The daemon''s own timeout must not exceed it.';
comment on column paylatch.channel.can_resend is 'The provider treats a second send of the same number as the same charge.';
comment on column paylatch.channel.can_close_charge is 'The provider can refuse a number for good (POST /charges/{order_no}/close).';
comment on column paylatch.channel.resend_window_ms is 'How long the provider remembers its idempotency keys; past it only questions are asked.';
comment on column paylatch.channel.not_found_final_after_ms is 'NOT_FOUND is final once it has been the answer for so long after the last send; null: never, the flow freezes instead.';
comment on column paylatch.channel.webhook_trust is 'hint: a webhook only has the wallet asked. evidence: a signed SUCCEEDED that echoes number, amount and currency decides at once.';
comment on column paylatch.channel.webhook_keep_days is 'Applied webhook events leave after so many days; those that wait stay.';

-- Moving parts of a channel, apart from its settings so that these stay still.
create table paylatch.channel_state (
    channel text primary key references paylatch.channel on delete cascade,
    breaker text not null default 'closed'
        constraint breaker_known check (breaker in ('closed', 'open', 'half_open')),
    failures integer not null default 0,
    moved_at timestamptz,
    probes_left integer not null default 0,
    tokens_milli bigint not null default 0,
    filled_at timestamptz,
    in_flight integer not null default 0
        constraint in_flight_not_negative check (in_flight >= 0)
) with (fillfactor = 20);
comment on table paylatch.channel_state is 'Breaker, bucket and calls under way of each channel; kept by claim_actions and report_evidence.';

create table paylatch.scene (
    scene text primary key
        constraint scene_name check (scene ~ '^[a-z][a-z0-9_]{0,31}$'),
    channel text not null references paylatch.channel,
    order_prefix text not null unique
        constraint order_prefix_shape check (paylatch.is_order_prefix(order_prefix)),
    business_mode text not null
        constraint business_mode_known check (business_mode in ('sql', 'http', 'none')),
    business_target text
        constraint business_target_present check ((business_mode = 'none') = (business_target is null)),
    business_can_close boolean not null default false,
    business_timeout_ms integer not null default 5000
        constraint business_timeout_positive check (business_timeout_ms between 1 and 600000),
    default_deadline_ms bigint not null default 900000
        constraint default_deadline_positive check (default_deadline_ms between 1 and 31622400000),
    biz_grace_ms bigint not null default 15000
        constraint biz_grace_bounded check (biz_grace_ms between 1 and 2592000000),
    retry_base_ms integer not null default 1000
        constraint retry_base_positive check (retry_base_ms > 0),
    retry_factor_percent integer not null default 200
        constraint retry_factor_grows check (retry_factor_percent between 100 and 1000),
    retry_max_ms integer not null default 60000,
    retry_jitter_percent integer not null default 20
        constraint retry_jitter_is_percent check (retry_jitter_percent between 0 and 100),
    max_auto_retries integer not null default 20
        constraint max_auto_retries_positive check (max_auto_retries > 0),
    slow_interval_ms bigint not null default 300000
        constraint slow_interval_positive check (slow_interval_ms between 1 and 2592000000),
    refund_max_failures integer not null default 3
        constraint refund_max_failures_positive check (refund_max_failures > 0),
    refund_approval_above bigint
        constraint refund_approval_not_negative check (refund_approval_above >= 0),
    entry_open boolean not null default true,
    volatile_fields text[] not null default '{}'
        constraint volatile_fields_named check (array_position(volatile_fields, null) is null),
    constraint biz_grace_exceeds_timeout check (biz_grace_ms > business_timeout_ms),
    constraint retry_max_reaches_base check (retry_max_ms >= retry_base_ms)
);
comment on table paylatch.scene is 'A kind of business that is paid for: its channel, who does the business, and how patient to be.';
comment on column paylatch.scene.order_prefix is 'First part of every order number of the scene: a letter and one or two of a-z0-9. Never reuse one.';
comment on column paylatch.scene.business_mode is 'sql: functions <target>_execute, _fact, _close in this database; http: [business.TARGET] of the daemon''s configuration; none: being charged is the whole business.';
comment on column paylatch.scene.biz_grace_ms is 'After the deadline an execution may still be under way for so long; must exceed business_timeout_ms.';
comment on column paylatch.scene.max_auto_retries is 'After so many tries in one state a flow moves to the slow interval and needs attention; while the business cannot be asked, it freezes.';
comment on column paylatch.scene.refund_approval_above is 'Once a payment''s refunds come to more than this, in minor units, each further one waits for approve_refund(); null: none does, 0: all do.';
comment on column paylatch.scene.entry_open is 'false: no new flow; flows under way still finish.';
comment on column paylatch.scene.volatile_fields is 'Top-level fields of the payload that may differ when a request is repeated under its idempotency key.';

create table paylatch.asset (
    asset text primary key
        constraint asset_shape check (asset ~ '^[A-Z][A-Z0-9]{2,11}$')
        constraint asset_is_not_iso check (paylatch.minor_unit_digits(asset) is null),
    digits smallint not null
        constraint digits_reasonable check (digits between 0 and 9)
);
comment on table paylatch.asset is 'Assets beside ISO 4217 (points, coins) and their digits behind the point.';

create table paylatch.armed (
    only_row boolean primary key default true constraint one_row check (only_row),
    system_identifier bigint not null,
    database_name text not null,
    armed_at timestamptz not null,
    armed_by text not null,
    note text
);
comment on table paylatch.armed is 'The cluster and database that may hand out actions. A copy differs from it and charges nobody until an operator calls arm().';
insert into paylatch.armed (system_identifier, database_name, armed_at, armed_by, note)
values (paylatch.system_identifier(), current_database(), paylatch.clock(), session_user, 'first migration');

create trigger t10_state after insert on paylatch.channel
    for each row execute function paylatch.on_channel_insert();
create trigger t10_target before insert or update on paylatch.scene
    for each row execute function paylatch.check_scene();
create trigger t11_kept before update or delete on paylatch.scene
    for each row execute function paylatch.keep_policy();
create trigger t11_kept before update or delete on paylatch.channel
    for each row execute function paylatch.keep_policy();
create trigger t12_no_truncate before truncate on paylatch.scene
    for each statement execute function paylatch.refuse_truncate();
create trigger t12_no_truncate before truncate on paylatch.channel
    for each statement execute function paylatch.refuse_truncate();
create trigger t10_kept before delete on paylatch.channel_state
    for each row when (pg_trigger_depth() = 0) execute function paylatch.refuse_direct();
create trigger t11_no_truncate before truncate on paylatch.channel_state
    for each statement execute function paylatch.refuse_truncate();
