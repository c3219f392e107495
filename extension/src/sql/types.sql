-- Domains and row types. They hold no data; tables in migrations use the domains, commands pass the row types.
-- The order of columns in the row types is read by position in Rust (steps.rs, budgets.rs); change both together.

create domain paylatch.flow_status as text
    constraint flow_status_known check (value in
        ('WAIT_PAY', 'PAYING', 'PAYED', 'BIZ_SUCCESS', 'REFUNDING', 'REFUNDED', 'PAY_FAIL'));
create domain paylatch.order_status as text
    constraint order_status_known check (value in ('PENDING', 'PROCESSING', 'PAID', 'REFUNDED'));
create domain paylatch.refund_status as text
    constraint refund_status_known check (value in ('REQUESTED', 'PENDING', 'SUCCEEDED', 'FAILED', 'REJECTED'));
create domain paylatch.amount as bigint
    constraint amount_positive check (value > 0);
create domain paylatch.currency_code as text
    constraint currency_code_shape check (value ~ '^[A-Z][A-Z0-9]{2,11}$');
-- Checked when a value comes in, not at every update of its row as a table constraint would be.
create domain paylatch.payload as jsonb
    constraint payload_small check (octet_length(value::text) <= 8192);

-- The row as decisions see it, and when it was last changed.
create type paylatch.flow_facts as (
    flow_id bigint, version bigint, scene text, channel text, trade_order_no text, amount bigint, currency text,
    status text, frozen boolean, retry_count integer, act_unread boolean, act_sent_at timestamptz,
    act_lease_until timestamptz, negative_count integer, negative_since timestamptz, last_outcome text,
    deadline timestamptz, cancelled boolean, updated_at timestamptz);

-- The row of a refund that is no compensation, as decisions see it; scene and channel are its flow's.
create type paylatch.refund_facts as (
    refund_id bigint, version bigint, scene text, channel text, refund_order_no text, amount bigint, currency text,
    status text, frozen boolean, retry_count integer, act_unread boolean, act_sent_at timestamptz,
    act_lease_until timestamptz, negative_count integer, negative_since timestamptz, last_outcome text,
    kind text, flow_id bigint);

-- The settings of a scene and its channel.
create type paylatch.policy as (
    business_mode text, business_can_close boolean, biz_grace_ms bigint, retry_base_ms integer,
    retry_factor_percent integer, retry_max_ms integer, retry_jitter_percent integer, max_auto_retries integer,
    slow_interval_ms bigint, refund_max_failures integer, can_resend boolean, can_close_charge boolean,
    resend_window_ms bigint, not_found_final_after_ms bigint);

-- The same, of one scene with one channel.
create type paylatch.rules as (
    scene text, channel text, call_timeout_ms integer, business_timeout_ms integer, business_target text,
    policy paylatch.policy);

-- What came back for one flow, or for one refund of it. The first seven columns decide; the rest is kept for people.
create type paylatch.told as (
    action text, outcome text, asked_at timestamptz, order_no text, amount bigint, currency text, owner text,
    flow_id bigint, code text, request_id text, latency_ms integer, refund_id bigint);

-- One step of one row, planned on `version`: the row after it, and what to do with it. A row's steps follow each other by
-- `turn`; settled: nothing more follows without something from outside; in_place: its action is done in this database.
-- kind: flow, refund (refund_id says which) or inquiry, as in job. told: it follows from an answer, of which code,
-- request_id (a wallet's) and latency_ms are kept. timeout_ms and business_target: of the call that leaves.
create type paylatch.planned as (
    kind text, flow_id bigint, refund_id bigint, version bigint, turn integer, settled boolean, in_place boolean,
    told boolean, code text, request_id text, latency_ms integer,
    status text, froze text, error_class text, logged_action text, changed boolean, action text, due_at timestamptz,
    retry_count integer, act_unread boolean, act_sent_at timestamptz, act_lease_until timestamptz,
    negative_count integer, negative_since timestamptz, last_outcome text, lane text, timeout_ms integer,
    business_target text);

-- A channel's settings and moving parts, and what may be handed out.
create type paylatch.limits as (
    max_in_flight integer, rate_per_second integer, ramp_ms bigint, refund_share_percent integer,
    breaker_threshold integer, breaker_open_ms bigint, breaker_probes integer);
create type paylatch.breaker as (
    breaker text, failures integer, moved_at timestamptz, probes_left integer, tokens_milli bigint,
    filled_at timestamptz, in_flight integer);
create type paylatch.grant_given as (
    total integer, refunds_first integer, questions_only boolean, breaker text, failures integer,
    moved_at timestamptz, probes_left integer, tokens_milli bigint, filled_at timestamptz, in_flight integer);

-- One action on its way out.
create type paylatch.handout as (
    flow_id bigint, lease_token bigint, version bigint, action text, channel text, scene text, business_target text,
    order_no text, refund_no text, merchant_id text, user_id text, biz_key text, attempt_no integer, amount bigint,
    currency text, valid_until timestamptz, send_within_ms integer, payload jsonb, refund_id bigint, channel_ref text,
    charge_ref text, sent_at timestamptz);

-- One event, whole. envelope is what is published.
create type paylatch.event as (
    outbox_id bigint, event_id text, type text, flow_id bigint, merchant_id text, version bigint, at timestamptz,
    envelope json);
