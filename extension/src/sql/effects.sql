-- What follows from a change, in sets, in the transaction of the change: statement triggers over transition tables. The
-- log and the outbox are written by journal() (journal.rs).
-- So a hand-written `update paylatch.pay_flow ...` is a complete, logged step or fails.
-- Lock order: flow, refund, order, job; each in the statement that the trigger runs.

create function paylatch.refuse_truncate() returns trigger language plpgsql as $$
begin
    raise exception using errcode = '23514', message = format('paylatch rule 6: %s is never truncated', tg_table_name),
        detail = jsonb_build_object('rule', 6, 'table', tg_table_name)::text;
end $$;
comment on function paylatch.refuse_truncate() is 'Statement guard: refuses TRUNCATE with 23514. Upholds rules 4, 6 and 9.';

create function paylatch.refuse_direct() returns trigger language plpgsql as $$
begin
    raise exception using errcode = '23514',
        message = format('paylatch rule 4: %s is kept by triggers; change the flow instead', tg_table_name),
        detail = jsonb_build_object('rule', 4, 'table', tg_table_name)::text;
end $$;
comment on function paylatch.refuse_direct() is 'Row guard of projections: refuses a direct change with 23514.';

create function paylatch.on_flow_insert_job() returns trigger language plpgsql as $$
begin
    insert into paylatch.job (kind, ref_id, channel, lane, due_at)
    select 'flow', n.flow_id, n.channel, 'new', n.created_at from new_row n;
    -- A wallet may have told of a flow before it was here; the index is of what waits, and nearly always empty.
    if exists (select from paylatch.webhook_event e where e.applied_at is null and e.flow_id in (select n.flow_id from new_row n)) then
        perform paylatch.apply_waiting(array(select n.flow_id from new_row n), paylatch.clock());
    end if;
    return null;
end $$;
comment on function paylatch.on_flow_insert_job() is 'Queues new flows, due at once, and applies what a wallet told of them before. Upholds rule 6.';

-- A final flow leaves the queue. A change made by hand also wakes, stops or re-files the job; commands do that
-- themselves, in one write with their lease.
create function paylatch.on_flow_update_job() returns trigger language plpgsql as $$
begin
    if exists (select from new_row n where n.status in ('BIZ_SUCCESS', 'REFUNDED', 'PAY_FAIL')) then
        delete from paylatch.job j using new_row n
        where j.kind = 'flow' and j.ref_id = n.flow_id and n.status in ('BIZ_SUCCESS', 'REFUNDED', 'PAY_FAIL');
    end if;
    if not paylatch.in_command() then
        update paylatch.job j
        set lane = paylatch.lane_of(n.status), lease_token = null, lease_holder = null, leased_at = null, action = null,
            due_at = case when n.frozen_reason is null then paylatch.clock() else 'infinity' end
        from new_row n
        where j.kind = 'flow' and j.ref_id = n.flow_id and n.status not in ('BIZ_SUCCESS', 'REFUNDED', 'PAY_FAIL');
    end if;
    return null;
end $$;
comment on function paylatch.on_flow_update_job() is 'Takes ended flows out of the queue; re-files those changed by hand. Upholds rule 6.';

create function paylatch.on_flow_insert_order() returns trigger language plpgsql as $$
declare
    v_flows bigint;
    v_begun bigint;
    v_taken bigint;
begin
    -- Orders that began with this very attempt, and those that take a further one.
    select count(*), count(o.order_id) into v_flows, v_begun
    from new_row n
    left join paylatch.pay_order o on o.order_id = n.order_id and o.live_flow_id = n.flow_id and o.status = 'PROCESSING'
         and o.attempt_count = 1 and n.attempt_no = 1 and (o.scene, o.user_id) = (n.scene, n.user_id);
    if v_begun = v_flows then
        return null;
    end if;
    update paylatch.pay_order o
    set status = 'PROCESSING', live_flow_id = n.flow_id, attempt_count = n.attempt_no, version = o.version + 1
    from new_row n
    where o.order_id = n.order_id and o.status = 'PENDING' and o.attempt_count = n.attempt_no - 1
      and (o.scene, o.user_id) = (n.scene, n.user_id);
    get diagnostics v_taken = row_count;
    if v_begun + v_taken <> v_flows then
        raise exception using errcode = '23514',
            message = 'paylatch rule 5: an attempt begins on a pending order of its own scene and user, numbered one after the last',
            detail = jsonb_build_object('rule', 5, 'table', 'pay_flow')::text;
    end if;
    return null;
end $$;
comment on function paylatch.on_flow_insert_order() is
    'Puts the new attempt in charge of its order, unless the order began with it; or refuses it with 23514. Upholds rule 5.';

create function paylatch.on_flow_update_order() returns trigger language plpgsql as $$
begin
    if not exists (select from new_row n where n.status in ('BIZ_SUCCESS', 'REFUNDED', 'PAY_FAIL')) then
        return null;
    end if;
    update paylatch.pay_order o
    set status = paylatch.order_status_after(n.status), live_flow_id = null,
        paid_flow_id = case when n.status = 'BIZ_SUCCESS' then n.flow_id else o.paid_flow_id end,
        version = o.version + 1
    from new_row n
    -- An order lets go of its attempt with this very change, so a later one of an ended flow finds none.
    where o.order_id = n.order_id and o.live_flow_id = n.flow_id and n.status in ('BIZ_SUCCESS', 'REFUNDED', 'PAY_FAIL');
    return null;
end $$;
comment on function paylatch.on_flow_update_order() is 'Projects an ended attempt onto its order. Upholds rule 5.';

-- The rare ways, aside from the main one: a compensation follows its flow, a freeze opens an incident.
create function paylatch.on_flow_update_aside() returns trigger language plpgsql as $$
begin
    if not exists (select from new_row n where n.status in ('REFUNDING', 'REFUNDED') or n.frozen_reason is not null) then
        return null;
    end if;
    insert into paylatch.refund (flow_id, kind, amount, currency, refund_order_no, charge_ref)
    select n.flow_id, 'COMPENSATION', n.amount, n.currency, paylatch.refund_order_no(n.trade_order_no), n.channel_request_id
    from new_row n join old_row o using (flow_id)
    where n.status = 'REFUNDING' and o.status = 'PAYED';
    update paylatch.refund r
    set status = 'SUCCEEDED', version = r.version + 1, last_action = n.last_action, last_outcome = n.last_outcome,
        channel_request_id = nullif(n.channel_request_id, r.charge_ref)
    from new_row n join old_row o using (flow_id)
    where n.status = 'REFUNDED' and o.status = 'REFUNDING' and r.flow_id = n.flow_id and r.kind = 'COMPENSATION';
    insert into paylatch.incident (kind, flow_id, says, detail)
    select n.frozen_reason, n.flow_id, 'flow waits for a person: ' || n.frozen_reason,
           jsonb_build_object('status', n.status, 'version', n.version, 'action', n.last_action,
                              'outcome', n.last_outcome, 'code', n.last_error_code, 'amount', n.amount,
                              'currency', n.currency)
    from new_row n join old_row o using (flow_id)
    where n.frozen_reason is not null and o.frozen_reason is null;
    insert into paylatch.incident (kind, flow_id, says, detail)
    select 'DISPUTED', n.flow_id, 'the whole charge goes back, and the customer disputes it as well',
           jsonb_build_object('amount', n.amount, 'currency', n.currency, 'disputed', o.disputed_amount)
    from new_row n join old_row o using (flow_id)
    where n.status = 'REFUNDING' and o.status = 'PAYED' and o.disputed_amount > 0;
    return null;
end $$;
comment on function paylatch.on_flow_update_aside() is 'Keeps the compensation beside its flow and opens an incident for each freeze. Upholds rules 2 and 7.';

create function paylatch.guard_job_delete() returns trigger language plpgsql as $$
declare
    v_ref bigint;
begin
    select o.ref_id into v_ref from old_row o
    where (o.kind = 'flow' and exists (select from paylatch.pay_flow f where f.flow_id = o.ref_id
               and f.status not in ('BIZ_SUCCESS', 'REFUNDED', 'PAY_FAIL')))
       or (o.kind = 'refund' and exists (select from paylatch.refund r where r.refund_id = o.ref_id
               and r.status in ('REQUESTED', 'PENDING')))
       or (o.kind = 'inquiry' and not paylatch.in_command()) -- it is nowhere but here
    limit 1;
    if found then
        raise exception using errcode = '23514',
            message = format('paylatch rule 6: job %s stays while its work is unfinished', v_ref),
            detail = jsonb_build_object('rule', 6, 'table', 'job', 'id', v_ref)::text;
    end if;
    return null;
end $$;
comment on function paylatch.guard_job_delete() is 'Refuses to delete the job of unfinished work with 23514. Upholds rule 6.';

create function paylatch.on_channel_insert() returns trigger language plpgsql as $$
begin
    insert into paylatch.channel_state (channel) values (new.channel) on conflict do nothing;
    return null;
end $$;
comment on function paylatch.on_channel_insert() is 'Gives a new channel its moving parts.';

-- A scene or channel that payments belong to stays, under its name: without it they could not go on.
create function paylatch.keep_policy() returns trigger language plpgsql as $$
declare
    v_kept text := to_jsonb(old) ->> tg_table_name;
begin
    if tg_op = 'UPDATE' and to_jsonb(new) ->> tg_table_name = v_kept then
        return new;
    end if;
    if (tg_table_name = 'scene' and exists (select from paylatch.pay_order o where o.scene = v_kept))
       or (tg_table_name = 'channel' and exists (select from paylatch.pay_flow f where f.channel = v_kept)) then
        raise exception using errcode = '23514', message = format('paylatch rule 6: payments belong to %s %s', tg_table_name, v_kept),
            detail = jsonb_build_object('rule', 6, 'table', tg_table_name, 'id', v_kept)::text,
            hint = 'Close a scene with entry_open = false; its payments under way still finish.';
    end if;
    return case tg_op when 'UPDATE' then new else old end;
end $$;
comment on function paylatch.keep_policy() is 'Refuses to delete or rename a scene or channel that payments belong to, with 23514. Upholds rule 6.';

-- A scene whose business cannot be called would strand every payment of it, so it is refused at once.
create function paylatch.check_scene() returns trigger language plpgsql as $$
declare
    v_missing text;
begin
    if tg_op = 'UPDATE' and (new.scene, new.order_prefix) is distinct from (old.scene, old.order_prefix) then
        raise exception using errcode = 'PL004', message = 'a scene keeps its name and order prefix',
            hint = 'Close it with entry_open = false and make a new scene.';
    end if;
    if new.business_target !~ '^[a-z_][a-z0-9_]{0,62}(\.[a-z_][a-z0-9_]{0,62})?$' then
        raise exception using errcode = 'PL004', message = format('scene %s: business_target %L is no name', new.scene, new.business_target),
            hint = 'sql: schema.prefix of the business functions; http: the NAME of [business.NAME] in the daemon''s configuration.';
    end if;
    if new.business_mode = 'sql' then
        select string_agg(f.signature, ', ') into v_missing
        from (values (new.business_target || '_execute(text, text, timestamptz, jsonb)', true),
                     (new.business_target || '_fact(text, text)', true),
                     (new.business_target || '_close(text, text)', new.business_can_close)) f(signature, needed)
        where f.needed and to_regprocedure(f.signature) is null;
        if v_missing is not null then
            raise exception using errcode = 'PL004',
                message = format('scene %s: the business functions are missing: %s', new.scene, v_missing),
                hint = 'Create them with a schema-qualified business_target; docs/business.md shows how.';
        end if;
        if not has_function_privilege('paylatch_owner', new.business_target || '_fact(text, text)', 'execute')
           or not has_schema_privilege('paylatch_owner', split_part(new.business_target, '.', 1), 'usage') then
            raise exception using errcode = 'PL004',
                message = format('scene %s: paylatch_owner may not call %s_fact', new.scene, new.business_target),
                hint = format('grant usage on schema %I to paylatch_owner, and execute on its functions', split_part(new.business_target, '.', 1));
        end if;
    end if;
    return new;
end $$;
comment on function paylatch.check_scene() is 'Refuses a scene whose SQL business functions are missing (PL004), or a change of its name or prefix.';

-- The log's months: the present one and two ahead, and a net for rows that fall outside. Each partition refuses
-- TRUNCATE itself, since a trigger on the parent is not asked.
create function paylatch.make_partitions(p_now timestamptz) returns integer language plpgsql
    set search_path = pg_catalog, pg_temp set timezone = 'UTC' as $$
declare
    v_from timestamptz;
    v_name text;
    v_made integer := 0;
begin
    for v_from in select date_trunc('month', p_now) + make_interval(months => n) from generate_series(0, 2) n
                  union all select null loop
        v_name := coalesce('transition_log_' || to_char(v_from, 'YYYY_MM'), 'transition_log_other');
        continue when to_regclass('paylatch.' || v_name) is not null;
        -- A month that has begun in the net stays there: its rows cannot move.
        continue when v_from is not null and exists (
            select from paylatch.transition_log l where l.at >= v_from and l.at < v_from + interval '1 month');
        if v_from is null then
            execute format('create table paylatch.%I partition of paylatch.transition_log default', v_name);
        else
            execute format('create table paylatch.%I partition of paylatch.transition_log for values from (%L) to (%L)',
                           v_name, v_from, v_from + interval '1 month');
        end if;
        execute format('create trigger t11_no_truncate before truncate on paylatch.%I
                        for each statement execute function paylatch.refuse_truncate()', v_name);
        execute format('alter table paylatch.%I enable always trigger t11_no_truncate', v_name);
        execute format('alter table paylatch.%I enable always trigger t10_guard', v_name);
        execute format('alter table paylatch.%I owner to paylatch_owner', v_name);
        v_made := v_made + 1;
    end loop;
    return v_made;
end $$;
comment on function paylatch.make_partitions(timestamptz) is 'Makes the log''s partitions for this month and the next two; returns how many were missing.';
