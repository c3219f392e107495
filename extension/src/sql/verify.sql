-- The "Never" rules, checked against what is stored, by number; and the guards themselves.
-- Each check is a query for the rows that break its rule; it reads history, so run it off-peak on a large database.

-- The guards that must stand: triggers and constraints defined as the migrations left them, functions as shipped. A guard
-- that was replaced under its own name is as bad as one that is gone, so definitions are compared, not names.
create function paylatch.verify_triggers() returns setof text language sql stable set search_path = pg_catalog, pg_temp as $$
    with expected(table_name, trigger_name, fires, how, function_name) as (values
        ('channel', 't10_state', 'AFTER INSERT', 'FOR EACH ROW', 'on_channel_insert'),
        ('channel', 't11_kept', 'BEFORE DELETE OR UPDATE', 'FOR EACH ROW', 'keep_policy'),
        ('channel', 't12_no_truncate', 'BEFORE TRUNCATE', 'FOR EACH STATEMENT', 'refuse_truncate'),
        ('channel_state', 't10_kept', 'BEFORE DELETE', 'FOR EACH ROW WHEN ((pg_trigger_depth() = 0))', 'refuse_direct'),
        ('channel_state', 't11_no_truncate', 'BEFORE TRUNCATE', 'FOR EACH STATEMENT', 'refuse_truncate'),
        ('scene', 't10_target', 'BEFORE INSERT OR UPDATE', 'FOR EACH ROW', 'check_scene'),
        ('scene', 't11_kept', 'BEFORE DELETE OR UPDATE', 'FOR EACH ROW', 'keep_policy'),
        ('scene', 't12_no_truncate', 'BEFORE TRUNCATE', 'FOR EACH STATEMENT', 'refuse_truncate'),
        ('pay_order', 't05_projection_only', 'BEFORE UPDATE', 'FOR EACH ROW WHEN ((pg_trigger_depth() = 0))', 'refuse_direct'),
        ('pay_order', 't10_guard', 'BEFORE INSERT OR DELETE OR UPDATE', 'FOR EACH ROW', 'guard_order'),
        ('pay_order', 't11_no_truncate', 'BEFORE TRUNCATE', 'FOR EACH STATEMENT', 'refuse_truncate'),
        ('pay_order', 't90_outbox', 'AFTER UPDATE', 'REFERENCING OLD TABLE AS old_row NEW TABLE AS new_row FOR EACH STATEMENT', 'journal'),
        ('pay_order', 't90_outbox_insert', 'AFTER INSERT', 'REFERENCING NEW TABLE AS new_row FOR EACH STATEMENT', 'journal'),
        ('pay_flow', 't10_guard', 'BEFORE INSERT OR DELETE OR UPDATE', 'FOR EACH ROW', 'guard_flow'),
        ('pay_flow', 't11_no_truncate', 'BEFORE TRUNCATE', 'FOR EACH STATEMENT', 'refuse_truncate'),
        ('pay_flow', 't50_log_insert', 'AFTER INSERT', 'REFERENCING NEW TABLE AS new_row FOR EACH STATEMENT', 'journal'),
        ('pay_flow', 't50_log_update', 'AFTER UPDATE', 'REFERENCING OLD TABLE AS old_row NEW TABLE AS new_row FOR EACH STATEMENT', 'journal'),
        ('pay_flow', 't60_aside_update', 'AFTER UPDATE', 'REFERENCING OLD TABLE AS old_row NEW TABLE AS new_row FOR EACH STATEMENT', 'on_flow_update_aside'),
        ('pay_flow', 't70_order_insert', 'AFTER INSERT', 'REFERENCING NEW TABLE AS new_row FOR EACH STATEMENT', 'on_flow_insert_order'),
        ('pay_flow', 't70_order_update', 'AFTER UPDATE', 'REFERENCING OLD TABLE AS old_row NEW TABLE AS new_row FOR EACH STATEMENT', 'on_flow_update_order'),
        ('pay_flow', 't80_job_insert', 'AFTER INSERT', 'REFERENCING NEW TABLE AS new_row FOR EACH STATEMENT', 'on_flow_insert_job'),
        ('pay_flow', 't80_job_update', 'AFTER UPDATE', 'REFERENCING NEW TABLE AS new_row FOR EACH STATEMENT', 'on_flow_update_job'),
        ('refund', 't10_guard', 'BEFORE INSERT OR DELETE OR UPDATE', 'FOR EACH ROW', 'guard_refund'),
        ('refund', 't11_no_truncate', 'BEFORE TRUNCATE', 'FOR EACH STATEMENT', 'refuse_truncate'),
        ('refund', 't50_log', 'AFTER INSERT', 'REFERENCING NEW TABLE AS new_row FOR EACH STATEMENT', 'journal'),
        ('refund', 't50_log_update', 'AFTER UPDATE', 'REFERENCING OLD TABLE AS old_row NEW TABLE AS new_row FOR EACH STATEMENT', 'journal'),
        ('refund', 't60_held_insert', 'AFTER INSERT', 'REFERENCING NEW TABLE AS new_row FOR EACH STATEMENT', 'on_refund_insert_held'),
        ('refund', 't60_aside_update', 'AFTER UPDATE', 'REFERENCING OLD TABLE AS old_row NEW TABLE AS new_row FOR EACH STATEMENT', 'on_refund_update_aside'),
        ('refund', 't70_order_insert', 'AFTER INSERT', 'REFERENCING NEW TABLE AS new_row FOR EACH STATEMENT', 'on_refund_insert_order'),
        ('refund', 't70_order_update', 'AFTER UPDATE', 'REFERENCING OLD TABLE AS old_row NEW TABLE AS new_row FOR EACH STATEMENT', 'on_refund_update_order'),
        ('refund', 't80_job_insert', 'AFTER INSERT', 'REFERENCING NEW TABLE AS new_row FOR EACH STATEMENT', 'on_refund_insert_job'),
        ('refund', 't80_job_update', 'AFTER UPDATE', 'REFERENCING NEW TABLE AS new_row FOR EACH STATEMENT', 'on_refund_update_job'),
        ('dispute', 't10_guard', 'BEFORE DELETE OR UPDATE', 'FOR EACH ROW', 'guard_dispute'),
        ('dispute', 't11_no_truncate', 'BEFORE TRUNCATE', 'FOR EACH STATEMENT', 'refuse_truncate'),
        ('dispute', 't60_held_insert', 'AFTER INSERT', 'REFERENCING NEW TABLE AS new_row FOR EACH STATEMENT', 'on_dispute_held'),
        ('dispute', 't60_held_update', 'AFTER UPDATE', 'REFERENCING NEW TABLE AS new_row FOR EACH STATEMENT', 'on_dispute_held'),
        ('job', 't10_guard', 'AFTER DELETE', 'REFERENCING OLD TABLE AS old_row FOR EACH STATEMENT', 'guard_job_delete'),
        ('job', 't11_no_truncate', 'BEFORE TRUNCATE', 'FOR EACH STATEMENT', 'refuse_truncate'),
        ('job', 't12_guard_identity', 'BEFORE UPDATE OF kind, ref_id', 'FOR EACH ROW', 'refuse_direct'),
        ('transition_log', 't10_guard', 'BEFORE DELETE OR UPDATE', 'FOR EACH ROW', 'guard_append_only'),
        ('transition_log', 't11_no_truncate', 'BEFORE TRUNCATE', 'FOR EACH STATEMENT', 'refuse_truncate'),
        ('webhook_event', 't10_guard', 'BEFORE DELETE OR UPDATE', 'FOR EACH ROW', 'guard_webhook_event'),
        ('webhook_event', 't11_no_truncate', 'BEFORE TRUNCATE', 'FOR EACH STATEMENT', 'refuse_truncate'),
        ('idempotency_key', 't10_guard', 'BEFORE DELETE OR UPDATE', 'FOR EACH ROW', 'guard_append_only'),
        ('idempotency_key', 't11_no_truncate', 'BEFORE TRUNCATE', 'FOR EACH STATEMENT', 'refuse_truncate'),
        ('merchant_login', 't11_no_truncate', 'BEFORE TRUNCATE', 'FOR EACH STATEMENT', 'refuse_truncate'),
        ('api_token', 't10_guard', 'BEFORE DELETE OR UPDATE', 'FOR EACH ROW', 'guard_token'),
        ('api_token', 't11_no_truncate', 'BEFORE TRUNCATE', 'FOR EACH STATEMENT', 'refuse_truncate'),
        ('incident', 't10_guard', 'BEFORE DELETE', 'FOR EACH ROW', 'guard_append_only'),
        ('incident', 't11_no_truncate', 'BEFORE TRUNCATE', 'FOR EACH STATEMENT', 'refuse_truncate'),
        ('late_report', 't10_guard', 'BEFORE DELETE OR UPDATE', 'FOR EACH ROW', 'guard_append_only'),
        ('late_report', 't11_no_truncate', 'BEFORE TRUNCATE', 'FOR EACH STATEMENT', 'refuse_truncate'),
        ('outbox', 't05_by_triggers_only', 'BEFORE INSERT', 'FOR EACH STATEMENT WHEN ((pg_trigger_depth() = 0))', 'refuse_direct'),
        ('outbox', 't10_guard', 'BEFORE DELETE OR UPDATE', 'FOR EACH ROW', 'guard_append_only'),
        ('outbox', 't11_no_truncate', 'BEFORE TRUNCATE', 'FOR EACH STATEMENT', 'refuse_truncate'),
        ('outbox_sink', 't11_no_truncate', 'BEFORE TRUNCATE', 'FOR EACH STATEMENT', 'refuse_truncate'),
        ('dead_letter', 't11_no_truncate', 'BEFORE TRUNCATE', 'FOR EACH STATEMENT', 'refuse_truncate'),
        ('webhook_endpoint', 't11_no_truncate', 'BEFORE TRUNCATE', 'FOR EACH STATEMENT', 'refuse_truncate'),
        ('delivery', 't11_no_truncate', 'BEFORE TRUNCATE', 'FOR EACH STATEMENT', 'refuse_truncate'),
        ('delivery_attempt', 't10_guard', 'BEFORE UPDATE', 'FOR EACH ROW', 'guard_append_only'),
        ('delivery_attempt', 't11_no_truncate', 'BEFORE TRUNCATE', 'FOR EACH STATEMENT', 'refuse_truncate'),
        ('delivery_attempt', 't12_kept', 'BEFORE DELETE', 'FOR EACH ROW WHEN ((pg_trigger_depth() = 0))', 'refuse_direct')
    ), of_partitions(parent, trigger_name, fires, how, function_name) as (
        select e.* from expected e where e.table_name in ('transition_log', 'idempotency_key', 'outbox') and e.trigger_name <> 't05_by_triggers_only'
        union all
        values ('outbox', 't05_by_triggers_only', 'BEFORE INSERT', 'FOR EACH STATEMENT', 'refuse_direct')
    ), wanted as (
        select ('paylatch.' || e.table_name)::regclass as relation, e.* from expected e
        union all
        select i.inhrelid::regclass, e.* from of_partitions e join pg_inherits i on i.inhparent = to_regclass('paylatch.' || e.parent)
    )
    select w.relation || '.' || w.trigger_name || case
               when t.oid is null then ' is missing'
               when t.tgenabled <> 'A' then ' is not enabled always'
               else ' was replaced' end
    from wanted w
    left join pg_trigger t on t.tgrelid = w.relation and t.tgname = w.trigger_name
    where t.oid is null or t.tgenabled <> 'A'
       or pg_get_triggerdef(t.oid) <> format('CREATE TRIGGER %s %s ON %s %s EXECUTE FUNCTION paylatch.%s()',
                                             w.trigger_name, w.fires, w.relation, w.how, w.function_name)
$$;
comment on function paylatch.verify_triggers() is 'Guard triggers that are missing, not enabled always, or replaced under their names.';

create function paylatch.verify_constraints() returns setof text language sql stable set search_path = pg_catalog, pg_temp as $$
    with expected(owner, constraint_name, definition) as (values
        ('pay_flow', 'pay_flow_pkey', 'PRIMARY KEY (flow_id)'),
        ('pay_flow', 'attempts_are_numbered', 'UNIQUE (order_id, attempt_no)'),
        ('pay_flow', 'charged_in_full', $c$CHECK (((charged_amount = (amount)::bigint) OR ((charged_amount IS NULL) AND ((status)::text = ANY (ARRAY['WAIT_PAY'::text, 'PAYING'::text, 'PAY_FAIL'::text])))))$c$),
        ('pay_flow', 'refund_within_charge', 'CHECK (((refunded_amount >= 0) AND (disputed_amount >= 0) AND ((refunded_amount + disputed_amount) <= (amount)::bigint)))'),
        ('pay_flow', 'ended_is_not_frozen', $c$CHECK (((frozen_reason IS NULL) OR ((status)::text = ANY (ARRAY['WAIT_PAY'::text, 'PAYING'::text, 'PAYED'::text, 'REFUNDING'::text]))))$c$),
        ('pay_order', 'pay_order_pkey', 'PRIMARY KEY (order_id)'),
        ('pay_order', 'one_order_per_target', 'UNIQUE (user_id, biz_key, scene, merchant_id)'),
        ('refund', 'refund_pkey', 'PRIMARY KEY (refund_id)'),
        ('refund', 'one_refund_per_number', 'UNIQUE (refund_order_no)'),
        ('refund', 'ended_refund_is_not_frozen', $c$CHECK (((frozen_reason IS NULL) OR ((status)::text = 'PENDING'::text)))$c$),
        ('refund', 'external_is_named', $c$CHECK (((kind = 'EXTERNAL'::text) = (external_no IS NOT NULL)))$c$),
        ('dispute', 'dispute_pkey', 'PRIMARY KEY (flow_id, dispute_no)'),
        ('dispute', 'dispute_state_known', $c$CHECK ((state = ANY (ARRAY['OPEN'::text, 'WON'::text, 'LOST'::text])))$c$),
        ('job', 'job_pkey', 'PRIMARY KEY (ref_id, kind)'),
        ('transition_log', 'transition_log_pkey', 'PRIMARY KEY (ref_id, version, kind, at)'),
        ('webhook_event', 'one_event_per_id', 'PRIMARY KEY (channel, event_id)'),
        ('armed', 'one_row', 'CHECK (only_row)'),
        ('outbox_policy', 'one_outbox_policy', 'CHECK (only_row)'),
        ('outbox_sink', 'outbox_sink_pkey', 'PRIMARY KEY (sink)'),
        ('outbox_retry', 'outbox_retry_pkey', 'PRIMARY KEY (sink, outbox_id)'),
        ('dead_letter', 'dead_letter_pkey', 'PRIMARY KEY (sink, outbox_id)'),
        ('delivery', 'one_delivery_per_event', 'UNIQUE (endpoint_id, event_id)'),
        ('idempotency_key', 'key_length', 'CHECK (((length(key) >= 1) AND (length(key) <= 255)))'),
        ('api_token', 'one_token_per_digest', 'UNIQUE (digest)'),
        ('scene', 'biz_grace_exceeds_timeout', 'CHECK ((biz_grace_ms > business_timeout_ms))'),
        ('flow_status', 'flow_status_known', $c$CHECK ((VALUE = ANY (ARRAY['WAIT_PAY'::text, 'PAYING'::text, 'PAYED'::text, 'BIZ_SUCCESS'::text, 'REFUNDING'::text, 'REFUNDED'::text, 'PAY_FAIL'::text])))$c$),
        ('order_status', 'order_status_known', $c$CHECK ((VALUE = ANY (ARRAY['PENDING'::text, 'PROCESSING'::text, 'PAID'::text, 'REFUNDED'::text])))$c$),
        ('refund_status', 'refund_status_known', $c$CHECK ((VALUE = ANY (ARRAY['REQUESTED'::text, 'PENDING'::text, 'SUCCEEDED'::text, 'FAILED'::text, 'REJECTED'::text])))$c$),
        ('amount', 'amount_positive', 'CHECK ((VALUE > 0))'),
        ('currency_code', 'currency_code_shape', $c$CHECK ((VALUE ~ '^[A-Z][A-Z0-9]{2,11}$'::text))$c$),
        ('payload', 'payload_small', 'CHECK ((octet_length((VALUE)::text) <= 8192))')
    )
    select e.owner || '.' || e.constraint_name || case when c.oid is null then ' is missing' else ' was replaced' end
    from expected e
    left join pg_constraint c on c.conname = e.constraint_name and c.connamespace = 'paylatch'::regnamespace
         and (c.conrelid = to_regclass('paylatch.' || e.owner) or c.contypid = to_regtype('paylatch.' || e.owner))
    where c.oid is null or pg_get_constraintdef(c.oid) <> e.definition
    union all
    -- Event ids are drawn in the transaction that uses them, upwards, each once.
    select 'outbox_id_seq has a cache, a cycle or a step' from pg_sequence q
    where q.seqrelid = to_regclass('paylatch.outbox_id_seq') and (q.seqcache, q.seqcycle, q.seqincrement) <> (1, false, 1)
    union all
    select format('%s lets a key in twice', i.inhrelid::regclass) from pg_inherits i
    where i.inhparent = to_regclass('paylatch.idempotency_key')
      and not exists (select from pg_constraint c where c.conrelid = i.inhrelid and c.contype = 'u'
                      and pg_get_constraintdef(c.oid) = 'UNIQUE (merchant_id, key)')
$$;
comment on function paylatch.verify_constraints() is
    'Constraints of tables and domains that are missing, not validated, or replaced under their names; a sequence of events that could skip one; a day that lets a key in twice.';

create function paylatch.verify_guards() returns table (name text, ok boolean, broken bigint, detail text)
    language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
    return query
    with bad as (
        select 1 as n, v.says from paylatch.verify_triggers() v(says)
        union all
        select 2, v.says from paylatch.verify_constraints() v(says)
        union all
        select 3, m.key || case when p.oid is null then ' is missing' else ' was replaced' end
        from jsonb_each_text(paylatch.manifest()) m
        left join pg_proc p on p.oid = to_regprocedure(m.key)
        where p.oid is null or paylatch.digest_of(p.oid) <> m.value
    )
    select c.name, count(b.says) = 0, count(b.says), string_agg(b.says, ', ')
    from (values (1, 'guard triggers enabled'), (2, 'constraints in place'), (3, 'functions as shipped')) c(n, name)
    left join bad b on b.n = c.n
    group by c.n, c.name order by c.n;
end $$;
comment on function paylatch.verify_guards() is
    'Guard triggers missing, not enabled always or replaced; constraints missing or replaced; functions of the extension replaced.';

create function paylatch.digest_of(p_function oid) returns text language sql stable
    set search_path = pg_catalog, pg_temp as $$
    select md5(concat_ws('|', p.prosrc, p.probin, p.prosecdef, p.prolang::text, p.proconfig::text))
    from pg_proc p where p.oid = p_function
$$;
comment on function paylatch.digest_of(oid) is 'Digest of a function''s body and settings, as manifest() records it.';

-- Rules about flows, orders, refunds and jobs as they stand.
create function paylatch.verify_rows() returns table (rule integer, name text, broken bigint, detail text)
    language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
    return query
    select 1, 'one charge per order number, one refund per refund number', count(*), min(x.says) from (
        select format('flow %s bears %s', f.flow_id, f.trade_order_no) as says from paylatch.pay_flow f
        where f.trade_order_no <> paylatch.trade_order_no(split_part(f.trade_order_no, '_', 1), f.user_id, f.flow_id)
        union all
        select format('flow %s became %s %s times', l.ref_id, l.to_status, count(*)) from paylatch.transition_log l
        where l.kind = 'flow' and l.from_status <> l.to_status
        group by l.ref_id, l.to_status having count(*) > 1
        union all
        select format('%s is used by %s refunds', r.refund_order_no, count(*)) from paylatch.refund r
        group by r.refund_order_no having count(*) > 1
        union all
        select format('refund %s of flow %s bears %s', r.refund_id, r.flow_id, r.refund_order_no) from paylatch.refund r
        where paylatch.flow_id_of(r.refund_order_no) is distinct from r.flow_id
        union all
        select format('flow %s has %s refunds for what was made elsewhere as %s', r.flow_id, count(*), r.external_no)
        from paylatch.refund r where r.external_no is not null group by r.flow_id, r.external_no having count(*) > 1) x;
    return query
    select 2, 'no compensation beside BIZ_SUCCESS; other refunds only of ended charges', count(*), min(x.says) from (
        select format('refund %s (%s) of flow %s, which is %s', r.refund_id, r.kind, r.flow_id, f.status) as says
        from paylatch.refund r left join paylatch.pay_flow f using (flow_id)
        where f.flow_id is null or (r.kind = 'COMPENSATION' and f.status not in ('REFUNDING', 'REFUNDED'))
           or (r.kind in ('AFTER_SALE', 'EXTERNAL') and f.status <> 'BIZ_SUCCESS')
           or (r.kind = 'RECON' and (f.status <> 'PAY_FAIL' or f.charged_amount is null))) x;
    return query
    select 3, 'REFUNDED implies charged, and not owned by this attempt', count(*), min(x.says) from (
        select format('flow %s is %s without a charge', f.flow_id, f.status) as says from paylatch.pay_flow f
        where f.status in ('PAYED', 'BIZ_SUCCESS', 'REFUNDING', 'REFUNDED') and f.charged_amount is distinct from f.amount
        union all
        select format('flow %s is %s, its compensation %s', f.flow_id, f.status, coalesce(r.status::text, 'is missing'))
        from paylatch.pay_flow f left join paylatch.refund r on r.flow_id = f.flow_id and r.kind = 'COMPENSATION'
        where f.status in ('REFUNDING', 'REFUNDED')
          and r.status is distinct from case f.status when 'REFUNDED' then 'SUCCEEDED' else 'PENDING' end
        union all
        select format('flow %s was charged although it is PAY_FAIL, and nothing gives it back', f.flow_id) from paylatch.pay_flow f
        where f.status = 'PAY_FAIL' and f.charged_amount is not null
          and not exists (select from paylatch.refund r where r.flow_id = f.flow_id and r.kind = 'RECON')) x;
    return query
    select 5, 'one live attempt per order, numbered without gaps, none after PAID', count(*), min(x.says) from (
        select format('order %s has %s live attempts', f.order_id, count(*)) as says from paylatch.pay_flow f
        where f.status not in ('BIZ_SUCCESS', 'REFUNDED', 'PAY_FAIL') group by f.order_id having count(*) > 1
        union all
        select format('order %s: %s attempts, the last is number %s, %s succeeded', o.order_id, a.attempts, a.last_no, a.won)
        from paylatch.pay_order o
        join (select f.order_id, count(*) as attempts, max(f.attempt_no) as last_no,
                     count(*) filter (where f.status = 'BIZ_SUCCESS') as won,
                     max(f.attempt_no) filter (where f.status = 'BIZ_SUCCESS') as won_no,
                     max(f.flow_id) filter (where f.status = 'BIZ_SUCCESS') as won_id,
                     max(f.flow_id) filter (where f.status not in ('BIZ_SUCCESS', 'REFUNDED', 'PAY_FAIL')) as live_id
              from paylatch.pay_flow f group by f.order_id) a using (order_id)
        where a.attempts <> a.last_no or a.attempts <> o.attempt_count or a.won > 1 or a.won_no <> a.last_no
           or o.live_flow_id is distinct from a.live_id or o.paid_flow_id is distinct from a.won_id
           or o.status <> case when a.live_id is not null then 'PROCESSING' when a.won = 0 then 'PENDING'
                               when o.refunded_amount > 0 then 'REFUNDED' else 'PAID' end
        union all
        select format('flow %s belongs to no order, scene or channel', f.flow_id) from paylatch.pay_flow f
        where not exists (select from paylatch.pay_order o where o.order_id = f.order_id)
           or not exists (select from paylatch.scene_policy p where p.scene = f.scene and p.channel = f.channel)) x;
    return query
    select 6, 'every unfinished flow or refund has a job, every ended one has none', count(*), min(x.says) from (
        select format('flow %s is %s and has no job', f.flow_id, f.status) as says from paylatch.pay_flow f
        where f.status not in ('BIZ_SUCCESS', 'REFUNDED', 'PAY_FAIL')
          and not exists (select from paylatch.job j where j.kind = 'flow' and j.ref_id = f.flow_id)
        union all
        select format('job of %s %s, which has ended', j.kind, j.ref_id) from paylatch.job j
        where j.kind = 'flow' and not exists (select from paylatch.pay_flow f where f.flow_id = j.ref_id
              and f.status not in ('BIZ_SUCCESS', 'REFUNDED', 'PAY_FAIL'))
        union all
        select format('flow %s is frozen, its job is not', f.flow_id) from paylatch.job j join paylatch.pay_flow f on f.flow_id = j.ref_id
        where j.kind = 'flow' and (f.frozen_reason is not null) <> (j.due_at = 'infinity')
        union all
        select format('refund %s is %s%s, its job %s', r.refund_id, r.status, ', frozen: ' || r.frozen_reason,
                      case when j.ref_id is null then 'is missing' else 'is due at ' || j.due_at end)
        from paylatch.refund r left join paylatch.job j on j.kind = 'refund' and j.ref_id = r.refund_id
        where r.status in ('REQUESTED', 'PENDING') and r.kind <> 'COMPENSATION'
          and (j.ref_id is null or (j.due_at = 'infinity') <> (r.status = 'REQUESTED' or r.frozen_reason is not null))
        union all
        select format('job of refund %s, which has ended or follows its flow', j.ref_id) from paylatch.job j
        where j.kind = 'refund' and not exists (select from paylatch.refund r where r.refund_id = j.ref_id
              and r.status in ('REQUESTED', 'PENDING') and r.kind <> 'COMPENSATION')
        union all
        select format('an inquiry about flow %s, which did not end as not charged', j.ref_id) from paylatch.job j
        where j.kind = 'inquiry' and not exists (select from paylatch.pay_flow f where f.flow_id = j.ref_id and f.status = 'PAY_FAIL')) x;
    return query
    select 7, 'reserved and succeeded refunds within the charge', count(*), min(x.says) from (
        select format('flow %s: %s held back of %s charged, refunds say %s', f.flow_id, f.refunded_amount,
                      coalesce(f.charged_amount, 0), coalesce(r.held, 0)) as says
        from paylatch.pay_flow f
        left join (select r.flow_id, sum(r.amount) as held from paylatch.refund r
                   where r.status in ('REQUESTED', 'PENDING', 'SUCCEEDED') group by r.flow_id) r using (flow_id)
        where f.refunded_amount <> coalesce(r.held, 0) or f.refunded_amount > coalesce(f.charged_amount, 0)
           or f.refunded_amount + f.disputed_amount > f.amount
        union all
        select format('flow %s: disputes hold %s back, their reports come to %s', f.flow_id, f.disputed_amount, coalesce(d.held, 0))
        from paylatch.pay_flow f
        left join (select d.flow_id, sum(d.amount) as held from paylatch.dispute d where d.state in ('OPEN', 'LOST') group by d.flow_id) d using (flow_id)
        where f.disputed_amount <> least(coalesce(d.held, 0), f.amount - f.refunded_amount)
        union all
        select format('order %s says %s were refunded, its refunds %s', o.order_id, o.refunded_amount, coalesce(r.back, 0))
        from paylatch.pay_order o
        left join (select f.order_id, sum(r.amount) as back from paylatch.refund r join paylatch.pay_flow f using (flow_id)
                   where r.status = 'SUCCEEDED' and r.kind in ('AFTER_SALE', 'EXTERNAL') group by f.order_id) r using (order_id)
        where o.refunded_amount <> coalesce(r.back, 0)) x;
    return query
    select 10, 'no call without a committed announcement', count(*), min(x.says) from (
        select format('flow %s is %s and no charge was announced', f.flow_id, f.status) as says from paylatch.pay_flow f
        -- (A charge that somebody else made under our number is a late charge, and an incident.)
        where f.charge_sent_at is null and f.status <> 'PAY_FAIL' and (f.charged_amount is not null or f.last_action = 'CHARGE')
        union all
        select format('flow %s: %s is out, but the row does not say so', f.flow_id, j.action)
        from paylatch.job j join paylatch.pay_flow f on f.flow_id = j.ref_id
        where j.kind = 'flow' and j.action in ('CHARGE', 'EXECUTE_BUSINESS', 'REFUND') and not f.act_unread
        union all
        select format('refund %s is out, but the row does not say so', r.refund_id)
        from paylatch.job j join paylatch.refund r on r.refund_id = j.ref_id
        where j.kind = 'refund' and j.action = 'REFUND' and not r.act_unread
        union all
        select format('refund %s succeeded and was never announced', r.refund_id) from paylatch.refund r
        where r.status = 'SUCCEEDED' and r.kind in ('AFTER_SALE', 'RECON') and r.last_action is not null
          and not exists (select from paylatch.transition_log l where l.kind = 'refund' and l.ref_id = r.refund_id
                          and l.action = 'REFUND' and l.outcome is null)) x;
end $$;
comment on function paylatch.verify_rows() is 'Rules 1, 2, 3, 5, 6, 7 and 10: how many rows break each, and one of them.';

-- Rules about the log: legal edges, no gap, no broken chain, and an end that is the row's own state.
create function paylatch.verify_log() returns table (rule integer, name text, broken bigint, detail text)
    language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
    return query
    with chain as materialized (
        select l.*, lag(l.hash) over w as hash_before, lag(l.version) over w as version_before,
               lag(l.to_status) over w as status_before, lead(l.version) over w is null as newest
        from paylatch.transition_log l window w as (partition by l.kind, l.ref_id order by l.version, l.at)
    )
    select 4, 'legal edges, contiguous versions, and the row stands where its log ends', count(*), min(x.says) from (
        select format('%s %s version %s: %s -> %s', c.kind, c.ref_id, c.version, c.from_status, c.to_status) as says
        from chain c
        where c.version <> coalesce(c.version_before + 1, 0) or c.from_status is distinct from c.status_before
           or (c.kind = 'flow' and c.from_status <> c.to_status and not paylatch.can_transition(c.from_status, c.to_status))
           or (c.kind = 'refund' and c.from_status <> c.to_status and not paylatch.can_refund_become(c.from_status, c.to_status))
        union all
        select format('flow %s is %s in version %s, its log ends with %s in version %s', f.flow_id, f.status, f.version,
                      c.to_status, c.version)
        from paylatch.pay_flow f left join chain c on c.kind = 'flow' and c.ref_id = f.flow_id and c.newest
        where c.version is distinct from f.version or c.to_status is distinct from f.status
        union all
        select format('refund %s is %s in version %s, its log ends with %s in version %s', r.refund_id, r.status, r.version,
                      c.to_status, c.version)
        from paylatch.refund r left join chain c on c.kind = 'refund' and c.ref_id = r.refund_id and c.newest
        where c.version is distinct from r.version or c.to_status is distinct from r.status) x
    union all
    select 9, 'the log is append-only and chained', count(*), min(x.says) from (
        select format('%s %s version %s does not match its hash', c.kind, c.ref_id, c.version) as says from chain c
        where c.hash <> paylatch.log_hash(c.hash_before, c.kind, c.ref_id, c.version, c.at, c.from_status, c.to_status,
                                          c.source, c.actor, c.action, c.outcome, c.code, c.request_id, c.frozen_reason)
        union all
        select format('flow %s: the log''s newest hash is not the row''s', f.flow_id)
        from paylatch.pay_flow f left join chain c on c.kind = 'flow' and c.ref_id = f.flow_id and c.newest
        where c.hash is distinct from f.log_hash
        union all
        select format('refund %s: the log''s newest hash is not the row''s', r.refund_id)
        from paylatch.refund r left join chain c on c.kind = 'refund' and c.ref_id = r.refund_id and c.newest
        where c.hash is distinct from r.log_hash) x;
end $$;
comment on function paylatch.verify_log() is 'Rules 4 and 9: how many log rows or flows break each, and one of them.';

-- Events and what happened, one to one, as far back as events are kept. A flow's and a refund's versions are in the log;
-- of an order each version is an event, and the newest one is how the order stands.
create function paylatch.verify_events() returns table (rule integer, name text, broken bigint, detail text)
    language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    v_from timestamptz := (select p.kept_from from paylatch.outbox_policy p);
begin
    return query
    with happened as (
        select l.kind, l.ref_id, l.version, l.at,
               paylatch.event_type(l.kind, l.from_status, l.to_status, lag(l.frozen_reason) over w is not null,
                                   l.frozen_reason is not null) as type
        from paylatch.transition_log l window w as (partition by l.kind, l.ref_id order by l.version, l.at)
    ), written as (
        select split_part(x.type, '.', 1) as kind, x.ref_id, x.version, x.at, x.type, count(*) as copies
        from paylatch.outbox x where x.at >= v_from and x.type not like 'order.%' group by x.ref_id, x.version, x.at, x.type
    ), orders as (
        select x.ref_id, min(x.version) as low, max(x.version) as high, count(*) as events,
               (array_agg(row (x.type, coalesce(x.order_refunded, 0), x.at)::text order by x.version desc))[1] as newest
        from paylatch.outbox x where x.at >= v_from and x.type like 'order.%' group by x.ref_id
    )
    select 12, 'an event if and only if its transition', count(*), min(x.says) from (
        select case when w.copies is null then format('%s %s version %s: no event %s', h.kind, h.ref_id, h.version, h.type)
                    when w.copies > 1 then format('%s %s version %s: %s events', w.kind, w.ref_id, w.version, w.copies)
                    else format('%s %s version %s: %s did not happen', w.kind, w.ref_id, w.version, w.type) end as says
        from (select * from happened where at >= v_from and type is not null) h
        full join written w using (kind, ref_id, version, at, type)
        where w.copies is null or h.type is null or w.copies > 1
        union all
        select format('order %s, version %s: %s events, %s to %s, the newest %s', coalesce(o.order_id, e.ref_id), o.version,
                      coalesce(e.events, 0), e.low, e.high, e.newest)
        from (select * from paylatch.pay_order where version > 0 and updated_at >= v_from) o
        full join orders e on e.ref_id = o.order_id
        where o.order_id is null or e.ref_id is null or e.high <> o.version or e.events <> e.high - e.low + 1
           or (e.low > 1 and o.created_at >= v_from)
           or e.newest <> row ('order.' || lower(o.status collate "C"), o.refunded_amount, o.updated_at)::text
        union all
        select format('event number %s is used %s times', x.outbox_id, count(*)) from paylatch.outbox x
        group by x.outbox_id having count(*) > 1) x;
end $$;
comment on function paylatch.verify_events() is 'Rule 12: how many events are missing, doubled or invented, and one of them, since outbox_policy.kept_from.';

create function paylatch.verify_keys() returns table (rule integer, name text, broken bigint, detail text)
    language sql stable set search_path = pg_catalog, pg_temp as $$
    select 8, 'one idempotency key, one flow or refund, no other parameters', count(*), min(x.says) from (
        select format('key %L of %s is kept %s times', k.key, k.merchant_id, count(*)) as says
        from paylatch.idempotency_key k group by k.merchant_id, k.key having count(*) > 1
        union all
        select format('key %L of %s stands for flow %s%s, which %s', k.key, k.merchant_id, k.flow_id,
                      coalesce(' and refund ' || k.refund_id, ''),
                      case when f.flow_id is null then 'does not exist'
                           when o.merchant_id is distinct from k.merchant_id then 'is another merchant''s'
                           when (k.operation = 'request_refund') <> (r.refund_id is not null) then 'has no such refund'
                           else 'is not what was asked for' end)
        from paylatch.idempotency_key k
        left join paylatch.pay_flow f on f.flow_id = k.flow_id
        left join paylatch.pay_order o on o.order_id = f.order_id
        left join paylatch.refund r on r.refund_id = k.refund_id and r.flow_id = k.flow_id
        where f.flow_id is null or o.merchant_id is distinct from k.merchant_id
           or (k.operation = 'request_refund') <> (r.refund_id is not null)
           or (k.operation = 'request_refund' and k.fingerprint <> paylatch.fingerprint(
                   array['flow_id', 'amount', 'reason'], array[r.flow_id::text, r.amount::text, r.reason]))
           or (k.operation = 'create_pay_flow' and k.fingerprint <> paylatch.flow_fingerprint(
                   f.scene, f.user_id, o.biz_key, coalesce((k.asked ->> 'amount')::bigint, f.amount),
                   coalesce(k.asked ->> 'currency', f.currency),
                   case when k.asked is null then f.payload else k.asked -> 'payload' end, k.left_out))) x
$$;
comment on function paylatch.verify_keys() is 'Rule 8: idempotency keys kept twice, or bound to what was not asked for.';

create function paylatch.verify_access() returns table (rule integer, name text, broken bigint, detail text)
    language sql stable set search_path = pg_catalog, pg_temp as $$
    select 11, 'roles call functions; none writes a table', count(*), min(format('%s may %s %s', r.role, p.privilege, c.oid::regclass))
    from pg_class c
    cross join (values ('paylatch_app'), ('paylatch_driver'), ('paylatch_operator'), ('paylatch_approver'), ('paylatch_auditor'), ('public')) r(role)
    cross join (values ('INSERT'), ('UPDATE'), ('DELETE'), ('TRUNCATE'), ('SELECT')) p(privilege)
    where c.relnamespace = 'paylatch'::regnamespace and c.relkind in ('r', 'p')
      and (p.privilege <> 'SELECT' or r.role in ('paylatch_app', 'paylatch_driver', 'public'))
      and has_table_privilege(r.role, c.oid, p.privilege)
$$;
comment on function paylatch.verify_access() is 'Rule 11: table privileges that a role must not have.';

create function paylatch.verify() returns table (rule integer, name text, ok boolean, broken bigint, detail text)
    language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform paylatch.require_migrated();
    return query
    select x.rule, x.name, x.broken = 0, x.broken, x.detail from (
        select * from paylatch.verify_rows()
        union all select * from paylatch.verify_log()
        union all select * from paylatch.verify_access()
        union all select * from paylatch.verify_keys()
        union all select * from paylatch.verify_events()) x
    order by x.rule;
    return query
    select 100 + (row_number() over ())::integer, g.name, g.ok, g.broken, g.detail from paylatch.verify_guards() g;
    return query
    select 104, 'this database is the one that was armed', paylatch.is_armed(), (not paylatch.is_armed())::integer::bigint,
           case when not paylatch.is_armed() then 'a copy: it hands out no action and decides nothing until an operator calls arm()' end;
end $$;
comment on function paylatch.verify() is
    'Every "Never" rule by number: ok, how many rows break it and one of them; from 101 the guards: triggers, constraints, functions. Reads all of history. Error: PL007.';
