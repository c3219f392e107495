-- One flow, for a person: was it charged, is the business done, how far is a refund, on what evidence; what happens next.

create function paylatch.money(p_amount bigint, p_currency text) returns text language sql stable as $$
    select paylatch.format_money(p_amount, coalesce(paylatch.minor_unit_digits(p_currency),
        (select a.digits from paylatch.asset a where a.asset = p_currency), 0)::integer, p_currency)
$$;
comment on function paylatch.money(bigint, text) is 'An amount in minor units as a person reads it, custom assets included.';

create function paylatch.when_said(p_at timestamptz) returns text language sql stable as $$
    select to_char(p_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS.MS') || ' UTC'
$$;
comment on function paylatch.when_said(timestamptz) is 'A time as explain() shows it.';

create function paylatch.evidence_said(p_action text, p_outcome text, p_code text, p_request_id text, p_ms integer)
    returns text language sql immutable as $$
    select case p_action
               when 'CHARGE' then 'the wallet, asked to charge,' when 'QUERY_CHARGE' then 'the wallet, asked about the charge,'
               when 'CLOSE_CHARGE' then 'the wallet, asked to close the charge,'
               when 'EXECUTE_BUSINESS' then 'the business, asked to do it,' when 'QUERY_BUSINESS' then 'the business, asked for the fact,'
               when 'CLOSE_BUSINESS' then 'the business, asked to refuse it from now on,'
               when 'REFUND' then 'the wallet, asked to refund,' when 'QUERY_REFUND' then 'the wallet, asked about the refund,'
           end
        || case p_outcome when 'UNKNOWN' then ' gave no definite answer' when 'UNAVAILABLE' then ' could not be reached'
                          when 'NOT_FOUND' then ' said it does not know the number'
                          else ' answered ' || p_outcome end
        || coalesce(' (' || p_code || ')', '')
        || coalesce(', its reference ' || p_request_id, '')
        || coalesce(', after ' || p_ms || ' ms', '')
$$;
comment on function paylatch.evidence_said(text, text, text, text, integer) is 'Evidence as a sentence.';

create function paylatch.frozen_said(p_reason text) returns text language sql immutable as $$
    select case p_reason
        when 'CHARGE_UNRESOLVED' then 'the wallet keeps saying that it does not know the charge, and nothing makes that final; look at the wallet''s own records'
        when 'EVIDENCE_MISMATCH' then 'a success named another number, amount or currency than ours'
        when 'PARAMETER_CONFLICT' then 'the counterparty holds other parameters under our number'
        when 'UNATTRIBUTED' then 'the business is done but does not say for which payment'
        when 'BUSINESS_CONTRADICTORY' then 'the business contradicts itself'
        when 'BUSINESS_UNRESOLVED' then 'the business could not be asked for too long'
        when 'REFUND_FAILED' then 'the wallet refuses the refund'
        when 'REFUND_UNRESOLVED' then 'the wallet no longer knows whether it refunded'
        when 'EXCLUDED_BRANCH' then 'a late answer contradicts what was decided'
        when 'POISON' then 'processing it failed inside the database'
        when 'OPERATOR' then 'an operator froze it'
        else p_reason end
$$;
comment on function paylatch.frozen_said(text) is 'Why a flow waits for a person, as a sentence.';

-- What happens next, when, and who does it.
create function paylatch.next_said(p_flow_id bigint) returns text language plpgsql stable as $$
declare
    v record;
    v_now timestamptz := paylatch.clock();
    v_what text;
begin
    select f.*, j.due_at, j.lease_token, j.lease_holder, j.action as leased_action, s.business_mode,
           paylatch.is_armed() as armed
    into v
    from paylatch.pay_flow f join paylatch.scene s on s.scene = f.scene
    left join paylatch.job j on j.kind = 'flow' and j.ref_id = f.flow_id
    where f.flow_id = p_flow_id;
    if paylatch.is_terminal(v.status) then
        return case when exists (select from paylatch.job j where j.kind = 'inquiry' and j.ref_id = p_flow_id)
                    then 'this is final, but the wallet is asked whether it was charged after all' else 'nothing: this is final' end;
    elsif v.frozen_reason is not null then
        return 'nothing by itself; an operator decides and calls resume_pay_flow(' || p_flow_id || ', why)';
    elsif v.due_at is null then
        return 'its job is missing; the scanner mends it within a minute';
    elsif v.lease_token is not null and v.due_at > v_now then
        return format('%s is at it: %s is out, an answer is due by %s', v.lease_holder, v.leased_action, paylatch.when_said(v.due_at));
    end if;
    v_what := case v.status
        when 'WAIT_PAY' then 'the wallet is asked to charge'
        when 'PAYING' then case when v.act_unread then 'the wallet is asked about the charge'
                                else 'the wallet is asked to charge again under the same number, or about it' end
        when 'PAYED' then case v.business_mode when 'none' then 'it is completed' else
                              case when v.act_unread or v.cancel_requested_at is not null or v.biz_deadline <= v_now
                                   then 'the business fact is read' else 'the business is asked to do it' end end
        else case when v.act_unread then 'the wallet is asked about the refund' else 'the wallet is asked to refund' end end;
    return v_what
        || case when v.due_at <= v_now then ', now' else ', at ' || paylatch.when_said(v.due_at) end
        || case when v.status = 'PAYED' and v.business_mode in ('sql', 'none') then ', by the database itself (scanner or daemon)'
                else ', by whichever daemon claims it first' end
        || case when v.armed then '' else '; but this database is a copy and hands out nothing until arm()' end;
end $$;
comment on function paylatch.next_said(bigint) is 'What happens next with a flow, when, and who does it, as a sentence.';

create function paylatch.explain_charge(p_flow_id bigint) returns text language plpgsql stable as $$
declare
    v_flow record;
    v_proof record;
    v_amount text;
begin
    select f.* into v_flow from paylatch.pay_flow f where f.flow_id = p_flow_id;
    v_amount := paylatch.money(v_flow.amount, v_flow.currency);
    select l.* into v_proof from paylatch.transition_log l
    where l.kind = 'flow' and l.ref_id = p_flow_id and l.to_status in ('PAYED', 'PAY_FAIL') and l.from_status = 'PAYING'
    order by l.version limit 1;
    return case
        when v_flow.charged_amount is not null and v_flow.status = 'PAY_FAIL' then
            (select format('yes, though this payment had failed: %s showed up at %s, by %s; it goes back', v_amount,
                           paylatch.when_said(l.at), coalesce(paylatch.evidence_said(l.action, l.outcome, null, l.request_id, null), 'hand'))
             from paylatch.transition_log l where l.kind = 'flow' and l.ref_id = p_flow_id and l.from_status = l.to_status
               and l.to_status = 'PAY_FAIL' and l.code = 'late charge' order by l.version limit 1)
        when v_flow.charged_amount is not null then
            format('yes, %s was charged: %s, at %s', v_amount, coalesce(paylatch.evidence_said(v_proof.action, v_proof.outcome,
                   v_proof.code, v_proof.request_id, v_proof.latency_ms), 'set by hand'), paylatch.when_said(v_proof.at))
        when v_flow.status = 'PAY_FAIL' and v_flow.charge_sent_at is null then
            'no: it was never sent (' || case when v_flow.cancel_requested_at is not null then 'cancelled' else 'its deadline passed' end || ')'
        when v_flow.status = 'PAY_FAIL' then
            format('no: %s, at %s', coalesce(paylatch.evidence_said(v_proof.action, v_proof.outcome, v_proof.code,
                   v_proof.request_id, v_proof.latency_ms), 'set by hand'), paylatch.when_said(v_proof.at))
        when v_flow.charge_sent_at is null then 'not yet: nothing was sent to the wallet'
        else format('not known yet: %s was sent under %s at %s, %s', v_amount, v_flow.trade_order_no,
                    paylatch.when_said(v_flow.charge_sent_at),
                    coalesce(paylatch.evidence_said(v_flow.last_action, v_flow.last_outcome, v_flow.last_error_code, null, null),
                             'no answer is recorded')) end;
end $$;
comment on function paylatch.explain_charge(bigint) is 'Whether a flow was charged, and on what evidence, as a sentence.';

create function paylatch.explain_business(p_flow_id bigint) returns text language plpgsql stable as $$
declare
    v_flow record;
    v_proof record;
begin
    select f.*, s.business_mode into v_flow
    from paylatch.pay_flow f join paylatch.scene s on s.scene = f.scene where f.flow_id = p_flow_id;
    select l.* into v_proof from paylatch.transition_log l
    where l.kind = 'flow' and l.ref_id = p_flow_id and l.from_status = 'PAYED' and l.to_status in ('BIZ_SUCCESS', 'REFUNDING')
    order by l.version limit 1;
    return case
        when v_flow.status = 'BIZ_SUCCESS' and v_flow.business_mode = 'none' then 'being charged was the whole business'
        when v_flow.status = 'BIZ_SUCCESS' then format('done, by this attempt: %s, at %s',
            coalesce(paylatch.evidence_said(v_proof.action, v_proof.outcome, v_proof.code, null, v_proof.latency_ms), 'set by hand'),
            paylatch.when_said(v_proof.at))
        when v_flow.status in ('REFUNDING', 'REFUNDED') then format('not done by this attempt: %s%s, at %s',
            coalesce(paylatch.evidence_said(v_proof.action, v_proof.outcome, v_proof.code, null, v_proof.latency_ms), 'set by hand'),
            case when v_proof.outcome = 'DONE' then ', for another payment' else '' end, paylatch.when_said(v_proof.at))
        when v_flow.status = 'PAYED' then 'not known yet: ' || coalesce(paylatch.evidence_said(v_flow.last_action, v_flow.last_outcome,
            v_flow.last_error_code, null, null), 'nothing was asked') || '; deadline ' || paylatch.when_said(v_flow.biz_deadline)
        when v_flow.status = 'PAY_FAIL' then 'not begun, since ' || case when v_flow.charged_amount is null then 'nothing was charged' else 'the payment had failed' end
        else 'not begun; it may begin until ' || paylatch.when_said(v_flow.biz_deadline) end;
end $$;
comment on function paylatch.explain_business(bigint) is 'Whether the business of a flow is done, and on what evidence, as a sentence.';

create function paylatch.refund_said(p_refund_id bigint) returns text language plpgsql stable as $$
declare
    v record;
    v_job record;
    v_now timestamptz := paylatch.clock();
    v_says text;
begin
    select r.* into v from paylatch.refund r where r.refund_id = p_refund_id;
    v_says := format('%s %s (%s%s): %s', paylatch.money(v.amount, v.currency), v.refund_order_no,
        case v.kind when 'COMPENSATION' then 'the undo of this payment' when 'AFTER_SALE' then 'after sale'
                           when 'RECON' then 'of a late charge' else 'made elsewhere as ' || v.external_no end,
        coalesce(', asked for by ' || coalesce(v.requested_by, v.requested_login), '') || coalesce(': ' || v.reason, ''),
        case v.status when 'SUCCEEDED' then 'given back' when 'PENDING' then 'under way' when 'FAILED' then 'refused'
                             when 'REJECTED' then 'not approved' else 'waits for approval' end)
        || coalesce(', decided by ' || v.decided_by, '')
        || coalesce(', ' || paylatch.evidence_said(v.last_action, v.last_outcome, v.last_error_code,
                                                   v.channel_request_id, null), '');
    if v.status <> 'PENDING' or v.kind = 'COMPENSATION' then
        return v_says;
    elsif v.frozen_reason is not null then
        return v_says || format('; waits for a person: %s; an operator decides and calls resume_refund(%s, why)',
                                paylatch.frozen_said(v.frozen_reason), v.refund_id);
    end if;
    select j.* into v_job from paylatch.job j where j.kind = 'refund' and j.ref_id = v.refund_id;
    return v_says || case
        when v_job.ref_id is null then '; its job is missing; the scanner mends it within a minute'
        when v_job.lease_token is not null and v_job.due_at > v_now
            then format('; %s is at it: %s is out, an answer is due by %s', v_job.lease_holder, v_job.action, paylatch.when_said(v_job.due_at))
        else format('; next the wallet is asked %s', case when v.act_unread then 'about it' else 'to refund' end)
             || case when v_job.due_at <= v_now then ', now' else ' at ' || paylatch.when_said(v_job.due_at) end end;
end $$;
comment on function paylatch.refund_said(bigint) is 'How far a refund is, on what evidence, and what happens next, as a sentence.';

create function paylatch.explain(flow_id bigint) returns table (topic text, says text)
    language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    v record;
begin
    perform paylatch.require_migrated();
    perform paylatch.require_in_scope(explain.flow_id, null);
    select f.*, o.biz_key, o.merchant_id, s.max_auto_retries into v
    from paylatch.pay_flow f join paylatch.pay_order o on o.order_id = f.order_id
    join paylatch.scene s on s.scene = f.scene where f.flow_id = explain.flow_id;
    if not found then
        perform paylatch.require_flow(explain.flow_id);
    end if;
    topic := 'flow';
    says := format('%s · %s · attempt %s of %s %s for user %s · %s · %s', explain.flow_id, v.trade_order_no, v.attempt_no,
                   v.scene, v.biz_key, v.user_id, paylatch.money(v.amount, v.currency),
                   paylatch.client_status(v.status, v.frozen_reason is not null)
                   || case when paylatch.client_status(v.status, v.frozen_reason is not null) = v.status then '' else ' (' || v.status || ')' end);
    return next;
    topic := 'charge'; says := paylatch.explain_charge(explain.flow_id); return next;
    topic := 'business'; says := paylatch.explain_business(explain.flow_id); return next;
    for topic, says in
        select 'refund', paylatch.refund_said(r.refund_id) from paylatch.refund r where r.flow_id = explain.flow_id order by r.refund_id loop
        return next;
    end loop;
    -- A loop without rows leaves null behind.
    if topic is distinct from 'refund' then
        topic := 'refund'; says := 'none'; return next;
    end if;
    for topic, says in
        select 'dispute', format('%s, %s: %s since %s', d.dispute_no, paylatch.money(d.amount, v.currency),
               case d.state when 'OPEN' then 'open' when 'WON' then 'won' else 'lost' end, paylatch.when_said(d.updated_at))
        from paylatch.dispute d where d.flow_id = explain.flow_id order by d.opened_at, d.dispute_no loop
        return next;
    end loop;
    topic := 'next'; says := paylatch.next_said(explain.flow_id); return next;
    if v.frozen_reason is not null then
        topic := 'attention'; says := 'waits for a person: ' || paylatch.frozen_said(v.frozen_reason); return next;
    elsif v.retry_count > v.max_auto_retries and not paylatch.is_terminal(v.status) then
        topic := 'attention'; says := format('%s tries in state %s; now tried at the slow pace', v.retry_count, v.status); return next;
    end if;
    for topic, says in
        select 'attention', format('incident %s since %s: %s', i.incident_id, paylatch.when_said(i.opened_at), i.says)
        from paylatch.incident i where i.flow_id = explain.flow_id and i.resolved_at is null order by i.incident_id loop
        return next;
    end loop;
    return query
    select 'timeline', x.line from (
        select l.at, l.version, format('%s  v%s  %s%s  by %s %s', paylatch.when_said(l.at), l.version,
               coalesce(nullif(l.from_status, l.to_status) || ' -> ', ''), l.to_status, l.source, l.actor)
               || coalesce(': ' || case when l.outcome is not null
                      then paylatch.evidence_said(l.action, l.outcome, l.code, l.request_id, l.latency_ms)
                      when l.action is not null then l.action || ' is announced'
                      else l.code end, '')
               || coalesce('; frozen: ' || l.frozen_reason, '') as line
        from paylatch.transition_log l where l.kind = 'flow' and l.ref_id = explain.flow_id
        union all
        -- A compensation's steps are its flow's.
        select l.at, l.version, format('%s  refund v%s  %s: %s%s  by %s %s', paylatch.when_said(l.at), l.version, r.refund_order_no,
               coalesce(nullif(l.from_status, l.to_status) || ' -> ', ''), l.to_status, l.source, l.actor)
               || coalesce(': ' || case when l.outcome is not null
                      then paylatch.evidence_said(l.action, l.outcome, l.code, l.request_id, l.latency_ms)
                      when l.action is not null then l.action || ' is announced'
                      else l.code end, '')
               || coalesce('; frozen: ' || l.frozen_reason, '')
        from paylatch.refund r join paylatch.transition_log l on l.kind = 'refund' and l.ref_id = r.refund_id
        where r.flow_id = explain.flow_id and r.kind <> 'COMPENSATION'
        union all
        select r.at, null, format('%s  --  late answer, %s: %s said %s to %s', paylatch.when_said(r.at), r.disposition, r.action, r.outcome, r.driver)
        from paylatch.late_report r where r.flow_id = explain.flow_id) x
    order by x.at, x.version nulls last;
end $$;
comment on function paylatch.explain(bigint) is
    'One flow for a person: topics flow, charge, business, refund, dispute (if any), next, attention (if any) and the timeline, one row each. Errors: PL007, PL008 (unknown, or another merchant''s).';
