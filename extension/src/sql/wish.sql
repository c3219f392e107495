-- Wishes and wake-ups: they carry no state. What happens is decided from the row.

create function paylatch.wake_set(p_flow_ids bigint[], p_now timestamptz) returns void language plpgsql as $$
begin
    -- A call that is out keeps its lease, and the wake-up is kept for its report: what woke us may be younger than its answer.
    update paylatch.job j
    set due_at = case when j.lease_token is null then p_now else j.due_at end, woken = j.lease_token is not null
    where j.kind = 'flow' and j.ref_id = any (p_flow_ids) and j.due_at > p_now and j.due_at < 'infinity' and not j.woken;
end $$;
comment on function paylatch.wake_set(bigint[], timestamptz) is
    'Makes unfinished, unfrozen flows due now; those whose call is out as soon as its report has come.';

create function paylatch.wake(p_flow_id bigint, p_now timestamptz) returns boolean language plpgsql as $$
begin
    perform paylatch.wake_set(array[p_flow_id], p_now);
    return exists (select from paylatch.job j where j.kind = 'flow' and j.ref_id = p_flow_id);
end $$;
comment on function paylatch.wake(bigint, timestamptz) is 'wake_set() for one flow; returns whether it is unfinished.';

create function paylatch.advance(flow_id bigint, source text default 'API') returns boolean
    language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform paylatch.require_migrated();
    return paylatch.in_scope(flow_id, null) and paylatch.wake(flow_id, paylatch.clock());
end $$;
comment on function paylatch.advance(bigint, text) is
    'Says "look at this flow again": makes it due now, or after the call that is out. Idempotent, carries no state. Returns whether the flow is unfinished (and not another merchant''s). source: who asks (API, WEBHOOK, OPERATOR). Error: PL007.';

create function paylatch.no_such_flow(p_flow_id bigint) returns void language plpgsql stable as $$
begin
    raise exception using errcode = 'PL008', message = format('flow %s does not exist', coalesce(p_flow_id::text, 'null')),
        hint = 'find_pay_flow(order_no) finds a flow by its order number.';
end $$;
comment on function paylatch.no_such_flow(bigint) is 'Raises PL008.';

create function paylatch.require_flow(p_flow_id bigint) returns void language plpgsql stable as $$
begin
    if not exists (select from paylatch.pay_flow f where f.flow_id = p_flow_id) then
        perform paylatch.no_such_flow(p_flow_id);
    end if;
end $$;
comment on function paylatch.require_flow(bigint) is 'Raises PL008 for a flow that does not exist.';

create function paylatch.cancel_pay_flow(flow_id bigint, merchant_id text default null, out outcome text, out client_status text)
    language plpgsql security definer set search_path = pg_catalog, pg_temp set paylatch.source = 'API' as $$
declare
    v_flow record;
    v_now timestamptz;
begin
    perform paylatch.require_migrated();
    perform paylatch.require_in_scope(cancel_pay_flow.flow_id, cancel_pay_flow.merchant_id);
    select f.status, f.cancel_requested_at into v_flow
    from paylatch.pay_flow f where f.flow_id = cancel_pay_flow.flow_id for update;
    if not found then
        perform paylatch.require_flow(cancel_pay_flow.flow_id);
    end if;
    outcome := case when paylatch.is_terminal(v_flow.status) then 'finished'
                    when v_flow.status = 'REFUNDING' then 'too_late'
                    when v_flow.cancel_requested_at is not null then 'already_requested'
                    else 'requested' end;
    if outcome = 'requested' then
        v_now := paylatch.clock();
        update paylatch.pay_flow f
        set cancel_requested_at = v_now, version = version + 1, last_action = null, last_outcome = null,
            last_error_code = 'cancel requested'
        where f.flow_id = cancel_pay_flow.flow_id;
        -- Decided at once where no call is out; else when its report comes.
        perform paylatch.advance_set(
            paylatch.lock_flows(array(select j.ref_id from paylatch.job j where j.kind = 'flow' and j.ref_id = cancel_pay_flow.flow_id
                                      and j.lease_token is null and j.due_at < 'infinity'), false),
            null, v_now, null, null, '{}', '{}');
    end if;
    select paylatch.client_status(f.status, f.frozen_reason is not null) into client_status
    from paylatch.pay_flow f where f.flow_id = cancel_pay_flow.flow_id;
end $$;
comment on function paylatch.cancel_pay_flow(bigint, text) is
    'A wish: takes effect only where nothing has been executed. outcome: requested, already_requested, too_late (a refund is under way), finished. A flow that was never sent ends as PAY_FAIL at once; one that turns out charged, with the business not done, is refunded. Errors: PL007, PL008 (unknown, or another merchant''s).';

create function paylatch.freeze_pay_flow(flow_id bigint, note text) returns text
    language plpgsql security definer set search_path = pg_catalog, pg_temp set paylatch.source = 'OPERATOR' as $$
declare
    v_status text;
begin
    perform paylatch.require_migrated();
    update paylatch.pay_flow f
    set frozen_reason = 'OPERATOR', version = version + 1, last_error_class = 'MANUAL_FREEZE', last_error_code = left(note, 64),
        last_action = null, last_outcome = null
    where f.flow_id = freeze_pay_flow.flow_id and f.frozen_reason is null and not paylatch.is_terminal(f.status)
    returning f.status into v_status;
    if v_status is null then
        perform paylatch.require_flow(freeze_pay_flow.flow_id);
        raise exception using errcode = 'PL003', message = format('flow %s has ended or is frozen already', flow_id);
    end if;
    update paylatch.job j set due_at = 'infinity', lease_token = null, lease_holder = null, leased_at = null, action = null
    where j.kind = 'flow' and j.ref_id = freeze_pay_flow.flow_id;
    return v_status;
end $$;
comment on function paylatch.freeze_pay_flow(bigint, text) is
    'Operator: no automatic action for this flow until resume_pay_flow(). Returns its state. Errors: PL003 ended or frozen already, PL007, PL008.';

create function paylatch.resume_pay_flow(flow_id bigint, note text) returns text
    language plpgsql security definer set search_path = pg_catalog, pg_temp set paylatch.source = 'OPERATOR' as $$
declare
    v_status text;
begin
    perform paylatch.require_migrated();
    if coalesce(btrim(note), '') = '' then
        raise exception using errcode = 'PL004', message = 'note: say why the flow may go on';
    end if;
    -- Whatever was sent is asked for first.
    update paylatch.pay_flow f
    set frozen_reason = null, version = version + 1, retry_count = 0, negative_count = 0, negative_since = null,
        act_unread = f.act_sent_at is not null, last_error_class = null, last_error_code = left('resumed: ' || note, 64),
        last_action = null, last_outcome = null
    where f.flow_id = resume_pay_flow.flow_id and f.frozen_reason is not null
    returning f.status into v_status;
    if v_status is null then
        perform paylatch.require_flow(resume_pay_flow.flow_id);
        raise exception using errcode = 'PL004', message = format('flow %s is not frozen', flow_id);
    end if;
    update paylatch.job j
    set due_at = paylatch.clock(), lease_token = null, lease_holder = null, leased_at = null, action = null
    where j.kind = 'flow' and j.ref_id = resume_pay_flow.flow_id;
    update paylatch.incident i
    set resolved_at = paylatch.clock(), resolved_by = session_user,
        detail = coalesce(i.detail, '{}') || jsonb_build_object('note', left(note, 500))
    where i.flow_id = resume_pay_flow.flow_id and i.refund_id is null and i.resolved_at is null;
    return v_status;
end $$;
comment on function paylatch.resume_pay_flow(bigint, text) is
    'Operator: a frozen flow goes on from its state, asking first for whatever was sent; its incidents are resolved with the note. Returns the state. Errors: PL004 not frozen or no note, PL007, PL008.';

create function paylatch.resolve_incident(incident_id bigint, note text) returns boolean
    language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform paylatch.require_migrated();
    update paylatch.incident i
    set resolved_at = paylatch.clock(), resolved_by = session_user,
        detail = coalesce(i.detail, '{}') || jsonb_build_object('note', left(note, 500))
    where i.incident_id = resolve_incident.incident_id and i.resolved_at is null;
    return found;
end $$;
comment on function paylatch.resolve_incident(bigint, text) is 'Operator: closes an incident with a note; false where it was not open. Error: PL007.';

create function paylatch.arm(note text default null) returns text
    language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform paylatch.require_migrated();
    insert into paylatch.armed as a (system_identifier, database_name, armed_at, armed_by, note)
    values (paylatch.system_identifier(), current_database(), paylatch.clock(), session_user, left(note, 500))
    on conflict (only_row) do update
    set system_identifier = excluded.system_identifier, database_name = excluded.database_name,
        armed_at = excluded.armed_at, armed_by = excluded.armed_by, note = excluded.note;
    return format('database %s of cluster %s may hand out actions', current_database(), paylatch.system_identifier());
end $$;
comment on function paylatch.arm(text) is
    'Operator: this database may hand out actions. A copy hands out none until then, so that it cannot charge a customer. Error: PL007.';
