-- Reporting: evidence in, decisions made, the next action out, in a handful of statements for the whole set.
--
-- Lock order: flows in key order, then refunds, then what their triggers touch (order, job), the channel last.

create type paylatch.reported as (
    disposition text, status text, frozen_reason text,
    flow_id bigint, lease_token bigint, version bigint, action text, channel text, scene text, business_target text,
    order_no text, refund_no text, merchant_id text, user_id text, biz_key text, attempt_no integer, amount bigint,
    currency text, valid_until timestamptz, send_within_ms integer, payload jsonb, refund_id bigint, channel_ref text,
    charge_ref text, sent_at timestamptz);

-- One report beside the row that it speaks of; kind as in job.
create type paylatch.report as (
    n bigint, kind text, flow_id bigint, refund_id bigint, lease_token bigint, channel text, disposition text, status text,
    told paylatch.told);

-- One element of the evidence, as it came.
create type paylatch.answer as (
    n bigint, flow_id bigint, refund_id bigint, lease_token bigint, action text, outcome text, waited_ms bigint, took_ms integer,
    code text, message text, request_id text, order_no text, amount bigint, currency text, owner text);

create function paylatch.answers_of(p_evidence jsonb) returns paylatch.answer[] language plpgsql immutable as $$
begin
    return array(
        select row (r.n, r.flow_id, r.refund_id, r.lease_token, r.action, r.outcome, r.waited_ms, r.took_ms, r.code, r.message,
                    r.request_id, r.order_no, r.amount, r.currency, r.owner)::paylatch.answer
        from rows from (jsonb_to_recordset(p_evidence) as (
            flow_id bigint, refund_id bigint, lease_token bigint, action text, outcome text, waited_ms bigint, took_ms integer,
            code text, message text, request_id text, order_no text, amount bigint, currency text, owner text)) with ordinality
            as r(flow_id, refund_id, lease_token, action, outcome, waited_ms, took_ms, code, message, request_id, order_no,
                 amount, currency, owner, n)
        order by r.n);
end $$;
comment on function paylatch.answers_of(jsonb) is 'The evidence as rows, numbered from 1. Errors: class 22 for an element that is no object or has a value of another type.';

-- Says of each report whether it may decide. p_flows: the flows that they are about, locked as the refunds are. p_again:
-- answers about a row that another one of the set is about.
create function paylatch.read_reports(p_answers paylatch.answer[], p_flows paylatch.flow_facts[], p_again bigint[]) returns setof paylatch.report language sql stable as $$
    select e.n, e.kind, e.flow_id, e.refund_id, e.lease_token, e.channel,
           case when e.status is null or not paylatch.is_evidence(e.action, e.outcome) or e.n = any (p_again) then 'rejected'
                when j.lease_token = e.lease_token and j.action = e.action and not e.frozen
                     and (e.kind = 'inquiry' or paylatch.answers_state(e.answering, e.action)) then 'applied'
                when e.kind = 'refund' then paylatch.late_refund_disposition(e.refund_kind, e.status, e.action, e.outcome)
                else paylatch.late_disposition(e.status, e.action, e.outcome, e.owner = e.trade_order_no) end,
           e.status,
           row (e.action, e.outcome,
                least(paylatch.clock(), coalesce(j.leased_at, e.updated_at) + make_interval(secs => greatest(e.waited_ms, 0) / 1000.0)),
                e.order_no, e.amount, e.currency, e.owner, e.flow_id, left(coalesce(e.code, e.message), 64),
                left(e.request_id, 128), e.took_ms, e.refund_id)::paylatch.told
    from (select r.*, f.channel, f.trade_order_no, f.updated_at, d.kind as refund_kind,
                 case when r.refund_id is not null then d.status else f.status end::text as status,
                 case when r.refund_id is not null then d.frozen_reason is not null else f.frozen end as frozen,
                 -- A refund on its way is decided as a flow that is REFUNDING.
                 case when r.refund_id is null then f.status when d.status = 'PENDING' then 'REFUNDING' else 'REFUNDED' end as answering,
                 case when r.refund_id is not null then 'refund'
                      when f.status = 'PAY_FAIL' and r.action = 'QUERY_CHARGE' then 'inquiry' else 'flow' end as kind
          from unnest(p_answers) r
          left join unnest(p_flows) f on f.flow_id = r.flow_id
          left join paylatch.refund d on d.refund_id = r.refund_id and d.flow_id = r.flow_id and d.kind <> 'COMPENSATION') e
    left join paylatch.job j on j.kind = e.kind and j.ref_id = coalesce(e.refund_id, e.flow_id)
$$;
comment on function paylatch.read_reports(paylatch.answer[], paylatch.flow_facts[], bigint[]) is
    'Each report with its row''s state and its disposition: applied may decide; the others are late or no evidence. A fact counts as read no later than its request started: lease start plus waited_ms.';

-- Reports that must not decide: recorded; one that contradicts its row''s branch freezes the flow or opens an incident.
create function paylatch.keep_late(p_late paylatch.report[], p_driver text, p_now timestamptz) returns void language plpgsql as $$
declare
    v record;
begin
    insert into paylatch.late_report (flow_id, refund_id, disposition, driver, lease_token, action, outcome, code, request_id)
    select l.flow_id, l.refund_id, l.disposition, p_driver, l.lease_token, left((l.told).action, 32),
           left((l.told).outcome, 32), (l.told).code, (l.told).request_id
    from unnest(p_late) l where l.status is not null;
    update paylatch.pay_flow f
    set frozen_reason = 'EXCLUDED_BRANCH', version = f.version + 1, last_action = (l.told).action,
        last_outcome = (l.told).outcome, last_error_class = 'MANUAL_FREEZE', last_error_code = (l.told).code
    from unnest(p_late) l
    where f.flow_id = l.flow_id and l.kind = 'flow' and l.disposition = 'conflict' and f.frozen_reason is null
      and f.status not in ('BIZ_SUCCESS', 'REFUNDED', 'PAY_FAIL');
    update paylatch.job j
    set due_at = case when l.kind = 'flow' and l.disposition = 'conflict' then 'infinity' else p_now end,
        lease_token = null, lease_holder = null, leased_at = null, action = null
    from unnest(p_late) l
    where j.kind = l.kind and j.ref_id = coalesce(l.refund_id, l.flow_id) and j.due_at < 'infinity'
      and (l.disposition = 'conflict' or (l.disposition = 'stale' and (j.lease_token is null or j.due_at <= p_now)));
    -- Money that moved all the same is accounted for.
    for v in
        select l.kind, l.flow_id, l.refund_id, l.told, f.trade_order_no, f.amount, f.currency,
               d.refund_order_no, d.amount as refund_amount
        from unnest(p_late) l join paylatch.pay_flow f on f.flow_id = l.flow_id left join paylatch.refund d on d.refund_id = l.refund_id
        where l.disposition = 'conflict' and (l.told).outcome = 'SUCCEEDED' and (l.kind = 'refund' or l.status = 'PAY_FAIL')
        order by l.flow_id, l.refund_id loop
        if v.kind = 'refund' and paylatch.is_full_echo(v.refund_order_no, v.refund_amount, v.currency, (v.told).order_no,
                                                       (v.told).amount, (v.told).currency) then
            perform paylatch.record_external_refund(v.flow_id, v.refund_order_no, v.refund_amount, v.currency);
        elsif v.kind <> 'refund' and paylatch.is_full_echo(v.trade_order_no, v.amount, v.currency, (v.told).order_no,
                                                           (v.told).amount, (v.told).currency) then
            perform paylatch.late_charge(v.flow_id, (v.told).request_id);
        end if;
    end loop;
    insert into paylatch.incident (kind, flow_id, refund_id, says, detail)
    select x.kind, x.flow_id, x.refund_id, x.says, x.detail
    from (select case when l.kind = 'refund' then 'LATE_REFUND' when l.status = 'PAY_FAIL' then 'LATE_CHARGE' else 'EXCLUDED_BRANCH' end as kind,
                 l.flow_id, l.refund_id,
                 format('%s answered %s for a %s that is %s', (l.told).action, (l.told).outcome,
                        case l.kind when 'refund' then 'refund' else 'flow' end, l.status) as says,
                 jsonb_build_object('driver', p_driver, 'order_no', (l.told).order_no, 'amount', (l.told).amount,
                                    'currency', (l.told).currency, 'owner', (l.told).owner, 'request_id', (l.told).request_id) as detail
          from unnest(p_late) l
          where l.disposition = 'conflict'
            and l.status in ('BIZ_SUCCESS', 'REFUNDED', 'PAY_FAIL', 'REQUESTED', 'SUCCEEDED', 'FAILED', 'REJECTED')) x
    where not exists (select from paylatch.incident i where i.flow_id = x.flow_id and i.refund_id is not distinct from x.refund_id
                      and i.resolved_at is null and (i.says = x.says or (x.kind = 'LATE_CHARGE' and i.kind = x.kind)));
end $$;
comment on function paylatch.keep_late(paylatch.report[], text, timestamptz) is
    'Records late reports; freezes flows, or opens incidents for ended ones, where a report contradicts the branch. A charge of a flow that is PAY_FAIL comes back by late_charge(). Upholds rules 4 and 7.';

-- What inquiries brought: until one definite answer.
create function paylatch.settle_inquiries(p_reports paylatch.report[], p_now timestamptz) returns void language plpgsql as $$
declare
    v record;
begin
    for v in
        select r.flow_id, r.told, f.amount, f.currency, sp.policy, coalesce(j.tries, 0) + 1 as tries,
               paylatch.inquiry_answer((r.told).outcome, paylatch.is_full_echo(f.trade_order_no, f.amount, f.currency,
                   (r.told).order_no, (r.told).amount, (r.told).currency)) as answer
        from unnest(p_reports) r
        join paylatch.pay_flow f on f.flow_id = r.flow_id
        join paylatch.job j on j.kind = 'inquiry' and j.ref_id = r.flow_id
        join paylatch.scene_policy sp on sp.scene = f.scene and sp.channel = f.channel
        order by r.flow_id loop
        if v.answer = 'open' then
            update paylatch.job j
            set tries = v.tries, due_at = paylatch.retry_at(v.policy, v.flow_id, v.tries, p_now),
                lease_token = null, lease_holder = null, leased_at = null, action = null
            where j.kind = 'inquiry' and j.ref_id = v.flow_id;
            continue;
        end if;
        delete from paylatch.job j where j.kind = 'inquiry' and j.ref_id = v.flow_id;
        if v.answer = 'charged' then
            perform paylatch.late_charge(v.flow_id, (v.told).request_id);
        elsif v.answer = 'contradicted' then
            insert into paylatch.incident (kind, flow_id, says, detail)
            values ('EVIDENCE_MISMATCH', v.flow_id, 'asked about a flow that is PAY_FAIL, the wallet names a charge with another number, amount or currency',
                    jsonb_build_object('order_no', (v.told).order_no, 'amount', (v.told).amount, 'currency', (v.told).currency,
                                       'request_id', (v.told).request_id));
        end if;
    end loop;
end $$;
comment on function paylatch.settle_inquiries(paylatch.report[], timestamptz) is
    'Answers about flows that ended as PAY_FAIL: a charge after all comes back by late_charge(); nothing definite is asked again by the scene''s retry curve; anything else ends the inquiry.';

-- What the answers say of each channel: they feed its breaker and free its calls under way.
create function paylatch.settle_channels(p_reports paylatch.report[], p_now timestamptz) returns void language plpgsql as $$
begin
    if not exists (select from paylatch.channel_state s join paylatch.channel c using (channel)
                   where s.failures > 0 or s.breaker <> 'closed' or c.max_in_flight is not null)
       and not exists (select from unnest(p_reports) r where (r.told).outcome in ('UNKNOWN', 'UNAVAILABLE')) then
        return;
    end if;
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
    v_answers paylatch.answer[] := paylatch.answers_of(p_evidence);
    v_flows paylatch.flow_facts[];
    v_again bigint[];
    v_aside boolean;
    v_paced text[];
begin
    v_flows := paylatch.lock_flows(array(select a.flow_id from unnest(v_answers) a), false);
    v_aside := exists (select from unnest(v_answers) a where a.refund_id is not null);
    if v_aside then
        perform from paylatch.refund r
        where r.refund_id = any (array(select a.refund_id from unnest(v_answers) a)) order by r.refund_id for update;
    end if;
    v_again := array(
        select a.n from (select a.n, row_number() over (partition by a.flow_id, a.refund_id order by a.n) as nth from unnest(v_answers) a) a
        where a.nth > 1);
    v_reports := array(select r from paylatch.read_reports(v_answers, v_flows, v_again) r);
    if exists (select from unnest(v_reports) r where r.disposition <> 'applied') then
        perform paylatch.keep_late(array(select r from unnest(v_reports) r where r.disposition <> 'applied'), p_driver, v_now);
    end if;
    if exists (select from unnest(v_reports) r where r.disposition <> 'applied' or r.kind <> 'flow') then
        -- Only some decide, and what was kept may have changed a flow.
        v_flows := paylatch.lock_flows(
            array(select r.flow_id from unnest(v_reports) r where r.disposition = 'applied' and r.kind = 'flow'), false);
    end if;
    -- Where a channel is paced, its next wallet call goes through the queue and its budget.
    v_paced := array(select c.channel from paylatch.channel c join paylatch.channel_state s using (channel)
                     where c.max_in_flight is not null or c.rate_per_second is not null or s.breaker <> 'closed'
                        or s.moved_at > v_now - make_interval(secs => c.ramp_ms / 1000.0));
    v_plan := paylatch.advance_set(
        v_flows,
        array(select r.told from unnest(v_reports) r where r.disposition = 'applied' and r.kind = 'flow'),
        v_now, p_lease_ms, p_driver, '{}', v_paced);
    if v_aside then
        v_plan := v_plan || paylatch.advance_refunds(
            array(select r.refund_id from unnest(v_reports) r where r.disposition = 'applied' and r.kind = 'refund'),
            array(select r.told from unnest(v_reports) r where r.disposition = 'applied' and r.kind = 'refund'),
            v_now, p_lease_ms, p_driver, '{}', v_paced);
    end if;
    if exists (select from unnest(v_reports) r where r.kind = 'inquiry') then
        perform paylatch.settle_inquiries(array(select r from unnest(v_reports) r where r.disposition = 'applied' and r.kind = 'inquiry'), v_now);
    end if;
    perform paylatch.settle_channels(v_reports, v_now);
    return query
    select r.disposition, coalesce(d.status::text, f.status::text, r.status), case when d.refund_id is null then f.frozen_reason else d.frozen_reason end,
           r.flow_id, h.lease_token, h.version, h.action,
           h.channel, h.scene, h.business_target, h.order_no, h.refund_no, h.merchant_id, h.user_id, h.biz_key,
           h.attempt_no, h.amount, h.currency, h.valid_until, h.send_within_ms, h.payload, r.refund_id, h.channel_ref,
           h.charge_ref, h.sent_at
    from unnest(v_reports) r
    left join paylatch.pay_flow f on f.flow_id = r.flow_id
    left join paylatch.refund d on d.refund_id = r.refund_id
    left join paylatch.handouts(v_plan, v_now) h on h.flow_id = r.flow_id and r.disposition = 'applied'
         and coalesce(h.refund_id, 0) = coalesce(r.refund_id, 0)
    order by r.n;
end $$;
comment on function paylatch.report_set(text, jsonb, integer) is 'report_evidence for a set in which no row is bad.';

create function paylatch.report_evidence(driver text, evidence jsonb, lease_ms integer default null)
    returns setof paylatch.reported language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp set paylatch.source = 'DRIVER' set paylatch.actor = ''
    -- Sessions keep the plans that they made when tables were empty; every look here is by key. Where
    -- none can be, the planner's displeasure must not have the plan compiled.
    set enable_seqscan = off set jit = off as $$
declare
    v_one jsonb;
    v_state text;
    v_says text;
    v_id text;
    v_refund text;
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
            v_refund := case when jsonb_typeof(v_one) = 'object' then v_one ->> 'refund_id' end;
            v_refund := case when v_refund ~ '^\d{1,16}$' then v_refund end;
            -- A malformed element says nothing of its flow, which will ask again; anything else is the flow's own fault.
            if left(v_state, 2) = '22' then
                null;
            elsif v_refund is not null then
                perform paylatch.set_aside_refund(v_refund::bigint, v_state, v_says);
            elsif v_id is not null then
                perform paylatch.set_aside(v_id::bigint, v_state, v_says);
            end if;
            return next row ('rejected', null, null, v_id::bigint, null, null, null, null, null, null, null, null, null, null,
                             null, null, null, null, null, null, null, v_refund::bigint, null, null, null)::paylatch.reported;
        end;
    end loop;
end $$;
comment on function paylatch.report_evidence(text, jsonb, integer) is
    'Evidence for leased actions: a JSON array of at most 1000 objects {flow_id, refund_id (of a refund''s handout, else absent), lease_token, action, outcome, waited_ms, took_ms, code, message, request_id, order_no, amount, currency, owner}. waited_ms: from receiving the action to starting the request. One row each: disposition applied, replayed, stale (recorded, not applied), conflict (incident) or rejected (no evidence); and the next action, leased for at least lease_ms (null: none is handed out). Errors: PL004, PL007. Upholds rules 1 to 4 and 10.';
