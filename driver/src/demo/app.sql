-- What an administrator and an application bring along, for the demo: channels and scenes, a sign-in streak as a
-- business of the same database, a login for the daemon, and a few reports. Runs again without harm.

do $$
begin
    if exists (select from paylatch.scene where scene not in ('shop', 'topup', 'streak', 'donate')) then
        raise exception using errcode = 'PL004',
            message = 'this database has scenes that are not the demo''s: give the demo a database of its own';
    end if;
    if exists (select from pg_stat_activity where datname = current_database()
               and application_name like 'paylatchd %' and application_name <> 'paylatchd demo-application') then
        raise exception using errcode = 'PL004',
            message = 'a daemon is at work on this database, perhaps for another simulator: stop it first';
    end if;
end $$;

create schema if not exists app;
grant usage on schema app to paylatch_owner;

-- Sign-in streaks. A broken streak is restored once, by the payment that gets there first. restored_by is the owner of
-- the fact; refuses holds the order numbers that may not restore it any more.
create table if not exists app.streak (
    streak_key text primary key,
    restored_by text,
    restored_at timestamptz,
    refuses text[] not null default '{}'
);

-- Does the work, or refuses because it is late, closed or done, in one statement: the row's lock is what decides
-- between this and streak_close().
create or replace function app.streak_execute(order_no text, biz_key text, valid_until timestamptz, payload jsonb)
    returns boolean language sql security definer set search_path = pg_catalog, pg_temp as $$
    insert into app.streak as s (streak_key, restored_by, restored_at)
    select biz_key, order_no, clock_timestamp()
    where clock_timestamp() <= valid_until
    on conflict (streak_key) do update
    set restored_by = excluded.restored_by, restored_at = excluded.restored_at
    where s.restored_by is null and excluded.restored_by <> all (s.refuses)
    returning true
$$;

create or replace function app.streak_fact(biz_key text, order_no text, out fact text, out owner text)
    language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select case when s.restored_by is not null then 'DONE'
                when $2 = any (s.refuses) then 'REJECTED'
                else 'NOT_DONE' end,
           s.restored_by
    from (values (biz_key)) asked(streak_key) left join app.streak s using (streak_key)
$$;

create or replace function app.streak_close(order_no text, biz_key text, out outcome text, out owner text)
    language sql security definer set search_path = pg_catalog, pg_temp as $$
    insert into app.streak as s (streak_key, refuses)
    values (biz_key, array[order_no])
    on conflict (streak_key) do update
    set refuses = case when s.restored_by is null then s.refuses || excluded.refuses else s.refuses end
    returning case when s.restored_by is null then 'CLOSED' else 'DONE' end, s.restored_by
$$;

-- Two wallets of different skill, and four kinds of business. Everything is impatient, so that the demo is short.
insert into paylatch.channel (channel, call_timeout_ms, breaker_open_ms, ramp_ms, can_close_charge, not_found_final_after_ms)
values ('sim', 1000, 1000, 2000, true, null),
       ('bank', 1000, 1000, 2000, false, 4000)
on conflict do nothing;

insert into paylatch.scene (scene, channel, order_prefix, business_mode, business_target, business_can_close,
                            business_timeout_ms, biz_grace_ms, default_deadline_ms, retry_base_ms, retry_max_ms,
                            slow_interval_ms)
select s.*, 1000, 2000, 30000, 200, 3000, 3000
from (values ('shop', 'sim', 'sh', 'http', 'shop', true),
             ('topup', 'sim', 'tp', 'none', null, false),
             ('streak', 'sim', 'h2r', 'sql', 'app.streak', true),
             ('donate', 'bank', 'dn', 'none', null, false)) s
on conflict do nothing;

-- The daemon's login. It can call the functions of paylatch_driver and nothing else.
create or replace function app.make_driver_login(password text) returns text language plpgsql as $$
begin
    begin
        create role paylatch_demo_driver login;
    exception when duplicate_object or unique_violation then
        null;
    end;
    execute format('alter role paylatch_demo_driver login password %L', password);
    grant paylatch_driver to paylatch_demo_driver;
    return 'paylatch_demo_driver';
end $$;

-- How many payments of this run stand where, and how much money that is.
create or replace function app.standing(first_flow_id bigint)
    returns table (scene text, currency text, status text, frozen boolean, flows bigint, money bigint, shown text)
    language sql stable as $$
    select f.scene, f.currency::text, f.status::text, f.frozen_reason is not null, count(*), sum(f.amount)::bigint,
           paylatch.money(sum(f.amount)::bigint, f.currency::text)
    from paylatch.pay_flow f
    where f.flow_id >= first_flow_id
    group by 1, 2, 3, 4
$$;

-- Every payment of this run, as it is to be compared with the wallet's own count.
create or replace function app.payments(first_flow_id bigint)
    returns table (flow_id bigint, scene text, status text, order_no text, refund_no text, biz_key text, amount bigint,
                   currency text, business_mode text, restored_by text)
    language sql stable as $$
    select f.flow_id, f.scene, f.status::text, f.trade_order_no, paylatch.refund_order_no(f.trade_order_no), o.biz_key,
           f.amount::bigint, f.currency::text, s.business_mode, k.restored_by
    from paylatch.pay_flow f join paylatch.pay_order o using (order_id) join paylatch.scene s on s.scene = f.scene
    left join app.streak k on s.business_target = 'app.streak' and k.streak_key = o.biz_key
    where f.flow_id >= first_flow_id
    order by f.flow_id
$$;

-- A payment worth telling: its charge was sent, the answer was lost, and it ended all the same; the more that happened
-- to it, the better, as long as it fits a screen.
create or replace function app.lost_answer(first_flow_id bigint) returns bigint language sql stable as $$
    select l.ref_id
    from paylatch.transition_log l join paylatch.pay_flow f on f.flow_id = l.ref_id
    where l.kind = 'flow' and l.ref_id >= first_flow_id and f.status in ('BIZ_SUCCESS', 'REFUNDED')
    group by l.ref_id, f.status
    having bool_or(l.action = 'CHARGE' and l.outcome = 'UNKNOWN') and count(*) <= 14
    order by f.status = 'REFUNDED' desc, count(*) filter (where l.outcome = 'UNKNOWN') desc, count(*) desc, l.ref_id
    limit 1
$$;

-- How often an answer was lost, by what had been asked.
create or replace function app.lost_answers(first_flow_id bigint) returns table (action text, answers bigint)
    language sql stable as $$
    select l.action, count(*) from paylatch.transition_log l
    where l.kind = 'flow' and l.ref_id >= first_flow_id and l.outcome = 'UNKNOWN' and l.action is not null
    group by l.action order by l.action
$$;

-- A payment that has not ended.
create or replace function app.unfinished(first_flow_id bigint) returns bigint language sql stable as $$
    select min(u.flow_id) from paylatch.unfinished u where u.flow_id >= first_flow_id
$$;

-- Which of these payments have ended, and what they were for.
create or replace function app.ended(flow_ids bigint[]) returns table (flow_id bigint, amount bigint, succeeded boolean)
    language sql stable as $$
    select f.flow_id, f.amount::bigint, f.status = 'BIZ_SUCCESS'
    from paylatch.pay_flow f
    where f.flow_id = any (flow_ids) and f.status in ('BIZ_SUCCESS', 'REFUNDED', 'PAY_FAIL')
    order by f.flow_id
$$;

-- Every refund of this run but the compensations, which are their payments' own.
create or replace function app.refunds(first_flow_id bigint)
    returns table (refund_id bigint, flow_id bigint, order_no text, refund_no text, status text, amount bigint,
                   currency text, created_at timestamptz, updated_at timestamptz)
    language sql stable as $$
    select r.refund_id, r.flow_id, f.trade_order_no, r.refund_order_no, r.status::text, r.amount::bigint, r.currency::text,
           r.created_at, r.updated_at
    from paylatch.refund r join paylatch.pay_flow f using (flow_id)
    where r.flow_id >= first_flow_id and r.kind <> 'COMPENSATION'
    order by r.refund_id
$$;

-- What of this run is still on its way, beside payments: refunds, webhooks that wait or failed, events to publish.
create or replace function app.on_its_way(first_flow_id bigint, out refunds bigint, out webhooks bigint, out events bigint)
    language sql stable as $$
    select (select count(*) from paylatch.refund r where r.flow_id >= first_flow_id and r.status in ('REQUESTED', 'PENDING')),
           (select count(*) from paylatch.webhook_event e where e.flow_id >= first_flow_id and e.applied_at is null),
           (select coalesce(sum(o.behind), 0)::bigint from paylatch.stat_outbox o)
$$;

-- The webhooks of this run: how many there are, and how often they came.
create or replace function app.webhooks(first_flow_id bigint, out events bigint, out received bigint) language sql stable as $$
    select count(*), coalesce(sum(e.times_received), 0)::bigint
    from paylatch.webhook_event e where e.flow_id >= first_flow_id
$$;

-- The events that there must be. Those of payments and refunds are read from the log, not from the outbox: a new state, a
-- freeze or its end. No log is kept of orders.
create or replace function app.events_due(first_flow_id bigint) returns table (event_id text, type text)
    language sql stable as $$
    with logged as (
        select l.kind, l.ref_id, l.version, l.from_status, l.to_status, l.frozen_reason is not null as frozen,
               lag(l.frozen_reason) over (partition by l.kind, l.ref_id order by l.version) is not null as was_frozen,
               case l.kind when 'flow' then l.ref_id else r.flow_id end as flow_id
        from paylatch.transition_log l left join paylatch.refund r on l.kind = 'refund' and r.refund_id = l.ref_id
    )
    select format('evt_%s_%s%s_%s', l.flow_id, left(l.kind, 1), l.ref_id, l.version),
           l.kind || '.' || case when l.from_status is distinct from l.to_status then lower(l.to_status)
                                 when l.frozen then 'frozen' else 'resumed' end
    from logged l
    where l.flow_id >= first_flow_id and (l.from_status is distinct from l.to_status or l.frozen <> l.was_frozen)
    union all
    select format('evt_%s_o%s_%s', o.flow_id, o.ref_id, o.version), o.type
    from paylatch.outbox o where o.flow_id >= first_flow_id and o.type like 'order.%'
$$;
