-- What clients may see.

create type paylatch.flow_view as (
    flow_id bigint, order_id bigint, attempt_no integer, merchant_id text, scene text, channel text, user_id text,
    biz_key text, amount bigint, currency text, trade_order_no text, refund_order_no text, status text,
    client_status text, version bigint, charged_amount bigint, refunded_amount bigint, frozen_reason text,
    retry_count integer, last_error_class text, last_error_code text, biz_deadline timestamptz,
    created_at timestamptz, updated_at timestamptz, due_at timestamptz);

create function paylatch.get_pay_flow(flow_id bigint, merchant_id text default null) returns setof paylatch.flow_view
    language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_scope text;
begin
    perform paylatch.require_migrated();
    v_scope := paylatch.merchant_scope(get_pay_flow.merchant_id);
    return query
    select f.flow_id, f.order_id, f.attempt_no, o.merchant_id, f.scene, f.channel, f.user_id, o.biz_key,
           f.amount::bigint, f.currency::text, f.trade_order_no, paylatch.refund_order_no(f.trade_order_no),
           f.status::text, paylatch.client_status(f.status, f.frozen_reason is not null), f.version, f.charged_amount,
           f.refunded_amount, f.frozen_reason, f.retry_count, f.last_error_class, f.last_error_code, f.biz_deadline,
           f.created_at, f.updated_at, j.due_at
    from paylatch.pay_flow f
    join paylatch.pay_order o on o.order_id = f.order_id
    left join paylatch.job j on j.kind = 'flow' and j.ref_id = f.flow_id
    where f.flow_id = get_pay_flow.flow_id and (v_scope is null or o.merchant_id = v_scope);
end $$;
comment on function paylatch.get_pay_flow(bigint, text) is
    'The flow as clients see it; no row where it does not exist, or belongs to another merchant than merchant_id (default: the login''s own, or any). client_status: PROCESSING, MANUAL_REVIEW, BIZ_SUCCESS, PAY_FAIL or REFUNDED. Amounts in minor units. Error: PL007.';

create function paylatch.find_pay_flow(trade_order_no text, merchant_id text default null) returns setof paylatch.flow_view
    language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
    -- A number names its flow, so no index is needed; a refund's number finds the flow it belongs to.
    return query select v.* from paylatch.get_pay_flow(paylatch.flow_id_of(find_pay_flow.trade_order_no), find_pay_flow.merchant_id) v
    where find_pay_flow.trade_order_no like '%' || v.trade_order_no;
end $$;
comment on function paylatch.find_pay_flow(text, text) is
    'The flow behind an order number, its charge''s or a refund''s; no row for a number that is not ours, or another merchant''s. Error: PL007.';

create function paylatch.get_pay_order(
    scene text, user_id text, biz_key text, merchant_id text default null,
    out order_id bigint, out status text, out attempt_count integer, out live_flow_id bigint, out paid_flow_id bigint,
    out refunded_amount bigint, out version bigint, out created_at timestamptz, out updated_at timestamptz)
    returns setof record language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_scope text;
begin
    perform paylatch.require_migrated();
    v_scope := coalesce(paylatch.merchant_scope(get_pay_order.merchant_id), 'default');
    return query
    select o.order_id, o.status::text, o.attempt_count, o.live_flow_id, o.paid_flow_id, o.refunded_amount, o.version,
           o.created_at, o.updated_at
    from paylatch.pay_order o
    where (o.merchant_id, o.scene, o.user_id, o.biz_key)
        = (v_scope, get_pay_order.scene, get_pay_order.user_id, get_pay_order.biz_key);
end $$;
comment on function paylatch.get_pay_order(text, text, text, text) is
    'The business target: PENDING, PROCESSING, PAID or REFUNDED, its attempts and the flow that paid it; no row where no attempt was ever made. merchant_id: default the login''s own, else default. Error: PL007.';
