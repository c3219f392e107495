-- Creating payment attempts. One call and a batch take the same path.
--
-- Lock order: creation starts at the order, in key order, and touches no existing flow. Under the order's lock it is
-- checked whether an attempt may begin, which number it gets, and it is written with its job and log.

create type paylatch.request as (
    ordinal integer, scene text, user_id text, biz_key text, amount bigint, currency text, merchant_id text,
    biz_deadline timestamptz, payload jsonb);

create type paylatch.created as (
    ordinal integer, outcome text, flow_id bigint, order_id bigint, attempt_no integer, trade_order_no text,
    refund_order_no text, client_status text, version bigint, poll_after_ms integer);

create function paylatch.check_requests(p_requests paylatch.request[], p_now timestamptz) returns void language plpgsql as $$
declare
    v record;
begin
    -- One cheap look at all of them; only a bad set is worth finding the words for.
    if not exists (
        select from unnest(p_requests) r
        left join paylatch.scene s on s.scene = r.scene
        left join paylatch.asset a on a.asset = r.currency
        where (s.scene is not null and length(r.user_id) between 1 and 128 and length(r.biz_key) between 1 and 160
               and length(r.merchant_id) between 1 and 64 and r.amount > 0
               and (paylatch.minor_unit_digits(r.currency) is not null or a.asset is not null)
               and (r.biz_deadline is null or r.biz_deadline > p_now)
               and (r.payload is null or octet_length(r.payload::text) <= 8192)) is not true) then
        return;
    end if;
    select r.ordinal, x.field, x.says, x.code into v
    from unnest(p_requests) r
    left join paylatch.scene s on s.scene = r.scene
    left join paylatch.asset a on a.asset = r.currency
    cross join lateral (values
        ('scene', 'PL005', case when s.scene is null
            then format('scene %L is unknown; an administrator adds it to paylatch.scene', r.scene) end),
        ('user_id', 'PL004', case when coalesce(length(r.user_id), 0) not between 1 and 128 then 'give 1 to 128 characters' end),
        ('biz_key', 'PL004', case when coalesce(length(r.biz_key), 0) not between 1 and 160 then 'give 1 to 160 characters' end),
        ('merchant_id', 'PL004', case when coalesce(length(r.merchant_id), 0) not between 1 and 64 then 'give 1 to 64 characters' end),
        ('amount', 'PL004', case when coalesce(r.amount, 0) <= 0 then 'give a positive number of minor units' end),
        ('currency', 'PL004', case when r.currency is null
                or (paylatch.minor_unit_digits(r.currency) is null and a.asset is null)
            then format('%L is neither an ISO 4217 currency with minor units nor in paylatch.asset', r.currency) end),
        ('biz_deadline', 'PL004', case when r.biz_deadline <= p_now then 'it has passed; give a later time' end),
        ('payload', 'PL004', case when octet_length(r.payload::text) > 8192 then 'more than 8 KiB; store it elsewhere and pass a reference' end)
    ) x(field, code, says)
    where x.says is not null
    order by r.ordinal limit 1;
    if found then
        raise exception using errcode = v.code, message = format('%s: %s', v.field, v.says),
            detail = jsonb_build_object('field', v.field, 'ordinal', v.ordinal)::text;
    end if;
end $$;
comment on function paylatch.check_requests(paylatch.request[], timestamptz) is 'Raises PL004 or PL005 for the first bad request, naming its field and ordinal.';

create function paylatch.create_set(p_requests paylatch.request[]) returns setof paylatch.created language plpgsql as $$
declare
    v_now timestamptz := paylatch.clock();
    v_new bigint;
begin
    perform paylatch.check_requests(p_requests, v_now);
    insert into paylatch.pay_order (merchant_id, scene, user_id, biz_key)
    select distinct r.merchant_id, r.scene, r.user_id, r.biz_key
    from unnest(p_requests) r join paylatch.scene s on s.scene = r.scene
    where s.entry_open
    order by 1, 2, 3, 4
    on conflict on constraint one_order_per_target do nothing;
    get diagnostics v_new = row_count;

    -- The short lock of creation; an order that this very statement made is nobody else's yet. A statement of its own, so
    -- that it sees the orders that others have just committed.
    if v_new < cardinality(p_requests) then
        perform from paylatch.pay_order o
        join unnest(p_requests) r on (o.merchant_id, o.scene, o.user_id, o.biz_key) = (r.merchant_id, r.scene, r.user_id, r.biz_key)
        order by o.merchant_id, o.scene, o.user_id, o.biz_key
        for update of o;
    end if;

    return query
    with asked as (
        select r.*, o.order_id, o.status as order_status, o.attempt_count, o.live_flow_id, o.paid_flow_id, s.entry_open,
               s.channel, s.order_prefix,
               coalesce(r.biz_deadline, v_now + make_interval(secs => s.default_deadline_ms / 1000.0)) as deadline,
               row_number() over (partition by o.order_id order by r.ordinal) as nth
        from unnest(p_requests) r
        join paylatch.scene s on s.scene = r.scene
        left join paylatch.pay_order o on (o.merchant_id, o.scene, o.user_id, o.biz_key) = (r.merchant_id, r.scene, r.user_id, r.biz_key)
    ), numbered as materialized (
        select a.*, paylatch.flow_id_from(nextval('paylatch.flow_id_seq')) as new_flow_id
        from (select * from asked where entry_open and order_status = 'PENDING' and nth = 1 order by ordinal) a
    ), made as (
        insert into paylatch.pay_flow (flow_id, order_id, attempt_no, amount, currency, scene, channel, user_id,
                                       trade_order_no, biz_deadline, payload)
        select n.new_flow_id, n.order_id, n.attempt_count + 1, n.amount, n.currency, n.scene, n.channel, n.user_id,
               paylatch.trade_order_no(n.order_prefix, n.user_id, n.new_flow_id), n.deadline, n.payload
        from numbered n
        returning flow_id, order_id, attempt_no, trade_order_no, status, version
    )
    select a.ordinal,
           case when m.flow_id is not null and a.nth = 1 then 'created'
                when m.flow_id is not null or a.order_status = 'PROCESSING' then 'in_flight'
                when a.order_status = 'PAID' then 'already_paid'
                when a.order_status = 'REFUNDED' then 'refunded_already'
                else 'closed' end,
           coalesce(m.flow_id, f.flow_id), a.order_id, coalesce(m.attempt_no, f.attempt_no),
           coalesce(m.trade_order_no, f.trade_order_no),
           paylatch.refund_order_no(coalesce(m.trade_order_no, f.trade_order_no)),
           paylatch.client_status(coalesce(m.status, f.status), f.frozen_reason is not null),
           coalesce(m.version, f.version),
           case when m.flow_id is not null or a.order_status = 'PROCESSING' then 1000 end
    from asked a
    left join made m on m.order_id = a.order_id
    left join paylatch.pay_flow f on f.flow_id = coalesce(a.live_flow_id, a.paid_flow_id)
    order by a.ordinal;
end $$;
comment on function paylatch.create_set(paylatch.request[]) is
    'Creates an attempt for each request whose order has none and is not paid, in a handful of statements. Upholds rules 5 and 6.';

create function paylatch.create_pay_flow(
    scene text, user_id text, biz_key text, amount bigint, currency text, merchant_id text default 'default',
    biz_deadline timestamptz default null, payload jsonb default null,
    out outcome text, out flow_id bigint, out order_id bigint, out attempt_no integer, out trade_order_no text,
    out refund_order_no text, out client_status text, out version bigint, out poll_after_ms integer)
    language plpgsql security definer set search_path = pg_catalog, pg_temp set paylatch.source = 'API' as $$
begin
    perform paylatch.require_migrated();
    select c.outcome, c.flow_id, c.order_id, c.attempt_no, c.trade_order_no, c.refund_order_no, c.client_status,
           c.version, c.poll_after_ms
    into outcome, flow_id, order_id, attempt_no, trade_order_no, refund_order_no, client_status, version, poll_after_ms
    from paylatch.create_set(array[row (1, scene, user_id, biz_key, amount, currency, merchant_id, biz_deadline, payload)::paylatch.request]) c;
end $$;
comment on function paylatch.create_pay_flow(text, text, text, bigint, text, text, timestamptz, jsonb) is
    'Begins one payment attempt. amount: minor units of currency (ISO 4217 or paylatch.asset). biz_deadline: no business act leaves after it (default: the scene''s). outcome: created; in_flight (an attempt is under way: its flow is returned); already_paid; refunded_already; closed (the scene takes no new flow). Errors: PL004 invalid argument, PL005 scene unknown, PL007 not migrated. Upholds rules 1, 5 and 6.';

create function paylatch.create_pay_flows(requests jsonb) returns setof paylatch.created
    language plpgsql security definer set search_path = pg_catalog, pg_temp set paylatch.source = 'API' as $$
declare
    v_requests paylatch.request[];
begin
    perform paylatch.require_migrated();
    if jsonb_typeof(requests) is distinct from 'array' or jsonb_array_length(requests) > 10000 then
        raise exception using errcode = 'PL004', message = 'requests: give a JSON array of at most 10000 objects';
    end if;
    begin
        select array_agg(row (e.n, r.scene, r.user_id, r.biz_key, r.amount, r.currency,
                              coalesce(r.merchant_id, 'default'), r.biz_deadline, r.payload)::paylatch.request order by e.n)
        into v_requests
        from jsonb_array_elements(requests) with ordinality e(request, n)
        cross join lateral jsonb_to_record(e.request) as r(
            scene text, user_id text, biz_key text, amount bigint, currency text, merchant_id text,
            biz_deadline timestamptz, payload jsonb);
    exception when data_exception or invalid_parameter_value then
        raise exception using errcode = 'PL004', message = 'requests: ' || sqlerrm,
            hint = 'Each element is an object with scene, user_id, biz_key, amount, currency and optionally merchant_id, biz_deadline, payload.';
    end;
    return query select * from paylatch.create_set(coalesce(v_requests, '{}'));
end $$;
comment on function paylatch.create_pay_flows(jsonb) is
    'create_pay_flow for a JSON array of at most 10000 requests, all or none: objects with scene, user_id, biz_key, amount, currency and optionally merchant_id, biz_deadline, payload. One row each, ordinal from 1. Errors as there; DETAIL names field and ordinal.';
