-- Money that moved without us: disputes, refunds made elsewhere, and charges of flows that had ended as not charged.
--
-- All of it is told, never decided: it is written down where it lowers what can still be refunded, and what does not fit is
-- an incident. Lock order: the flow first.

create function paylatch.record_dispute(p_flow_id bigint, p_dispute_no text, p_amount bigint, p_state text)
    returns text language plpgsql as $$
declare
    v_flow record;
    v_known record;
    v_held bigint;
begin
    select f.flow_id, f.amount, f.refunded_amount, f.currency into v_flow
    from paylatch.pay_flow f where f.flow_id = p_flow_id for update;
    select d.state, d.amount into v_known from paylatch.dispute d where d.flow_id = p_flow_id and d.dispute_no = p_dispute_no;
    if not found then
        insert into paylatch.dispute (flow_id, dispute_no, amount, state) values (p_flow_id, p_dispute_no, p_amount, p_state);
    elsif v_known.state <> 'OPEN' and p_state not in ('OPEN', v_known.state) then
        insert into paylatch.incident (kind, flow_id, says, detail)
        values ('DISPUTED', p_flow_id, format('dispute %s was %s and is now said to be %s', p_dispute_no, v_known.state, p_state),
                jsonb_build_object('dispute_no', p_dispute_no, 'amount', p_amount));
        return 'contradicted';
    elsif (v_known.state <> 'OPEN' and p_state = 'OPEN') or (v_known.state = p_state and v_known.amount >= p_amount) then
        return 'unchanged'; -- an older report, or the same again
    else
        -- Whatever the order of reports: the most advanced state counts, and within a state the largest amount.
        update paylatch.dispute d set state = p_state, amount = p_amount
        where d.flow_id = p_flow_id and d.dispute_no = p_dispute_no;
    end if;
    v_held := paylatch.disputes_held(p_flow_id);
    if p_state <> 'WON' and v_held > v_flow.amount - v_flow.refunded_amount then
        insert into paylatch.incident (kind, flow_id, says, detail)
        select 'DISPUTED', p_flow_id, format('disputes and refunds together exceed the charge: %s disputed, %s refunded or on its way, %s charged',
               paylatch.money(v_held, v_flow.currency), paylatch.money(v_flow.refunded_amount, v_flow.currency), paylatch.money(v_flow.amount, v_flow.currency)),
               jsonb_build_object('dispute_no', p_dispute_no, 'disputed', v_held, 'refunded', v_flow.refunded_amount, 'amount', v_flow.amount)
        where not exists (select from paylatch.incident i where i.flow_id = p_flow_id and i.kind = 'DISPUTED' and i.resolved_at is null
                          and i.detail ->> 'dispute_no' = p_dispute_no);
    end if;
    return case p_state when 'OPEN' then 'opened' when 'WON' then 'won' else 'lost' end;
end $$;
comment on function paylatch.record_dispute(bigint, text, bigint, text) is
    'Writes a report about a dispute down: opened, won, lost, unchanged (known already, or older) or contradicted (an incident). While OPEN or LOST it lowers what can be refunded. The same reports in any order end alike. Upholds rule 7.';

create function paylatch.report_dispute(flow_id bigint, dispute_no text, amount bigint, state text) returns text
    language plpgsql security definer set search_path = pg_catalog, pg_temp set paylatch.source = 'OPERATOR' as $$
declare
    v record;
begin
    perform paylatch.require_migrated();
    select x.field, x.says into v from (values
        ('dispute_no', case when coalesce(length(dispute_no), 0) not between 1 and 128 then 'give 1 to 128 characters' end),
        ('amount', case when coalesce(amount, 0) <= 0 then 'give a positive number of minor units' end),
        ('state', case when coalesce(state, '') not in ('OPEN', 'WON', 'LOST') then 'give OPEN, WON or LOST' end)
    ) x(field, says) where x.says is not null limit 1;
    if found then
        raise exception using errcode = 'PL004', message = format('%s: %s', v.field, v.says),
            detail = jsonb_build_object('field', v.field)::text;
    end if;
    perform paylatch.require_flow(report_dispute.flow_id);
    return paylatch.record_dispute(report_dispute.flow_id, dispute_no, amount, state);
end $$;
comment on function paylatch.report_dispute(bigint, text, bigint, text) is
    'Operator: a customer disputes a charge with the bank, or that has been decided. dispute_no: the provider''s. amount: minor units. state: OPEN, WON (money kept) or LOST. Returns opened, won, lost, unchanged or contradicted. Errors: PL004, PL007, PL008.';

create function paylatch.record_external_refund(p_flow_id bigint, p_external_no text, p_amount bigint, p_currency text)
    returns text language plpgsql as $$
declare
    v_flow record;
    v_number text;
    v_why text;
begin
    select f.flow_id, f.status, f.currency, f.channel_request_id, f.refunded_amount,
           coalesce(f.charged_amount, 0) - f.refunded_amount - f.disputed_amount as left_over into v_flow
    from paylatch.pay_flow f where f.flow_id = p_flow_id for update;
    if exists (select from paylatch.refund r where r.flow_id = p_flow_id and r.external_no = p_external_no) then
        return 'known';
    end if;
    v_number := paylatch.next_refund_no(p_flow_id, 'EXTERNAL');
    v_why := case when v_flow.currency <> p_currency then 'it is in another currency'
                  when coalesce(p_amount, 0) <= 0 then 'it names no amount'
                  when v_flow.status <> 'BIZ_SUCCESS' then 'the flow is ' || v_flow.status
                  when p_amount > v_flow.left_over then 'only ' || paylatch.money(v_flow.left_over, v_flow.currency) || ' is left'
                  when v_number is null then 'no number is left for it' end;
    if v_why is not null then
        insert into paylatch.incident (kind, flow_id, says, detail)
        select 'EXTERNAL_REFUND', p_flow_id, format('a refund that was made elsewhere does not fit: %s', v_why),
               jsonb_build_object('external_no', p_external_no, 'amount', p_amount, 'currency', p_currency)
        where not exists (select from paylatch.incident i where i.flow_id = p_flow_id and i.kind = 'EXTERNAL_REFUND'
                          and i.detail ->> 'external_no' = p_external_no);
        return 'incident';
    end if;
    update paylatch.pay_flow f
    set refunded_amount = f.refunded_amount + p_amount, version = f.version + 1, last_action = null, last_outcome = null,
        last_latency_ms = null, last_error_code = left('refunded elsewhere: ' || p_external_no, 64)
    where f.flow_id = p_flow_id;
    insert into paylatch.refund (flow_id, kind, amount, currency, refund_order_no, status, external_no, charge_ref)
    values (p_flow_id, 'EXTERNAL', p_amount, p_currency, v_number, 'SUCCEEDED', p_external_no, v_flow.channel_request_id);
    return 'recorded';
end $$;
comment on function paylatch.record_external_refund(bigint, text, bigint, text) is
    'Writes a refund down that was made in the provider''s own dashboard, once per provider''s number: recorded, known, or incident where it does not fit (more than is left, another currency, not BIZ_SUCCESS). Upholds rules 2 and 7.';

create function paylatch.late_charge(p_flow_id bigint, p_request_id text) returns text language plpgsql as $$
declare
    v_flow record;
begin
    select f.* into v_flow from paylatch.pay_flow f where f.flow_id = p_flow_id for update;
    if v_flow.status is distinct from 'PAY_FAIL' then
        return 'not_failed';
    elsif v_flow.charged_amount is not null then
        return 'known';
    end if;
    update paylatch.pay_flow f
    set charged_amount = f.amount, refunded_amount = f.amount, disputed_amount = 0, version = f.version + 1,
        channel_request_id = coalesce(left(p_request_id, 128), f.channel_request_id),
        last_action = 'QUERY_CHARGE', last_outcome = 'SUCCEEDED', last_error_code = 'late charge', last_latency_ms = null
    where f.flow_id = p_flow_id
    returning f.channel_request_id into v_flow.channel_request_id;
    insert into paylatch.refund (flow_id, kind, amount, currency, refund_order_no, reason, charge_ref)
    values (p_flow_id, 'RECON', v_flow.amount, v_flow.currency, paylatch.next_refund_no(p_flow_id, 'RECON'),
            'charged although the payment had failed', v_flow.channel_request_id);
    insert into paylatch.incident (kind, flow_id, says, detail)
    values ('LATE_CHARGE', p_flow_id, 'a charge showed up for a flow that is PAY_FAIL; it goes back',
            jsonb_build_object('amount', v_flow.amount, 'currency', v_flow.currency, 'request_id', p_request_id,
                               'order_no', v_flow.trade_order_no));
    delete from paylatch.job j where j.kind = 'inquiry' and j.ref_id = p_flow_id;
    return 'refunding';
end $$;
comment on function paylatch.late_charge(bigint, text) is
    'A flow that is PAY_FAIL turns out to be charged: its state stays, all of the money is reserved for a RECON refund which leaves at once, and an incident opens. refunding, known (it was seen before) or not_failed. Upholds rules 4 and 7.';

create function paylatch.inquire(p_flow_id bigint) returns boolean language plpgsql as $$
begin
    insert into paylatch.job (kind, ref_id, channel, lane, due_at)
    select 'inquiry', f.flow_id, f.channel, 'ask', paylatch.clock() from paylatch.pay_flow f
    where f.flow_id = p_flow_id and f.status = 'PAY_FAIL' and f.charged_amount is null
    on conflict (kind, ref_id) do update set due_at = excluded.due_at
        where job.lease_token is null and job.due_at > excluded.due_at;
    return exists (select from paylatch.job j where j.kind = 'inquiry' and j.ref_id = p_flow_id);
end $$;
comment on function paylatch.inquire(bigint) is
    'Has the wallet asked about a flow that ended as PAY_FAIL, until one definite answer. Returns whether an inquiry is under way; false for any other flow.';
