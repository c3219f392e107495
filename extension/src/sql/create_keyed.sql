-- Creating payment attempts under idempotency keys: what a key was used for before, and what it is used for now.
--
-- A key that was seen gives its flow again, as it stands now; so it does within one set. A new key is bound to whichever
-- flow its request gets: the one it made, or the one it found under way or paid. Where no flow is returned (the scene is
-- closed) the key stays unused.

create type paylatch.key_seen as (ordinal integer, flow_id bigint, operation text, asked jsonb);

-- The fields in which a request differs from what its key was first used for.
create function paylatch.differing(
    p_request paylatch.request, p_scene text, p_user_id text, p_biz_key text, p_amount bigint, p_currency text,
    p_payload jsonb, p_left_out text[]) returns text[] language sql immutable as $$
    select array_remove(array[
        case when p_request.scene is distinct from p_scene then 'scene' end,
        case when p_request.user_id is distinct from p_user_id then 'user_id' end,
        case when p_request.biz_key is distinct from p_biz_key then 'biz_key' end,
        case when p_request.amount is distinct from p_amount then 'amount' end,
        case when p_request.currency is distinct from p_currency then 'currency' end,
        case when paylatch.payload_counted(p_request.payload, p_left_out)
                  is distinct from paylatch.payload_counted(p_payload, p_left_out) then 'payload' end], null)
$$;
comment on function paylatch.differing(paylatch.request, text, text, text, bigint, text, jsonb, text[]) is
    'The declared business fields in which a request differs from another. The deadline and volatile fields of the payload do not count.';

create function paylatch.check_seen(p_requests paylatch.request[], p_seen paylatch.key_seen[]) returns void language plpgsql as $$
declare
    v record;
begin
    select r.ordinal, r.idempotency_key, d.fields into v
    from unnest(p_seen) k
    join unnest(p_requests) r on r.ordinal = k.ordinal
    left join paylatch.pay_flow f on f.flow_id = k.flow_id
    left join paylatch.pay_order o on o.order_id = f.order_id
    left join paylatch.scene s on s.scene = f.scene
    cross join lateral (select case when k.operation <> 'create_pay_flow' then array['operation'] else
        paylatch.differing(r, f.scene, f.user_id, o.biz_key, coalesce((k.asked ->> 'amount')::bigint, f.amount),
            coalesce(k.asked ->> 'currency', f.currency), case when k.asked is null then f.payload else k.asked -> 'payload' end,
            s.volatile_fields) end) d(fields)
    where d.fields <> '{}'
    order by r.ordinal limit 1;
    if found then
        perform paylatch.refuse_key(v.idempotency_key, v.fields, v.ordinal);
    end if;
end $$;
comment on function paylatch.check_seen(paylatch.request[], paylatch.key_seen[]) is
    'Raises PL001 for the first request whose key was used with other parameters or for another operation. Upholds rule 8.';

-- The first request of each key in a set, and every request without one; a twin must ask for the same.
create function paylatch.without_twins(p_requests paylatch.request[]) returns paylatch.request[] language plpgsql as $$
declare
    v record;
begin
    select t.ordinal, t.idempotency_key, paylatch.differing(t, r.scene, r.user_id, r.biz_key, r.amount, r.currency, r.payload, s.volatile_fields) as fields
    into v
    from unnest(p_requests) t
    join (select distinct on (q.merchant_id, q.idempotency_key) q.* from unnest(p_requests) q
          where q.idempotency_key is not null order by q.merchant_id, q.idempotency_key, q.ordinal) r
      on (r.merchant_id, r.idempotency_key) = (t.merchant_id, t.idempotency_key) and r.ordinal < t.ordinal
    join paylatch.scene s on s.scene = r.scene
    where paylatch.differing(t, r.scene, r.user_id, r.biz_key, r.amount, r.currency, r.payload, s.volatile_fields) <> '{}'
    order by t.ordinal limit 1;
    if found then
        perform paylatch.refuse_key(v.idempotency_key, v.fields, v.ordinal);
    end if;
    return array(select x.request
                 from (select r as request, r.ordinal, r.idempotency_key,
                              row_number() over (partition by r.merchant_id, r.idempotency_key order by r.ordinal) as nth
                       from unnest(p_requests) r) x
                 where x.nth = 1 or x.idempotency_key is null order by x.ordinal);
end $$;
comment on function paylatch.without_twins(paylatch.request[]) is
    'A set of requests without those that repeat a key of an earlier one. Error: PL001 for one that asks for something else. Upholds rule 8.';

create function paylatch.replayed(
    p_requests paylatch.request[], p_seen paylatch.key_seen[], p_new paylatch.request[], p_created paylatch.created[])
    returns setof paylatch.created language plpgsql as $$
begin
    return query
    with mine as (
        select c.ordinal, c.flow_id, c.ordinal as made_by from unnest(p_created) c
        union all
        select k.ordinal, k.flow_id, null from unnest(p_seen) k
        union all
        select t.ordinal, c.flow_id, null
        from unnest(p_requests) t
        join unnest(p_new) r on (r.merchant_id, r.idempotency_key) = (t.merchant_id, t.idempotency_key) and r.ordinal <> t.ordinal
        join unnest(p_created) c on c.ordinal = r.ordinal
    )
    select m.ordinal, coalesce(c.outcome, case when f.flow_id is null then 'closed' else 'replayed' end), m.flow_id,
           coalesce(c.order_id, f.order_id), f.attempt_no, f.trade_order_no, paylatch.refund_order_no(f.trade_order_no),
           paylatch.client_status(f.status, f.frozen_reason is not null), f.version,
           case when not paylatch.is_terminal(f.status) then 1000 end
    from mine m
    left join paylatch.pay_flow f on f.flow_id = m.flow_id
    left join unnest(p_created) c on c.ordinal = m.made_by
    order by m.ordinal;
end $$;
comment on function paylatch.replayed(paylatch.request[], paylatch.key_seen[], paylatch.request[], paylatch.created[]) is
    'One row for each request of a set in which keys repeat, with the flow''s present state. Upholds rule 8.';

create function paylatch.see_keys(p_requests paylatch.request[], p_keyed integer) returns paylatch.key_seen[] language plpgsql as $$
declare
    v_seen paylatch.key_seen[];
begin
    perform paylatch.require_fresh_snapshots();
    -- Each of these locks takes a place in the server's lock table until the transaction ends.
    if p_keyed > 1000 then
        raise exception using errcode = 'PL004', message = 'requests: at most 1000 with an idempotency_key in one call',
            detail = '{"field": "idempotency_key"}', hint = 'Split the batch.';
    end if;
    perform pg_advisory_xact_lock(l.hash)
    from (select distinct paylatch.key_hash(r.merchant_id, r.idempotency_key) as hash from unnest(p_requests) r
          where r.idempotency_key is not null order by 1) l;
    -- A statement of its own, so that it sees what others have just committed.
    v_seen := array(select row (r.ordinal, k.flow_id, k.operation, k.asked)::paylatch.key_seen
                    from unnest(p_requests) r
                    cross join lateral (
                        select * from paylatch.idempotency_key k
                        where k.merchant_id = r.merchant_id and k.key = r.idempotency_key limit 1) k
                    where r.idempotency_key is not null);
    if v_seen <> '{}' then
        perform paylatch.check_seen(p_requests, v_seen);
    end if;
    return v_seen;
end $$;
comment on function paylatch.see_keys(paylatch.request[], integer) is
    'Takes the keys of a set for this transaction, and says which were used before. Waits for whoever holds one. Errors: PL001 used with other parameters, PL004 too many, or under REPEATABLE READ. Upholds rule 8.';

create function paylatch.create_set(p_requests paylatch.request[], p_own text) returns setof paylatch.created language plpgsql as $$
declare
    v_now timestamptz := paylatch.clock();
    v_keyed integer := paylatch.check_requests(p_requests, p_own, v_now);
    v_seen paylatch.key_seen[] := '{}';
    v_new paylatch.request[] := p_requests;
begin
    if v_keyed > 0 then
        v_seen := paylatch.see_keys(p_requests, v_keyed);
        if v_seen <> '{}' then
            v_new := array(select r from unnest(p_requests) r
                           where r.ordinal not in (select k.ordinal from unnest(v_seen) k) order by r.ordinal);
        end if;
        if v_keyed > 1 then
            v_new := paylatch.without_twins(v_new);
        end if;
    end if;
    if cardinality(v_new) = cardinality(p_requests) then
        return query select * from paylatch.create_attempts(v_new, v_now);
    else
        return query select * from paylatch.replayed(p_requests, v_seen, v_new,
            array(select c from paylatch.create_attempts(v_new, v_now) c));
    end if;
end $$;
comment on function paylatch.create_set(paylatch.request[], text) is
    'Checks requests and creates what they ask for; a key seen before, or earlier in the set, gives its flow. p_own: the only merchant that the login acts for, or null. Upholds rules 5, 6 and 8.';

-- Nearly every single call asks for the first attempt at a new order, under a new key. Plain statements over one row cost
-- half of what the set's do. Whatever else it is, or is wrong, create_set() says.
create function paylatch.create_one(p_request paylatch.request, p_own text) returns paylatch.created language plpgsql as $$
declare
    v_now timestamptz := paylatch.clock();
    v_scene record;
    v_order_id bigint;
    v_flow_id bigint;
    v_number text;
begin
    select s.channel, s.order_prefix, s.volatile_fields, s.default_deadline_ms into v_scene
    from paylatch.scene s where s.scene = p_request.scene and s.entry_open;
    if not found
       or not coalesce(length(p_request.user_id) between 1 and 128 and length(p_request.biz_key) between 1 and 160
              and length(p_request.merchant_id) between 1 and 64 and (p_own is null or p_request.merchant_id = p_own)
              and p_request.amount > 0 and paylatch.minor_unit_digits(p_request.currency) is not null
              and (p_request.biz_deadline is null or p_request.biz_deadline > v_now)
              and (p_request.idempotency_key is null or length(p_request.idempotency_key) between 1 and 255)
              and (p_request.payload is null or octet_length(p_request.payload::text) <= 8192), false) then
        return null;
    end if;
    if p_request.idempotency_key is not null then
        perform paylatch.require_fresh_snapshots();
        perform pg_advisory_xact_lock(paylatch.key_hash(p_request.merchant_id, p_request.idempotency_key));
        if exists (select from paylatch.idempotency_key k
                   where k.merchant_id = p_request.merchant_id and k.key = p_request.idempotency_key) then
            return null;
        end if;
    end if;
    v_order_id := nextval('paylatch.order_id_seq');
    v_flow_id := paylatch.flow_id_from(nextval('paylatch.flow_id_seq'));
    v_number := paylatch.trade_order_no(v_scene.order_prefix, p_request.user_id, v_flow_id);
    insert into paylatch.pay_order (order_id, merchant_id, scene, user_id, biz_key, status, version, live_flow_id, attempt_count)
    values (v_order_id, p_request.merchant_id, p_request.scene, p_request.user_id, p_request.biz_key, 'PROCESSING', 1, v_flow_id, 1)
    on conflict on constraint one_order_per_target do nothing;
    if not found then
        return null;
    end if;
    insert into paylatch.pay_flow (flow_id, order_id, attempt_no, amount, currency, scene, channel, user_id, trade_order_no,
                                   biz_deadline, payload)
    values (v_flow_id, v_order_id, 1, p_request.amount, p_request.currency, p_request.scene, v_scene.channel, p_request.user_id,
            v_number, coalesce(p_request.biz_deadline, v_now + make_interval(secs => v_scene.default_deadline_ms / 1000.0)),
            p_request.payload);
    if p_request.idempotency_key is not null then
        insert into paylatch.idempotency_key (merchant_id, key, operation, fingerprint, flow_id, created_at, left_out)
        values (p_request.merchant_id, p_request.idempotency_key, 'create_pay_flow',
                paylatch.flow_fingerprint(p_request.scene, p_request.user_id, p_request.biz_key, p_request.amount, p_request.currency,
                                          p_request.payload, v_scene.volatile_fields),
                v_flow_id, v_now, nullif(v_scene.volatile_fields, '{}'));
    end if;
    return row (1, 'created', v_flow_id, v_order_id, 1, v_number, paylatch.refund_order_no(v_number),
                paylatch.client_status('WAIT_PAY', false), 0, 1000)::paylatch.created;
end $$;
comment on function paylatch.create_one(paylatch.request, text) is
    'Creates a new order with its first attempt for one request; null, with nothing written but perhaps its key''s lock taken, where it is anything else. p_own: the only merchant that the login acts for, or null. Upholds rules 5, 6 and 8.';
