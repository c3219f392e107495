-- Reporting: evidence in, decisions made, the next action out, in a handful of statements for the whole set.
--
-- Lock order: flows in key order, then what their triggers touch (refund, order, job), the channel last.

create type paylatch.reported as (
    disposition text, status text, frozen_reason text,
    flow_id bigint, lease_token bigint, version bigint, action text, channel text, scene text, business_target text,
    order_no text, refund_no text, merchant_id text, user_id text, biz_key text, attempt_no integer, amount bigint,
    currency text, valid_until timestamptz, send_within_ms integer, payload jsonb);

-- One report beside the row that it speaks of.
create type paylatch.report as (
    n bigint, flow_id bigint, lease_token bigint, channel text, disposition text, status text, told paylatch.told);

-- Takes reports apart and says of each whether it may decide. The flows are locked.
create function paylatch.read_reports(p_evidence jsonb) returns setof paylatch.report language sql stable as $$
    select e.n, e.flow_id, e.lease_token, f.channel,
           case when f.flow_id is null or not paylatch.is_evidence(e.action, e.outcome) or e.again > 1 then 'rejected'
                when j.lease_token = e.lease_token and j.action = e.action and f.frozen_reason is null
                     and paylatch.answers_state(f.status, e.action) then 'applied'
                else paylatch.late_disposition(f.status, e.action, e.outcome, e.owner = f.trade_order_no) end,
           f.status::text,
           row (e.action, e.outcome,
                least(paylatch.clock(), coalesce(j.leased_at, f.updated_at) + make_interval(secs => greatest(e.waited_ms, 0) / 1000.0)),
                e.order_no, e.amount, e.currency, e.owner, e.flow_id, left(coalesce(e.code, e.message), 64),
                left(e.request_id, 128), e.took_ms)::paylatch.told
    from (select r.*, x.n, row_number() over (partition by r.flow_id order by x.n) as again
          from jsonb_array_elements(p_evidence) with ordinality x(element, n)
          cross join lateral jsonb_to_record(x.element) as r(
              flow_id bigint, lease_token bigint, action text, outcome text, waited_ms bigint, took_ms integer,
              code text, message text, request_id text, order_no text, amount bigint, currency text, owner text)) e
    left join paylatch.pay_flow f on f.flow_id = e.flow_id
    left join paylatch.job j on j.kind = 'flow' and j.ref_id = e.flow_id
$$;
comment on function paylatch.read_reports(jsonb) is
    'Each report with its row''s state and its disposition: applied may decide; the others are late or no evidence. A fact counts as read no later than its request started: lease start plus waited_ms.';

-- Reports that must not decide: recorded; one that contradicts its row''s branch freezes the flow or opens an incident.
create function paylatch.keep_late(p_late paylatch.report[], p_driver text, p_now timestamptz) returns void language plpgsql as $$
begin
    insert into paylatch.late_report (flow_id, disposition, driver, lease_token, action, outcome, code, request_id)
    select l.flow_id, l.disposition, p_driver, l.lease_token, left((l.told).action, 32), left((l.told).outcome, 32),
           (l.told).code, (l.told).request_id
    from unnest(p_late) l where l.status is not null;
    update paylatch.pay_flow f
    set frozen_reason = 'EXCLUDED_BRANCH', version = f.version + 1, last_action = (l.told).action,
        last_outcome = (l.told).outcome, last_error_class = 'MANUAL_FREEZE', last_error_code = (l.told).code
    from unnest(p_late) l
    where f.flow_id = l.flow_id and l.disposition = 'conflict' and f.frozen_reason is null
      and f.status not in ('BIZ_SUCCESS', 'REFUNDED', 'PAY_FAIL');
    update paylatch.job j
    set due_at = case when l.disposition = 'conflict' then 'infinity' else p_now end,
        lease_token = null, lease_holder = null, leased_at = null, action = null
    from unnest(p_late) l
    where j.kind = 'flow' and j.ref_id = l.flow_id and j.due_at < 'infinity'
      and (l.disposition = 'conflict' or (l.disposition = 'stale' and (j.lease_token is null or j.due_at <= p_now)));
    insert into paylatch.incident (kind, flow_id, says, detail)
    select case when l.status = 'PAY_FAIL' then 'LATE_CHARGE' else 'EXCLUDED_BRANCH' end, l.flow_id,
           format('%s answered %s for a flow that is %s', (l.told).action, (l.told).outcome, l.status),
           jsonb_build_object('driver', p_driver, 'order_no', (l.told).order_no, 'amount', (l.told).amount,
                              'currency', (l.told).currency, 'owner', (l.told).owner, 'request_id', (l.told).request_id)
    from unnest(p_late) l
    where l.disposition = 'conflict' and l.status in ('BIZ_SUCCESS', 'REFUNDED', 'PAY_FAIL')
      and not exists (select from paylatch.incident i where i.flow_id = l.flow_id and i.resolved_at is null
                      and i.says = format('%s answered %s for a flow that is %s', (l.told).action, (l.told).outcome, l.status));
end $$;
comment on function paylatch.keep_late(paylatch.report[], text, timestamptz) is
    'Records late reports; freezes flows, or opens incidents for ended ones, where a report contradicts the branch. Upholds rule 4.';

-- What the answers say of each channel: they feed its breaker and free its calls under way.
create function paylatch.settle_channels(p_reports paylatch.report[], p_now timestamptz) returns void language plpgsql as $$
begin
    with answer as (
        select r.n, r.channel, (r.told).outcome in ('UNKNOWN', 'UNAVAILABLE') as failed
        from unnest(p_reports) r
        where r.disposition = 'applied' and paylatch.is_wallet_action((r.told).action)
          and coalesce((r.told).code, '') not in ('not_sent', 'no_adapter')
    ), told as (
        select a.channel, count(*) filter (where not failed)::integer as answered,
               count(*) filter (where failed)::integer as failed,
               count(*) filter (where failed and a.n > coalesce(g.n, 0))::integer as run
        from answer a
        left join (select channel, max(n) as n from answer where not failed group by channel) g using (channel)
        group by a.channel
    ), freed as (
        select r.channel, count(*)::integer as calls from unnest(p_reports) r
        where r.disposition = 'applied' and paylatch.is_wallet_action((r.told).action) group by r.channel
    ), locked as (
        select s.channel, c.max_in_flight, f.calls, t.channel is not null as told,
               row (c.max_in_flight, c.rate_per_second, c.ramp_ms, c.refund_share_percent, c.breaker_threshold,
                    c.breaker_open_ms, c.breaker_probes)::paylatch.limits as limits,
               row (s.breaker, s.failures, s.moved_at, s.probes_left, s.tokens_milli, s.filled_at, s.in_flight)::paylatch.breaker as state,
               coalesce(t.answered, 0) as answered, coalesce(t.failed, 0) as failed, coalesce(t.run, 0) as run
        from paylatch.channel_state s
        join paylatch.channel c using (channel)
        join freed f using (channel)
        left join told t using (channel)
        where t.failed > 0 or s.failures > 0 or s.breaker <> 'closed' or c.max_in_flight is not null
        order by s.channel for update of s
    ), settled as (
        select l.channel, l.max_in_flight, l.calls,
               case when l.told then paylatch.settle_breaker(l.limits, l.state, p_now, l.answered, l.failed, l.run)
                    else l.state end as st
        from locked l
    )
    update paylatch.channel_state s
    set breaker = (x.st).breaker, failures = (x.st).failures, moved_at = (x.st).moved_at,
        probes_left = (x.st).probes_left, tokens_milli = (x.st).tokens_milli, filled_at = (x.st).filled_at,
        in_flight = case when x.max_in_flight is null then 0 else greatest(0, s.in_flight - x.calls) end
    from settled x where s.channel = x.channel;
end $$;
comment on function paylatch.settle_channels(paylatch.report[], timestamptz) is
    'Feeds each channel''s breaker with a set of answers and frees its calls under way. Touches no row while all is well and nothing is limited.';

create function paylatch.report_set(p_driver text, p_evidence jsonb, p_lease_ms integer)
    returns setof paylatch.reported language plpgsql as $$
declare
    v_now timestamptz := paylatch.clock();
    v_reports paylatch.report[];
    v_plan paylatch.planned[];
begin
    perform from paylatch.pay_flow f
    where f.flow_id in (select (e.value ->> 'flow_id')::bigint from jsonb_array_elements(p_evidence) e)
    order by f.flow_id for update;
    v_reports := array(select r from paylatch.read_reports(p_evidence) r);
    if exists (select from unnest(v_reports) r where r.disposition <> 'applied') then
        perform paylatch.keep_late(array(select r from unnest(v_reports) r where r.disposition <> 'applied'), p_driver, v_now);
    end if;
    v_plan := array(
        select p from paylatch.advance_set(
            array(select r.flow_id from unnest(v_reports) r where r.disposition = 'applied'),
            array(select r.told from unnest(v_reports) r where r.disposition = 'applied'),
            v_now, p_lease_ms, p_driver, '{}',
            -- Where a channel is paced, its next wallet call goes through the queue and its budget.
            array(select c.channel from paylatch.channel c join paylatch.channel_state s using (channel)
                  where c.max_in_flight is not null or c.rate_per_second is not null or s.breaker <> 'closed'
                     or s.moved_at > v_now - make_interval(secs => c.ramp_ms / 1000.0))) p);
    perform paylatch.settle_channels(v_reports, v_now);
    return query
    select r.disposition, coalesce(f.status::text, r.status), f.frozen_reason, r.flow_id, h.lease_token, h.version, h.action,
           h.channel, h.scene, h.business_target, h.order_no, h.refund_no, h.merchant_id, h.user_id, h.biz_key,
           h.attempt_no, h.amount, h.currency, h.valid_until, h.send_within_ms, h.payload
    from unnest(v_reports) r
    left join paylatch.pay_flow f on f.flow_id = r.flow_id
    left join paylatch.handouts(v_plan, v_now) h on h.flow_id = r.flow_id and r.disposition = 'applied'
    order by r.n;
end $$;
comment on function paylatch.report_set(text, jsonb, integer) is 'report_evidence for a set in which no row is bad.';

create function paylatch.report_evidence(driver text, evidence jsonb, lease_ms integer default null)
    returns setof paylatch.reported language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp set paylatch.source = 'DRIVER' set paylatch.actor = '' as $$
declare
    v_one jsonb;
    v_state text;
    v_says text;
    v_id text;
begin
    perform paylatch.require_migrated();
    if coalesce(driver, '') = '' or jsonb_typeof(evidence) is distinct from 'array' or jsonb_array_length(evidence) > 1000
       or lease_ms not between 1000 and 3600000 then
        raise exception using errcode = 'PL004',
            message = 'report_evidence: give a driver name, a JSON array of at most 1000 objects, and lease_ms null or from 1000 to 3600000';
    end if;
    perform set_config('paylatch.actor', left(driver, 64), true);
    begin
        return query select * from paylatch.report_set(driver, evidence, lease_ms);
        return;
    exception when others then
        if paylatch.is_passing_error(sqlstate) then
            raise;
        end if;
    end;
    -- One element is bad: each alone, so that the others go through.
    for v_one in select value from jsonb_array_elements(evidence) loop
        begin
            return query select * from paylatch.report_set(driver, jsonb_build_array(v_one), lease_ms);
        exception when others then
            if paylatch.is_passing_error(sqlstate) then
                raise;
            end if;
            get stacked diagnostics v_state = returned_sqlstate, v_says = message_text;
            v_id := case when jsonb_typeof(v_one) = 'object' then v_one ->> 'flow_id' end;
            v_id := case when v_id ~ '^\d{1,16}$' then v_id end;
            -- A malformed element says nothing of its flow, which will ask again; anything else is the flow's own fault.
            if v_id is not null and left(v_state, 2) <> '22' then
                perform paylatch.set_aside(v_id::bigint, v_state, v_says);
            end if;
            return next row ('rejected', null, null, v_id::bigint, null, null, null, null, null, null, null, null, null, null,
                             null, null, null, null, null, null, null)::paylatch.reported;
        end;
    end loop;
end $$;
comment on function paylatch.report_evidence(text, jsonb, integer) is
    'Evidence for leased actions: a JSON array of at most 1000 objects {flow_id, lease_token, action, outcome, waited_ms, took_ms, code, message, request_id, order_no, amount, currency, owner}. waited_ms: from receiving the action to starting the request. One row each: disposition applied, replayed, stale (recorded, not applied), conflict (incident) or rejected (no evidence); and the next action, leased for at least lease_ms (null: none is handed out). Errors: PL004, PL007. Upholds rules 1 to 4 and 10.';
