-- What follows from a change of a refund or a dispute, in sets, in the transaction of the change. The refund's own log
-- and events are written first, then its flow is brought up to date, then its order, then the queue.
-- Lock order: the flow before its refunds and disputes, so commands lock it first; then order and job.

create function paylatch.refunds_held(p_flow_id bigint) returns bigint language sql stable as $$
    select coalesce(sum(r.amount), 0)::bigint from paylatch.refund r
    where r.flow_id = p_flow_id and r.status in ('REQUESTED', 'PENDING', 'SUCCEEDED')
$$;
comment on function paylatch.refunds_held(bigint) is 'What the refunds of a flow hold back of its charge: reserved or succeeded, minor units.';

create function paylatch.disputes_held(p_flow_id bigint) returns bigint language sql stable as $$
    select coalesce(sum(d.amount), 0)::bigint from paylatch.dispute d where d.flow_id = p_flow_id and d.state in ('OPEN', 'LOST')
$$;
comment on function paylatch.disputes_held(bigint) is 'What the open and lost disputes of a flow come to, minor units; more than its charge if they say so.';

-- The reservation comes first, by one conditional update of the flow; a refund without one is refused.
create function paylatch.on_refund_insert_held() returns trigger language plpgsql as $$
declare
    v record;
begin
    select n.refund_id, n.kind, f.flow_id, f.status, f.currency = n.currency as same_currency,
           case when f.flow_id is null or f.currency <> n.currency or not case n.kind
                         when 'COMPENSATION' then f.status = 'REFUNDING'
                         when 'RECON' then f.status = 'PAY_FAIL' and f.charged_amount is not null
                         else f.status = 'BIZ_SUCCESS' end then 2
                when f.refunded_amount <> paylatch.refunds_held(f.flow_id) then 7 end as rule
    into v
    from new_row n left join paylatch.pay_flow f using (flow_id)
    where f.flow_id is null or f.currency <> n.currency or not case n.kind
              when 'COMPENSATION' then f.status = 'REFUNDING'
              when 'RECON' then f.status = 'PAY_FAIL' and f.charged_amount is not null
              else f.status = 'BIZ_SUCCESS' end
       or f.refunded_amount <> paylatch.refunds_held(f.flow_id)
    limit 1;
    if found then
        raise exception using errcode = '23514',
            message = format('paylatch rule %s: %s', v.rule, case v.rule
                when 2 then format('flow %s, which is %s, takes no refund of kind %s in that currency', v.flow_id, coalesce(v.status, 'unknown'), v.kind)
                else format('flow %s holds nothing back for this refund; ask with request_refund()', v.flow_id) end),
            detail = jsonb_build_object('rule', v.rule, 'table', 'refund', 'id', v.refund_id)::text;
    end if;
    return null;
end $$;
comment on function paylatch.on_refund_insert_held() is 'Refuses a refund that its flow may not have, or that its flow holds nothing back for, with 23514. Upholds rules 2 and 7.';

create function paylatch.on_refund_update_aside() returns trigger language plpgsql as $$
begin
    if not exists (select from new_row n where n.status in ('FAILED', 'REJECTED') or n.frozen_reason is not null) then
        return null;
    end if;
    -- Released exactly once: no edge leads into an end twice.
    update paylatch.pay_flow f
    set refunded_amount = f.refunded_amount - x.amount, version = f.version + 1,
        disputed_amount = least(paylatch.disputes_held(f.flow_id), f.amount - (f.refunded_amount - x.amount)),
        last_action = null, last_outcome = null, last_latency_ms = null, last_error_code = left('released: ' || x.numbers, 64)
    from (select n.flow_id, sum(n.amount)::bigint as amount, string_agg(n.refund_order_no, ' ' order by n.refund_id) as numbers
          from new_row n join old_row o using (refund_id)
          where n.status in ('FAILED', 'REJECTED') and o.status in ('REQUESTED', 'PENDING')
          group by n.flow_id) x
    where f.flow_id = x.flow_id;
    insert into paylatch.incident (kind, flow_id, refund_id, says, detail)
    select n.frozen_reason, n.flow_id, n.refund_id, format('refund %s waits for a person: %s', n.refund_order_no, n.frozen_reason),
           jsonb_build_object('version', n.version, 'action', n.last_action, 'outcome', n.last_outcome,
                              'code', n.last_error_code, 'amount', n.amount, 'currency', n.currency)
    from new_row n join old_row o using (refund_id)
    where n.frozen_reason is not null and o.frozen_reason is null;
    return null;
end $$;
comment on function paylatch.on_refund_update_aside() is 'Gives back what a failed or rejected refund held, once, and opens an incident for each freeze. Upholds rule 7.';

-- An after-sale refund that succeeded shows on its order. Money that a flow kept wrongly (COMPENSATION, RECON) never was
-- the order's.
create function paylatch.on_refund_insert_order() returns trigger language plpgsql as $$
begin
    if exists (select from new_row n where n.status = 'SUCCEEDED') then
        update paylatch.pay_order o
        set status = 'REFUNDED', refunded_amount = o.refunded_amount + x.amount, version = o.version + 1
        from (select f.order_id, sum(n.amount)::bigint as amount from new_row n join paylatch.pay_flow f using (flow_id)
              where n.status = 'SUCCEEDED' and n.kind in ('AFTER_SALE', 'EXTERNAL') group by f.order_id) x
        where o.order_id = x.order_id;
    end if;
    return null;
end $$;
comment on function paylatch.on_refund_insert_order() is 'Projects a refund that was made elsewhere onto its order.';

create function paylatch.on_refund_update_order() returns trigger language plpgsql as $$
begin
    if exists (select from new_row n where n.status = 'SUCCEEDED' and n.kind in ('AFTER_SALE', 'EXTERNAL')) then
        update paylatch.pay_order o
        set status = 'REFUNDED', refunded_amount = o.refunded_amount + x.amount, version = o.version + 1
        from (select f.order_id, sum(n.amount)::bigint as amount
              from new_row n join old_row p using (refund_id) join paylatch.pay_flow f on f.flow_id = n.flow_id
              where n.status = 'SUCCEEDED' and p.status <> 'SUCCEEDED' and n.kind in ('AFTER_SALE', 'EXTERNAL')
              group by f.order_id) x
        where o.order_id = x.order_id;
    end if;
    return null;
end $$;
comment on function paylatch.on_refund_update_order() is 'Projects a succeeded after-sale refund onto its order.';

-- A compensation has no job of its own: its flow's carries it.
create function paylatch.on_refund_insert_job() returns trigger language plpgsql as $$
begin
    insert into paylatch.job (kind, ref_id, channel, lane, due_at)
    select 'refund', n.refund_id, f.channel, 'refund', case n.status when 'PENDING' then n.created_at else 'infinity' end
    from new_row n join paylatch.pay_flow f using (flow_id)
    where n.kind <> 'COMPENSATION' and n.status in ('REQUESTED', 'PENDING');
    return null;
end $$;
comment on function paylatch.on_refund_insert_job() is 'Queues new refunds: due at once, or never while they wait for approval. Upholds rule 6.';

create function paylatch.on_refund_update_job() returns trigger language plpgsql as $$
begin
    delete from paylatch.job j using new_row n
    where j.kind = 'refund' and j.ref_id = n.refund_id and n.status in ('SUCCEEDED', 'FAILED', 'REJECTED');
    if not paylatch.in_command() then
        update paylatch.job j
        set lease_token = null, lease_holder = null, leased_at = null, action = null,
            due_at = case when n.frozen_reason is null and n.status = 'PENDING' then paylatch.clock() else 'infinity' end
        from new_row n
        where j.kind = 'refund' and j.ref_id = n.refund_id and n.status in ('REQUESTED', 'PENDING');
    end if;
    return null;
end $$;
comment on function paylatch.on_refund_update_job() is 'Takes ended refunds out of the queue; re-files those changed by hand. Upholds rule 6.';

-- A dispute keeps its identity, and one that is decided stays so.
create function paylatch.guard_dispute() returns trigger language plpgsql as $$
begin
    if tg_op = 'DELETE' or (new.flow_id, new.dispute_no, new.opened_at) <> (old.flow_id, old.dispute_no, old.opened_at)
       or (old.state <> 'OPEN' and new.state <> old.state) then
        raise exception using errcode = '23514', message = 'paylatch rule 7: a dispute keeps its identity, and one that is decided stays so',
            detail = jsonb_build_object('rule', 7, 'table', 'dispute', 'id', old.flow_id, 'dispute_no', old.dispute_no)::text;
    end if;
    new.updated_at := paylatch.clock();
    return new;
end $$;
comment on function paylatch.guard_dispute() is 'Row guard of dispute: no delete, identity kept, a decided one stays decided. Raises 23514. Upholds rule 7.';

create function paylatch.on_dispute_held() returns trigger language plpgsql as $$
begin
    update paylatch.pay_flow f
    set disputed_amount = x.held, version = f.version + 1, last_error_code = left('disputed: ' || paylatch.money(x.held, f.currency), 64),
        -- A flow under way decides by its newest answer.
        last_action = case when x.ended then null else f.last_action end,
        last_outcome = case when x.ended then null else f.last_outcome end, last_latency_ms = null
    from (select f.flow_id, paylatch.is_terminal(f.status) as ended, least(paylatch.disputes_held(f.flow_id), f.amount - f.refunded_amount) as held
          from paylatch.pay_flow f where f.flow_id in (select n.flow_id from new_row n)) x
    where f.flow_id = x.flow_id and f.disputed_amount <> x.held;
    return null;
end $$;
comment on function paylatch.on_dispute_held() is 'Keeps pay_flow.disputed_amount: what open and lost disputes hold back, as far as refunds have left anything. Upholds rule 7.';
