-- The engine: steps of many flows at once, and of many refunds. Claiming, reporting and scanning all come through
-- advance_set(); refunds that are no compensation come through advance_refunds().
--
-- Lock order: the caller has locked the flows, in key order, then the refunds. Rules are Rust (flow_steps(),
-- refund_steps()); here rows are moved.

-- Business in the same database, called in place, in a subtransaction: it commits together with the flow, and one that
-- fails harms no other. Returns the fact, or what close answered.
create function paylatch.business_in_place(
    p_flow_id bigint, p_target text, p_action text, p_order_no text, p_biz_key text, p_valid_until timestamptz,
    p_payload jsonb) returns paylatch.told language plpgsql as $$
declare
    v_told paylatch.told;
    v_began timestamptz := clock_timestamp();
    v_word text;
    v_owner text;
    v_code text;
begin
    v_told.flow_id := p_flow_id;
    v_told.action := case p_action when 'CLOSE_BUSINESS' then 'CLOSE_BUSINESS' else 'QUERY_BUSINESS' end;
    if p_action = 'EXECUTE_BUSINESS' then
        begin
            execute format('select %s_execute($1, $2, $3, $4)', p_target)
                using p_order_no, p_biz_key, p_valid_until, p_payload;
        exception when others then
            -- What the act answered proves nothing; the fact is read next.
            v_code := sqlstate;
        end;
    end if;
    begin
        v_told.asked_at := paylatch.clock();
        if v_told.action = 'CLOSE_BUSINESS' then
            execute format('select outcome, owner from %s_close($1, $2)', p_target)
                into v_word, v_owner using p_order_no, p_biz_key;
        else
            execute format('select fact, owner from %s_fact($1, $2)', p_target)
                into v_word, v_owner using p_biz_key, p_order_no;
        end if;
        v_told.outcome := case when paylatch.is_evidence(v_told.action, v_word) then v_word else 'UNKNOWN' end;
        v_told.owner := v_owner;
    exception when others then
        v_told.outcome := 'UNKNOWN';
        v_code := sqlstate;
    end;
    v_told.code := coalesce(v_code, case when v_told.outcome = 'UNKNOWN' then 'no_fact' end);
    v_told.latency_ms := extract(milliseconds from clock_timestamp() - v_began)::integer;
    return v_told;
end $$;
comment on function paylatch.business_in_place(bigint, text, text, text, text, timestamptz, jsonb) is
    'Calls <target>_execute and _fact, or _close, of a scene with business_mode sql, in a subtransaction. An error is UNKNOWN with its SQLSTATE as code.';

create function paylatch.rules_of(p_scenes text[], p_channels text[]) returns paylatch.rules[] language plpgsql stable as $$
begin
    return array(
        select row (sp.scene, sp.channel, sp.call_timeout_ms, sp.business_timeout_ms, sp.business_target, sp.policy)::paylatch.rules
        from (select distinct u.scene, u.channel from unnest(p_scenes, p_channels) u(scene, channel)) u
        join paylatch.scene_policy sp using (scene, channel));
end $$;
comment on function paylatch.rules_of(text[], text[]) is 'The settings of each scene with each channel that stand beside each other.';

-- Locks flows in key order and reads them as decisions see them. With p_skip, those that others hold are left out.
create function paylatch.lock_flows(p_ids bigint[], p_skip boolean) returns paylatch.flow_facts[] language plpgsql as $$
begin
    if p_skip then
        return array(
            select row (f.flow_id, f.version, f.scene, f.channel, f.trade_order_no, f.amount, f.currency, f.status,
                        f.frozen_reason is not null, f.retry_count, f.act_unread, f.act_sent_at, f.act_lease_until,
                        f.negative_count, f.negative_since, f.last_outcome, f.biz_deadline,
                        f.cancel_requested_at is not null, f.updated_at)::paylatch.flow_facts
            from paylatch.pay_flow f where f.flow_id = any (p_ids) order by f.flow_id for update skip locked);
    end if;
    return array(
        select row (f.flow_id, f.version, f.scene, f.channel, f.trade_order_no, f.amount, f.currency, f.status,
                    f.frozen_reason is not null, f.retry_count, f.act_unread, f.act_sent_at, f.act_lease_until,
                    f.negative_count, f.negative_since, f.last_outcome, f.biz_deadline,
                    f.cancel_requested_at is not null, f.updated_at)::paylatch.flow_facts
        from paylatch.pay_flow f where f.flow_id = any (p_ids) order by f.flow_id for update);
end $$;
comment on function paylatch.lock_flows(bigint[], boolean) is
    'Locks these flows in key order until the transaction ends, and returns them as decisions see them; p_skip: but those that others have locked.';

-- The settled planned steps of each flow: what was written, and the action that may leave.
--   p_flows          flows, locked by the caller and unchanged since
--   p_told           what came back, at most one per flow; null in scans and claims
--   p_lease_ms, p_probing, p_paced  as in flow_steps()
create function paylatch.advance_set(
    p_flows paylatch.flow_facts[], p_told paylatch.told[], p_now timestamptz, p_lease_ms integer, p_holder text,
    p_probing text[], p_paced text[]) returns paylatch.planned[] language plpgsql as $$
declare
    v_facts paylatch.flow_facts[] := p_flows;
    v_told paylatch.told[] := p_told;
    v_plan paylatch.planned[];
    v_settled paylatch.planned[] := '{}';
    v_last integer;
begin
    -- Each round but the first follows from business done in this database; a few more rounds would be a bug.
    for v_round in 1 .. 8 loop
        exit when cardinality(v_facts) = 0;
        v_plan := paylatch.flow_steps(v_facts, paylatch.rules_of(array(select f.scene from unnest(v_facts) f), array(select f.channel from unnest(v_facts) f)), v_told, p_now, p_lease_ms, p_probing, p_paced);
        select max(p.turn) filter (where p.changed) into v_last from unnest(v_plan) p;
        -- One statement for each version that the set makes.
        for v_turn in 0 .. coalesce(v_last, -1) loop
            update paylatch.pay_flow f
            set version = p.version + 1,
                status = p.status,
                retry_count = p.retry_count,
                act_unread = p.act_unread,
                act_sent_at = p.act_sent_at,
                act_lease_until = p.act_lease_until,
                negative_count = p.negative_count,
                negative_since = p.negative_since,
                charge_sent_at = case when p.status = 'PAYING' then coalesce(f.charge_sent_at, p.act_sent_at)
                                      else f.charge_sent_at end,
                charged_amount = case when p.status = 'PAYED' then f.amount else f.charged_amount end,
                refunded_amount = case when p.status = 'REFUNDING' then f.amount else f.refunded_amount end,
                disputed_amount = case when p.status = 'REFUNDING' then 0 else f.disputed_amount end,
                frozen_reason = coalesce(p.froze, f.frozen_reason),
                last_action = p.logged_action,
                last_outcome = p.last_outcome,
                last_error_class = case when p.froze is not null then coalesce(p.error_class, 'MANUAL_FREEZE')
                                        when p.told then p.error_class
                                        else f.last_error_class end,
                last_error_code = left(p.code, 64),
                channel_request_id = coalesce(left(p.request_id, 128), f.channel_request_id),
                last_latency_ms = p.latency_ms
            from unnest(v_plan) p
            where f.flow_id = p.flow_id and f.version = p.version and p.turn = v_turn and p.changed;
        end loop;

        v_settled := v_settled || array(select p from unnest(v_plan) p where p.settled);
        exit when cardinality(v_settled) = cardinality(p_flows);
        v_told := array(
            select paylatch.business_in_place(f.flow_id, s.business_target, p.action, f.trade_order_no, o.biz_key,
                                              f.biz_deadline, f.payload)
            from unnest(v_plan) p
            join paylatch.pay_flow f on f.flow_id = p.flow_id
            join paylatch.pay_order o on o.order_id = f.order_id
            join paylatch.scene s on s.scene = f.scene
            where p.in_place);
        v_facts := paylatch.lock_flows(array(select p.flow_id from unnest(v_plan) p where p.in_place), false);
    end loop;

    -- One write per job: its next due time, and the lease of the action that leaves.
    update paylatch.job j
    set lane = p.lane,
        -- Somebody woke it while its call was out: what they know may be younger than the answer.
        due_at = case when j.woken and p.action is null and p.due_at < 'infinity' then p_now else p.due_at end,
        woken = false,
        action = p.action,
        lease_token = case when p.action is not null then nextval('paylatch.lease_token_seq') end,
        lease_holder = case when p.action is not null then p_holder end,
        leased_at = case when p.action is not null then p_now end
    from unnest(v_settled) p
    where j.kind = 'flow' and j.ref_id = p.flow_id
      and (p.changed or p.action is not null or p.told or p.due_at <> j.due_at)
      and p.status not in ('BIZ_SUCCESS', 'REFUNDED', 'PAY_FAIL');
    return v_settled;
end $$;
comment on function paylatch.advance_set(paylatch.flow_facts[], paylatch.told[], timestamptz, integer, text, text[], text[]) is
    'Takes each of the locked flows as far as it goes without anything from outside, in a handful of statements, and leases the action that may leave. Upholds rules 1 to 6 and 10.';

-- The same for refunds that are no compensation: one round, since each step of theirs waits for the wallet. Only evidence
-- can end one, and then its flow changes too: whoever passes p_told has locked the flows first.
create function paylatch.advance_refunds(
    p_ids bigint[], p_told paylatch.told[], p_now timestamptz, p_lease_ms integer, p_holder text,
    p_probing text[], p_paced text[]) returns paylatch.planned[] language plpgsql as $$
declare
    v_facts paylatch.refund_facts[];
    v_plan paylatch.planned[];
begin
    v_facts := array(
        select row (r.refund_id, r.version, f.scene, f.channel, r.refund_order_no, r.amount, r.currency, r.status,
                    r.frozen_reason is not null, r.retry_count, r.act_unread, r.act_sent_at, r.act_lease_until,
                    r.negative_count, r.negative_since, r.last_outcome, r.kind, r.flow_id)::paylatch.refund_facts
        from paylatch.refund r join paylatch.pay_flow f on f.flow_id = r.flow_id
        where r.refund_id = any (p_ids) and r.kind <> 'COMPENSATION');
    v_plan := paylatch.refund_steps(v_facts, paylatch.rules_of(array(select f.scene from unnest(v_facts) f),
                                                               array(select f.channel from unnest(v_facts) f)),
                                    p_told, p_now, p_lease_ms, p_probing, p_paced);

    update paylatch.refund r
    set version = p.version + 1,
        status = p.status,
        retry_count = p.retry_count,
        act_unread = p.act_unread,
        act_sent_at = p.act_sent_at,
        act_lease_until = p.act_lease_until,
        negative_count = p.negative_count,
        negative_since = p.negative_since,
        frozen_reason = coalesce(p.froze, r.frozen_reason),
        last_action = p.logged_action,
        last_outcome = p.last_outcome,
        last_error_class = case when p.froze is not null then coalesce(p.error_class, 'MANUAL_FREEZE')
                                when p.told then p.error_class
                                else r.last_error_class end,
        last_error_code = left(p.code, 64),
        channel_request_id = coalesce(left(p.request_id, 128), r.channel_request_id),
        last_latency_ms = p.latency_ms
    from unnest(v_plan) p
    where r.refund_id = p.refund_id and r.version = p.version and p.changed;

    update paylatch.job j
    set due_at = case when j.woken and p.action is null and p.due_at < 'infinity' then p_now else p.due_at end,
        woken = false,
        action = p.action,
        lease_token = case when p.action is not null then nextval('paylatch.lease_token_seq') end,
        lease_holder = case when p.action is not null then p_holder end,
        leased_at = case when p.action is not null then p_now end
    from unnest(v_plan) p
    where j.kind = 'refund' and j.ref_id = p.refund_id
      and (p.changed or p.action is not null or p.told or p.due_at <> j.due_at)
      and p.status not in ('SUCCEEDED', 'FAILED', 'REJECTED');
    return v_plan;
end $$;
comment on function paylatch.advance_refunds(bigint[], paylatch.told[], timestamptz, integer, text, text[], text[]) is
    'Takes one step of each of the locked refunds and leases the action that may leave; arguments as in advance_set(). A success, a refusal for good or a freeze brings flow, order and queue along by trigger. Upholds rules 1, 4, 7 and 10.';

-- Leases the question about each flow that ended as not charged.
create function paylatch.lease_inquiries(p_ids bigint[], p_now timestamptz, p_lease_ms integer, p_holder text)
    returns paylatch.planned[] language sql volatile as $$
    with leased as (
        update paylatch.job j
        set action = 'QUERY_CHARGE', lease_token = nextval('paylatch.lease_token_seq'), lease_holder = p_holder, leased_at = p_now,
            due_at = p_now + make_interval(secs => greatest(p_lease_ms, 3000 + c.call_timeout_ms) / 1000.0)
        from paylatch.channel c
        where j.kind = 'inquiry' and j.ref_id = any (p_ids) and c.channel = j.channel
        returning j.ref_id, j.action, j.due_at, j.lane, c.call_timeout_ms
    )
    select array(
        select (jsonb_populate_record(null::paylatch.planned, jsonb_build_object(
                    'kind', 'inquiry', 'flow_id', l.ref_id, 'settled', true, 'action', l.action, 'due_at', l.due_at, 'lane', l.lane,
                    'timeout_ms', l.call_timeout_ms)))
        from leased l)
$$;
comment on function paylatch.lease_inquiries(bigint[], timestamptz, integer, text) is
    'Leases a QUERY_CHARGE for each inquiry among the locked jobs of these flows.';

create function paylatch.charge_ref(p_flow_id bigint) returns text language sql stable as $$
    select r.charge_ref from paylatch.refund r where r.flow_id = p_flow_id and r.kind = 'COMPENSATION'
$$;
comment on function paylatch.charge_ref(bigint) is
    'The wallet''s own reference of the charge of a flow that is REFUNDING: the flow''s newest reference is the refund''s once that was answered.';

-- The rows that a driver needs to carry planned actions out. Whoever refunds gets the refund's own amount and number.
create function paylatch.handouts(p_plan paylatch.planned[], p_now timestamptz)
    returns setof paylatch.handout language sql stable as $$
    select f.flow_id, j.lease_token, coalesce(r.version, f.version), p.action, f.channel, f.scene, p.business_target,
           f.trade_order_no, coalesce(r.refund_order_no, paylatch.refund_order_no(f.trade_order_no)), o.merchant_id, f.user_id,
           o.biz_key, f.attempt_no, coalesce(r.amount, f.amount)::bigint, f.currency::text,
           -- An execution is good for its lease only: after a cancel, that is all that the refund waits for.
           case when p.action = 'EXECUTE_BUSINESS' then least(f.biz_deadline, p.due_at) else f.biz_deadline end,
           greatest(0, floor(extract(epoch from
               case when p.action = 'EXECUTE_BUSINESS' then least(p.due_at, f.biz_deadline + make_interval(secs => p.timeout_ms / 1000.0))
                    else p.due_at end - p_now) * 1000) - p.timeout_ms)::integer,
           f.payload, r.refund_id,
           case when r.refund_id is not null then r.channel_request_id
                when p.lane = 'refund' then nullif(f.channel_request_id, paylatch.charge_ref(f.flow_id))
                else f.channel_request_id end,
           case when r.refund_id is not null then r.charge_ref when p.lane = 'refund' then paylatch.charge_ref(f.flow_id) end,
           case when r.refund_id is not null then r.act_sent_at else coalesce(f.act_sent_at, f.charge_sent_at) end
    from unnest(p_plan) p
    join paylatch.pay_flow f on f.flow_id = p.flow_id
    join paylatch.pay_order o on o.order_id = f.order_id
    join paylatch.job j on j.kind = p.kind and j.ref_id = coalesce(p.refund_id, p.flow_id)
    left join paylatch.refund r on r.refund_id = p.refund_id
    where p.action is not null
$$;
comment on function paylatch.handouts(paylatch.planned[], timestamptz) is
    'The leased actions of a plan as a driver needs them. channel_ref: the wallet''s own reference of the charge or refund, as far as known; charge_ref: of the charge behind a refund; sent_at: when the act was first announced. send_within_ms: how long the call may still be sent, so that its answer comes within the lease, and for EXECUTE_BUSINESS no later than the deadline.';

-- Errors that say "try again" or "stop", never "this row is bad".
create function paylatch.is_passing_error(p_sqlstate text) returns boolean language sql immutable parallel safe as $$
    select left(p_sqlstate, 2) in ('08', '40', '53', '57', '58') or p_sqlstate in ('55P03', 'PL007')
$$;
comment on function paylatch.is_passing_error(text) is 'Whether an error concerns the whole call (deadlock, shutdown, full disk, not migrated) and not one row of a set.';

-- A flow whose processing failed inside the database is set aside, alone.
create function paylatch.set_aside(p_flow_id bigint, p_sqlstate text, p_message text) returns void language plpgsql as $$
begin
    update paylatch.pay_flow f
    set frozen_reason = 'POISON', version = version + 1, last_error_class = 'MANUAL_FREEZE',
        last_error_code = p_sqlstate, last_action = null, last_outcome = null
    where f.flow_id = p_flow_id and f.frozen_reason is null and f.status not in ('BIZ_SUCCESS', 'REFUNDED', 'PAY_FAIL');
    update paylatch.job j
    set due_at = 'infinity', action = null, lease_token = null, lease_holder = null, leased_at = null
    where j.kind = 'flow' and j.ref_id = p_flow_id;
    update paylatch.incident i set detail = i.detail || jsonb_build_object('error', left(p_message, 500))
    where i.flow_id = p_flow_id and i.refund_id is null and i.kind = 'POISON' and i.resolved_at is null;
end $$;
comment on function paylatch.set_aside(bigint, text, text) is 'Freezes one flow as POISON with the error that its processing raised.';

create function paylatch.set_aside_refund(p_refund_id bigint, p_sqlstate text, p_message text) returns void language plpgsql as $$
begin
    update paylatch.refund r
    set frozen_reason = 'POISON', version = version + 1, last_error_class = 'MANUAL_FREEZE',
        last_error_code = p_sqlstate, last_action = null, last_outcome = null
    where r.refund_id = p_refund_id and r.frozen_reason is null and r.status = 'PENDING' and r.kind <> 'COMPENSATION';
    update paylatch.job j
    set due_at = 'infinity', action = null, lease_token = null, lease_holder = null, leased_at = null
    where j.kind = 'refund' and j.ref_id = p_refund_id;
    update paylatch.incident i set detail = i.detail || jsonb_build_object('error', left(p_message, 500))
    where i.refund_id = p_refund_id and i.kind = 'POISON' and i.resolved_at is null;
end $$;
comment on function paylatch.set_aside_refund(bigint, text, text) is 'Freezes one refund as POISON with the error that its processing raised.';

create function paylatch.is_armed() returns boolean language sql stable as $$
    select exists (select from paylatch.armed a where a.system_identifier = paylatch.system_identifier()
                   and a.database_name = current_database())
$$;
comment on function paylatch.is_armed() is 'Whether this cluster and database may hand out actions.';

create function paylatch.require_migrated() returns void language plpgsql stable as $$
begin
    if to_regclass('paylatch.pay_flow') is null or to_regclass('paylatch.scene_policy') is null then
        raise exception using errcode = 'PL007', message = 'paylatch is installed but not migrated',
            hint = 'Run `paylatchd migrate`, or the files in migrations/ in order with psql.';
    end if;
end $$;
comment on function paylatch.require_migrated() is 'Raises PL007, saying what to run, where the tables are missing.';
