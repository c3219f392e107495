-- Views for people and monitoring, and the settings of a flow's scene and channel as decisions want them.

create view paylatch.scene_policy as
select s.scene, c.channel, s.business_mode, s.business_target, s.business_timeout_ms, c.call_timeout_ms,
       s.order_prefix,
       row (s.business_mode, s.business_can_close, s.biz_grace_ms, s.retry_base_ms, s.retry_factor_percent,
            s.retry_max_ms, s.retry_jitter_percent, s.max_auto_retries, s.slow_interval_ms, s.refund_max_failures,
            c.can_resend, c.can_close_charge, c.resend_window_ms, c.not_found_final_after_ms)::paylatch.policy as policy
from paylatch.scene s cross join paylatch.channel c;
comment on view paylatch.scene_policy is 'Each scene with each channel (a flow keeps the channel it began with), as one policy value.';

create view paylatch.transition as select * from paylatch.transitions();
comment on view paylatch.transition is 'The state graph as data: the six legal edges.';

create view paylatch.unfinished as
select f.flow_id, o.merchant_id, f.scene, f.channel, o.user_id, o.biz_key, f.attempt_no, f.amount, f.currency,
       f.status, paylatch.client_status(f.status, f.frozen_reason is not null) as client_status, f.frozen_reason,
       f.retry_count, f.retry_count > s.max_auto_retries or f.frozen_reason is not null as needs_attention,
       f.last_action, f.last_outcome, f.last_error_class, f.last_error_code, f.biz_deadline, f.created_at,
       f.updated_at, j.due_at, j.lane, j.lease_holder, j.action as leased_action
from paylatch.job j
join paylatch.pay_flow f on f.flow_id = j.ref_id
join paylatch.pay_order o using (order_id)
join paylatch.scene s on s.scene = f.scene
where j.kind = 'flow';
comment on view paylatch.unfinished is 'Every flow that has not ended, with what it waits for.';

create view paylatch.unfinished_refund as
select r.refund_id, r.flow_id, o.merchant_id, f.scene, f.channel, r.kind, r.refund_order_no, r.amount, r.currency, r.status,
       r.frozen_reason, r.retry_count, r.retry_count > s.max_auto_retries or r.frozen_reason is not null as needs_attention,
       r.reason, r.requested_by, r.last_action, r.last_outcome, r.last_error_class, r.last_error_code, r.created_at, r.updated_at,
       j.due_at, j.lease_holder, j.action as leased_action
from paylatch.job j
join paylatch.refund r on r.refund_id = j.ref_id
join paylatch.pay_flow f using (flow_id)
join paylatch.pay_order o using (order_id)
join paylatch.scene s on s.scene = f.scene
where j.kind = 'refund';
comment on view paylatch.unfinished_refund is 'Every refund that has not ended and is no compensation, with what it waits for; REQUESTED ones wait for approve_refund().';

create view paylatch.stat_refund as
select channel, kind, currency, status, frozen_reason is not null as frozen, count(*) as refunds, sum(amount) as amount,
       count(*) filter (where needs_attention) as need_attention,
       extract(epoch from paylatch.clock() - min(created_at))::float8 as oldest_age_s
from paylatch.unfinished_refund
group by channel, kind, currency, status, frozen_reason is not null;
comment on view paylatch.stat_refund is 'Unfinished refunds by state: number, money in minor units, age in seconds. REQUESTED ones wait for approval.';

create view paylatch.stat_dispute as
select f.channel, f.currency, count(*) as disputes, sum(d.amount)::bigint as amount,
       extract(epoch from paylatch.clock() - min(d.opened_at))::float8 as oldest_age_s
from paylatch.dispute d join paylatch.pay_flow f using (flow_id)
where d.state = 'OPEN'
group by f.channel, f.currency;
comment on view paylatch.stat_dispute is 'Open disputes: number, money in minor units, age in seconds.';

create view paylatch.stat_flow as
select scene, channel, currency, status, frozen_reason is not null as frozen, count(*) as flows, sum(amount) as amount,
       count(*) filter (where needs_attention) as need_attention,
       extract(epoch from paylatch.clock() - min(updated_at))::float8 as oldest_age_s,
       percentile_cont(0.95) within group
           (order by extract(epoch from paylatch.clock() - updated_at)::float8) as p95_age_s
from paylatch.unfinished
group by scene, channel, currency, status, frozen_reason is not null;
comment on view paylatch.stat_flow is 'Unfinished flows by state: number, money at risk in minor units, age in the state in seconds.';

create view paylatch.stat_entry as
select to_status as status, source, count(*) as entries,
       count(*) / 300.0 as per_second
from paylatch.transition_log
where kind = 'flow' and at > paylatch.clock() - interval '5 minutes' and from_status is distinct from to_status
group by to_status, source;
comment on view paylatch.stat_entry is 'How often each state was entered in the last five minutes.';

create view paylatch.stat_call as
select f.channel, l.action, l.outcome, count(*) as answers,
       percentile_cont(0.95) within group (order by l.latency_ms) as p95_latency_ms
from paylatch.transition_log l
-- A compensation's answers are in its flow's log.
left join paylatch.refund r on l.kind = 'refund' and r.refund_id = l.ref_id
join paylatch.pay_flow f on f.flow_id = case l.kind when 'flow' then l.ref_id else r.flow_id end
where l.at > paylatch.clock() - interval '5 minutes' and l.outcome is not null and r.kind is distinct from 'COMPENSATION'
group by f.channel, l.action, l.outcome;
comment on view paylatch.stat_call is 'Outcome classes per channel and action that changed a row in the last five minutes.';

create view paylatch.stat_queue as
select channel, lane, count(*) filter (where due_at <= paylatch.clock()) as due,
       count(*) filter (where lease_token is not null and due_at > paylatch.clock()) as leased,
       count(*) as unfinished,
       greatest(0, extract(epoch from paylatch.clock() - min(due_at)
                filter (where due_at > '-infinity')))::float8 as oldest_due_age_s
from paylatch.job group by channel, lane;
comment on view paylatch.stat_queue is 'The queue by channel and lane: due, leased, all unfinished, and how late the oldest due job is.';

create view paylatch.stat_channel as
select c.channel, s.breaker, s.failures, s.moved_at, s.in_flight, c.max_in_flight, c.rate_per_second
from paylatch.channel c join paylatch.channel_state s using (channel);
comment on view paylatch.stat_channel is 'Breaker and calls under way of each channel.';

create view paylatch.stat_task as
select distinct on (task) task, period_at, started_at, finished_at, caller, missed_periods, says
from paylatch.task_run order by task, period_at desc;
comment on view paylatch.stat_task is 'The newest run of each scheduled task.';

create view paylatch.stat_webhook as
select channel, coalesce(applied_as, case when error is null then 'parked' else 'failed' end) as applied,
       count(*) as events, sum(times_received - 1) as duplicates,
       count(*) filter (where applied_at is null) as waiting,
       extract(epoch from paylatch.clock() - min(received_at) filter (where applied_at is null))::float8 as oldest_waiting_age_s
from paylatch.webhook_event
where received_at > paylatch.clock() - interval '5 minutes' or applied_at is null
group by channel, 2;
comment on view paylatch.stat_webhook is 'Webhook events of the last five minutes by what they did, and all that wait or failed, however old.';

-- One probe a sink and gap, never a scan. Ids that belong to no event count as behind until their gap is closed.
create view paylatch.stat_outbox as
select s.sink, q.drawn - d.ids as behind,
       coalesce(greatest(0, extract(epoch from paylatch.clock() - x.at)), 0)::float8 as oldest_age_s,
       (select count(*) from paylatch.outbox_retry r where r.sink = s.sink) as retrying,
       (select count(*) from paylatch.dead_letter l where l.sink = s.sink) as dead,
       case when s.lease_until > paylatch.clock() then s.relay end as relay,
       (select count(*) - 1 from unnest('{[1,)}'::int8multirange - s.done)) as gaps
from paylatch.outbox_sink s
cross join (select case when is_called then last_value else 0 end as drawn from paylatch.outbox_id_seq) q
cross join lateral (select coalesce(sum(upper(u) - lower(u)), 0)::bigint as ids from unnest(s.done) u) d
left join lateral (
    select o.outbox_id, o.at from unnest('{[1,)}'::int8multirange - s.done) g
    cross join lateral (select o.outbox_id, o.at from paylatch.outbox o
                        where o.outbox_id >= lower(g) and o.outbox_id < coalesce(upper(g), 9223372036854775807)
                        order by o.outbox_id limit 1) o
    order by o.outbox_id limit 1) x on true;
comment on view paylatch.stat_outbox is 'How far each sink is: events to publish, the age of the oldest one in seconds, retries, dead letters, who publishes.';

create view paylatch.undelivered as
select r.sink, 'retrying' as state, paylatch.event_id(o.flow_id, o.type, o.ref_id, o.version) as event_id, o.type, o.flow_id,
       r.tries, r.error, r.due_at, null::timestamptz as died_at, null::json as envelope
from paylatch.outbox_retry r join paylatch.outbox o using (outbox_id)
union all
select l.sink, 'dead', l.envelope ->> 'event_id', l.envelope ->> 'type', (l.envelope ->> 'key')::bigint, l.tries, l.error,
       null, l.died_at, l.envelope
from paylatch.dead_letter l;
comment on view paylatch.undelivered is 'Events that a sink''s counterparty refused: those that are tried again, and dead letters.';
