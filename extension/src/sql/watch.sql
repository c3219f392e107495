-- What monitoring and operators see from inside the database.

create function paylatch.metrics() returns table (name text, labels jsonb, value double precision)
    language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform paylatch.require_migrated();
    return query
    select x.name, jsonb_build_object('scene', s.scene, 'channel', s.channel, 'currency', s.currency, 'status', s.status,
                                      'frozen', s.frozen::text), x.value
    from paylatch.stat_flow s cross join lateral (values
        ('unfinished_flows', s.flows::float8), ('unfinished_amount_minor_units', s.amount::float8),
        ('unfinished_need_attention', s.need_attention::float8), ('unfinished_oldest_age_seconds', s.oldest_age_s),
        ('unfinished_p95_age_seconds', s.p95_age_s)) x(name, value)
    union all
    select x.name, jsonb_build_object('channel', r.channel, 'kind', r.kind, 'currency', r.currency, 'status', r.status,
                                      'frozen', r.frozen::text), x.value
    from paylatch.stat_refund r cross join lateral (values
        ('unfinished_refunds', r.refunds::float8), ('unfinished_refund_amount_minor_units', r.amount::float8),
        ('unfinished_refunds_need_attention', r.need_attention::float8), ('unfinished_refund_oldest_age_seconds', r.oldest_age_s)) x(name, value)
    union all
    select x.name, jsonb_build_object('channel', d.channel, 'currency', d.currency), x.value
    from paylatch.stat_dispute d cross join lateral (values
        ('disputes_open', d.disputes::float8), ('disputed_amount_minor_units', d.amount::float8),
        ('dispute_oldest_age_seconds', d.oldest_age_s)) x(name, value)
    union all
    select 'state_entries_per_second', jsonb_build_object('status', e.status, 'source', e.source), e.per_second::float8
    from paylatch.stat_entry e
    union all
    select x.name, jsonb_build_object('channel', c.channel, 'action', c.action, 'outcome', c.outcome), x.value
    from paylatch.stat_call c cross join lateral (values
        ('answers_last_5_minutes', c.answers::float8), ('answer_p95_latency_ms', c.p95_latency_ms::float8)) x(name, value)
    union all
    select x.name, jsonb_build_object('channel', q.channel, 'lane', q.lane), x.value
    from paylatch.stat_queue q cross join lateral (values
        ('queue_due', q.due::float8), ('queue_leased', q.leased::float8), ('queue_unfinished', q.unfinished::float8),
        ('queue_oldest_due_age_seconds', coalesce(q.oldest_due_age_s, 0))) x(name, value)
    union all
    select x.name, jsonb_build_object('channel', c.channel), x.value
    from paylatch.stat_channel c cross join lateral (values
        ('breaker_open', (c.breaker <> 'closed')::integer::float8), ('breaker_failures', c.failures::float8),
        ('channel_in_flight', c.in_flight::float8)) x(name, value)
    union all
    select 'incidents_open', jsonb_build_object('kind', i.kind), count(*)::float8
    from paylatch.incident i where i.resolved_at is null group by i.kind
    union all
    select 'task_last_run_age_seconds', jsonb_build_object('task', t.task), extract(epoch from paylatch.clock() - t.started_at)::float8
    from paylatch.stat_task t
    union all
    select 'webhooks_last_5_minutes', jsonb_build_object('channel', w.channel, 'applied', w.applied), w.events::float8
    from paylatch.stat_webhook w where w.waiting = 0
    union all
    select x.name, jsonb_build_object('channel', w.channel, 'why', w.applied), x.value
    from paylatch.stat_webhook w cross join lateral (values
        ('webhooks_waiting', w.waiting::float8), ('webhooks_oldest_waiting_age_seconds', w.oldest_waiting_age_s)) x(name, value)
    where w.waiting > 0
    union all
    select x.name, '{}'::jsonb, x.value
    from (select count(*) filter (where d.status = 'pending') as pending, count(*) filter (where d.status = 'dead') as dead,
                 coalesce(extract(epoch from paylatch.clock() - min(d.created_at) filter (where d.status = 'pending')), 0) as age
          from paylatch.delivery d where d.status in ('pending', 'dead')) d
    cross join lateral (values ('deliveries_pending', d.pending::float8), ('deliveries_dead', d.dead::float8),
                               ('deliveries_oldest_pending_age_seconds', d.age::float8)) x(name, value)
    union all
    select 'webhook_endpoints_failing', '{}'::jsonb, count(*)::float8
    from paylatch.webhook_endpoint w where w.failures > 0 or w.disabled_why = 'answered 410 Gone'
    union all
    select x.name, jsonb_build_object('sink', o.sink), x.value
    from paylatch.stat_outbox o cross join lateral (values
        ('events_behind', o.behind::float8), ('events_oldest_age_seconds', o.oldest_age_s),
        ('events_retrying', o.retrying::float8), ('events_dead', o.dead::float8)) x(name, value)
    union all
    select 'armed', '{}', paylatch.is_armed()::integer::float8;
end $$;
comment on function paylatch.metrics() is
    'Gauges for Prometheus: name, labels, value. Money in minor units, ages in seconds. Cost follows unfinished work and the last five minutes. Error: PL007.';

create function paylatch.policy_endpoints() returns table (kind text, name text)
    language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform paylatch.require_migrated();
    return query
    select 'wallet', c.channel from paylatch.channel c
    union select 'business', s.business_target from paylatch.scene s where s.business_mode = 'http'
    union select 'relay', o.sink from paylatch.outbox_sink o where o.sink <> 'webhook' -- deliver.sql
    order by 1, 2;
end $$;
comment on function paylatch.policy_endpoints() is
    'What a daemon''s configuration must be able to serve: every channel (wallet), every http business target, every sink of events (relay). Error: PL007.';

create function paylatch.schema_version() returns text
    language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform paylatch.require_migrated();
    return (select extversion from pg_extension where extname = 'paylatch');
end $$;
comment on function paylatch.schema_version() is 'The version of the extension that the migrations brought this database to. Error: PL007.';

create function paylatch.doctor() returns table (check_name text, ok boolean, level text, says text)
    language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_scan timestamptz;
    v_caller text;
begin
    perform paylatch.require_migrated();
    check_name := 'versions'; level := 'error';
    ok := paylatch.version() = paylatch.schema_version();
    says := format('library %s, extension %s', paylatch.version(), paylatch.schema_version())
        || case when ok then '' else '; run `paylatchd migrate`, or restart the server after installing a new library' end;
    return next;
    check_name := 'guards'; level := 'error';
    select bool_and(v.ok), coalesce(string_agg(v.name || ': ' || v.detail, '; ') filter (where not v.ok), 'all in place and always on')
    into ok, says from paylatch.verify_guards() v;
    return next;
    check_name := 'armed'; level := 'error'; ok := paylatch.is_armed();
    says := case when ok then 'this database may hand out actions'
                 else 'this is a copy: no action is handed out until an operator calls paylatch.arm()' end;
    return next;
    select t.started_at, t.caller into v_scan, v_caller from paylatch.stat_task t where t.task = 'scan';
    check_name := 'scanner'; level := 'warn';
    ok := coalesce(v_scan > paylatch.clock() - interval '3 minutes', false);
    says := case when v_scan is null then 'never ran; pg_cron or a daemon runs it every minute'
                 else format('last ran at %s, by %s', paylatch.when_said(v_scan), v_caller) end;
    return next;
    check_name := 'pg_cron'; level := 'warn';
    ok := coalesce(current_setting('cron.database_name', true), '') = current_database()
        and exists (select from pg_extension where extname = 'pg_cron')
        and exists (select from paylatch.task_run t where t.task = 'scan' and t.caller = 'pg_cron'
                    and t.started_at > paylatch.clock() - interval '3 minutes');
    says := case when ok then 'runs scan() every minute'
                 when coalesce(current_setting('cron.database_name', true), '') <> current_database()
                 then 'not set up for this database; the daemon ticks instead (shared_preload_libraries, cron.database_name, then select paylatch.schedule())'
                 else 'set up, but silent for three minutes or never scheduled; select paylatch.schedule() repeats the set-up' end;
    return next;
    level := 'warn';
    for check_name, ok, says in
        select 'held snapshot', false, format('pid %s (%s, %s) holds a snapshot for %s; dead queue rows pile up until it ends: select pg_terminate_backend(%s)',
               a.pid, coalesce(a.usename, a.backend_type), coalesce(nullif(a.application_name, ''), 'no application_name'),
               date_trunc('second', clock_timestamp() - a.xact_start), a.pid)
        from pg_stat_activity a
        where a.backend_xmin is not null and a.xact_start < clock_timestamp() - interval '1 minute' and a.pid <> pg_backend_pid()
          and a.backend_type <> 'walsender'
        order by a.xact_start loop
        return next;
    end loop;
    for check_name, ok, says in
        select s.name, s.setting = s.wanted, s.name || ' = ' || s.setting || case when s.setting = s.wanted then '' else '; ' || s.because end
        from (select p.name, p.setting, w.wanted, w.because from (values
                  ('fsync', 'on', 'a crash can lose everything'),
                  ('synchronous_commit', 'on', 'a crash can lose acknowledged payments'),
                  ('full_page_writes', 'on', 'a crash can corrupt pages')) w(name, wanted, because)
              join pg_settings p using (name)) s loop
        level := case when check_name = 'synchronous_commit' and says like '%remote%' then 'info' else 'error' end;
        return next;
    end loop;
    -- What costs speed, not money (docs/dba.md, Tuning). Sizes are compared in bytes.
    level := 'info';
    for check_name, ok, says in
        select x.name, x.ok, x.name || ' = ' || x.shown || case when x.ok then '' else '; ' || x.because end
        from (select p.name, current_setting(p.name) as shown, w.because,
                     case p.name when 'autovacuum' then p.setting = 'on'
                          else p.setting::bigint * case p.unit when '8kB' then 8192 when 'kB' then 1024 when 'MB' then 1048576 else 1 end >= w.least end as ok
              from (values
                  ('autovacuum', 0, 'the queue bloats without it'),
                  ('shared_buffers', 536870912, 'at least 512MB, and about a quarter of the memory'),
                  ('max_wal_size', 4294967296, 'at least 4GB: at 5,000 payments a second a gigabyte is written in under a minute'),
                  ('checkpoint_timeout', 600, 'at least 10min: each checkpoint makes the next change of every page be logged whole')) w(name, least, because)
              join pg_settings p using (name)) x loop
        return next;
    end loop;
    for check_name, ok, says in
        select 'queue bloat', false, format('paylatch.job takes %s for %s jobs: a snapshot was held for long, or autovacuum lags; vacuum paylatch.job, then reindex table concurrently paylatch.job',
               pg_size_pretty(pg_relation_size('paylatch.job') + pg_indexes_size('paylatch.job')), c.jobs)
        from (select count(*) as jobs from paylatch.job) c
        where pg_relation_size('paylatch.job') + pg_indexes_size('paylatch.job') > 67108864 + 4096 * c.jobs loop
        level := 'warn';
        return next;
    end loop;
    check_name := 'scenes'; level := 'info'; ok := exists (select from paylatch.scene);
    says := (select count(*) from paylatch.scene) || ' scenes, ' || (select count(*) from paylatch.channel) || ' channels'
        || case when ok then '' else '; add rows to paylatch.channel and paylatch.scene' end;
    return next;
    check_name := 'open incidents'; level := 'warn';
    select count(*) = 0, count(*) || ' open' || case when count(*) = 0 then '' else ': select * from paylatch.incident where resolved_at is null' end
    into ok, says from paylatch.incident i where i.resolved_at is null;
    return next;
    check_name := 'webhooks'; level := 'warn';
    select coalesce(sum(w.waiting) filter (where w.applied = 'failed' or w.oldest_waiting_age_s > 3600), 0) = 0,
           format('%s wait, the oldest for %s; %s failed', coalesce(sum(w.waiting) filter (where w.applied = 'parked'), 0),
                  make_interval(secs => round(coalesce(max(w.oldest_waiting_age_s) filter (where w.applied = 'parked'), 0))),
                  coalesce(sum(w.waiting) filter (where w.applied = 'failed'), 0))
    into ok, says from paylatch.stat_webhook w;
    says := says || case when ok then '' else ': select * from paylatch.webhook_event where applied_at is null; replay_webhook(channel, event_id) tries one again' end;
    return next;
    check_name := 'log partitions'; level := 'warn';
    ok := not exists (select from only paylatch.transition_log_other)
        and to_regclass('paylatch.transition_log_' || to_char(paylatch.clock() at time zone 'UTC' + interval '1 month', 'YYYY_MM')) is not null;
    says := case when ok then 'made ahead' else 'missing; scan() makes them once a day' end;
    return next;
    check_name := 'outbox partitions';
    ok := not exists (select from only paylatch.outbox_other)
        and to_regclass('paylatch.outbox_' || to_char(paylatch.clock() at time zone 'UTC' + interval '1 day', 'YYYY_MM_DD')) is not null;
    says := case when ok then 'made ahead' else 'missing; scan() makes them every minute' end;
    return next;
    for check_name, ok, says in
        select 'events to ' || o.sink, o.oldest_age_s < 300 and o.dead = 0,
               format('%s to publish, the oldest for %s s, %s retried, %s dead', o.behind, round(o.oldest_age_s::numeric), o.retrying, o.dead)
               || case when o.oldest_age_s < 300 then '' else '; is a daemon with [relay.' || o.sink || '] running, and its broker?' end
               || case when o.dead = 0 then '' else '; select * from paylatch.undelivered, then paylatch.redeliver()' end
        from paylatch.stat_outbox o order by o.sink loop
        return next;
    end loop;
end $$;
comment on function paylatch.doctor() is
    'What can be seen from inside the database: versions, guards, arming, scanner and pg_cron, held snapshots by pid, durability, settings that cost speed, bloat of the queue, webhook events that wait, partitions, how far events are behind. level: how bad a check is where it is not ok. Error: PL007.';
