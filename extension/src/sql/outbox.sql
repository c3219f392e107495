-- The outbox read: what an event says, which of them a sink still has to publish, and how far it is.
-- Triggers write events (effects.sql); everything here reads them, and moves sinks.
--
-- A sink has done a set of ids. What is unsent lies in the gaps of that set, found by index, so nothing is skipped that
-- commits late with a low id. An id drawn by a transaction that rolled back leaves a gap for good; it is closed once
-- every transaction that was running when it was first seen has ended. So a long transaction elsewhere delays the
-- closing, and no event.
-- Order per flow: what changes a flow holds its row's lock until it commits, and draws its id after it has the lock. So
-- of two events of a flow the earlier one has the lower id, and whoever sees the later one sees both. Ids are therefore
-- looked for in one statement, under one snapshot, and handed out in their order.
-- Lock order: the sink's row, and nothing else that payments touch.

-- A time as JSON has it, the same in every session. Called stable, as to_char() is: the planner would else not fold these
-- small functions into the query, and calling them took two thirds of a claim.
create function paylatch.json_time(p_at timestamptz) returns text language sql stable parallel safe as $$
    select to_char(p_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
$$;
comment on function paylatch.json_time(timestamptz) is 'A time as events have it: RFC 3339, UTC, microseconds.';

-- Each row with its log row and with columns that never change, so that an event says the same whenever it is read.
-- The flow's own payload stays inside: it may hold what subscribers must not see.
create function paylatch.events(p_ids bigint[]) returns setof paylatch.event language plpgsql stable
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off
    set max_parallel_workers_per_gather = 0 as $$
begin
    return query
    select e.outbox_id, e.event_id, e.type, e.flow_id, e.merchant_id, e.version, e.at,
           json_build_object('event_id', e.event_id, 'type', e.type, 'schema_version', 1, 'key', e.flow_id::text,
                             'version', e.version, 'at', paylatch.json_time(e.at), 'payload', e.payload)
    from (
        select x.outbox_id, x.type, x.flow_id, o.merchant_id, x.version, x.at,
               paylatch.event_id(x.flow_id, x.type, x.ref_id, x.version) as event_id,
               case split_part(x.type, '.', 1)
               when 'order' then json_build_object(
                   'kind', 'order', 'version', x.version, 'previous_status', x.order_from,
                   'status', upper(split_part(x.type, '.', 2) collate "C"), 'merchant_id', o.merchant_id, 'scene', o.scene,
                   'user_id', o.user_id, 'biz_key', o.biz_key, 'order_id', o.order_id::text, 'flow_id', x.flow_id::text,
                   'attempt_no', f.attempt_no, 'trade_order_no', f.trade_order_no, 'amount', f.amount,
                   'currency', f.currency, 'refunded_amount', coalesce(x.order_refunded, 0),
                   'created_at', paylatch.json_time(o.created_at))
               when 'refund' then json_build_object(
                   'kind', 'refund', 'version', x.version, 'previous_status', l.from_status, 'status', l.to_status,
                   'frozen_reason', l.frozen_reason, 'code', l.code, 'source', l.source, 'merchant_id', o.merchant_id,
                   'scene', o.scene, 'user_id', o.user_id, 'biz_key', o.biz_key, 'order_id', o.order_id::text,
                   'flow_id', x.flow_id::text, 'trade_order_no', f.trade_order_no, 'refund_id', r.refund_id::text,
                   'refund_order_no', r.refund_order_no, 'refund_kind', r.kind, 'amount', r.amount,
                   'currency', r.currency, 'request_id', l.request_id, 'created_at', paylatch.json_time(r.created_at))
               else json_build_object(
                   'kind', 'flow', 'version', x.version, 'previous_status', l.from_status, 'status', l.to_status,
                   'frozen_reason', l.frozen_reason, 'code', l.code, 'source', l.source, 'merchant_id', o.merchant_id,
                   'scene', o.scene, 'channel', f.channel, 'user_id', o.user_id, 'biz_key', o.biz_key,
                   'order_id', o.order_id::text, 'flow_id', x.flow_id::text, 'attempt_no', f.attempt_no,
                   'trade_order_no', f.trade_order_no, 'amount', f.amount, 'currency', f.currency,
                   'request_id', l.request_id, 'biz_deadline', paylatch.json_time(f.biz_deadline),
                   'created_at', paylatch.json_time(f.created_at)) end as payload
        from paylatch.outbox x
        join paylatch.pay_flow f on f.flow_id = x.flow_id
        join paylatch.pay_order o on o.order_id = f.order_id
        left join paylatch.transition_log l on l.kind = split_part(x.type, '.', 1) and l.ref_id = x.ref_id
             and l.version = x.version and l.at = x.at
        left join paylatch.refund r on r.refund_id = case when x.type like 'refund.%' then x.ref_id end
        where x.outbox_id = any (p_ids)) e
    order by e.outbox_id;
end $$;
comment on function paylatch.events(bigint[]) is 'Events whole, in the order of their ids: built from log rows and columns that never change, so the same every time.';

-- Under one snapshot, and always by index: the planner must not take a backlog for a reason to sort it, nor the price
-- that it then puts on a plan for a reason to compile it or to start workers.
create function paylatch.unsent(p_sink text, p_done int8multirange, p_now timestamptz, p_max integer)
    returns bigint[] language plpgsql stable
    set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_hashjoin = off set jit = off
    set max_parallel_workers_per_gather = 0 as $$
begin
    return coalesce((
        select array_agg(c.outbox_id) from (
            select x.outbox_id from unnest('{[1,)}'::int8multirange - p_done) g
            cross join lateral (
                select o.outbox_id from paylatch.outbox o
                where o.outbox_id >= lower(g) and o.outbox_id < coalesce(upper(g), 9223372036854775807)
                  -- what is being retried waits for its time, and what follows it in its flow waits with it
                  and not exists (select from paylatch.outbox_retry r where r.sink = p_sink and r.flow_id = o.flow_id
                                  and r.outbox_id <= o.outbox_id and r.due_at > p_now)
                order by o.outbox_id limit p_max) x
            order by x.outbox_id limit p_max) c), '{}');
end $$;
comment on function paylatch.unsent(text, int8multirange, timestamptz, integer) is
    'The lowest ids that a sink has not done and may publish now; at most p_max.';

create function paylatch.has_events_from(p_id bigint) returns boolean language plpgsql stable
    set enable_seqscan = off set enable_bitmapscan = off set jit = off set max_parallel_workers_per_gather = 0 as $$
begin
    return exists (select from paylatch.outbox o where o.outbox_id >= p_id);
end $$;
comment on function paylatch.has_events_from(bigint) is 'Whether there is an event with this id or a higher one.';

-- Only for ids up to which every transaction has ended: of those, what is not there now will never be. A gap is closed
-- up to its first row; behind that it waits until the row is done.
create function paylatch.without_gaps(p_done int8multirange, p_upto bigint) returns int8multirange language plpgsql
    set enable_seqscan = off set enable_bitmapscan = off set jit = off set max_parallel_workers_per_gather = 0 as $$
begin
    return p_done + coalesce((
        select range_agg(int8range(lower(g), coalesce(x.outbox_id, upper(g))))
        from unnest(int8multirange(int8range(1, p_upto + 1)) - p_done) g
        left join lateral (select o.outbox_id from paylatch.outbox o
                           where o.outbox_id >= lower(g) and o.outbox_id < upper(g)
                           order by o.outbox_id limit 1) x on true), '{}');
end $$;
comment on function paylatch.without_gaps(int8multirange, bigint) is 'A set of done ids without the gaps up to p_upto in which no event is.';

create function paylatch.ranges_of(p_ids bigint[]) returns int8multirange language sql immutable parallel safe as $$
    select coalesce(range_agg(int8range(i.low, i.high, '[]')), '{}')
    from (select min(x.id) as low, max(x.id) as high
          from (select u.id, u.id - dense_rank() over (order by u.id) as island from unnest(p_ids) u(id)) x
          group by x.island) i
$$;
comment on function paylatch.ranges_of(bigint[]) is 'Ids as a set of ranges.';

create function paylatch.last_outbox_id() returns bigint language sql volatile as $$
    select case when q.is_called then q.last_value else 0 end from paylatch.outbox_id_seq q
$$;
comment on function paylatch.last_outbox_id() is 'The highest id that any transaction has drawn, whether it has committed or not.';

create function paylatch.require_sink(p_sink text) returns void language plpgsql as $$
begin
    raise exception using errcode = 'PL004', message = format('there is no sink %s', coalesce(p_sink, 'null')),
        detail = jsonb_build_object('field', 'sink')::text,
        hint = format('An operator adds it: select paylatch.add_sink(%L)', p_sink);
end $$;
comment on function paylatch.require_sink(text) is 'Raises PL004 for a sink that does not exist.';

create function paylatch.claim_events(
    sink text, relay text, max_events integer default 500, lease_ms integer default 30000,
    out lease_token bigint, out outbox_id bigint, out event_id text, out type text, out flow_id bigint,
    out merchant_id text, out version bigint, out at timestamptz, out envelope json)
    returns setof record language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_sink paylatch.outbox_sink;
    v_now timestamptz;
    v_drawn bigint;
    v_marks boolean;
    v_ids bigint[];
begin
    perform paylatch.require_migrated();
    if max_events is null or max_events not between 1 and 10000 or lease_ms is null or lease_ms not between 1000 and 3600000
       or relay is null or length(relay) not between 1 and 128 then
        raise exception using errcode = 'PL004', message = 'claim_events: max_events 1 to 10000, lease_ms 1000 to 3600000, relay 1 to 128 characters';
    end if;
    v_now := paylatch.clock();
    -- Ids first, our own transaction id afterwards: whoever drew one of those ids had an older transaction id, since a
    -- trigger draws it after its statement has written. Where ours is older than this call, that proves nothing.
    v_drawn := paylatch.last_outbox_id();
    v_marks := pg_current_xact_id_if_assigned() is null;

    select * into v_sink from paylatch.outbox_sink s where s.sink = claim_events.sink;
    if not found then
        perform paylatch.require_sink(claim_events.sink);
    end if;
    -- A copy of a database publishes nothing; one relay at a time; and one that finds nothing to do writes nothing.
    if not paylatch.is_armed() or (v_sink.lease_until > v_now and v_sink.relay <> claim_events.relay)
       or (not paylatch.has_events_from(coalesce(upper(v_sink.done), 1))
           and paylatch.unsent(v_sink.sink, v_sink.done, v_now, 1) = '{}'
           and (v_sink.done @> int8range(1, v_drawn + 1) or pg_snapshot_xmin(pg_current_snapshot()) < v_sink.seen_xid)) then
        return;
    end if;
    select * into v_sink from paylatch.outbox_sink s
    where s.sink = claim_events.sink and (s.lease_until is null or s.lease_until <= v_now or s.relay = claim_events.relay)
    for update skip locked;
    if not found then
        return;
    end if;

    -- A mark from the future was set in another cluster, before a dump: nothing of that time is still running.
    if pg_snapshot_xmin(pg_current_snapshot()) >= v_sink.seen_xid or v_sink.seen_xid > pg_current_xact_id() then
        v_sink.done := paylatch.without_gaps(v_sink.done, v_sink.seen_id);
        v_sink.seen_id := null;
        v_sink.seen_xid := null;
    end if;
    if v_marks and v_sink.seen_id is null and not v_sink.done @> int8range(1, v_drawn + 1) then
        v_sink.seen_id := v_drawn;
        v_sink.seen_xid := pg_current_xact_id();
    end if;
    v_ids := paylatch.unsent(v_sink.sink, v_sink.done, v_now, max_events);
    update paylatch.outbox_sink s
    set done = v_sink.done, seen_id = v_sink.seen_id, seen_xid = v_sink.seen_xid, relay = claim_events.relay,
        lease_token = nextval('paylatch.relay_token_seq'), lease_until = v_now + make_interval(secs => lease_ms / 1000.0)
    where s.sink = v_sink.sink
    returning s.lease_token into v_sink.lease_token;
    return query
    select v_sink.lease_token, e.outbox_id, e.event_id, e.type, e.flow_id, e.merchant_id, e.version, e.at, e.envelope
    from paylatch.events(v_ids) e;
end $$;
comment on function paylatch.claim_events(text, text, integer, integer) is
    'The next events of a sink, whole and in order, at most max_events, leased to one relay for lease_ms. No rows: nothing to publish, another relay has the lease, or a copy that is not armed. relay: who asks; must differ between processes. A claim makes an older token of the sink worthless. Errors: PL004, PL007. Upholds rule 12.';

create function paylatch.settle_events(
    sink text, relay text, lease_token bigint, published bigint[], failed jsonb default '[]', release boolean default false)
    returns text language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_sink paylatch.outbox_sink;
    v_now timestamptz;
    v_dead bigint[];
begin
    perform paylatch.require_migrated();
    select * into v_sink from paylatch.outbox_sink s where s.sink = settle_events.sink for update;
    if not found then
        perform paylatch.require_sink(settle_events.sink);
    end if;
    if (v_sink.relay, v_sink.lease_token) is distinct from (settle_events.relay, settle_events.lease_token) then
        return 'lease_lost';
    end if;
    if exists (select from unnest(published) p(id) where p.id is null or p.id not between 1 and paylatch.last_outbox_id())
       or jsonb_typeof(coalesce(failed, '[]')) <> 'array' then
        raise exception using errcode = 'PL004', message = 'settle_events: published are ids that were handed out, failed is an array';
    end if;
    v_now := paylatch.clock();
    delete from paylatch.outbox_retry r where r.sink = v_sink.sink and r.outbox_id = any (published);
    with told as (
        select distinct on (f.outbox_id) f.outbox_id, left(coalesce(f.error, 'refused'), 500) as error
        from jsonb_to_recordset(coalesce(failed, '[]')) f(outbox_id bigint, error text)
    ), retried as (
        insert into paylatch.outbox_retry as r (sink, outbox_id, flow_id, tries, due_at, error)
        select v_sink.sink, o.outbox_id, o.flow_id, 1, v_now + make_interval(secs => v_sink.retry_base_ms / 1000.0), t.error
        from told t join paylatch.outbox o on o.outbox_id = t.outbox_id
        where not v_sink.done @> o.outbox_id
        on conflict on constraint outbox_retry_pkey do update
        set tries = r.tries + 1, error = excluded.error,
            due_at = v_now + make_interval(secs => least(v_sink.retry_base_ms * 2 ^ least(r.tries, 30), v_sink.retry_max_ms) / 1000.0)
        returning r.outbox_id, r.tries
    )
    select coalesce(array_agg(r.outbox_id), '{}') into v_dead from retried r where r.tries >= v_sink.max_tries;
    if v_dead <> '{}' then
        insert into paylatch.dead_letter (sink, outbox_id, died_at, tries, error, envelope)
        select v_sink.sink, e.outbox_id, v_now, r.tries, r.error, e.envelope
        from paylatch.events(v_dead) e
        join paylatch.outbox_retry r on r.sink = v_sink.sink and r.outbox_id = e.outbox_id
        on conflict on constraint dead_letter_pkey do update
        set died_at = excluded.died_at, tries = excluded.tries, error = excluded.error;
        delete from paylatch.outbox_retry r where r.sink = v_sink.sink and r.outbox_id = any (v_dead);
    end if;
    update paylatch.outbox_sink s
    set done = s.done + paylatch.ranges_of(published || v_dead), lease_until = case when not release then s.lease_until end
    where s.sink = v_sink.sink;
    return 'settled';
end $$;
comment on function paylatch.settle_events(text, text, bigint, bigint[], jsonb, boolean) is
    'What became of claimed events: published ones are done, failed ones ([{outbox_id, error}]) are tried again later and become dead letters after the sink''s max_tries; the rest is handed out again. release: the relay ends. Returns settled, or lease_lost where another claim came in between, and then nothing changes. Errors: PL004, PL007.';

create function paylatch.add_sink(sink text, from_start boolean default false) returns boolean
    language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_done int8multirange := '{}';
begin
    perform paylatch.require_migrated();
    if sink is null or sink !~ '^[a-z][a-z0-9_]{0,31}$' then
        raise exception using errcode = 'PL004', message = 'a sink''s name is a letter, then up to 31 of a-z0-9_',
            detail = jsonb_build_object('field', 'sink')::text;
    end if;
    -- Not "all ids so far": some of them belong to transactions that have not committed yet.
    if not coalesce(from_start, false) then
        v_done := paylatch.ranges_of(array(select o.outbox_id from paylatch.outbox o));
    end if;
    insert into paylatch.outbox_sink (sink, created_by, done) values (sink, session_user, v_done) on conflict do nothing;
    return found;
end $$;
comment on function paylatch.add_sink(text, boolean) is
    'A new sink: it gets what commits from now on, or, from_start, all that is kept. Returns false where it is there already. Errors: PL004, PL007.';

create function paylatch.drop_sink(sink text) returns boolean
    language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform paylatch.require_migrated();
    delete from paylatch.outbox_sink s where s.sink = drop_sink.sink;
    return found;
end $$;
comment on function paylatch.drop_sink(text) is
    'Forgets a sink, its retries and dead letters, so that it holds back no partition any more. Returns false where there is none. Error: PL007.';

create function paylatch.event_id(flow_id bigint, type text, ref_id bigint, version bigint) returns text
    language sql immutable parallel safe as $$
    select 'evt_' || flow_id::text || '_' || left(type, 1) || ref_id::text || '_' || version::text
$$;
comment on function paylatch.event_id(bigint, text, bigint, bigint) is
    'The identity of an event, by which subscribers drop what comes twice: evt_, flow, f, o or r and the flow, order or refund that changed, its version.';

create function paylatch.event_of(p_event_id text, out flow_id bigint, out kind text, out ref_id bigint, out version bigint)
    language sql immutable parallel safe as $$
    select m[1]::bigint, case m[2] when 'f' then 'flow' when 'o' then 'order' when 'r' then 'refund' end, m[3]::bigint, m[4]::bigint
    from regexp_match(p_event_id, '^evt_(\d{1,18})_([for])(\d{1,18})_(\d{1,18})$') m
$$;
comment on function paylatch.event_of(text) is 'What an event id is made of: flow, kind, the thing that changed, its version.';

create function paylatch.redeliver(sink text, event_id text default null) returns bigint
    language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_ids bigint[];
begin
    perform paylatch.require_migrated();
    perform from paylatch.outbox_sink s where s.sink = redeliver.sink for update;
    if not found then
        perform paylatch.require_sink(redeliver.sink);
    end if;
    -- No index leads from flow to event: one is found by reading, since a person asks for it.
    v_ids := array(
        select o.outbox_id from paylatch.outbox o, paylatch.event_of(redeliver.event_id) e
        where o.flow_id = e.flow_id and o.ref_id = e.ref_id and o.version = e.version and o.type like e.kind || '.%'
        union all
        select o.outbox_id from paylatch.dead_letter d join paylatch.outbox o using (outbox_id)
        where d.sink = redeliver.sink and redeliver.event_id is null);
    if v_ids = '{}' and redeliver.event_id is not null then
        raise exception using errcode = 'PL004', message = format('event %s is not kept', redeliver.event_id),
            detail = jsonb_build_object('field', 'event_id')::text,
            hint = 'Events older than outbox_policy.retention_ms are gone; a dead letter keeps its envelope.';
    end if;
    delete from paylatch.dead_letter d where d.sink = redeliver.sink and d.outbox_id = any (v_ids);
    update paylatch.outbox_retry r set due_at = paylatch.clock() where r.sink = redeliver.sink and r.outbox_id = any (v_ids);
    update paylatch.outbox_sink s set done = s.done - paylatch.ranges_of(v_ids) where s.sink = redeliver.sink;
    return cardinality(v_ids);
end $$;
comment on function paylatch.redeliver(text, text) is
    'Publishes an event again, or every dead letter of the sink that is still kept. Returns how many. It keeps its event_id. Errors: PL004, PL007.';

-- Days: today and three ahead, and a net for rows that fall outside. Attached, not created as partitions: that locks
-- out no payment. Each refuses TRUNCATE and direct inserts itself, since triggers on the parent are not asked.
create function paylatch.make_outbox_partitions(p_now timestamptz) returns integer language plpgsql
    set search_path = pg_catalog, pg_temp set timezone = 'UTC' as $$
declare
    v_from timestamptz;
    v_name text;
    v_bound text;
    v_made integer := 0;
begin
    for v_from in select null union all select date_trunc('day', p_now) + make_interval(days => n) from generate_series(0, 3) n loop
        v_name := coalesce('outbox_' || to_char(v_from, 'YYYY_MM_DD'), 'outbox_other');
        continue when to_regclass('paylatch.' || v_name) is not null;
        -- A day that has begun in the net stays there: its rows cannot move.
        continue when v_from is not null and exists (
            select from paylatch.outbox o where o.at >= v_from and o.at < v_from + interval '1 day');
        v_bound := case when v_from is null then 'default'
                        else format('for values from (%L) to (%L)', v_from, v_from + interval '1 day') end;
        -- Rows that never change and soon go with their table need no vacuum.
        execute format('create table paylatch.%I (like paylatch.outbox including defaults including indexes)
                        with (autovacuum_vacuum_insert_threshold = -1)', v_name);
        execute format('create trigger t05_by_triggers_only before insert on paylatch.%I
                        for each statement execute function paylatch.refuse_direct()', v_name);
        execute format('create trigger t11_no_truncate before truncate on paylatch.%I
                        for each statement execute function paylatch.refuse_truncate()', v_name);
        execute format('alter table paylatch.%I owner to paylatch_owner', v_name);
        execute format('alter table paylatch.outbox attach partition paylatch.%I %s', v_name, v_bound);
        execute format('alter table paylatch.%I enable always trigger t05_by_triggers_only, enable always trigger t10_guard,
                        enable always trigger t11_no_truncate', v_name);
        v_made := v_made + 1;
    end loop;
    return v_made;
end $$;
comment on function paylatch.make_outbox_partitions(timestamptz) is 'Makes the outbox''s partitions for today and the next three days; returns how many were missing.';

create function paylatch.is_done_everywhere(p_partition regclass) returns boolean language plpgsql
    set search_path = pg_catalog, pg_temp as $$
declare
    v_ids int8range;
begin
    execute format('select int8range(min(outbox_id), max(outbox_id), ''[]'') from %s', p_partition) into v_ids;
    return not exists (select from paylatch.outbox_sink s where lower(v_ids) is not null and not s.done @> v_ids);
end $$;
comment on function paylatch.is_done_everywhere(regclass) is 'Whether every sink has done all events of a partition of the outbox.';

-- Days go in their order, and the net last, once its newest row is old. What was found done is looked at again under a
-- lock that no payment shares: whoever has written into it has ended by then.
create function paylatch.drop_outbox_partitions(p_now timestamptz) returns integer language plpgsql
    set search_path = pg_catalog, pg_temp set timezone = 'UTC' as $$
declare
    v_old timestamptz;
    v record;
    v_dropped integer := 0;
begin
    select p_now - make_interval(secs => p.retention_ms / 1000.0) into v_old from paylatch.outbox_policy p;
    for v in select c.oid::regclass as name, d.ends
             from pg_inherits i join pg_class c on c.oid = i.inhrelid
             cross join lateral (select to_timestamp(substring(c.relname from '\d{4}_\d\d_\d\d$'), 'YYYY_MM_DD') + interval '1 day' as ends) d
             where i.inhparent = 'paylatch.outbox'::regclass and coalesce(d.ends <= v_old, true)
             order by d.ends nulls last loop
        exit when v.ends is null and coalesce((select max(o.at) > v_old from paylatch.outbox_other o), true);
        exit when not paylatch.is_done_everywhere(v.name);
        execute format('lock table only paylatch.outbox, %s in access exclusive mode', v.name);
        exit when not paylatch.is_done_everywhere(v.name);
        execute format('drop table %s', v.name);
        update paylatch.outbox_policy p set kept_from = greatest(p.kept_from, coalesce(v.ends, v_old));
        v_dropped := v_dropped + 1;
    end loop;
    perform paylatch.make_outbox_partitions(p_now); -- the net anew
    return v_dropped;
end $$;
comment on function paylatch.drop_outbox_partitions(timestamptz) is
    'Drops the days that are older than the retention and done by every sink, oldest first; returns how many.';

-- Gives way to payments: where a lock is not to be had at once, the next minute tries again.
create function paylatch.keep_outbox(p_now timestamptz) returns jsonb language plpgsql set lock_timeout = '50ms' as $$
begin
    return jsonb_build_object('outbox_days_made', paylatch.make_outbox_partitions(p_now),
                              'outbox_days_dropped', paylatch.drop_outbox_partitions(p_now));
exception when lock_not_available then
    return jsonb_build_object('outbox_days', 'a transaction is in the way; the next scan tries again');
end $$;
comment on function paylatch.keep_outbox(timestamptz) is 'The outbox''s upkeep, every minute: days ahead made, days past dropped. Waits for nobody longer than 50 ms.';
