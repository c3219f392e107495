-- Idempotency keys, by day; which login acts for which merchant; tokens of the HTTP API.

create table paylatch.idempotency_key (
    flow_id bigint not null,
    refund_id bigint,
    created_at timestamptz not null,
    merchant_id text not null,
    operation text not null
        constraint key_operation_known check (operation in ('create_pay_flow', 'request_refund')),
    key text not null
        constraint key_length check (length(key) between 1 and 255),
    fingerprint bytea not null
        constraint fingerprint_length check (octet_length(fingerprint) = 16),
    left_out text[],
    asked jsonb
) partition by range (created_at);
comment on table paylatch.idempotency_key is 'What each key was used for; append-only. Unique on (merchant_id, key) in each day, and over all days by the lock that is held while one is used. Whole days go once all they made has ended paylatch.key_ttl_hours ago.';
comment on column paylatch.idempotency_key.left_out is 'The scene''s volatile fields of the payload, where it had any.';
comment on column paylatch.idempotency_key.asked is 'Amount, currency and payload, where the request found a flow that says otherwise; null where the flow says the same.';

create trigger t10_guard before update or delete on paylatch.idempotency_key
    for each row execute function paylatch.guard_append_only();
create trigger t11_no_truncate before truncate on paylatch.idempotency_key
    for each statement execute function paylatch.refuse_truncate();
alter table paylatch.idempotency_key enable always trigger t10_guard;
alter table paylatch.idempotency_key enable always trigger t11_no_truncate;
select paylatch.make_key_partitions(paylatch.clock());

create table paylatch.merchant_login (
    login name primary key,
    merchant_id text not null
        constraint merchant_id_length check (length(merchant_id) between 1 and 64)
);
comment on table paylatch.merchant_login is 'Logins that act for one merchant only; one that is not here may name any. Filled in by an administrator.';
create trigger t11_no_truncate before truncate on paylatch.merchant_login
    for each statement execute function paylatch.refuse_truncate();

create table paylatch.api_token (
    token_id bigint generated always as identity primary key,
    merchant_id text not null
        constraint merchant_id_length check (length(merchant_id) between 1 and 64),
    name text not null
        constraint token_name_length check (length(name) between 1 and 64),
    digest bytea not null
        constraint one_token_per_digest unique
        constraint digest_is_sha256 check (octet_length(digest) = 32),
    rate_per_second integer
        constraint token_rate_positive check (rate_per_second between 1 and 1000000),
    created_at timestamptz not null,
    created_by text not null,
    revoked_at timestamptz,
    revoked_by text
);
comment on table paylatch.api_token is 'Bearer tokens of the HTTP API, by digest. Made and revoked, never changed or deleted.';
create trigger t10_guard before update or delete on paylatch.api_token
    for each row execute function paylatch.guard_token();
create trigger t11_no_truncate before truncate on paylatch.api_token
    for each statement execute function paylatch.refuse_truncate();
