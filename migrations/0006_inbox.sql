-- The inbox: events that wallets sent. Received and applied are separate facts, so nothing that a wallet told is lost,
-- whatever becomes of it.

create table paylatch.webhook_event (
    flow_id bigint,
    received_at timestamptz not null,
    amount bigint,
    occurred_at timestamptz,
    key_index smallint not null,
    channel text not null,
    event_id text not null
        constraint event_id_length check (length(event_id) between 1 and 200),
    event_type text not null
        constraint event_type_length check (length(event_type) between 1 and 100),
    about text not null
        constraint event_about_known check (about in ('charge', 'refund', 'dispute', 'other')),
    number text,
    status text
        constraint event_status_known check (status in ('SUCCEEDED', 'FAILED', 'PROCESSING')),
    currency text,
    request_id text,
    external_no text,
    dispute text
        constraint event_dispute_known check (dispute in ('OPEN', 'WON', 'LOST')),
    headers jsonb,
    body bytea not null
        constraint event_body_bounded check (octet_length(body) <= 1048576),
    -- what changes
    last_received_at timestamptz not null,
    applied_at timestamptz,
    times_received integer not null default 1
        constraint times_received_positive check (times_received > 0),
    tries integer not null default 0,
    applied_as text,
    error text,
    constraint one_event_per_id primary key (channel, event_id),
    constraint applied_as_something check ((applied_at is null) = (applied_as is null))
) with (fillfactor = 80);
comment on table paylatch.webhook_event is 'Every event that a wallet sent with a signature that holds, under its own id. Kept until applied, and then for channel.webhook_keep_days.';
comment on column paylatch.webhook_event.flow_id is 'The flow that its number names, whether or not there is one; null where the number is not ours.';
comment on column paylatch.webhook_event.body is 'As it was received, byte for byte; with headers enough to check the signature again.';
comment on column paylatch.webhook_event.key_index is 'Which of the channel''s secrets signed it, from 0.';
comment on column paylatch.webhook_event.times_received is 'How often it came; every time but the first changed nothing else.';
comment on column paylatch.webhook_event.applied_at is 'Null: it waits for its flow, for its flow''s end, or (error) for another try.';
comment on column paylatch.webhook_event.applied_as is 'What it did: receive_webhooks() lists the words.';

-- What waits, by flow: creation and scan() look here, and it is empty most of the time.
create index webhook_waiting on paylatch.webhook_event (flow_id) where applied_at is null;
create index webhook_received_at on paylatch.webhook_event using brin (received_at) with (pages_per_range = 32);

create trigger t10_guard before update or delete on paylatch.webhook_event
    for each row execute function paylatch.guard_webhook_event();
create trigger t11_no_truncate before truncate on paylatch.webhook_event
    for each statement execute function paylatch.refuse_truncate();
