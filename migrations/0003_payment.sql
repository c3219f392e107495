-- The three records of fact and the queue of unfinished work.
--
-- pay_flow has no index on, and no predicate over, a column that changes: every update stays on its page (HOT) and
-- writes no index entry. `job` is the index of unfinished work, kept by trigger in the transaction of the change.
-- Autovacuum looks at orders and flows after a twentieth of them, not a fifth: with millions of rows the default comes once
-- a day, in one piece. The queue is small and turns over all the time, so it is looked at by count.
-- The fill factors leave room for the versions of a life in sets: measured, at 30 and 45 every update is HOT and a life
-- writes 3.5 KB of log; at 50 and 70 a third is not, and it writes 4.1 KB and takes more disk.
-- Columns that never change come first, so that an update's log record holds little more than what changed.
-- No foreign keys between these tables: orders and flows are never deleted, creation writes both under the order's
-- lock, and a reference check per flow and update would cost more than the update. verify() looks instead.

create sequence paylatch.order_id_seq as bigint;
create sequence paylatch.flow_id_seq as bigint maxvalue 8796093022207 cache 1;
create sequence paylatch.refund_id_seq as bigint;
create sequence paylatch.lease_token_seq as bigint;

create table paylatch.pay_order (
    order_id bigint primary key default nextval('paylatch.order_id_seq'),
    created_at timestamptz not null default paylatch.clock(),
    merchant_id text not null
        constraint merchant_id_length check (length(merchant_id) between 1 and 64),
    scene text not null,
    user_id text not null
        constraint user_id_length check (length(user_id) between 1 and 128),
    biz_key text not null
        constraint biz_key_length check (length(biz_key) between 1 and 160),
    version bigint not null default 0,
    updated_at timestamptz not null default paylatch.clock(),
    live_flow_id bigint,
    paid_flow_id bigint,
    refunded_amount bigint not null default 0
        constraint order_refunded_not_negative check (refunded_amount >= 0),
    attempt_count integer not null default 0,
    status paylatch.order_status not null default 'PENDING',
    -- What differs most comes first: an entry is found after fewer comparisons.
    constraint one_order_per_target unique (user_id, biz_key, scene, merchant_id)
) with (fillfactor = 45, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05,
        autovacuum_analyze_scale_factor = 0.02);
comment on table paylatch.pay_order is 'The business target, long-lived. A projection of its attempts: only their triggers change it.';

create table paylatch.pay_flow (
    flow_id bigint primary key,
    order_id bigint not null,
    amount paylatch.amount not null,
    biz_deadline timestamptz not null,
    created_at timestamptz not null default paylatch.clock(),
    attempt_no integer not null
        constraint attempt_positive check (attempt_no > 0),
    currency paylatch.currency_code not null,
    scene text not null,
    channel text not null,
    user_id text not null,
    trade_order_no text not null,
    payload paylatch.payload,
    -- what changes
    version bigint not null default 0,
    updated_at timestamptz not null default paylatch.clock(),
    charge_sent_at timestamptz,
    act_sent_at timestamptz,
    act_lease_until timestamptz,
    negative_since timestamptz,
    cancel_requested_at timestamptz,
    charged_amount bigint,
    refunded_amount bigint not null default 0,
    disputed_amount bigint not null default 0,
    retry_count integer not null default 0,
    negative_count integer not null default 0,
    last_latency_ms integer,
    act_unread boolean not null default false,
    status paylatch.flow_status not null default 'WAIT_PAY',
    last_action text,
    last_outcome text,
    last_error_class text,
    last_error_code text,
    channel_request_id text,
    frozen_reason text,
    log_hash bytea,
    constraint attempts_are_numbered unique (order_id, attempt_no),
    constraint charged_in_full check
        (charged_amount = amount or (charged_amount is null and status in ('WAIT_PAY', 'PAYING', 'PAY_FAIL'))),
    constraint refund_within_charge check
        (refunded_amount >= 0 and disputed_amount >= 0 and refunded_amount + disputed_amount <= amount),
    constraint ended_is_not_frozen check
        (frozen_reason is null or status in ('WAIT_PAY', 'PAYING', 'PAYED', 'REFUNDING'))
) with (fillfactor = 30, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05,
        autovacuum_analyze_scale_factor = 0.02);
comment on table paylatch.pay_flow is 'One payment attempt. Changed by commands through compare-and-set; guarded row by row.';
comment on column paylatch.pay_flow.amount is 'Minor units of currency, frozen at creation.';
comment on column paylatch.pay_flow.charged_amount is 'As evidenced, minor units; on PAY_FAIL only where a charge showed up later.';
comment on column paylatch.pay_flow.refunded_amount is 'Reserved and succeeded refunds, minor units.';
comment on column paylatch.pay_flow.disputed_amount is 'What disputes that are open or lost hold back, as far as refunds have left anything; minor units.';
comment on column paylatch.pay_flow.act_unread is 'This state''s act (charge, execute, refund) was announced and no answer has settled what became of it.';
comment on column paylatch.pay_flow.act_lease_until is 'End of the last lease in which that act could have left.';
comment on column paylatch.pay_flow.frozen_reason is 'Not null: no automatic action until an operator decides.';
comment on column paylatch.pay_flow.payload is 'Opaque to paylatch, passed to wallet and business; at most 8 KiB; never a card number.';
comment on column paylatch.pay_flow.log_hash is 'Hash of the newest log row of this flow; the head of its chain.';

create table paylatch.refund (
    refund_id bigint primary key default nextval('paylatch.refund_id_seq'),
    flow_id bigint not null,
    amount paylatch.amount not null,
    created_at timestamptz not null default paylatch.clock(),
    kind text not null
        constraint refund_kind_known check (kind in ('COMPENSATION', 'AFTER_SALE', 'RECON', 'EXTERNAL')),
    currency paylatch.currency_code not null,
    refund_order_no text not null
        constraint one_refund_per_number unique
        constraint refund_number_shape check (refund_order_no ~ '^[0-9a-z_]{6,32}$'),
    reason text
        constraint refund_reason_length check (length(reason) between 1 and 500),
    requested_by text
        constraint requested_by_length check (length(requested_by) between 1 and 128),
    requested_login text,
    external_no text
        constraint external_no_length check (length(external_no) between 1 and 128),
    charge_ref text,
    -- what changes
    version bigint not null default 0,
    updated_at timestamptz not null default paylatch.clock(),
    act_sent_at timestamptz,
    act_lease_until timestamptz,
    negative_since timestamptz,
    retry_count integer not null default 0,
    negative_count integer not null default 0,
    last_latency_ms integer,
    act_unread boolean not null default false,
    status paylatch.refund_status not null default 'PENDING',
    decided_by text,
    last_action text,
    last_outcome text,
    last_error_class text,
    last_error_code text,
    channel_request_id text,
    frozen_reason text,
    log_hash bytea,
    constraint external_is_named check ((kind = 'EXTERNAL') = (external_no is not null)),
    constraint ended_refund_is_not_frozen check (frozen_reason is null or status = 'PENDING')
) with (fillfactor = 70);
comment on table paylatch.refund is 'One refund of one attempt. A COMPENSATION is the flow''s own undo and follows it; any other is a row with a job of its own.';
comment on column paylatch.refund.requested_by is 'Who asked, in the application''s own terms. Whoever it is never approves it.';
comment on column paylatch.refund.requested_login is 'The database login that asked; it never approves the refund either.';
comment on column paylatch.refund.external_no is 'The provider''s own number of a refund that was made elsewhere.';
comment on column paylatch.refund.charge_ref is 'The wallet''s own reference of the charge, as it was known when the refund began.';
comment on column paylatch.refund.decided_by is 'The login that approved or rejected it.';
-- It covers the look for a flow's refunds and no column that changes.
create index refund_of_flow on paylatch.refund (flow_id);
create unique index one_external_refund on paylatch.refund (flow_id, external_no) where external_no is not null;

create table paylatch.dispute (
    flow_id bigint not null,
    dispute_no text not null
        constraint dispute_no_length check (length(dispute_no) between 1 and 128),
    amount paylatch.amount not null,
    state text not null
        constraint dispute_state_known check (state in ('OPEN', 'WON', 'LOST')),
    opened_at timestamptz not null default paylatch.clock(),
    updated_at timestamptz not null default paylatch.clock(),
    reported_by text not null default paylatch.log_actor(),
    primary key (flow_id, dispute_no)
);
comment on table paylatch.dispute is 'Charges that customers dispute with their bank, by the provider''s number. OPEN and LOST ones lower what can be refunded.';
create index dispute_open on paylatch.dispute (flow_id) where state = 'OPEN';

create table paylatch.job (
    ref_id bigint not null,
    kind text collate "C" not null constraint job_kind_known check (kind in ('flow', 'refund', 'inquiry')),
    channel text collate "C" not null,
    lane text collate "C" not null constraint lane_known check (lane in ('new', 'ask', 'biz', 'refund')),
    due_at timestamptz not null,
    leased_at timestamptz,
    lease_token bigint,
    woken boolean not null default false,
    lease_holder text,
    action text,
    tries integer,
    primary key (ref_id, kind)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.0, autovacuum_analyze_threshold = 50000);
comment on table paylatch.job is 'The queue, and the index of unfinished work: one row per unfinished flow or refund, and per inquiry about a flow that ended as not charged. While leased, due_at is the lease''s end.';
comment on column paylatch.job.tries is 'Of an inquiry, which has no other row; flows and refunds count in their own.';
comment on column paylatch.job.woken is 'Somebody woke it while its call was out; it is due when that is reported.';
create index job_due on paylatch.job (channel, lane, due_at);

-- Guards first (t10), then what follows from a change, in sets and in lock order: log (t50), refund, reservation and
-- incident (t60), order (t70), job (t80).
create trigger t10_guard before insert or update or delete on paylatch.pay_flow
    for each row execute function paylatch.guard_flow();
create trigger t11_no_truncate before truncate on paylatch.pay_flow
    for each statement execute function paylatch.refuse_truncate();
create trigger t50_log_insert after insert on paylatch.pay_flow referencing new table as new_row
    for each statement execute function paylatch.journal();
create trigger t50_log_update after update on paylatch.pay_flow referencing old table as old_row new table as new_row
    for each statement execute function paylatch.journal();
create trigger t60_aside_update after update on paylatch.pay_flow referencing old table as old_row new table as new_row
    for each statement execute function paylatch.on_flow_update_aside();
create trigger t70_order_insert after insert on paylatch.pay_flow referencing new table as new_row
    for each statement execute function paylatch.on_flow_insert_order();
create trigger t70_order_update after update on paylatch.pay_flow referencing old table as old_row new table as new_row
    for each statement execute function paylatch.on_flow_update_order();
create trigger t80_job_insert after insert on paylatch.pay_flow referencing new table as new_row
    for each statement execute function paylatch.on_flow_insert_job();
create trigger t80_job_update after update on paylatch.pay_flow referencing new table as new_row
    for each statement execute function paylatch.on_flow_update_job();

create trigger t05_projection_only before update on paylatch.pay_order
    for each row when (pg_trigger_depth() = 0) execute function paylatch.refuse_direct();
create trigger t10_guard before insert or update or delete on paylatch.pay_order
    for each row execute function paylatch.guard_order();
create trigger t11_no_truncate before truncate on paylatch.pay_order
    for each statement execute function paylatch.refuse_truncate();

create trigger t10_guard before insert or update or delete on paylatch.refund
    for each row execute function paylatch.guard_refund();
create trigger t11_no_truncate before truncate on paylatch.refund
    for each statement execute function paylatch.refuse_truncate();
create trigger t50_log after insert on paylatch.refund referencing new table as new_row
    for each statement execute function paylatch.journal();
create trigger t50_log_update after update on paylatch.refund referencing old table as old_row new table as new_row
    for each statement execute function paylatch.journal();
create trigger t60_held_insert after insert on paylatch.refund referencing new table as new_row
    for each statement execute function paylatch.on_refund_insert_held();
create trigger t60_aside_update after update on paylatch.refund referencing old table as old_row new table as new_row
    for each statement execute function paylatch.on_refund_update_aside();
create trigger t70_order_insert after insert on paylatch.refund referencing new table as new_row
    for each statement execute function paylatch.on_refund_insert_order();
create trigger t70_order_update after update on paylatch.refund referencing old table as old_row new table as new_row
    for each statement execute function paylatch.on_refund_update_order();
create trigger t80_job_insert after insert on paylatch.refund referencing new table as new_row
    for each statement execute function paylatch.on_refund_insert_job();
create trigger t80_job_update after update on paylatch.refund referencing new table as new_row
    for each statement execute function paylatch.on_refund_update_job();

create trigger t10_guard before update or delete on paylatch.dispute
    for each row execute function paylatch.guard_dispute();
create trigger t11_no_truncate before truncate on paylatch.dispute
    for each statement execute function paylatch.refuse_truncate();
create trigger t60_held_insert after insert on paylatch.dispute referencing new table as new_row
    for each statement execute function paylatch.on_dispute_held();
create trigger t60_held_update after update on paylatch.dispute referencing new table as new_row
    for each statement execute function paylatch.on_dispute_held();

create trigger t10_guard after delete on paylatch.job referencing old table as old_row
    for each statement execute function paylatch.guard_job_delete();
create trigger t11_no_truncate before truncate on paylatch.job
    for each statement execute function paylatch.refuse_truncate();
create trigger t12_guard_identity before update of kind, ref_id on paylatch.job
    for each row execute function paylatch.refuse_direct();
