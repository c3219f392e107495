-- Creating payment attempts. One call and a batch take the same path.
--
-- Lock order: keys (keys.sql), then orders in key order; no existing flow is touched. A new order begins in the charge of
-- its first attempt. Of an order that was there it is checked under its lock whether an attempt may begin and which number
-- it gets.
-- Where a caller gives no key, the order with its status and attempt count is one: a double click finds the attempt under
-- way, and has to ask for the same money.

create type paylatch.request as (
    ordinal integer, scene text, user_id text, biz_key text, amount bigint, currency text, merchant_id text,
    biz_deadline timestamptz, payload jsonb, idempotency_key text);

create type paylatch.created as (
    ordinal integer, outcome text, flow_id bigint, order_id bigint, attempt_no integer, trade_order_no text,
    refund_order_no text, client_status text, version bigint, poll_after_ms integer);

create function paylatch.check_requests(p_requests paylatch.request[], p_own text, p_now timestamptz) returns integer language plpgsql as $$
declare
    v record;
begin
    -- One cheap look at all of them; only a bad set is worth finding the words for.
    select count(r.idempotency_key) as keyed,
           bool_and(coalesce(s.scene is not null and length(r.user_id) between 1 and 128 and length(r.biz_key) between 1 and 160
               and length(r.merchant_id) between 1 and 64 and (p_own is null or r.merchant_id = p_own) and r.amount > 0
               and (r.idempotency_key is null or length(r.idempotency_key) between 1 and 255)
               and (paylatch.minor_unit_digits(r.currency) is not null or a.asset is not null)
               and (r.biz_deadline is null or r.biz_deadline > p_now)
               and (r.payload is null or octet_length(r.payload::text) <= 8192), false)) as good into v
    from unnest(p_requests) r
    left join paylatch.scene s on s.scene = r.scene
    left join paylatch.asset a on a.asset = r.currency;
    if v.good is not false then
        return v.keyed;
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
        ('merchant_id', 'PL004', case when coalesce(length(r.merchant_id), 0) not between 1 and 64 then 'give 1 to 64 characters'
            when r.merchant_id <> p_own then 'this login acts for another merchant only' end),
        ('amount', 'PL004', case when coalesce(r.amount, 0) <= 0 then 'give a positive number of minor units' end),
        ('currency', 'PL004', case when r.currency is null
                or (paylatch.minor_unit_digits(r.currency) is null and a.asset is null)
            then format('%L is neither an ISO 4217 currency with minor units nor in paylatch.asset', r.currency) end),
        ('biz_deadline', 'PL004', case when r.biz_deadline <= p_now then 'it has passed; give a later time' end),
        ('idempotency_key', 'PL004', case when length(r.idempotency_key) not between 1 and 255 then 'give 1 to 255 characters' end),
        ('payload', 'PL004', case when octet_length(r.payload::text) > 8192 then 'more than 8 KiB; store it elsewhere and pass a reference' end)
    ) x(field, code, says)
    where x.says is not null
    order by r.ordinal limit 1;
    raise exception using errcode = v.code, message = format('%s: %s', v.field, v.says),
        detail = jsonb_build_object('field', v.field, 'ordinal', v.ordinal)::text;
end $$;
comment on function paylatch.check_requests(paylatch.request[], text, timestamptz) is
    'How many of the requests have an idempotency key; raises PL004 or PL005 for the first bad one, naming its field and ordinal. p_own: the only merchant that the login acts for, or null.';

create function paylatch.in_flight(p_amount bigint, p_currency text, p_live_amount bigint, p_live_currency text, p_ordinal integer)
    returns text language plpgsql as $$
begin
    if (p_amount, p_currency) = (p_live_amount, p_live_currency) then
        return 'in_flight';
    end if;
    return paylatch.refuse_key(null, array_remove(array[case when p_amount <> p_live_amount then 'amount' end,
        case when p_currency <> p_live_currency then 'currency' end], null), p_ordinal);
end $$;
comment on function paylatch.in_flight(bigint, text, bigint, text, integer) is
    'A double click: the outcome in_flight, or PL001 where it asks for other money than the attempt under way. Upholds rule 8.';

-- The first attempts of orders that are new: nearly all requests, so nothing is looked up for them.
create function paylatch.create_first(p_requests paylatch.request[], p_now timestamptz)
    returns paylatch.created[] language plpgsql as $$
declare
    v_created paylatch.created[];
begin
    with draft as materialized (
        select d.*, paylatch.trade_order_no(d.order_prefix, d.user_id, d.flow_id) as trade_order_no
        from (
            select r.*, s.channel, s.order_prefix, s.volatile_fields, s.default_deadline_ms,
                   nextval('paylatch.order_id_seq') as order_id, paylatch.flow_id_from(nextval('paylatch.flow_id_seq')) as flow_id
            from unnest(p_requests) r join paylatch.scene s on s.scene = r.scene
            where s.entry_open) d
    ), opened as (
        insert into paylatch.pay_order (order_id, merchant_id, scene, user_id, biz_key, status, version, live_flow_id, attempt_count)
        select d.order_id, d.merchant_id, d.scene, d.user_id, d.biz_key, 'PROCESSING', 1, d.flow_id, 1
        from draft d
        order by d.merchant_id, d.scene, d.user_id, d.biz_key, d.ordinal
        on conflict on constraint one_order_per_target do nothing
        returning order_id
    ), first as materialized (
        select d.* from draft d join opened o using (order_id)
    ), made as (
        insert into paylatch.pay_flow (flow_id, order_id, attempt_no, amount, currency, scene, channel, user_id,
                                       trade_order_no, biz_deadline, payload)
        select f.flow_id, f.order_id, 1, f.amount, f.currency, f.scene, f.channel, f.user_id, f.trade_order_no,
               coalesce(f.biz_deadline, p_now + make_interval(secs => f.default_deadline_ms / 1000.0)), f.payload
        from first f order by f.ordinal
    ), bound as (
        insert into paylatch.idempotency_key (merchant_id, key, operation, fingerprint, flow_id, created_at, left_out)
        select f.merchant_id, f.idempotency_key, 'create_pay_flow',
               paylatch.flow_fingerprint(f.scene, f.user_id, f.biz_key, f.amount, f.currency, f.payload, f.volatile_fields),
               f.flow_id, p_now, nullif(f.volatile_fields, '{}')
        from first f where f.idempotency_key is not null
    )
    select array_agg(row (f.ordinal, 'created', f.flow_id, f.order_id, 1, f.trade_order_no,
                          paylatch.refund_order_no(f.trade_order_no), paylatch.client_status('WAIT_PAY', false), 0,
                          1000)::paylatch.created order by f.ordinal)
    into v_created from first f;
    return coalesce(v_created, '{}');
end $$;
comment on function paylatch.create_first(paylatch.request[], timestamptz) is
    'Creates the orders of requests that have none yet, each with its first attempt, and records what their keys, all of them new, were used for. Of several requests for one order the first; none for an order that is there. Upholds rules 5, 6 and 8.';

create function paylatch.create_further(p_requests paylatch.request[], p_now timestamptz)
    returns setof paylatch.created language plpgsql as $$
begin
    -- The short lock of creation. A statement of its own, so that it sees the orders that others have just committed. Rows
    -- are looked up one by one, by index, whatever the planner knew about the table when a session made its plan: a table
    -- that was empty then is not for long.
    perform from (select distinct r.merchant_id, r.scene, r.user_id, r.biz_key from unnest(p_requests) r order by 1, 2, 3, 4) r
    cross join lateral (
        select from paylatch.pay_order o
        where (o.merchant_id, o.scene, o.user_id, o.biz_key) = (r.merchant_id, r.scene, r.user_id, r.biz_key) for update) o;

    return query
    with asked as (
        select r.*, o.order_id, o.status as order_status, o.attempt_count, o.live_flow_id, o.paid_flow_id, s.entry_open,
               s.channel, s.order_prefix, s.volatile_fields, s.default_deadline_ms,
               row_number() over (partition by o.order_id order by r.ordinal) as nth
        from unnest(p_requests) r
        join paylatch.scene s on s.scene = r.scene
        left join lateral (
            select * from paylatch.pay_order o
            where (o.merchant_id, o.scene, o.user_id, o.biz_key) = (r.merchant_id, r.scene, r.user_id, r.biz_key) limit 1) o on true
    ), numbered as materialized (
        select a.*, case when a.entry_open and a.order_status = 'PENDING' and a.nth = 1
                         then paylatch.flow_id_from(nextval('paylatch.flow_id_seq')) end as new_flow_id
        from (select * from asked order by ordinal) a
    ), made as (
        insert into paylatch.pay_flow (flow_id, order_id, attempt_no, amount, currency, scene, channel, user_id,
                                       trade_order_no, biz_deadline, payload)
        select n.new_flow_id, n.order_id, n.attempt_count + 1, n.amount, n.currency, n.scene, n.channel, n.user_id,
               paylatch.trade_order_no(n.order_prefix, n.user_id, n.new_flow_id),
               coalesce(n.biz_deadline, p_now + make_interval(secs => n.default_deadline_ms / 1000.0)), n.payload
        from numbered n where n.new_flow_id is not null
    ), first as ( -- of each order: what the others in the set find
        select n.*, first_value(n.new_flow_id) over w as fresh_flow_id, first_value(n.amount) over w as first_amount,
               first_value(n.currency) over w as first_currency, first_value(n.payload) over w as first_payload
        from numbered n
        window w as (partition by n.order_id order by n.nth)
    ), answered as materialized (
        select n.*, coalesce(n.fresh_flow_id, f.flow_id) as flow_id, coalesce(f.attempt_no, n.attempt_count + 1) as attempt_no,
               coalesce(f.trade_order_no, paylatch.trade_order_no(n.order_prefix, n.user_id, n.fresh_flow_id)) as trade_order_no,
               coalesce(f.status, case when n.fresh_flow_id is not null then 'WAIT_PAY' end) as status,
               coalesce(f.version, case when n.fresh_flow_id is not null then 0 end) as version,
               f.frozen_reason is not null as frozen,
               case when n.fresh_flow_id is null then f.amount else n.first_amount end as held_amount,
               case when n.fresh_flow_id is null then f.currency else n.first_currency end as held_currency,
               case when n.fresh_flow_id is null then f.payload else n.first_payload end as held_payload
        from first n
        left join lateral (
            select * from paylatch.pay_flow f
            where n.fresh_flow_id is null and f.flow_id = coalesce(n.live_flow_id, n.paid_flow_id) limit 1) f on true
    ), bound as (
        -- A key stands for whichever flow its request got; `asked` only where that flow says otherwise.
        insert into paylatch.idempotency_key (merchant_id, key, operation, fingerprint, flow_id, created_at, left_out, asked)
        select a.merchant_id, a.idempotency_key, 'create_pay_flow',
               paylatch.flow_fingerprint(a.scene, a.user_id, a.biz_key, a.amount, a.currency, a.payload, a.volatile_fields),
               a.flow_id, p_now, nullif(a.volatile_fields, '{}'),
               case when (a.amount, a.currency, paylatch.payload_counted(a.payload, a.volatile_fields)) is distinct from
                         (a.held_amount, a.held_currency, paylatch.payload_counted(a.held_payload, a.volatile_fields))
                    then jsonb_build_object('amount', a.amount, 'currency', a.currency,
                                            'payload', paylatch.payload_counted(a.payload, a.volatile_fields)) end
        from answered a
        where a.idempotency_key is not null and a.flow_id is not null
    )
    select a.ordinal,
           case when a.new_flow_id is not null then 'created'
                when a.fresh_flow_id is not null or a.order_status = 'PROCESSING' then
                    paylatch.in_flight(a.amount, a.currency, a.held_amount, a.held_currency, a.ordinal)
                when a.order_status = 'PAID' then 'already_paid'
                when a.order_status = 'REFUNDED' then 'refunded_already'
                else 'closed' end,
           a.flow_id, a.order_id, case when a.flow_id is not null then a.attempt_no end, a.trade_order_no,
           paylatch.refund_order_no(a.trade_order_no), paylatch.client_status(a.status, a.frozen), a.version,
           case when a.fresh_flow_id is not null or a.order_status = 'PROCESSING' then 1000 end
    from answered a
    order by a.ordinal;
end $$;
comment on function paylatch.create_further(paylatch.request[], timestamptz) is
    'Creates an attempt for each request whose order is there, has none under way and is not paid, and records what their keys, all of them new, were used for. Error: PL001 in_flight(). Upholds rules 5, 6 and 8.';

create function paylatch.create_attempts(p_requests paylatch.request[], p_now timestamptz)
    returns setof paylatch.created language plpgsql as $$
declare
    v_first paylatch.created[] := paylatch.create_first(p_requests, p_now);
begin
    if cardinality(v_first) = cardinality(p_requests) then
        return query select * from unnest(v_first);
        return;
    end if;
    return query
    select * from unnest(v_first)
    union all
    select * from paylatch.create_further(
        array(select r from unnest(p_requests) r
              where r.ordinal not in (select c.ordinal from unnest(v_first) c) order by r.ordinal), p_now)
    order by 1;
end $$;
comment on function paylatch.create_attempts(paylatch.request[], timestamptz) is
    'create_first(), and create_further() for the rest; in the order of ordinals. Error: PL001 in_flight(). Upholds rules 5, 6 and 8.';

create function paylatch.create_pay_flow(
    scene text, user_id text, biz_key text, amount bigint, currency text, merchant_id text default null,
    biz_deadline timestamptz default null, payload jsonb default null, idempotency_key text default null,
    out outcome text, out flow_id bigint, out order_id bigint, out attempt_no integer, out trade_order_no text,
    out refund_order_no text, out client_status text, out version bigint, out poll_after_ms integer)
    language plpgsql security definer set search_path = pg_catalog, pg_temp set paylatch.source = 'API'
    -- A plan made for this very call costs more than the call: measured, 1340 us against 480.
    set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
    v_own text;
    v_request paylatch.request;
    v_created paylatch.created;
begin
    perform paylatch.require_migrated();
    v_own := paylatch.merchant_scope(null);
    v_request := row (1, scene, user_id, biz_key, amount, currency, coalesce(merchant_id, v_own, 'default'), biz_deadline,
                      payload, idempotency_key)::paylatch.request;
    v_created := paylatch.create_one(v_request, v_own);
    if v_created.outcome is null then
        select * into v_created from paylatch.create_set(array[v_request], v_own);
    end if;
    outcome := v_created.outcome; flow_id := v_created.flow_id; order_id := v_created.order_id;
    attempt_no := v_created.attempt_no; trade_order_no := v_created.trade_order_no;
    refund_order_no := v_created.refund_order_no; client_status := v_created.client_status;
    version := v_created.version; poll_after_ms := v_created.poll_after_ms;
end $$;
comment on function paylatch.create_pay_flow(text, text, text, bigint, text, text, timestamptz, jsonb, text) is
    'Begins one payment attempt. amount: minor units of currency (ISO 4217 or paylatch.asset). merchant_id: default the login''s own, else default. biz_deadline: no business act leaves after it (default: the scene''s). outcome: created; replayed (the key''s flow, as it is now); in_flight (an attempt is under way: its flow is returned); already_paid; refunded_already; closed (the scene takes no new flow). Errors: PL001 the key, or the attempt under way, has other parameters, named in DETAIL; PL004 invalid argument, PL005 scene unknown, PL007 not migrated. Upholds rules 1, 5, 6 and 8.';

create function paylatch.create_pay_flows(requests jsonb) returns setof paylatch.created
    language plpgsql security definer set search_path = pg_catalog, pg_temp set paylatch.source = 'API' set enable_seqscan = off set jit = off as $$
declare
    v_requests paylatch.request[];
    v_own text;
begin
    perform paylatch.require_migrated();
    v_own := paylatch.merchant_scope(null);
    if jsonb_typeof(requests) is distinct from 'array' or jsonb_array_length(requests) > 10000 then
        raise exception using errcode = 'PL004', message = 'requests: give a JSON array of at most 10000 objects';
    end if;
    begin
        v_requests := array(
            select row (r.n, r.scene, r.user_id, r.biz_key, r.amount, r.currency, coalesce(r.merchant_id, v_own, 'default'),
                        r.biz_deadline, r.payload, r.idempotency_key)::paylatch.request
            from rows from (jsonb_to_recordset(requests) as (
                scene text, user_id text, biz_key text, amount bigint, currency text, merchant_id text,
                biz_deadline timestamptz, payload jsonb, idempotency_key text)) with ordinality
                as r(scene, user_id, biz_key, amount, currency, merchant_id, biz_deadline, payload, idempotency_key, n)
            order by r.n);
    exception when data_exception or invalid_parameter_value then
        raise exception using errcode = 'PL004', message = 'requests: ' || sqlerrm,
            hint = 'Each element is an object with scene, user_id, biz_key, amount, currency and optionally merchant_id, biz_deadline, payload, idempotency_key.';
    end;
    return query select * from paylatch.create_set(v_requests, v_own);
end $$;
comment on function paylatch.create_pay_flows(jsonb) is
    'create_pay_flow for a JSON array of at most 10000 requests, all or none: objects with scene, user_id, biz_key, amount, currency and optionally merchant_id, biz_deadline, payload, idempotency_key (at most 1000 of them). One row each, ordinal from 1. Errors as there; DETAIL names field and ordinal.';
