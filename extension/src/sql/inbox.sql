-- The inbox: what wallets tell without being asked. Received and applied are two facts: an event is stored first, with
-- its raw body, and nobody asks for it again; what it does is done at once, or later by scan().
--
-- An event is a hint: it makes a payment due, and the wallet is then asked. Only where channel.webhook_trust says
-- 'evidence' does a signed SUCCEEDED that echoes number, amount and currency decide by itself. Whatever the order in
-- which events come, and however often, they end in the same state: what only an ended flow can take (disputes,
-- refunds made at the provider) waits for its end, and what is told of the past changes nothing.
--
-- Lock order: events in key order, then flows and refunds in key order, then what their triggers touch, the channel last. Creation
-- and scan() take events with SKIP LOCKED, so they wait for no receiver.

-- What one event comes to, beside the row that it speaks of; does is null where it has to wait.
create type paylatch.webhook_read as (
    event_id text, flow_id bigint, refund_id bigint, does text, wakes text, told paylatch.told, external_no text,
    dispute text);

-- Stores events; returns the ids of those that were not known.
create function paylatch.store_webhooks(p_channel text, p_events jsonb, p_now timestamptz) returns text[] language plpgsql as $$
declare
    v_new text[];
begin
    with asked as (
        select distinct on (r.event_id) r.*, count(*) over (partition by r.event_id) as copies
        from jsonb_array_elements(p_events) with ordinality x(element, n)
        cross join lateral jsonb_to_record(x.element) as r(
            event_id text, event_type text, about text, number text, status text, amount bigint, currency text,
            request_id text, external_no text, dispute text, occurred_at timestamptz, key smallint, headers jsonb,
            body_base64 text)
        order by r.event_id, x.n
    ), fresh as (
        insert into paylatch.webhook_event (channel, event_id, event_type, about, number, flow_id, status, amount, currency,
            request_id, external_no, dispute, occurred_at, key_index, headers, body, received_at, last_received_at, times_received)
        select p_channel, a.event_id, a.event_type, a.about, a.number, paylatch.flow_id_of(a.number), a.status, a.amount,
               a.currency, a.request_id, a.external_no, a.dispute, a.occurred_at, a.key, a.headers,
               decode(a.body_base64, 'base64'), p_now, p_now, a.copies
        from asked a order by a.event_id
        on conflict on constraint one_event_per_id do nothing
        returning event_id
    )
    select coalesce(array_agg(f.event_id), '{}') into v_new from fresh f;
    if cardinality(v_new) < jsonb_array_length(p_events) then
        -- A statement of its own, so that it sees what others have just committed.
        with again as (
            select x.element ->> 'event_id' as event_id, count(*) as copies
            from jsonb_array_elements(p_events) x(element) group by 1
        ), locked as (
            select e.event_id, a.copies from paylatch.webhook_event e join again a using (event_id)
            where e.channel = p_channel and e.event_id <> all (v_new)
            order by e.event_id for update of e
        )
        update paylatch.webhook_event e
        set times_received = e.times_received + l.copies, last_received_at = p_now
        from locked l where e.channel = p_channel and e.event_id = l.event_id;
    end if;
    return v_new;
end $$;
comment on function paylatch.store_webhooks(text, jsonb, timestamptz) is
    'Stores events of a channel under their ids, counting duplicates; returns the ids that were new.';

-- What each event comes to. The flows are locked.
create function paylatch.read_webhooks(p_channel text, p_event_ids text[], p_now timestamptz)
    returns setof paylatch.webhook_read language sql stable as $$
    with told as (
        select e.*, f.trade_order_no, f.status as flow_status, f.frozen_reason is not null as frozen, f.channel as flow_channel,
               r.refund_id, r.kind as refund_kind, r.status as refund_status,
               r.frozen_reason is not null as refund_frozen,
               f.status in ('BIZ_SUCCESS', 'REFUNDED', 'PAY_FAIL') as ended,
               e.about = 'refund' and e.external_no is null as own_refund,
               -- A full echo; whether it agrees is what a trusted success decides on.
               e.status = 'SUCCEEDED' and e.amount is not null and e.currency is not null and c.webhook_trust = 'evidence' as trusted,
               e.amount = coalesce(r.amount, f.amount) and e.currency = f.currency as agrees,
               coalesce(e.amount, (select d.amount from paylatch.dispute d where d.flow_id = e.flow_id and d.dispute_no = e.external_no),
                        case e.dispute when 'WON' then f.amount end)::bigint as dispute_amount
        from paylatch.webhook_event e
        join paylatch.channel c on c.channel = e.channel
        left join paylatch.pay_flow f on f.flow_id = e.flow_id
        left join paylatch.refund r on r.refund_order_no = e.number and e.about = 'refund'
        where e.channel = p_channel and e.event_id = any (p_event_ids)
    ), read as (
        select t.*, case
            when t.about = 'other' then 'unknown_type'
            when t.flow_id is null or t.flow_id <> paylatch.flow_id_from(t.flow_id % 8796093022208) -- of another shard
                 or not exists (select from paylatch.scene s where s.order_prefix = paylatch.order_prefix_of(t.number)) then 'not_ours'
            when t.trade_order_no is null then null -- its flow is not there yet
            when t.flow_channel <> t.channel or not (case when t.own_refund then t.number like 'r%' and right(t.number, length(t.trade_order_no) + 1) = '_' || t.trade_order_no
                                                          else t.number = t.trade_order_no end) then 'not_ours'
            when t.about = 'charge' then case
                when t.trusted and not t.agrees and t.flow_status not in ('WAIT_PAY', 'PAYING', 'PAY_FAIL') then 'contradicts'
                when t.flow_status = 'PAY_FAIL' and t.status = 'SUCCEEDED'
                    then case when t.trusted and t.agrees then 'late_charge' else 'inquired' end
                when t.flow_status not in ('WAIT_PAY', 'PAYING') then 'known'
                when t.frozen then 'frozen'
                when t.trusted and t.flow_status = 'PAYING' then 'decided'
                else 'woken' end
            when t.own_refund then case
                when t.refund_id is null and t.ended then case when t.status = 'SUCCEEDED' then 'contradicts' else 'known' end
                when t.refund_id is null then null -- its refund may still come
                when t.status = 'SUCCEEDED' and t.refund_status in ('FAILED', 'REJECTED')
                    or t.status = 'FAILED' and t.refund_status = 'SUCCEEDED' then 'contradicts'
                when t.refund_status not in ('REQUESTED', 'PENDING') then 'known'
                when case t.refund_kind when 'COMPENSATION' then t.frozen else t.refund_frozen end then 'frozen'
                when t.trusted and t.refund_status = 'PENDING' then 'decided'
                else 'woken' end
            when not t.ended then null -- only an ended flow can take it
            when t.about = 'refund'
                then case when t.amount is null or t.currency is null then 'incomplete' else 'external_refund' end
            else case when t.external_no is null or t.dispute is null or t.dispute_amount is null then 'incomplete' else 'dispute' end
        end as does
        from told t
    ), once as (
        -- One evidence a flow or refund; one that disagrees comes first.
        select r.*, nullif(r.refund_kind, 'COMPENSATION') is not null as is_refund,
               row_number() over (partition by r.flow_id, r.refund_id, r.does order by r.agrees, r.event_id) as nth from read r
    )
    select o.event_id, o.flow_id, o.refund_id, case when o.does = 'decided' and o.nth > 1 then 'known' else o.does end,
           case when o.does = 'woken' and o.is_refund then 'refund'
                when o.does = 'woken' or (o.does is null and not o.ended) then 'flow' end,
           jsonb_populate_record(null::paylatch.told, jsonb_build_object(
               'action', case o.about when 'charge' then 'QUERY_CHARGE' else 'QUERY_REFUND' end, 'outcome', o.status,
               'asked_at', p_now, 'order_no', o.number, 'amount', case o.about when 'dispute' then o.dispute_amount else o.amount end,
               'currency', o.currency, 'flow_id', o.flow_id, 'refund_id', case when o.is_refund then o.refund_id end,
               'request_id', o.request_id)),
           o.external_no, o.dispute
    from once o
$$;
comment on function paylatch.read_webhooks(text, text[], timestamptz) is
    'What each stored event comes to, given the row it speaks of: unknown_type, not_ours, known, frozen, woken, decided, inquired, late_charge, external_refund, dispute, contradicts, incomplete; null: it waits for its flow, its refund or its flow''s end.';

-- Trusted successes decide, under the flows' locks. A call that is out has lost its lease: its report ends as replayed.
create function paylatch.apply_told_set(p_told paylatch.told[], p_now timestamptz) returns void language plpgsql as $$
declare
    v_flows bigint[] := array(select t.flow_id from unnest(p_told) t where t.refund_id is null order by 1);
    v_refunds bigint[] := array(select t.refund_id from unnest(p_told) t where t.refund_id is not null order by 1);
    v_calls record;
begin
    perform from paylatch.refund r where r.refund_id = any (v_refunds) order by r.refund_id for update;
    select j.channel, count(*)::integer as calls into v_calls from paylatch.job j
    where ((j.kind = 'flow' and j.ref_id = any (v_flows)) or (j.kind = 'refund' and j.ref_id = any (v_refunds)))
      and j.lease_token is not null and paylatch.is_wallet_action(j.action)
    group by j.channel;
    if v_flows <> '{}' then
        perform paylatch.advance_set(paylatch.lock_flows(v_flows, false), array(select t from unnest(p_told) t where t.refund_id is null), p_now, null, null, '{}', '{}');
    end if;
    if v_refunds <> '{}' then
        perform paylatch.advance_refunds(v_refunds, array(select t from unnest(p_told) t where t.refund_id is not null),
                                              p_now, null, null, '{}', '{}');
    end if;
    update paylatch.channel_state s set in_flight = greatest(0, s.in_flight - v_calls.calls)
    where s.channel = v_calls.channel and s.in_flight > 0;
end $$;
comment on function paylatch.apply_told_set(paylatch.told[], timestamptz) is
    'Evidence that came by webhook, at most one per flow or refund, of one channel: decided as if it had been asked for. The flows are locked.';

-- What a person must see, once.
create function paylatch.webhook_incident(p_kind text, p_flow_id bigint, p_says text, p_detail jsonb) returns void language sql as $$
    insert into paylatch.incident (kind, flow_id, says, detail)
    select p_kind, p_flow_id, p_says, p_detail
    where not exists (select from paylatch.incident i where i.flow_id = p_flow_id and i.resolved_at is null and i.says = p_says)
$$;
comment on function paylatch.webhook_incident(text, bigint, text, jsonb) is 'Opens an incident unless the same is open.';

create function paylatch.apply_webhook_set(p_channel text, p_event_ids text[], p_now timestamptz) returns void language plpgsql as $$
declare
    v_read paylatch.webhook_read[];
    v paylatch.webhook_read;
begin
    perform from paylatch.pay_flow f
    where f.flow_id in (select e.flow_id from paylatch.webhook_event e where e.channel = p_channel and e.event_id = any (p_event_ids))
    order by f.flow_id for update;
    v_read := array(select r from paylatch.read_webhooks(p_channel, p_event_ids, p_now) r order by r.flow_id, r.event_id);

    perform paylatch.wake_set(array(select r.flow_id from unnest(v_read) r where r.wakes = 'flow'), p_now);
    if exists (select from unnest(v_read) r where r.does = 'decided') then
        perform paylatch.apply_told_set(array(select r.told from unnest(v_read) r where r.does = 'decided'), p_now);
    end if;
    for v in select r.* from unnest(v_read) r
             where r.wakes = 'refund' or r.does in ('inquired', 'late_charge', 'external_refund', 'dispute', 'contradicts', 'incomplete') loop
        case v.does
            when 'woken' then perform paylatch.wake_refund(v.refund_id, p_now);
            when 'inquired' then perform paylatch.inquire(v.flow_id);
            when 'late_charge' then perform paylatch.late_charge(v.flow_id, (v.told).request_id);
            when 'external_refund' then
                perform paylatch.record_external_refund(v.flow_id, v.external_no, (v.told).amount, (v.told).currency);
            when 'dispute' then perform paylatch.record_dispute(v.flow_id, v.external_no, (v.told).amount, v.dispute);
            else
                perform paylatch.webhook_incident('WEBHOOK_' || upper(v.does), v.flow_id,
                    format('a webhook of %s says %s of %s', p_channel,
                           coalesce((v.told).outcome, 'dispute ' || v.dispute, 'refund ' || v.external_no, 'nothing'), (v.told).order_no),
                    jsonb_build_object('channel', p_channel, 'event_id', v.event_id, 'amount', (v.told).amount,
                                       'currency', (v.told).currency, 'request_id', (v.told).request_id));
        end case;
    end loop;

    update paylatch.webhook_event e
    set applied_at = case when r.does is not null then p_now end, applied_as = r.does, error = null
    from unnest(v_read) r
    where e.channel = p_channel and e.event_id = r.event_id and (r.does is not null or e.error is not null);
end $$;
comment on function paylatch.apply_webhook_set(text, text[], timestamptz) is
    'Applies stored events of a channel, none of which fails; those that have to wait stay as they are.';

create function paylatch.apply_webhooks(p_channel text, p_event_ids text[], p_now timestamptz) returns void
    language plpgsql set search_path = pg_catalog, pg_temp set paylatch.source = 'WEBHOOK' as $$
declare
    v_id text;
begin
    if cardinality(p_event_ids) > 1 then
        begin
            perform paylatch.apply_webhook_set(p_channel, p_event_ids, p_now);
            return;
        exception when others then
            if paylatch.is_passing_error(sqlstate) then
                raise;
            end if;
        end;
    end if;
    -- Each alone, in the order of their flows; one that fails stays, with its error, and scan() tries again.
    for v_id in select e.event_id from paylatch.webhook_event e
                where e.channel = p_channel and e.event_id = any (p_event_ids) order by e.flow_id, e.event_id loop
        begin
            perform paylatch.apply_webhook_set(p_channel, array[v_id], p_now);
        exception when others then
            if paylatch.is_passing_error(sqlstate) then
                raise;
            end if;
            update paylatch.webhook_event e set tries = e.tries + 1, error = left(sqlstate || ': ' || sqlerrm, 500)
            where e.channel = p_channel and e.event_id = v_id;
        end;
    end loop;
end $$;
comment on function paylatch.apply_webhooks(text, text[], timestamptz) is
    'Applies stored events in a subtransaction; one that fails keeps its error and harms no other.';

-- Events that wait and whose time may have come: their flow is there, or has ended. p_flow_ids null: of any flow.
create function paylatch.apply_waiting(p_flow_ids bigint[], p_now timestamptz, p_limit integer default 1000) returns integer language plpgsql as $$
declare
    v record;
    v_seen integer := 0;
begin
    for v in
        select w.channel, array_agg(w.event_id) as event_ids from (
            select e.channel, e.event_id from paylatch.webhook_event e
            left join paylatch.pay_flow f on f.flow_id = e.flow_id
            where e.applied_at is null and (p_flow_ids is null or e.flow_id = any (p_flow_ids))
              and (e.error is not null
                   or (f.flow_id is not null
                       and (f.status in ('BIZ_SUCCESS', 'REFUNDED', 'PAY_FAIL') or e.about = 'charge'
                            or exists (select from paylatch.refund r where r.refund_order_no = e.number))))
            order by e.tries, e.received_at limit p_limit
            for update of e skip locked) w
        group by w.channel order by w.channel loop
        perform paylatch.apply_webhooks(v.channel, v.event_ids, p_now);
        v_seen := v_seen + cardinality(v.event_ids);
    end loop;
    return v_seen;
end $$;
comment on function paylatch.apply_waiting(bigint[], timestamptz, integer) is
    'Applies events that waited for their flow, its refund or its end, and tries failed ones again; those that failed least often first. Returns how many it looked at.';

create function paylatch.receive_webhooks(driver text, channel text, events jsonb)
    returns table (event_id text, disposition text, applied text) language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp set paylatch.source = 'WEBHOOK' set paylatch.actor = '' as $$
declare
    v_now timestamptz;
    v_new text[];
begin
    perform paylatch.require_migrated();
    if coalesce(driver, '') = '' or jsonb_typeof(events) is distinct from 'array' or jsonb_array_length(events) > 1000 then
        raise exception using errcode = 'PL004', message = 'receive_webhooks: give a driver name and a JSON array of at most 1000 objects';
    end if;
    if not exists (select from paylatch.channel c where c.channel = receive_webhooks.channel) then
        raise exception using errcode = 'PL004', message = format('channel: %L is unknown; an administrator adds it to paylatch.channel', channel),
            detail = jsonb_build_object('field', 'channel')::text;
    end if;
    perform set_config('paylatch.actor', left(driver, 64), true);
    v_now := paylatch.clock();
    begin
        v_new := paylatch.store_webhooks(channel, events, v_now);
    exception when data_exception or integrity_constraint_violation then
        raise exception using errcode = 'PL004', message = 'events: ' || sqlerrm,
            hint = 'Each element is an object with event_id, event_type, about and body_base64; see docs/sql-reference.md.';
    end;
    -- One that came before and waits is tried again: being sent once more is as good a moment as any.
    if paylatch.is_armed() then -- a copy decides nothing
        perform paylatch.apply_webhooks(channel, array(
            select e.event_id from paylatch.webhook_event e
            where e.channel = receive_webhooks.channel and e.applied_at is null
              and e.event_id in (select x.element ->> 'event_id' from jsonb_array_elements(events) x(element))), v_now);
    end if;
    return query
    select e.event_id, case when e.event_id = any (v_new) and x.again = 1 then 'received' else 'duplicate' end,
           coalesce(e.applied_as, case when e.error is null then 'parked' end)
    from (select y.element ->> 'event_id' as id, y.n, row_number() over (partition by y.element ->> 'event_id' order by y.n) as again
          from jsonb_array_elements(events) with ordinality y(element, n)) x
    join paylatch.webhook_event e on e.channel = receive_webhooks.channel and e.event_id = x.id
    order by x.n;
end $$;
comment on function paylatch.receive_webhooks(text, text, jsonb) is
    'Events whose signatures hold: a JSON array of at most 1000 objects {event_id, event_type, about (charge, refund, dispute, other), number, status, amount, currency, request_id, external_no, dispute (OPEN, WON, LOST), occurred_at, key, headers, body_base64}. Stored under (channel, event_id) and applied, in one transaction. One row each: disposition received or duplicate; applied: what it did (woken, decided, inquired, late_charge, external_refund, dispute, known, frozen, contradicts, incomplete, not_ours, unknown_type), parked (it waits), or null (it failed; scan() tries again). Errors: PL004, PL007. Upholds rules 1 to 4.';

create function paylatch.replay_webhook(channel text, event_id text) returns text
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_event paylatch.webhook_event;
begin
    perform paylatch.require_migrated();
    perform from paylatch.webhook_event e
    where e.channel = replay_webhook.channel and e.event_id = replay_webhook.event_id for update;
    if not found then
        raise exception using errcode = 'PL008', message = format('channel %s never sent an event %s', channel, event_id);
    end if;
    perform paylatch.apply_webhooks(channel, array[event_id], paylatch.clock());
    select * into v_event from paylatch.webhook_event e
    where e.channel = replay_webhook.channel and e.event_id = replay_webhook.event_id;
    return coalesce(v_event.error, v_event.applied_as, 'parked');
end $$;
comment on function paylatch.replay_webhook(text, text) is
    'Operator: applies a stored event again, whether or not it was applied. Harmless: an event carries no state. Returns what it did, parked, or its error. Errors: PL007, PL008 (no such event).';

-- Applied events leave after their channel's time; those that wait stay.
create function paylatch.forget_webhooks(p_now timestamptz, p_batches integer default 100) returns bigint language plpgsql as $$
declare
    v_gone bigint;
    v_all bigint := 0;
begin
    for v_batch in 1 .. p_batches loop
        delete from paylatch.webhook_event e
        where e.ctid = any (array(
            select o.ctid from paylatch.webhook_event o join paylatch.channel c on c.channel = o.channel
            where o.applied_at is not null
              and greatest(o.applied_at, o.last_received_at) < p_now - make_interval(days => c.webhook_keep_days)
              and o.received_at < p_now -- the index's column
                  - make_interval(days => (select min(x.webhook_keep_days) from paylatch.channel x))
            limit 5000 for update of o skip locked));
        get diagnostics v_gone = row_count;
        v_all := v_all + v_gone;
        exit when v_gone < 5000;
    end loop;
    return v_all;
end $$;
comment on function paylatch.forget_webhooks(timestamptz, integer) is
    'Deletes applied events older than their channel''s webhook_keep_days, in batches of 5000; returns how many.';

create function paylatch.guard_webhook_event() returns trigger language plpgsql as $$
begin
    if tg_op = 'DELETE' then
        if old.applied_at is null then
            raise exception using errcode = '23514', message = format('paylatch rule 6: webhook event %s waits to be applied', old.event_id),
                detail = jsonb_build_object('rule', 6, 'table', 'webhook_event', 'id', old.event_id)::text;
        end if;
        return old;
    end if;
    if (old.channel, old.event_id, old.event_type, old.about, old.number, old.flow_id, old.status, old.amount, old.currency,
        old.request_id, old.external_no, old.dispute, old.occurred_at, old.key_index, old.headers, old.body, old.received_at)
       is distinct from
       (new.channel, new.event_id, new.event_type, new.about, new.number, new.flow_id, new.status, new.amount, new.currency,
        new.request_id, new.external_no, new.dispute, new.occurred_at, new.key_index, new.headers, new.body, new.received_at)
       or new.times_received < old.times_received or (old.applied_at is not null and new.applied_at is null) then
        raise exception using errcode = '23514', message = format('paylatch rule 9: webhook event %s stays as it was received', old.event_id),
            detail = jsonb_build_object('rule', 9, 'table', 'webhook_event', 'id', old.event_id)::text;
    end if;
    return new;
end $$;
comment on function paylatch.guard_webhook_event() is
    'Row guard: what was received never changes, what was applied stays applied, what waits is not deleted. Refuses with 23514.';
