-- Webhooks to merchants: events become deliveries inside the database, one per endpoint that wants them, and a daemon
-- carries those out.
--
-- The sink `webhook` of the outbox is this fan-out: it publishes by inserting rows, in sets, so nothing is lost or skipped
-- that commits late. An endpoint is leased as a whole, so its deliveries leave one after the other, and one that is down
-- holds up nobody else.
-- Lock order: the sink, then endpoints, then deliveries; nothing that payments touch.

create function paylatch.new_webhook_secret() returns text language sql volatile as $$
    select 'whsec_' || encode(sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())), 'base64')
$$;
comment on function paylatch.new_webhook_secret() is 'A secret to sign with: 32 random bytes, as Standard Webhooks writes them.';

create function paylatch.create_webhook_endpoint(
    merchant_id text, url text, events text[] default null, out endpoint_id bigint, out secret text)
    language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_bad text;
begin
    perform paylatch.require_migrated();
    v_bad := case when coalesce(length(merchant_id), 0) not between 1 and 64 then 'merchant_id: give 1 to 64 characters'
                  when coalesce(url !~ '^https?://[^\s@/?#]+([/?][^\s#]*)?$' or length(url) > 2000, true)
                      then 'url: give https://HOST/PATH, without a user or a fragment'
                  when cardinality(events) > 50 or exists (select from unnest(events) e(p) where coalesce(e.p !~ '^(flow|order|refund)\.([a-z_]+|\*)$', true))
                      then 'events: give types, as order.paid or refund.*' end;
    if v_bad is not null then
        raise exception using errcode = 'PL004', message = v_bad,
            detail = jsonb_build_object('field', split_part(v_bad, ':', 1))::text;
    end if;
    -- Before the endpoint, so that it misses nothing that commits after it.
    perform paylatch.add_sink('webhook');
    secret := paylatch.new_webhook_secret();
    insert into paylatch.webhook_endpoint as w (merchant_id, url, events, secret, created_at, created_by)
    values (create_webhook_endpoint.merchant_id, create_webhook_endpoint.url, nullif(create_webhook_endpoint.events, '{}'),
            create_webhook_endpoint.secret, paylatch.clock(), session_user)
    returning w.endpoint_id into endpoint_id;
end $$;
comment on function paylatch.create_webhook_endpoint(text, text, text[]) is
    'Operator: sends a merchant''s events to a URL from now on. events: types or kind.*, null for all. Returns the secret that they are signed with, which is shown this once. Errors: PL004, PL007.';

create function paylatch.require_endpoint(p_endpoint_id bigint) returns void language plpgsql as $$
begin
    raise exception using errcode = 'PL004', message = format('there is no webhook endpoint %s', coalesce(p_endpoint_id::text, 'null')),
        detail = '{"field": "endpoint_id"}';
end $$;
comment on function paylatch.require_endpoint(bigint) is 'Raises PL004 for an endpoint that does not exist.';

create function paylatch.rotate_webhook_secret(endpoint_id bigint, overlap_hours integer default 24) returns text
    language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_secret text := paylatch.new_webhook_secret();
begin
    perform paylatch.require_migrated();
    if overlap_hours is null or overlap_hours not between 0 and 720 then
        raise exception using errcode = 'PL004', message = 'overlap_hours: give 0 to 720', detail = '{"field": "overlap_hours"}';
    end if;
    update paylatch.webhook_endpoint w
    set previous_secret = w.secret, previous_until = paylatch.clock() + make_interval(hours => overlap_hours), secret = v_secret
    where w.endpoint_id = rotate_webhook_secret.endpoint_id;
    if not found then
        perform paylatch.require_endpoint(endpoint_id);
    end if;
    return v_secret;
end $$;
comment on function paylatch.rotate_webhook_secret(bigint, integer) is
    'Operator: a new secret for an endpoint, which it returns. Deliveries are signed with the one before as well for overlap_hours. Errors: PL004, PL007.';

create function paylatch.disable_webhook_endpoint(endpoint_id bigint, why text) returns boolean
    language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform paylatch.require_migrated();
    update paylatch.webhook_endpoint w
    set disabled_at = paylatch.clock(), disabled_by = session_user, disabled_why = left(coalesce(nullif(btrim(why), ''), 'by hand'), 200)
    where w.endpoint_id = disable_webhook_endpoint.endpoint_id and w.disabled_at is null;
    return found;
end $$;
comment on function paylatch.disable_webhook_endpoint(bigint, text) is
    'Operator: no further event becomes a delivery for this endpoint, and what waits stays. False where it is disabled or unknown. Error: PL007.';

create function paylatch.enable_webhook_endpoint(endpoint_id bigint) returns boolean
    language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform paylatch.require_migrated();
    update paylatch.webhook_endpoint w
    set disabled_at = null, disabled_by = null, disabled_why = null, failures = 0, paused_until = null
    where w.endpoint_id = enable_webhook_endpoint.endpoint_id and w.disabled_at is not null;
    return found;
end $$;
comment on function paylatch.enable_webhook_endpoint(bigint) is
    'Operator: an endpoint gets events again, and what waits for it goes out. Events of the time between are not made up. False where it is enabled or unknown. Error: PL007.';

create function paylatch.webhook_endpoints()
    returns table (endpoint_id bigint, merchant_id text, url text, events text[], created_at timestamptz, disabled_at timestamptz,
                   disabled_why text, previous_until timestamptz, failures integer, paused_until timestamptz,
                   pending bigint, dead bigint, oldest_pending_at timestamptz)
    language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform paylatch.require_migrated();
    return query
    select w.endpoint_id, w.merchant_id, w.url, w.events, w.created_at, w.disabled_at, w.disabled_why,
           case when w.previous_until > paylatch.clock() then w.previous_until end, w.failures, w.paused_until,
           count(d.delivery_id) filter (where d.status = 'pending'), count(d.delivery_id) filter (where d.status = 'dead'),
           min(d.created_at) filter (where d.status = 'pending')
    from paylatch.webhook_endpoint w
    left join paylatch.delivery d on d.endpoint_id = w.endpoint_id and d.status in ('pending', 'dead')
    group by w.endpoint_id order by w.endpoint_id;
end $$;
comment on function paylatch.webhook_endpoints() is
    'Operator: every endpoint, without its secrets: where it is, what it wants, until when the secret before signs as well, how it is doing. Error: PL007.';

create function paylatch.deliveries(
    of_endpoint bigint default null, with_status text default null, of_event text default null, max_rows integer default 50)
    returns table (delivery_id bigint, endpoint_id bigint, event_id text, type text, flow_id bigint, status text, tries integer,
                   created_at timestamptz, due_at timestamptz, last_status integer, last_error text, ended_at timestamptz)
    language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform paylatch.require_migrated();
    return query
    select d.delivery_id, d.endpoint_id, d.event_id, d.type, d.flow_id, d.status, d.tries, d.created_at,
           case when d.status = 'pending' then d.due_at end, d.last_status, d.last_error, d.ended_at
    from paylatch.delivery d
    where (of_endpoint is null or d.endpoint_id = of_endpoint) and (with_status is null or d.status = with_status)
      and (of_event is null or d.event_id = of_event)
    order by d.delivery_id desc limit least(greatest(coalesce(max_rows, 50), 1), 1000);
end $$;
comment on function paylatch.deliveries(bigint, text, text, integer) is
    'Operator: the newest deliveries, all or of one endpoint, status (pending, delivered, dead) or event; at most 1000. Error: PL007.';

create function paylatch.redeliver_webhook(delivery_id bigint default null, event_id text default null) returns bigint
    language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_count bigint;
begin
    perform paylatch.require_migrated();
    if (delivery_id is null) = (event_id is null) then
        raise exception using errcode = 'PL004', message = 'delivery_id: give a delivery or an event', detail = '{"field": "delivery_id"}';
    end if;
    update paylatch.delivery d
    set status = 'pending', tries = 0, due_at = paylatch.clock(), ended_at = null
    where d.delivery_id = redeliver_webhook.delivery_id or d.event_id = redeliver_webhook.event_id;
    get diagnostics v_count = row_count;
    return v_count;
end $$;
comment on function paylatch.redeliver_webhook(bigint, text) is
    'Operator: sends a delivery once more, or all deliveries of an event, whatever became of them; with all tries ahead. The message keeps its id. Returns how many. Errors: PL004, PL007.';

-- The outbox's side. Claimed, inserted and settled in one transaction; no lease outlives it.
create function paylatch.fan_out(p_relay text, p_now timestamptz) returns integer language plpgsql as $$
declare
    v_events bigint[];
    v_token bigint;
    v_made integer := 0;
begin
    if not exists (select from paylatch.outbox_sink s where s.sink = 'webhook') then
        return 0;
    end if;
    with claimed as materialized (
        select e.* from paylatch.claim_events('webhook', p_relay, 1000, 1000) e
    ), made as (
        insert into paylatch.delivery (endpoint_id, event_id, type, flow_id, created_at, due_at, body)
        select w.endpoint_id, e.event_id, e.type, e.flow_id, p_now, p_now, e.envelope::text
        from claimed e
        join paylatch.webhook_endpoint w on w.merchant_id = e.merchant_id and w.disabled_at is null
             and (w.events is null or e.type = any (w.events) or split_part(e.type, '.', 1) || '.*' = any (w.events))
        order by e.outbox_id, w.endpoint_id
        on conflict on constraint one_delivery_per_event do nothing
        returning 1
    )
    select array_agg(c.outbox_id), max(c.lease_token), (select count(*) from made) into v_events, v_token, v_made from claimed c;
    if v_events is not null then
        perform paylatch.settle_events('webhook', p_relay, v_token, v_events, '[]', true);
    end if;
    return v_made;
end $$;
comment on function paylatch.fan_out(text, timestamptz) is
    'Makes deliveries of the events that the sink webhook has not done, at most 1000 events; returns how many. Upholds rule 12.';

create function paylatch.claim_deliveries(
    driver text, max_endpoints integer default 20, per_endpoint integer default 20, lease_ms integer default 60000,
    out endpoint_id bigint, out lease_token bigint, out delivery_id bigint, out url text, out secrets text[],
    out event_id text, out body text) returns setof record
    language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_now timestamptz;
begin
    perform paylatch.require_migrated();
    if coalesce(length(driver), 0) not between 1 and 128 or max_endpoints is null or max_endpoints not between 1 and 1000
       or per_endpoint is null or per_endpoint not between 1 and 1000 or lease_ms is null or lease_ms not between 1000 and 3600000 then
        raise exception using errcode = 'PL004',
            message = 'claim_deliveries: driver 1 to 128 characters, max_endpoints and per_endpoint 1 to 1000, lease_ms 1000 to 3600000';
    end if;
    if not paylatch.is_armed() then -- a copy tells merchants nothing
        return;
    end if;
    v_now := paylatch.clock();
    perform paylatch.fan_out(driver, v_now);
    return query
    with ready as materialized (
        select w.endpoint_id from paylatch.webhook_endpoint w
        where w.disabled_at is null and (w.paused_until is null or w.paused_until <= v_now)
          and (w.lease_until is null or w.lease_until <= v_now)
          and exists (select from paylatch.delivery d where d.endpoint_id = w.endpoint_id and d.status = 'pending' and d.due_at <= v_now)
        order by w.lease_until nulls first, w.endpoint_id limit max_endpoints for update skip locked
    ), leased as (
        update paylatch.webhook_endpoint w
        set lease_until = v_now + make_interval(secs => lease_ms / 1000.0), lease_holder = driver,
            lease_token = nextval('paylatch.relay_token_seq')
        from ready r where w.endpoint_id = r.endpoint_id
        returning w.endpoint_id, w.lease_token, w.url,
                  array_remove(array[w.secret, case when w.previous_until > v_now then w.previous_secret end], null) as secrets
    )
    select l.endpoint_id, l.lease_token, x.delivery_id, l.url, l.secrets, x.event_id, x.body
    from leased l
    cross join lateral (
        select d.delivery_id, d.event_id, d.body from paylatch.delivery d
        where d.endpoint_id = l.endpoint_id and d.status = 'pending' and d.due_at <= v_now
        order by d.delivery_id limit per_endpoint) x
    order by l.endpoint_id, x.delivery_id;
end $$;
comment on function paylatch.claim_deliveries(text, integer, integer, integer) is
    'Makes deliveries of new events, then leases endpoints that have due ones and returns these in the order of their events, with URL, body and the one or two secrets to sign with. One daemon at a time per endpoint. No rows on a copy that is not armed. Errors: PL004, PL007.';

create function paylatch.settle_deliveries(driver text, endpoint_id bigint, lease_token bigint, tried jsonb) returns text
    language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_now timestamptz;
    v_last record;
    v_gone boolean;
    -- What a try waits for after the first, the second ... failure: about a day in all.
    v_waits constant integer[] := '{5, 300, 1800, 7200, 18000, 28800, 32400}';
begin
    perform paylatch.require_migrated();
    if jsonb_typeof(tried) is distinct from 'array' then
        raise exception using errcode = 'PL004', message = 'tried: give a JSON array', detail = '{"field": "tried"}';
    end if;
    v_now := paylatch.clock();
    perform from paylatch.webhook_endpoint w
    where w.endpoint_id = settle_deliveries.endpoint_id and w.lease_token = settle_deliveries.lease_token
      and w.lease_holder = driver for update;
    if not found then
        return 'lease_lost';
    end if;
    with told as (
        select t.n, t.delivery_id, t.status, left(t.error, 200) as error, t.took_ms, coalesce(t.status between 200 and 299, false) as taken
        from rows from (jsonb_to_recordset(tried) as (delivery_id bigint, status integer, error text, took_ms integer))
             with ordinality t(delivery_id, status, error, took_ms, n)
    ), logged as (
        insert into paylatch.delivery_attempt (delivery_id, at, driver, status, error, took_ms)
        select t.delivery_id, v_now, driver, t.status, t.error, t.took_ms
        from told t join paylatch.delivery d on d.delivery_id = t.delivery_id and d.endpoint_id = settle_deliveries.endpoint_id
    )
    update paylatch.delivery d
    set tries = d.tries + 1, last_status = t.status, last_error = t.error,
        status = case when t.taken then 'delivered' when d.tries >= cardinality(v_waits) then 'dead' else 'pending' end,
        ended_at = case when t.taken or d.tries >= cardinality(v_waits) then v_now end,
        due_at = case when t.taken or d.tries >= cardinality(v_waits) then d.due_at
                      else v_now + make_interval(secs => v_waits[d.tries + 1]) end
    from told t
    where d.delivery_id = t.delivery_id and d.endpoint_id = settle_deliveries.endpoint_id and d.status = 'pending';

    select t.status, coalesce(t.status between 200 and 299, false) as taken into v_last
    from jsonb_to_record(tried -> -1) as t(status integer);
    v_gone := v_last.status = 410;
    -- After a failure nobody knocks for a while, at most five minutes: what waits behind it would fail as well.
    update paylatch.webhook_endpoint w
    set lease_until = null, lease_holder = null, lease_token = null,
        failures = case when tried = '[]' then w.failures when v_last.taken then 0 else w.failures + 1 end,
        paused_until = case when tried = '[]' then w.paused_until
                            when not v_last.taken then v_now + make_interval(secs => least(300, 2 ^ least(w.failures, 9))) end,
        disabled_at = case when v_gone then v_now else w.disabled_at end,
        disabled_by = case when v_gone then driver else w.disabled_by end,
        disabled_why = case when v_gone then 'answered 410 Gone' else w.disabled_why end
    where w.endpoint_id = settle_deliveries.endpoint_id;
    return 'settled';
end $$;
comment on function paylatch.settle_deliveries(text, bigint, bigint, jsonb) is
    'What became of an endpoint''s deliveries, as [{delivery_id, status, error, took_ms}] in the order in which they were sent; those that were not sent are left out. 2xx: delivered. 410: the endpoint is disabled. Else tried again, eight times within about a day, then dead; after a failure the endpoint rests. Ends the lease. Returns settled, or lease_lost, and then nothing changes. Errors: PL004, PL007.';

create function paylatch.forget_deliveries(p_now timestamptz) returns integer language plpgsql as $$
declare
    v_forgotten integer;
begin
    delete from paylatch.delivery d where d.created_at < p_now - interval '30 days';
    get diagnostics v_forgotten = row_count;
    return v_forgotten;
end $$;
comment on function paylatch.forget_deliveries(timestamptz) is 'Deletes deliveries older than 30 days, whatever became of them, with their attempts; returns how many.';
