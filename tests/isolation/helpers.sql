-- What the specs share. Flows are never deleted, so every permutation plays with a new order: `spec.begin()` opens a
-- round, `spec.key()` is its business key. Whatever a claim takes goes to spec.taken, whose key would show it if two
-- sessions were ever handed the same flow or refund. A claim counts its flows: a round may begin with refunds that the
-- round before left behind.

create schema spec;
create table spec.round (round serial);
create table spec.taken (flow_id bigint, refund_id bigint, lease_token bigint not null, order_no text not null,
    amount bigint not null, primary key (flow_id, refund_id));

create function spec.key() returns text language sql stable as
$$ select 'round-' || max(round) from spec.round $$;

create function spec.flow() returns bigint language sql stable as
$$ select max(flow_id) from paylatch.pay_flow join paylatch.pay_order using (order_id) where biz_key = spec.key() $$;

create function spec.create(out outcome text, out attempt_no int) language sql as
$$ select c.outcome, c.attempt_no from paylatch.create_pay_flow('topup', 'alice', spec.key(), 1500, 'USD') c $$;

create function spec.claim(max int) returns bigint language sql as
$$ with handed as (select * from paylatch.claim_actions('spec', max, 600000)),
        taken as (insert into spec.taken select flow_id, coalesce(refund_id, 0), lease_token, order_no, amount from handed
                  returning refund_id)
   select count(*) from taken where refund_id = 0 $$;

create function spec.report(claimed_outcome text, out disposition text, out status text) language sql as
$$ select r.disposition, r.status
   from spec.taken t,
        paylatch.report_evidence('spec', jsonb_build_array(jsonb_build_object(
            'flow_id', t.flow_id, 'lease_token', t.lease_token, 'action', 'CHARGE', 'outcome', claimed_outcome,
            'waited_ms', 0, 'took_ms', 1, 'order_no', t.order_no, 'amount', 1500, 'currency', 'USD'))) r
   where t.flow_id = spec.flow() and t.refund_id = 0 $$;

create function spec.state(out status text, out version bigint, out steps text, out incidents bigint, out unfinished bigint)
language sql as
$$ select f.status, f.version,
          (select string_agg(to_status, ' ' order by l.version) from paylatch.transition_log l where kind = 'flow' and ref_id = flow_id),
          (select count(*) from paylatch.incident i where i.flow_id = f.flow_id),
          (select count(*) from paylatch.job where kind = 'flow' and ref_id = f.flow_id)
   from paylatch.pay_flow f where flow_id = spec.flow() $$;

-- One request under a key, for a target of this round.
create function spec.create_keyed(p_key text, p_target text) returns table (outcome text, attempt_no integer) language sql as
$$ select c.outcome, c.attempt_no from paylatch.create_pay_flow('topup', 'alice', spec.key() || p_target, 1500, 'USD',
       idempotency_key => spec.key() || p_key) c $$;

-- Two requests in one set, in this order.
create function spec.create_two(p_first text, p_second text) returns table (ordinal integer, outcome text) language sql as
$$ select c.ordinal, c.outcome from paylatch.create_pay_flows((
       select jsonb_agg(jsonb_build_object('scene', 'topup', 'user_id', 'alice', 'biz_key', spec.key() || k,
                        'amount', 1500, 'currency', 'USD', 'idempotency_key', spec.key() || k) order by n)
       from unnest(array[p_first, p_second]) with ordinality x(k, n))) c $$;

create function spec.refund() returns bigint language sql stable as
$$ select max(refund_id) from paylatch.refund where flow_id = spec.flow() $$;

-- An application may not look into the tables.
create function spec.flow_for_all() returns bigint language sql stable security definer as $$ select spec.flow() $$;
grant usage on schema spec to public;

create function spec.refunds(out held bigint, out disputed bigint, out refunds text, out incidents bigint, out unfinished bigint)
language sql as
$$ select f.refunded_amount, f.disputed_amount,
          (select string_agg(r.amount || ' ' || r.status, ', ' order by r.refund_id) from paylatch.refund r where r.flow_id = f.flow_id),
          (select count(*) from paylatch.incident i where i.flow_id = f.flow_id),
          (select count(*) from paylatch.job j join paylatch.refund r on r.refund_id = j.ref_id
           where j.kind = 'refund' and r.flow_id = f.flow_id)
   from paylatch.pay_flow f where flow_id = spec.flow() $$;
