-- Claiming: due work, within each channel's budget, leased to one driver.
--
-- A claim waits for nothing: it takes its channel's budget first, then jobs and flows, all with SKIP LOCKED. It commits
-- before its actions leave, so a crash leaves an announced act, never an unrecorded one.
-- Considered for picking due jobs: one statement over all channels with a lateral per lane (an idle claim then costs as
-- much as a busy one), and `update ... returning` without the lock first (it waits for rows others hold).

-- What a claim took, by kind. upto: of the lanes refund, ask, new and biz, before which due time none is left; null: not known.
create type paylatch.picked as (flows bigint[], refunds bigint[], inquiries bigint[], upto timestamptz[]);

-- Due jobs of one channel: refunds up to their share, then questions, then new charges with a quarter kept for them,
-- then business, which spends no wallet budget. Always by index, whatever the planner makes of a table that was empty a
-- moment ago; and from where there may be something, since jobs that are gone stay in the index for as long as anyone
-- holds a snapshot (look.rs).
create function paylatch.pick_jobs(
    p_channel text, p_now timestamptz, p_wallet integer, p_refunds_first integer, p_questions_only boolean,
    p_business integer, p_from timestamptz[]) returns paylatch.picked language plpgsql
    set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
declare
    v_picked paylatch.picked;
begin
    with refund as (
        select kind, ref_id, due_at from paylatch.job
        where channel = p_channel and lane = 'refund' and due_at > p_from[1] and due_at <= p_now
        order by due_at limit case when p_questions_only then p_wallet else p_refunds_first end
        for update skip locked
    ), ask as (
        select kind, ref_id, due_at from paylatch.job
        where channel = p_channel and lane = 'ask' and due_at > p_from[2] and due_at <= p_now
        order by due_at limit (p_wallet - (select count(*) from refund)) * case when p_questions_only then 1.0 else 0.75 end
        for update skip locked
    ), new as (
        select ref_id, due_at from paylatch.job
        where channel = p_channel and lane = 'new' and due_at > p_from[3] and due_at <= p_now and not p_questions_only
        order by due_at limit p_wallet - (select count(*) from refund) - (select count(*) from ask)
        for update skip locked
    ), biz as (
        select ref_id, due_at from paylatch.job
        where channel = p_channel and lane = 'biz' and due_at > p_from[4] and due_at <= p_now
        order by due_at limit p_business
        for update skip locked
    ), other as (
        select kind, ref_id from refund union all select kind, ref_id from ask
    )
    select array(select ref_id from other where kind = 'flow' union all select ref_id from new union all select ref_id from biz),
           array(select ref_id from other where kind = 'refund'),
           array(select ref_id from other where kind = 'inquiry'),
           array[(select coalesce(min(due_at), case when (case when p_questions_only then p_wallet else p_refunds_first end) > 0 then p_now end) from refund),
                 (select coalesce(min(due_at), case when p_wallet > (select count(*) from refund) then p_now end) from ask),
                 (select coalesce(min(due_at), case when p_wallet > (select count(*) from other) and not p_questions_only then p_now end) from new),
                 (select coalesce(min(due_at), case when p_business > 0 then p_now end) from biz)]
    into v_picked;
    return v_picked;
end $$;
comment on function paylatch.pick_jobs(text, timestamptz, integer, integer, boolean, integer, timestamptz[]) is
    'Locks due jobs of a channel, SKIP LOCKED, lane by lane within the budget; returns the ids of their flows and refunds, and of the flows inquired about. p_from: of the lanes refund, ask, new and biz, after which due time to look.';

-- The one job of one flow, if it is due and its lane has a call left.
create function paylatch.pick_flow(
    p_flow_id bigint, p_channel text, p_now timestamptz, p_wallet integer, p_questions_only boolean)
    returns paylatch.picked language sql volatile as $$
    with one as (
        select j.ref_id from paylatch.job j
        where j.kind = 'flow' and j.ref_id = p_flow_id and j.channel = p_channel and j.due_at <= p_now
          and (j.lane = 'biz' or (p_wallet > 0 and not (p_questions_only and j.lane = 'new')))
        for update skip locked
    )
    select row (array(select ref_id from one), '{}', '{}', null)::paylatch.picked
$$;
comment on function paylatch.pick_flow(bigint, text, timestamptz, integer, boolean) is 'pick_jobs for one flow alone.';

-- One channel's part of a claim.
create function paylatch.claim_channel(
    p_channel text, p_now timestamptz, p_max integer, p_lease_ms integer, p_holder text, p_flow_id bigint default null)
    returns paylatch.planned[] language plpgsql as $$
declare
    v record;
    v_limits paylatch.limits;
    v_state paylatch.breaker;
    v_grant paylatch.grant_given;
    v_paced boolean;
    v_wallet integer := p_max;
    v_refunds integer := p_max;
    v_picked paylatch.picked;
    v_flows paylatch.flow_facts[];
    v_refund_ids bigint[] := '{}';
    v_leased integer := 0;
    v_probing text[];
    v_plan paylatch.planned[];
    v_calls integer;
begin
    select row (c.max_in_flight, c.rate_per_second, c.ramp_ms, c.refund_share_percent, c.breaker_threshold,
                c.breaker_open_ms, c.breaker_probes)::paylatch.limits as limits,
           c.max_in_flight is not null or c.rate_per_second is not null or s.breaker <> 'closed'
           or s.moved_at > p_now - make_interval(secs => c.ramp_ms / 1000.0) as paced
    into v
    from paylatch.channel c join paylatch.channel_state s using (channel) where c.channel = p_channel;
    v_limits := v.limits;
    v_paced := coalesce(v.paced, false);
    if v_paced then
        -- Nothing is spent, and no breaker moves, while nothing is due.
        if not exists (select from paylatch.job j where j.channel = p_channel and j.lane in ('new', 'ask', 'biz', 'refund') and j.due_at <= p_now) then
            return '{}';
        end if;
        select row (s.breaker, s.failures, s.moved_at, s.probes_left, s.tokens_milli, s.filled_at, s.in_flight)::paylatch.breaker as state
        into v from paylatch.channel_state s where s.channel = p_channel for update skip locked;
        if found then
            v_grant := paylatch.grant_budget(v_limits, v.state, p_now, p_max, exists (
                -- What waits for a person gives no probe.
                select from paylatch.job j where j.channel = p_channel and j.lane in ('ask', 'refund') and j.due_at < 'infinity'));
            v_state := row (v_grant.breaker, v_grant.failures, v_grant.moved_at, v_grant.probes_left,
                            v_grant.tokens_milli, v_grant.filled_at, v_grant.in_flight)::paylatch.breaker;
            v_wallet := v_grant.total;
            v_refunds := v_grant.refunds_first;
        else
            v_paced := false; -- another claim is spending this budget; business needs none
            v_wallet := 0;
            v_refunds := 0;
        end if;
    end if;

    if p_flow_id is null then
        v_picked := paylatch.pick_jobs(p_channel, p_now, v_wallet, v_refunds, coalesce(v_grant.questions_only, false), p_max,
                                       paylatch.look_from(p_channel, p_now));
        perform paylatch.looked(p_channel, v_picked.upto, cardinality(v_picked.flows) + cardinality(v_picked.refunds) + cardinality(v_picked.inquiries));
        if not v_paced and cardinality(v_picked.flows) + cardinality(v_picked.refunds) + cardinality(v_picked.inquiries) = 0 then
            return '{}';
        end if;
    else
        v_picked := paylatch.pick_flow(p_flow_id, p_channel, p_now, v_wallet, coalesce(v_grant.questions_only, false));
    end if;
    v_flows := paylatch.lock_flows(v_picked.flows, true);
    if cardinality(v_picked.refunds) > 0 then
        v_refund_ids := array(select r.refund_id from paylatch.refund r where r.refund_id = any (v_picked.refunds)
                              order by r.refund_id for update skip locked);
    end if;
    if v_paced and v_limits.max_in_flight is not null then
        v_leased := (select count(*) from paylatch.job j
                     where ((j.kind = 'flow' and j.ref_id in (select f.flow_id from unnest(v_flows) f)) or (j.kind = 'refund' and j.ref_id = any (v_refund_ids))
                            or (j.kind = 'inquiry' and j.ref_id = any (v_picked.inquiries)))
                       and j.lease_token is not null and paylatch.is_wallet_action(j.action));
    end if;
    v_probing := case when v_grant.questions_only then array[p_channel] else '{}' end;
    v_plan := '{}';
    if cardinality(v_flows) > 0 then
        v_plan := paylatch.advance_set(v_flows, null, p_now, p_lease_ms, p_holder, v_probing, '{}');
    end if;
    if v_refund_ids <> '{}' then
        v_plan := v_plan || paylatch.advance_refunds(v_refund_ids, null, p_now, p_lease_ms, p_holder, v_probing, '{}');
    end if;
    if cardinality(v_picked.inquiries) > 0 then
        v_plan := v_plan || paylatch.lease_inquiries(v_picked.inquiries, p_now, p_lease_ms, p_holder);
    end if;

    if v_paced then
        v_calls := (select count(*) from unnest(v_plan) p where paylatch.is_wallet_action(p.action));
        v_state := paylatch.spend_budget(v_limits, v_state, p_now, v_calls);
        update paylatch.channel_state s
        set breaker = v_state.breaker, failures = v_state.failures, moved_at = v_state.moved_at,
            probes_left = v_state.probes_left, tokens_milli = v_state.tokens_milli, filled_at = v_state.filled_at,
            in_flight = case when v_limits.max_in_flight is null then 0
                             else greatest(0, v_state.in_flight + v_calls - v_leased) end
        where s.channel = p_channel;
    end if;
    return v_plan;
end $$;
comment on function paylatch.claim_channel(text, timestamptz, integer, integer, text, bigint) is
    'Claims up to p_max due flows, refunds and inquiries of one channel within its budget, or one flow alone; returns their plan. Waits for nothing.';

create function paylatch.claim_actions(driver text, max_actions integer default 200, lease_ms integer default 30000)
    returns setof paylatch.handout language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp set paylatch.source = 'DRIVER' set paylatch.actor = ''
    -- Sessions keep the plans that they made when tables were empty; every look here is by key. Where
    -- none can be, the planner's displeasure must not have the plan compiled.
    set enable_seqscan = off set jit = off as $$
declare
    v_now timestamptz;
    v_channel text;
    v_state text;
    v_says text;
    v_where text;
    v_left integer := max_actions;
    v_plan paylatch.planned[];
    v_out bigint;
begin
    perform paylatch.require_migrated();
    if coalesce(driver, '') = '' or coalesce(max_actions, 0) not between 1 and 10000
       or coalesce(lease_ms, 0) not between 1000 and 3600000 then
        raise exception using errcode = 'PL004',
            message = 'claim_actions: give a driver name, max_actions from 1 to 10000 and lease_ms from 1000 to 3600000';
    end if;
    if not paylatch.is_armed() then
        return; -- a copy of a database charges nobody; tick() and doctor() say so
    end if;
    perform set_config('paylatch.actor', left(driver, 64), true);
    v_now := paylatch.clock();
    for v_channel in select c.channel from paylatch.channel c order by c.channel loop
        exit when v_left <= 0;
        begin
            v_plan := paylatch.claim_channel(v_channel, v_now, v_left, lease_ms, driver);
        exception when others then
            if paylatch.is_passing_error(sqlstate) then
                raise;
            end if;
            -- One row of the set is bad: take it out and let the others through on the next call.
            v_plan := '{}';
            get stacked diagnostics v_state = returned_sqlstate, v_says = message_text, v_where = pg_exception_context;
            if paylatch.isolate_poison(v_channel, v_now, v_left, lease_ms, driver) is null then
                -- No single row is to blame.
                raise exception using errcode = v_state, message = v_says, detail = v_where;
            end if;
        end;
        continue when v_plan = '{}';
        return query select * from paylatch.handouts(v_plan, v_now);
        get diagnostics v_out = row_count;
        v_left := v_left - v_out;
    end loop;
end $$;
comment on function paylatch.claim_actions(text, integer, integer) is
    'Due work for a driver: at most max_actions actions, each under a lease of at least lease_ms milliseconds and its lease_token. Commit before you call anyone. send_within_ms: how long after you asked the call may still be sent; later, do not call and report UNAVAILABLE. No rows on a database that is not armed. Errors: PL004, PL007. Upholds rules 1, 10 and 11.';

create function paylatch.claim_flow(driver text, flow_id bigint, lease_ms integer default 30000)
    returns setof paylatch.handout language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp set paylatch.source = 'DRIVER' set paylatch.actor = ''
    -- Sessions keep the plans that they made when tables were empty; every look here is by key. Where
    -- none can be, the planner's displeasure must not have the plan compiled.
    set enable_seqscan = off set jit = off as $$
declare
    v_now timestamptz;
    v_plan paylatch.planned[];
begin
    perform paylatch.require_migrated();
    if coalesce(driver, '') = '' or flow_id is null or coalesce(lease_ms, 0) not between 1000 and 3600000 then
        raise exception using errcode = 'PL004', message = 'claim_flow: give a driver name, a flow and lease_ms from 1000 to 3600000';
    end if;
    if not paylatch.is_armed() then
        return;
    end if;
    perform set_config('paylatch.actor', left(driver, 64), true);
    v_now := paylatch.clock();
    begin
        v_plan := (select paylatch.claim_channel(f.channel, v_now, 1, lease_ms, driver, f.flow_id)
                   from paylatch.pay_flow f where f.flow_id = claim_flow.flow_id);
    exception when others then
        if paylatch.is_passing_error(sqlstate) then
            raise;
        end if;
        perform paylatch.set_aside(claim_flow.flow_id, sqlstate, sqlerrm);
        return;
    end;
    return query select * from paylatch.handouts(v_plan, v_now);
end $$;
comment on function paylatch.claim_flow(text, bigint, integer) is
    'claim_actions for one flow: its action if it is due and its channel has a call left, else no row. For whoever waits for this payment. Errors: PL004, PL007. Upholds rules 1, 10 and 11.';

-- After a set failed: each due flow and refund alone, in a subtransaction of its own; the one that fails is frozen.
create function paylatch.isolate_poison(
    p_channel text, p_now timestamptz, p_max integer, p_lease_ms integer, p_holder text)
    returns bigint language plpgsql as $$
declare
    v_id bigint;
    v_bad bigint;
begin
    for v_id in
        select j.ref_id from paylatch.job j join paylatch.pay_flow f on f.flow_id = j.ref_id
        where j.kind = 'flow' and j.channel = p_channel and j.due_at <= p_now
        order by j.ref_id limit p_max for update skip locked loop
        begin
            perform paylatch.advance_set(paylatch.lock_flows(array[v_id], false), null, p_now, null, p_holder, '{}', '{}');
            -- What a lease would announce is tried as well, and undone.
            begin
                perform paylatch.advance_set(paylatch.lock_flows(array[v_id], false), null, p_now, p_lease_ms, p_holder, '{}', '{}');
                raise exception using errcode = 'PL006', message = 'tried';
            exception when sqlstate 'PL006' then
                null;
            end;
        exception when others then
            if paylatch.is_passing_error(sqlstate) then
                raise;
            end if;
            perform paylatch.set_aside(v_id, sqlstate, sqlerrm);
            v_bad := v_id;
        end;
    end loop;
    for v_id in
        select j.ref_id from paylatch.job j join paylatch.refund r on r.refund_id = j.ref_id
        where j.kind = 'refund' and j.channel = p_channel and j.due_at <= p_now
        order by j.ref_id limit p_max for update skip locked loop
        begin
            perform paylatch.advance_refunds(array[v_id], null, p_now, p_lease_ms, p_holder, '{}', '{}');
            raise exception using errcode = 'PL006', message = 'tried';
        exception when sqlstate 'PL006' then
            null;
        when others then
            if paylatch.is_passing_error(sqlstate) then
                raise;
            end if;
            perform paylatch.set_aside_refund(v_id, sqlstate, sqlerrm);
            v_bad := v_id;
        end;
    end loop;
    return v_bad;
end $$;
comment on function paylatch.isolate_poison(text, timestamptz, integer, integer, text) is
    'Finds the flows and refunds whose processing fails and freezes them alone as POISON; returns the last of them.';
