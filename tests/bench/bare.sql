-- The floor: the same rows as a payment's whole life (order, flow, job, four log rows, six events; charge and done), written in sets
-- by plain SQL. No guard, no decision, no evidence, no hash: what PostgreSQL itself costs.

drop schema if exists bare cascade;
create schema bare;

create sequence bare.order_id_seq;
create sequence bare.flow_id_seq;
create sequence bare.lease_token_seq;
create sequence bare.outbox_id_seq;

-- The same tables: columns, constraints, indexes, fill factors, partitions. Only the triggers are missing.
create table bare.pay_order (like paylatch.pay_order including all) with (fillfactor = 45);
create table bare.pay_flow (like paylatch.pay_flow including all) with (fillfactor = 30);
create table bare.job (like paylatch.job including all) with (fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.0, autovacuum_analyze_threshold = 50000);
create table bare.transition_log (like paylatch.transition_log including all) partition by range (at);
create table bare.outbox (like paylatch.outbox including all) partition by range (at);
create table bare.idempotency_key (like paylatch.idempotency_key including all) partition by range (created_at);
alter table bare.outbox alter outbox_id set default nextval('bare.outbox_id_seq');
do $$
declare
    v record;
begin
    for v in select p.relname as parent, c.relname as child, pg_get_expr(c.relpartbound, c.oid) as bound
             from pg_inherits i join pg_class p on p.oid = i.inhparent join pg_class c on c.oid = i.inhrelid
             where p.oid in ('paylatch.transition_log'::regclass, 'paylatch.outbox'::regclass, 'paylatch.idempotency_key'::regclass) loop
        execute format('create table bare.%I partition of bare.%I %s', v.child, v.parent, v.bound);
    end loop;
end $$;

create function bare.create_set(p_scene text, p_user_base bigint, p_size integer) returns void language sql as $$
    with o as (
        insert into bare.pay_order (order_id, merchant_id, scene, user_id, biz_key, status, attempt_count, created_at, updated_at)
        select nextval('bare.order_id_seq'), 'default', p_scene, (p_user_base + n)::text, 'bench', 'PROCESSING', 1, now(), now()
        from generate_series(1, p_size) n
        returning order_id, user_id
    ), f as (
        insert into bare.pay_flow (flow_id, order_id, attempt_no, amount, currency, scene, channel, user_id,
                                   trade_order_no, biz_deadline, created_at, updated_at)
        select nextval('bare.flow_id_seq'), order_id, 1, 1250, 'USD', p_scene, 'null', user_id,
               'bn_' || user_id || '_' || order_id, now() + interval '15 minutes', now(), now()
        from o
        returning flow_id
    ), j as (
        insert into bare.job (kind, ref_id, channel, lane, due_at) select 'flow', flow_id, 'null', 'new', now() from f
    ), e as (
        insert into bare.outbox (at, flow_id, ref_id, version, type, order_from)
        select now(), flow_id, flow_id, 0, 'flow.wait_pay', null from f
        union all
        select now(), flow_id, flow_id, 1, 'order.processing', 'PENDING' from f
    )
    insert into bare.transition_log (kind, ref_id, version, at, to_status, source, actor, hash)
    select 'flow', flow_id, 0, now(), 'WAIT_PAY', 'API', 'bench', '\x00000000000000000000000000000000'::bytea from f
$$;

create function bare.claim_set(p_size integer) returns bigint[] language plpgsql as $$
declare
    v_ids bigint[];
begin
    v_ids := array(select ref_id from bare.job where channel = 'null' and lane = 'new' and due_at <= now()
                   order by due_at limit p_size for update skip locked);
    update bare.job set lane = 'ask', due_at = now() + interval '30 seconds', action = 'CHARGE', leased_at = now(),
           lease_token = nextval('bare.lease_token_seq'), lease_holder = 'bench'
    where kind = 'flow' and ref_id = any (v_ids);
    update bare.pay_flow set status = 'PAYING', version = version + 1, updated_at = now(), charge_sent_at = now(),
           act_sent_at = now(), act_lease_until = now() + interval '30 seconds', act_unread = true, last_action = 'CHARGE'
    where flow_id = any (v_ids);
    insert into bare.transition_log (kind, ref_id, version, at, from_status, to_status, source, actor, action, hash)
    select 'flow', id, 1, now(), 'WAIT_PAY', 'PAYING', 'DRIVER', 'bench', 'CHARGE', '\x00000000000000000000000000000000'::bytea
    from unnest(v_ids) id;
    insert into bare.outbox (at, flow_id, ref_id, version, type) select now(), id, id, 1, 'flow.paying' from unnest(v_ids) id;
    return v_ids;
end $$;

create function bare.finish_set(p_ids bigint[]) returns void language plpgsql as $$
begin
    update bare.pay_flow set status = 'PAYED', version = version + 1, updated_at = now(), charged_amount = amount,
           act_sent_at = null, act_lease_until = null, act_unread = false, last_outcome = 'SUCCEEDED',
           channel_request_id = 'null-' || flow_id, last_latency_ms = 0
    where flow_id = any (p_ids);
    insert into bare.transition_log (kind, ref_id, version, at, from_status, to_status, source, actor, action, outcome,
                                     request_id, latency_ms, hash)
    select 'flow', id, 2, now(), 'PAYING', 'PAYED', 'DRIVER', 'bench', 'CHARGE', 'SUCCEEDED', 'null-' || id, 0,
           '\x00000000000000000000000000000000'::bytea
    from unnest(p_ids) id;
    insert into bare.outbox (at, flow_id, ref_id, version, type) select now(), id, id, 2, 'flow.payed' from unnest(p_ids) id;
    update bare.pay_flow set status = 'BIZ_SUCCESS', version = version + 1, updated_at = now(), last_action = null,
           last_outcome = null
    where flow_id = any (p_ids);
    insert into bare.transition_log (kind, ref_id, version, at, from_status, to_status, source, actor, hash)
    select 'flow', id, 3, now(), 'PAYED', 'BIZ_SUCCESS', 'DRIVER', 'bench', '\x00000000000000000000000000000000'::bytea
    from unnest(p_ids) id;
    insert into bare.outbox (at, flow_id, ref_id, version, type) select now(), id, id, 3, 'flow.biz_success' from unnest(p_ids) id;
    update bare.pay_order o set status = 'PAID', version = o.version + 1, updated_at = now(), paid_flow_id = f.flow_id
    from bare.pay_flow f where f.flow_id = any (p_ids) and o.order_id = f.order_id;
    insert into bare.outbox (at, flow_id, ref_id, version, type, order_from)
    select now(), id, id, 2, 'order.paid', 'PROCESSING' from unnest(p_ids) id;
    delete from bare.job where kind = 'flow' and ref_id = any (p_ids);
end $$;
