-- The outbox: one narrow row per event, written by triggers in the transaction of the change itself (rule 12), and who
-- has published how far. Rows are only ever inserted, and leave with their day's partition.
--
-- No row says whether it was sent. Each sink keeps the ids it is done with as a multirange, and what is unsent lies in
-- the gaps of that; so a late commit with a low id is found like any other row. Nothing here says what an event says
-- either: events() builds that from the log row of (kind, ref_id, version, at) and from columns that never change.

-- Cache 1, always: a session that kept ids in stock would use them after their gap was closed. verify() looks.
create sequence paylatch.outbox_id_seq as bigint cache 1;

create table paylatch.outbox (
    outbox_id bigint not null default nextval('paylatch.outbox_id_seq'),
    at timestamptz not null,
    flow_id bigint not null,
    ref_id bigint not null,
    version bigint not null,
    order_refunded bigint,
    type text not null,
    order_from text
) partition by range (at);
comment on table paylatch.outbox is 'Insert-only: one row per event, by day. Written by triggers alone; type is kind.what, as flow.paying.';
comment on column paylatch.outbox.at is 'The time of the version, as the log row has it.';
comment on column paylatch.outbox.flow_id is 'Whose event it is: events of one flow are published in order.';
comment on column paylatch.outbox.ref_id is 'The flow, order or refund that changed.';
comment on column paylatch.outbox.order_refunded is 'Order events: refunded_amount in this version, which no log keeps.';
comment on column paylatch.outbox.order_from is 'Order events: the status before, which no log keeps.';
create index outbox_by_id on paylatch.outbox (outbox_id);

create trigger t05_by_triggers_only before insert on paylatch.outbox
    for each statement when (pg_trigger_depth() = 0) execute function paylatch.refuse_direct();
create trigger t10_guard before update or delete on paylatch.outbox
    for each row execute function paylatch.guard_append_only();
create trigger t11_no_truncate before truncate on paylatch.outbox
    for each statement execute function paylatch.refuse_truncate();
alter table paylatch.outbox enable always trigger t10_guard;
create trigger t90_outbox_insert after insert on paylatch.pay_order referencing new table as new_row
    for each statement execute function paylatch.journal();
create trigger t90_outbox after update on paylatch.pay_order referencing old table as old_row new table as new_row
    for each statement execute function paylatch.journal();

create table paylatch.outbox_policy (
    only_row boolean primary key default true constraint one_outbox_policy check (only_row),
    retention_ms bigint not null default 604800000
        constraint retention_bounded check (retention_ms between 3600000 and 31622400000),
    kept_from timestamptz not null
);
comment on table paylatch.outbox_policy is 'How long events are kept after every sink has published them, and since when all of them are here.';
comment on column paylatch.outbox_policy.retention_ms is 'A day''s events go once they are older than this and every sink is past them. For redelivery, and for sinks that begin in the past.';
comment on column paylatch.outbox_policy.kept_from is 'Days before this one were dropped. Kept by scan().';
insert into paylatch.outbox_policy (kept_from) values (date_trunc('day', paylatch.clock(), 'UTC'));

create sequence paylatch.relay_token_seq as bigint;

create table paylatch.outbox_sink (
    sink text primary key
        constraint sink_name check (sink ~ '^[a-z][a-z0-9_]{0,31}$'),
    created_at timestamptz not null default paylatch.clock(),
    created_by text not null,
    max_tries integer not null default 10
        constraint max_tries_positive check (max_tries between 1 and 1000),
    retry_base_ms integer not null default 1000
        constraint sink_retry_base_positive check (retry_base_ms between 1 and 3600000),
    retry_max_ms integer not null default 300000
        constraint sink_retry_max_bounded check (retry_max_ms between 1 and 86400000),
    -- what changes
    lease_token bigint,
    lease_until timestamptz,
    seen_id bigint,
    seen_xid xid8,
    relay text,
    done int8multirange not null
) with (fillfactor = 20);
comment on table paylatch.outbox_sink is 'Where events go: its name is the key of [relay.NAME] in the daemon''s configuration. done has every id that needs no more work.';
comment on column paylatch.outbox_sink.max_tries is 'So many failures of one event make it a dead letter.';
comment on column paylatch.outbox_sink.seen_id is 'Ids up to this one had been drawn when seen_xid was the newest transaction; once all up to that have ended, ids still missing never come.';
comment on column paylatch.outbox_sink.relay is 'Who holds the lease.';
create trigger t11_no_truncate before truncate on paylatch.outbox_sink
    for each statement execute function paylatch.refuse_truncate();

create table paylatch.outbox_retry (
    sink text not null references paylatch.outbox_sink on delete cascade,
    outbox_id bigint not null,
    flow_id bigint not null,
    tries integer not null,
    due_at timestamptz not null,
    error text not null,
    primary key (sink, outbox_id)
);
comment on table paylatch.outbox_retry is 'Events that a sink''s counterparty refused, until they are taken or dead. Later events of their flows wait.';
create index outbox_retry_of_flow on paylatch.outbox_retry (sink, flow_id);

create table paylatch.dead_letter (
    sink text not null references paylatch.outbox_sink on delete cascade,
    outbox_id bigint not null,
    died_at timestamptz not null,
    tries integer not null,
    error text not null,
    envelope json not null,
    primary key (sink, outbox_id)
);
comment on table paylatch.dead_letter is 'Events that a sink gave up on, whole, so that they outlive their partition. redeliver() takes them out.';
create trigger t11_no_truncate before truncate on paylatch.dead_letter
    for each statement execute function paylatch.refuse_truncate();

select paylatch.make_outbox_partitions(paylatch.clock());

-- Merchants' webhooks: where their events go, and what became of each.

create table paylatch.webhook_endpoint (
    endpoint_id bigint generated always as identity primary key,
    created_at timestamptz not null,
    merchant_id text not null
        constraint merchant_id_length check (length(merchant_id) between 1 and 64),
    created_by text not null,
    url text not null
        constraint url_is_http check (url ~ '^https?://' and length(url) <= 2000),
    events text[],
    secret text not null,
    previous_secret text,
    previous_until timestamptz,
    -- what changes
    disabled_at timestamptz,
    disabled_by text,
    disabled_why text,
    failures integer not null default 0,
    paused_until timestamptz,
    lease_token bigint,
    lease_until timestamptz,
    lease_holder text
) with (fillfactor = 50);
comment on table paylatch.webhook_endpoint is 'Where a merchant''s events are sent, and the secrets they are signed with: two while one replaces the other.';
comment on column paylatch.webhook_endpoint.events is 'Types, as order.paid or refund.*; null: all.';
comment on column paylatch.webhook_endpoint.failures is 'Tries in a row that failed; while paused_until nobody knocks.';
create trigger t11_no_truncate before truncate on paylatch.webhook_endpoint
    for each statement execute function paylatch.refuse_truncate();

create table paylatch.delivery (
    delivery_id bigint generated always as identity primary key,
    endpoint_id bigint not null references paylatch.webhook_endpoint,
    flow_id bigint not null,
    created_at timestamptz not null,
    event_id text not null,
    type text not null,
    body text not null,
    -- what changes
    due_at timestamptz not null,
    ended_at timestamptz,
    tries integer not null default 0,
    last_status integer,
    status text not null default 'pending'
        constraint delivery_status_known check (status in ('pending', 'delivered', 'dead')),
    last_error text,
    constraint one_delivery_per_event unique (endpoint_id, event_id)
);
comment on table paylatch.delivery is 'One event on its way to one endpoint. body is what is sent, byte for byte. Kept for 30 days.';
create index delivery_pending on paylatch.delivery (endpoint_id, delivery_id) where status = 'pending';
create index delivery_open on paylatch.delivery (status) where status in ('pending', 'dead');
create index delivery_created on paylatch.delivery (created_at);
create index delivery_of_event on paylatch.delivery (event_id);
create trigger t11_no_truncate before truncate on paylatch.delivery
    for each statement execute function paylatch.refuse_truncate();

create table paylatch.delivery_attempt (
    attempt_id bigint generated always as identity primary key,
    delivery_id bigint not null references paylatch.delivery on delete cascade,
    at timestamptz not null,
    status integer,
    took_ms integer,
    driver text not null,
    error text
);
comment on table paylatch.delivery_attempt is 'Every try of a delivery: the HTTP status, or why there is none. Goes with its delivery.';
create index attempt_of_delivery on paylatch.delivery_attempt (delivery_id);
create trigger t10_guard before update on paylatch.delivery_attempt
    for each row execute function paylatch.guard_append_only();
create trigger t12_kept before delete on paylatch.delivery_attempt
    for each row when (pg_trigger_depth() = 0) execute function paylatch.refuse_direct();
create trigger t11_no_truncate before truncate on paylatch.delivery_attempt
    for each statement execute function paylatch.refuse_truncate();
