-- The scanner: finds what is overdue, decides what needs nobody outside, mends the queue, keeps the ledger.
-- Its cost follows unfinished work and what was created since the last rounds, never history.

-- Decides due flows that need nothing from outside. Each round begins at id 0 and keeps its cursor for itself.
create function paylatch.scan_round(p_now timestamptz, p_limit integer default 20000) returns integer language plpgsql as $$
declare
    v_cursor bigint := 0;
    v_ids bigint[];
    v_id bigint;
    v_decided integer := 0;
begin
    loop
        v_ids := array(
            select f.flow_id
            from paylatch.job j
            join paylatch.pay_flow f on f.flow_id = j.ref_id
            join paylatch.scene s on s.scene = f.scene
            where j.kind = 'flow' and j.ref_id > v_cursor and j.due_at <= p_now
              and case f.status
                      when 'WAIT_PAY' then f.biz_deadline <= p_now or f.cancel_requested_at is not null
                      when 'PAYED' then s.business_mode in ('sql', 'none')
                      else false end
            order by f.flow_id limit 500
            for update of f, j skip locked);
        exit when v_ids = '{}' or v_decided >= p_limit;
        v_cursor := v_ids[cardinality(v_ids)];
        begin
            perform paylatch.advance_set(paylatch.lock_flows(v_ids, false), null, p_now, null, null, '{}', '{}');
        exception when others then
            if paylatch.is_passing_error(sqlstate) then
                raise;
            end if;
            foreach v_id in array v_ids loop
                begin
                    perform paylatch.advance_set(paylatch.lock_flows(array[v_id], false), null, p_now, null, null, '{}', '{}');
                exception when others then
                    if paylatch.is_passing_error(sqlstate) then
                        raise;
                    end if;
                    perform paylatch.set_aside(v_id, sqlstate, sqlerrm);
                end;
            end loop;
        end;
        v_decided := v_decided + cardinality(v_ids);
    end loop;
    return v_decided;
end $$;
comment on function paylatch.scan_round(timestamptz, integer) is
    'Takes every due flow that needs nobody outside as far as it goes, in sets of 500; returns how many it looked at.';

-- Re-creates job rows that are missing for unfinished flows and refunds with an id above p_above and p_refunds_above.
create function paylatch.mend_queue(p_above bigint, p_refunds_above bigint) returns integer language plpgsql as $$
declare
    v_mended integer;
    v_refunds integer;
begin
    insert into paylatch.job (kind, ref_id, channel, lane, due_at)
    select 'flow', f.flow_id, f.channel, paylatch.lane_of(f.status),
           case when f.frozen_reason is null then paylatch.clock() else 'infinity' end
    from paylatch.pay_flow f
    where f.flow_id > p_above and f.status not in ('BIZ_SUCCESS', 'REFUNDED', 'PAY_FAIL')
      and not exists (select from paylatch.job j where j.kind = 'flow' and j.ref_id = f.flow_id)
    on conflict do nothing;
    get diagnostics v_mended = row_count;
    insert into paylatch.job (kind, ref_id, channel, lane, due_at)
    select 'refund', r.refund_id, f.channel, 'refund',
           case when r.status = 'PENDING' and r.frozen_reason is null then paylatch.clock() else 'infinity' end
    from paylatch.refund r join paylatch.pay_flow f using (flow_id)
    where r.refund_id > p_refunds_above and r.status in ('REQUESTED', 'PENDING') and r.kind <> 'COMPENSATION'
      and not exists (select from paylatch.job j where j.kind = 'refund' and j.ref_id = r.refund_id)
    on conflict do nothing;
    get diagnostics v_refunds = row_count;
    return v_mended + v_refunds;
end $$;
comment on function paylatch.mend_queue(bigint, bigint) is 'Re-creates missing job rows of unfinished flows and refunds above an id of each; returns how many. Upholds rule 6.';

-- Begins a task's run for the present period; null where another run is under way. Missed periods are counted: one run
-- makes up for all of them, since each looks at everything that is due.
create function paylatch.begin_task(p_task text, p_period interval, p_caller text, p_now timestamptz)
    returns timestamptz language plpgsql set timezone = 'UTC' as $$
declare
    v_period timestamptz := date_bin(p_period, p_now, '2000-01-01');
    v_last timestamptz;
begin
    if not pg_try_advisory_xact_lock(hashtext('paylatch'), hashtext(p_task)) then
        return null;
    end if;
    select max(period_at) into v_last from paylatch.task_run where task = p_task;
    insert into paylatch.task_run (task, period_at, started_at, caller, missed_periods)
    values (p_task, v_period, p_now, left(p_caller, 64),
            greatest(0, coalesce(extract(epoch from v_period - v_last) / extract(epoch from p_period) - 1, 0))::integer)
    on conflict (task, period_at) do update
    set started_at = excluded.started_at, finished_at = null, caller = excluded.caller;
    return v_period;
end $$;
comment on function paylatch.begin_task(text, interval, text, timestamptz) is
    'Opens the ledger row of a task''s period and counts the periods missed before it; null where the task is running elsewhere.';

create function paylatch.end_task(p_task text, p_period_at timestamptz, p_says jsonb) returns void language sql as $$
    update paylatch.task_run set finished_at = paylatch.clock(), says = p_says where task = p_task and period_at = p_period_at
$$;
comment on function paylatch.end_task(text, timestamptz, jsonb) is 'Closes the ledger row of a task''s run.';

-- Once a day: a look at all of history for missing jobs, an old ledger forgotten, partitions made ahead.
create function paylatch.maintain(p_caller text, p_now timestamptz) returns jsonb language plpgsql as $$
declare
    v_period timestamptz;
    v_says jsonb;
begin
    if exists (select from paylatch.task_run where task = 'maintain' and period_at = date_bin('1 day', p_now, '2000-01-01')
               and finished_at is not null) then
        return null;
    end if;
    v_period := paylatch.begin_task('maintain', '1 day', p_caller, p_now);
    if v_period is null then
        return null;
    end if;
    v_says := jsonb_build_object('jobs_mended', paylatch.mend_queue(0, 0), 'webhooks_forgotten', paylatch.forget_webhooks(p_now),
                                 'deliveries_forgotten', paylatch.forget_deliveries(p_now));
    delete from paylatch.task_run where started_at < p_now - interval '90 days';
    -- Last, since creation waits behind the locks that partitions need until this transaction ends.
    v_says := v_says || jsonb_build_object('partitions_made', paylatch.make_partitions(p_now));
    perform paylatch.end_task('maintain', v_period, v_says);
    return v_says;
end $$;
comment on function paylatch.maintain(text, timestamptz) is 'The daily task: missing jobs in all of history, webhook events and deliveries past their time, ledger rows older than 90 days, partitions made ahead. Null where it has run today.';

create function paylatch.scan(caller text default session_user) returns jsonb
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp set timezone = 'UTC' set paylatch.source = 'SCANNER' set paylatch.actor = '' as $$
declare
    v_now timestamptz;
    v_period timestamptz;
    v_above bigint;
    v_refunds_above bigint;
    v_decided integer;
    v_mended integer;
    v_webhooks integer;
    v_says jsonb;
begin
    perform paylatch.require_migrated();
    perform set_config('paylatch.actor', left(coalesce(caller, session_user), 64), true);
    v_now := paylatch.clock();
    v_period := paylatch.begin_task('scan', '1 minute', caller, v_now);
    if v_period is null then
        return jsonb_build_object('skipped', 'another scan is running');
    end if;
    -- Flows and refunds created since the round before last; the daily task looks at the rest. Until there are two such
    -- rounds, all of them.
    select (r.says ->> 'flow_high')::bigint, (r.says ->> 'refund_high')::bigint into v_above, v_refunds_above
    from paylatch.task_run r where r.task = 'scan' and r.finished_at is not null and r.period_at < v_period
    order by r.period_at desc offset 1 limit 1;
    v_above := coalesce(v_above, 0);
    v_refunds_above := coalesce(v_refunds_above, 0);
    v_mended := paylatch.mend_queue(v_above, v_refunds_above);
    v_decided := case when paylatch.is_armed() then paylatch.scan_round(v_now) else 0 end; -- a copy decides nothing
    v_webhooks := case when paylatch.is_armed() then paylatch.apply_waiting(null, v_now) else 0 end;
    -- The exact number of calls under way, whatever crashed in between.
    update paylatch.channel_state s set in_flight = x.calls
    from (select c.channel, count(j.ref_id)::integer as calls
          from paylatch.channel c
          left join paylatch.job j on j.channel = c.channel and j.lease_token is not null and paylatch.is_wallet_action(j.action)
          where c.max_in_flight is not null group by c.channel) x
    where s.channel = x.channel and s.in_flight <> x.calls;
    select jsonb_build_object(
        'decided', v_decided, 'mended', v_mended, 'webhooks', v_webhooks,
        'unfinished', count(*),
        'overdue', count(*) filter (where j.lease_token is null and j.due_at < v_now - interval '1 minute'),
        'leases_expired', count(*) filter (where j.lease_token is not null and j.due_at < v_now),
        'frozen', count(*) filter (where j.due_at = 'infinity'),
        'flow_high', (select paylatch.flow_id_from(case when q.is_called then q.last_value else 0 end) from paylatch.flow_id_seq q),
        'refund_high', (select case when q.is_called then q.last_value else 0 end from paylatch.refund_id_seq q))
    into v_says from paylatch.job j;
    if (v_says ->> 'overdue')::integer > 0 then
        raise log 'paylatch: % unfinished flows and refunds are due for more than a minute and nobody claims them; is a daemon running?',
            v_says ->> 'overdue';
    end if;
    v_says := v_says || coalesce(jsonb_build_object('maintain', paylatch.maintain(caller, v_now)), '{}')
        || coalesce(jsonb_build_object('keys', paylatch.tend_keys(caller, v_now)), '{}');
    -- Last, since it may hold a lock that keeps payments out until we commit.
    v_says := v_says || paylatch.keep_outbox(v_now);
    perform paylatch.end_task('scan', v_period, v_says);
    return v_says;
end $$;
comment on function paylatch.scan(text) is
    'The scanner''s minute: takes every due flow that needs nobody outside to its end (deadlines, cancelled before sending, business modes sql and none), applies webhook events that waited, mends missing jobs, recounts calls under way, makes and drops days of the outbox, keeps the ledger. Returns what it saw. caller: who runs it. Errors: PL007. Upholds rule 6.';

create function paylatch.tick(driver text) returns jsonb
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_last timestamptz;
begin
    perform paylatch.require_migrated();
    select max(started_at) into v_last from paylatch.task_run where task = 'scan' and finished_at is not null;
    return jsonb_build_object('armed', paylatch.is_armed(), 'last_scan_at', v_last)
        || case when v_last is null or v_last < paylatch.clock() - interval '75 seconds'
                then jsonb_build_object('scan', paylatch.scan(driver)) else '{}' end;
end $$;
comment on function paylatch.tick(text) is
    'A driver''s heartbeat: runs scan() where the last one is older than 75 seconds (pg_cron is silent), and says whether this database is armed. Error: PL007.';

create function paylatch.schedule() returns text language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    if coalesce(current_setting('cron.database_name', true), '') <> current_database() then
        return 'pg_cron does not run in this database (cron.database_name); the daemon ticks instead';
    end if;
    create extension if not exists pg_cron;
    perform cron.schedule('paylatch_scan', '* * * * *', $job$select paylatch.scan('pg_cron')$job$);
    return 'pg_cron runs paylatch.scan() every minute';
end $$;
comment on function paylatch.schedule() is
    'Superuser: has pg_cron run scan() every minute, where it is preloaded for this database. Safe to repeat. Returns what it did.';
