-- Refunds that people ask for: asking, approving, reading.
--
-- A refund begins with its reservation: one conditional update of its flow's row, under which it is numbered and written.
-- So whatever runs beside it sees the money as spoken for, and `refund_within_charge` is the last net.
-- Lock order: the idempotency key, the flow, then its refunds and disputes, then order and job.

create type paylatch.refund_view as (
    refund_id bigint, flow_id bigint, merchant_id text, trade_order_no text, refund_order_no text, kind text, amount bigint,
    currency text, status text, reason text, requested_by text, decided_by text, frozen_reason text, last_error_class text,
    last_error_code text, version bigint, created_at timestamptz, updated_at timestamptz, due_at timestamptz);

create function paylatch.refund_views(p_flow_id bigint, p_refund_id bigint, p_merchant_id text)
    returns setof paylatch.refund_view language sql stable as $$
    select r.refund_id, r.flow_id, o.merchant_id, f.trade_order_no, r.refund_order_no, r.kind, r.amount::bigint, r.currency::text,
           r.status::text, r.reason, r.requested_by, r.decided_by, coalesce(r.frozen_reason, x.frozen_reason), r.last_error_class,
           r.last_error_code, r.version, r.created_at, r.updated_at, j.due_at
    from paylatch.refund r
    join paylatch.pay_flow f on f.flow_id = r.flow_id
    join paylatch.pay_order o on o.order_id = f.order_id
    -- A compensation waits with its flow.
    left join lateral (select f.frozen_reason where r.kind = 'COMPENSATION' and r.status = 'PENDING') x on true
    left join paylatch.job j on case r.kind when 'COMPENSATION' then j.kind = 'flow' and j.ref_id = r.flow_id
                                            else j.kind = 'refund' and j.ref_id = r.refund_id end
    where (r.flow_id = p_flow_id or r.refund_id = p_refund_id) and (p_merchant_id is null or o.merchant_id = p_merchant_id)
    order by r.refund_id
$$;
comment on function paylatch.refund_views(bigint, bigint, text) is 'The refunds of a flow, or one of them, as clients see them; of one merchant, where one is given.';

create function paylatch.get_refund(refund_id bigint, merchant_id text default null) returns setof paylatch.refund_view
    language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform paylatch.require_migrated();
    return query select * from paylatch.refund_views(null, get_refund.refund_id, paylatch.merchant_scope(get_refund.merchant_id));
end $$;
comment on function paylatch.get_refund(bigint, text) is
    'One refund as clients see it; no row where it does not exist or belongs to another merchant. status: REQUESTED (waits for approval), PENDING, SUCCEEDED, FAILED or REJECTED. Error: PL007.';

create function paylatch.get_refunds(flow_id bigint, merchant_id text default null) returns setof paylatch.refund_view
    language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform paylatch.require_migrated();
    return query select * from paylatch.refund_views(get_refunds.flow_id, null, paylatch.merchant_scope(get_refunds.merchant_id));
end $$;
comment on function paylatch.get_refunds(bigint, text) is
    'All refunds of a flow, oldest first: its compensation, after-sale refunds, those of late charges and those made elsewhere. Error: PL007.';

create function paylatch.require_refund(p_refund_id bigint) returns void language plpgsql stable as $$
begin
    if not exists (select from paylatch.refund r where r.refund_id = p_refund_id) then
        raise exception using errcode = 'PL008', message = format('refund %s does not exist', coalesce(p_refund_id::text, 'null')),
            hint = 'get_refunds(flow_id) lists the refunds of a flow.';
    end if;
end $$;
comment on function paylatch.require_refund(bigint) is 'Raises PL008 for a refund that does not exist.';

-- Its nth number. The flow is locked, so nobody counts beside us; refunds are never deleted, so none is given twice.
create function paylatch.next_refund_no(p_flow_id bigint, p_kind text) returns text language plpgsql stable as $$
declare
    v_number text;
    v_made bigint;
begin
    select count(*), min(case when p_kind = 'EXTERNAL' then paylatch.external_order_no(f.trade_order_no, x.n)
                              else paylatch.nth_refund_order_no(f.trade_order_no, x.n) end)
    into v_made, v_number
    from paylatch.pay_flow f
    cross join lateral (select 1 + count(*) as n from paylatch.refund r
                        where r.flow_id = f.flow_id and (r.kind = 'EXTERNAL') = (p_kind = 'EXTERNAL') and r.kind <> 'COMPENSATION') x
    where f.flow_id = p_flow_id;
    return v_number;
end $$;
comment on function paylatch.next_refund_no(bigint, text) is 'The next refund number of a locked flow; null where its 32 characters leave no further one. Rule 1.';

create function paylatch.check_refund_request(p_flow_id bigint, p_amount bigint, p_reason text, p_expected bigint, p_requested_by text)
    returns void language plpgsql immutable as $$
declare
    v record;
begin
    select x.field, x.says into v from (values
        ('flow_id', case when p_flow_id is null then 'give a flow' end),
        ('amount', case when coalesce(p_amount, 0) <= 0 then 'give a positive number of minor units' end),
        ('reason', case when length(btrim(coalesce(p_reason, ''))) = 0 or length(p_reason) > 500 then 'say why, in 1 to 500 characters' end),
        ('expected_refundable', case when p_expected < 0 then 'give a number of minor units, or null' end),
        ('requested_by', case when length(p_requested_by) not between 1 and 128 then 'give 1 to 128 characters, or null' end)
    ) x(field, says) where x.says is not null limit 1;
    if found then
        raise exception using errcode = 'PL004', message = format('%s: %s', v.field, v.says),
            detail = jsonb_build_object('field', v.field)::text;
    end if;
end $$;
comment on function paylatch.check_refund_request(bigint, bigint, text, bigint, text) is 'Raises PL004 for the first bad argument of request_refund, naming its field.';

-- What a key was used for before: that refund again, or PL001 with the fields that differ.
create function paylatch.refund_replayed(p_key text, p_same boolean, p_refund_id bigint, p_flow_id bigint, p_amount bigint, p_reason text)
    returns paylatch.refund_view language plpgsql as $$
declare
    v paylatch.refund_view;
begin
    select r.* into v from paylatch.refund_views(null, p_refund_id, null) r;
    if not p_same then
        perform paylatch.refuse_key(p_key, array_remove(array[
            case when v.flow_id <> p_flow_id then 'flow_id' end, case when v.amount <> p_amount then 'amount' end,
            case when v.reason <> p_reason then 'reason' end], null));
    end if;
    return v;
end $$;
comment on function paylatch.refund_replayed(text, boolean, bigint, bigint, bigint, text) is
    'The refund that a key was used for. Error: PL001 where it was for another flow, amount or reason. Upholds rule 8.';

create function paylatch.request_refund(
    flow_id bigint, amount bigint, reason text, idempotency_key text default null, expected_refundable bigint default null,
    requested_by text default null, merchant_id text default null,
    out outcome text, out refund_id bigint, out refund_order_no text, out status text, out refundable bigint, out poll_after_ms integer)
    language plpgsql security definer set search_path = pg_catalog, pg_temp set paylatch.source = 'API' as $$
declare
    v record;
    v_amount constant bigint := request_refund.amount;
    v_reason constant text := request_refund.reason;
    v_by constant text := request_refund.requested_by;
    v_merchant text;
    v_asked bytea;
    v_key record;
    v_known paylatch.refund_view;
begin
    perform paylatch.require_migrated();
    perform paylatch.check_refund_request(request_refund.flow_id, v_amount, v_reason, expected_refundable, v_by);
    perform paylatch.require_in_scope(request_refund.flow_id, request_refund.merchant_id);
    select o.merchant_id into v_merchant from paylatch.pay_flow f join paylatch.pay_order o using (order_id)
    where f.flow_id = request_refund.flow_id;
    if not found then
        perform paylatch.require_flow(request_refund.flow_id);
    end if;
    if idempotency_key is not null then
        v_asked := paylatch.fingerprint(array['flow_id', 'amount', 'reason'], array[request_refund.flow_id::text, v_amount::text, v_reason]);
        select k.found as used, k.same, k.refund_id into v_key
        from paylatch.open_key(v_merchant, 'request_refund', idempotency_key, v_asked) k;
        if v_key.used then
            v_known := paylatch.refund_replayed(idempotency_key, v_key.same, v_key.refund_id, request_refund.flow_id, v_amount, v_reason);
            outcome := 'replayed'; refund_id := v_known.refund_id; refund_order_no := v_known.refund_order_no; status := v_known.status;
            refundable := (select f.charged_amount - f.refunded_amount - f.disputed_amount from paylatch.pay_flow f
                           where f.flow_id = request_refund.flow_id);
            poll_after_ms := case status when 'PENDING' then 1000 end;
            return;
        end if;
    end if;

    -- The reservation. Whoever comes second waits for the row, and is then held against what is left.
    update paylatch.pay_flow f
    set refunded_amount = f.refunded_amount + v_amount, version = f.version + 1,
        last_action = null, last_outcome = null, last_latency_ms = null,
        last_error_code = left('held back for a refund: ' || paylatch.money(v_amount, f.currency), 64)
    where f.flow_id = request_refund.flow_id and f.status = 'BIZ_SUCCESS'
      and v_amount <= f.charged_amount - f.refunded_amount - f.disputed_amount
      and (expected_refundable is null or expected_refundable = f.charged_amount - f.refunded_amount - f.disputed_amount)
    returning f.*, f.charged_amount - f.refunded_amount - f.disputed_amount as left_over into v;
    if not found then
        select f.status, coalesce(f.charged_amount, 0) - f.refunded_amount - f.disputed_amount as left_over into v
        from paylatch.pay_flow f where f.flow_id = request_refund.flow_id;
        outcome := case when v.status <> 'BIZ_SUCCESS' then 'not_refundable'
                        when expected_refundable <> v.left_over then 'precondition_failed' else 'over_limit' end;
        refundable := case when v.status = 'BIZ_SUCCESS' then v.left_over else 0 end;
        return;
    end if;
    refundable := v.left_over;

    refund_order_no := paylatch.next_refund_no(v.flow_id, 'AFTER_SALE');
    if refund_order_no is null then
        raise exception using errcode = 'PL004', message = format('amount: flow %s has used every refund number that fits into 32 characters', v.flow_id),
            detail = jsonb_build_object('field', 'amount')::text, hint = 'Refund the rest in the provider''s own dashboard.';
    end if;
    -- What was refunded before counts, so that many small refunds need the same approval as a large one.
    status := (select case when v.refunded_amount > s.refund_approval_above then 'REQUESTED' else 'PENDING' end
               from paylatch.scene s where s.scene = v.scene);
    insert into paylatch.refund as r (flow_id, kind, amount, currency, refund_order_no, status, reason, requested_by,
                                      requested_login, charge_ref)
    values (v.flow_id, 'AFTER_SALE', v_amount, v.currency, request_refund.refund_order_no, request_refund.status, v_reason,
            v_by, session_user, v.channel_request_id)
    returning r.refund_id into refund_id;
    if idempotency_key is not null then
        perform paylatch.bind_key(v_merchant, 'request_refund', idempotency_key, v_asked, v.flow_id, request_refund.refund_id);
    end if;
    outcome := case status when 'REQUESTED' then 'needs_approval' else 'reserved' end;
    poll_after_ms := case status when 'PENDING' then 1000 end;
end $$;
comment on function paylatch.request_refund(bigint, bigint, text, text, bigint, text, text) is
    'Asks for an after-sale refund of a flow that is BIZ_SUCCESS, in part or in full. amount: minor units. reason: for people. expected_refundable: refuse unless exactly so much is left. requested_by: who asks, in your own terms; never approves it. idempotency_key: the same key again gives the same refund, as it stands now (replayed). outcome: reserved (PENDING, on its way), replayed, needs_approval (REQUESTED), over_limit, precondition_failed, not_refundable (nothing was reserved; refundable says what is left). Errors: PL001 key used for something else, PL004 invalid argument, PL007, PL008 unknown flow. Upholds rules 1, 2, 7 and 8.';

-- The flow first, then its refund.
create function paylatch.lock_refund(p_refund_id bigint) returns void language plpgsql as $$
begin
    perform from paylatch.pay_flow f where f.flow_id = (select r.flow_id from paylatch.refund r where r.refund_id = p_refund_id) for update;
    perform from paylatch.refund r where r.refund_id = p_refund_id for update;
    if not found then
        perform paylatch.require_refund(p_refund_id);
    end if;
end $$;
comment on function paylatch.lock_refund(bigint) is 'Locks a refund behind its flow. Error: PL008.';

create function paylatch.decide_refund(p_refund_id bigint, p_status text, p_note text) returns text language plpgsql as $$
declare
    v record;
begin
    perform paylatch.require_migrated();
    if coalesce(btrim(p_note), '') = '' then
        raise exception using errcode = 'PL004', message = 'note: say why', detail = jsonb_build_object('field', 'note')::text;
    end if;
    perform paylatch.lock_refund(p_refund_id);
    select r.* into v from paylatch.refund r where r.refund_id = p_refund_id;
    if v.status <> 'REQUESTED' then
        raise exception using errcode = 'PL003', message = format('refund %s is %s and waits for no decision', p_refund_id, v.status);
    end if;
    if session_user in (v.requested_login, v.requested_by) then
        raise exception using errcode = 'PL009', message = format('%s asked for refund %s and does not decide it', session_user, p_refund_id),
            hint = 'Another member of paylatch_approver approves or rejects it.';
    end if;
    update paylatch.refund r
    set status = p_status, version = r.version + 1, decided_by = session_user, last_action = null, last_outcome = null,
        last_error_code = left(case p_status when 'PENDING' then 'approved: ' else 'rejected: ' end || p_note, 64)
    where r.refund_id = p_refund_id;
    update paylatch.job j set due_at = paylatch.clock() where j.kind = 'refund' and j.ref_id = p_refund_id;
    return p_status;
end $$;
comment on function paylatch.decide_refund(bigint, text, text) is 'A second person''s decision about a refund that is REQUESTED. Errors: PL003, PL004, PL008, PL009.';

create function paylatch.approve_refund(refund_id bigint, note text) returns text
    language plpgsql security definer set search_path = pg_catalog, pg_temp set paylatch.source = 'OPERATOR' as $$
begin
    return paylatch.decide_refund(refund_id, 'PENDING', note);
end $$;
comment on function paylatch.approve_refund(bigint, text) is
    'Approver: a refund that is REQUESTED goes out. Neither the login that asked for it nor whoever it asked for may do this. Returns the state. Errors: PL003 it waits for no decision, PL004 no note, PL007, PL008, PL009 a second person must decide.';

create function paylatch.reject_refund(refund_id bigint, note text) returns text
    language plpgsql security definer set search_path = pg_catalog, pg_temp set paylatch.source = 'OPERATOR' as $$
begin
    return paylatch.decide_refund(refund_id, 'REJECTED', note);
end $$;
comment on function paylatch.reject_refund(bigint, text) is
    'Approver: a refund that is REQUESTED ends as REJECTED, and what it held is refundable again. Same errors as approve_refund. Upholds rule 7.';

create function paylatch.resume_refund(refund_id bigint, note text) returns text
    language plpgsql security definer set search_path = pg_catalog, pg_temp set paylatch.source = 'OPERATOR' as $$
declare
    v record;
begin
    perform paylatch.require_migrated();
    if coalesce(btrim(note), '') = '' then
        raise exception using errcode = 'PL004', message = 'note: say why the refund may go on', detail = jsonb_build_object('field', 'note')::text;
    end if;
    perform paylatch.lock_refund(resume_refund.refund_id);
    select r.* into v from paylatch.refund r where r.refund_id = resume_refund.refund_id;
    if v.frozen_reason is null then
        raise exception using errcode = 'PL004', message = format('refund %s is not frozen', refund_id),
            hint = case v.kind when 'COMPENSATION' then format('It is part of its flow: resume_pay_flow(%s, why).', v.flow_id) end;
    end if;
    -- Whatever was sent is asked for first.
    update paylatch.refund r
    set frozen_reason = null, version = r.version + 1, retry_count = 0, negative_count = 0, negative_since = null,
        act_unread = r.act_sent_at is not null, last_error_class = null, last_error_code = left('resumed: ' || note, 64),
        last_action = null, last_outcome = null
    where r.refund_id = v.refund_id;
    update paylatch.job j
    set due_at = paylatch.clock(), lease_token = null, lease_holder = null, leased_at = null, action = null
    where j.kind = 'refund' and j.ref_id = v.refund_id;
    update paylatch.incident i
    set resolved_at = paylatch.clock(), resolved_by = session_user,
        detail = coalesce(i.detail, '{}') || jsonb_build_object('note', left(note, 500))
    where i.refund_id = v.refund_id and i.resolved_at is null;
    return v.status;
end $$;
comment on function paylatch.resume_refund(bigint, text) is
    'Operator: a frozen refund goes on, asking first for whatever was sent; its incidents are resolved with the note. Returns the state. Errors: PL004 not frozen or no note, PL007, PL008.';

create function paylatch.wake_refund(p_refund_id bigint, p_now timestamptz) returns boolean language plpgsql as $$
begin
    update paylatch.job j
    set due_at = case when j.lease_token is null then p_now else j.due_at end, woken = j.lease_token is not null
    where j.kind = 'refund' and j.ref_id = p_refund_id and j.due_at > p_now and j.due_at < 'infinity' and not j.woken;
    return exists (select from paylatch.job j where j.kind = 'refund' and j.ref_id = p_refund_id);
end $$;
comment on function paylatch.wake_refund(bigint, timestamptz) is 'Makes an unfinished, unfrozen refund due now; one whose call is out as soon as its report has come.';
