-- Idempotency keys: one key of a merchant is one request, for as long as it is kept (rule 8).
--
-- A key is used under an advisory lock of its own, held until the transaction ends: whoever asks with the same key waits
-- for the first, then finds what that one committed, in whichever day's partition it lies. There is no row "in
-- progress": a transaction that fails or dies leaves nothing, and its lock goes with it.
-- Lock order: keys, in the order of their hashes, then orders, then all the rest.

create function paylatch.key_hash(p_merchant_id text, p_key text) returns bigint language sql immutable parallel safe as $$
    select hashtextextended(p_merchant_id || ' ' || p_key, 0)
$$;
comment on function paylatch.key_hash(text, text) is 'The advisory lock of a key. Two keys that share one only wait for each other.';

create function paylatch.refuse_key(p_key text, p_fields text[], p_ordinal integer default null) returns text language plpgsql as $$
begin
    raise exception using errcode = 'PL001',
        message = case when p_key is null
            then format('an attempt at this target is under way with other parameters: %s', array_to_string(p_fields, ', '))
            else format('idempotency key %L was used with other parameters: %s', p_key, array_to_string(p_fields, ', ')) end,
        detail = jsonb_strip_nulls(jsonb_build_object('fields', p_fields, 'ordinal', p_ordinal))::text,
        hint = 'Ask again as before, or with a new key for a new request.';
end $$;
comment on function paylatch.refuse_key(text, text[], integer) is
    'Raises PL001 with the fields that differ in DETAIL; a null key is the implicit one, the order with its status and attempt count. Upholds rule 8.';

-- Under REPEATABLE READ a transaction does not see what was committed while it waited for a key, so it must not use one.
-- (SERIALIZABLE notices by itself.)
create function paylatch.require_fresh_snapshots() returns void language plpgsql stable as $$
begin
    if current_setting('transaction_isolation') = 'repeatable read' then
        raise exception using errcode = 'PL004', message = 'idempotency_key: not under REPEATABLE READ',
            detail = '{"field": "idempotency_key"}', hint = 'Use READ COMMITTED, the default, or SERIALIZABLE.';
    end if;
end $$;
comment on function paylatch.require_fresh_snapshots() is 'Raises PL004 in a REPEATABLE READ transaction. Upholds rule 8.';

create function paylatch.take_key(
    p_merchant_id text, p_operation text, p_key text, p_fingerprint bytea,
    out used boolean, out same boolean, out flow_id bigint, out refund_id bigint) language plpgsql as $$
declare
    v paylatch.idempotency_key;
begin
    if coalesce(length(p_key), 0) not between 1 and 255 then
        raise exception using errcode = 'PL004', message = 'idempotency_key: give 1 to 255 characters',
            detail = '{"field": "idempotency_key"}';
    end if;
    perform paylatch.require_fresh_snapshots();
    perform pg_advisory_xact_lock(paylatch.key_hash(p_merchant_id, p_key));
    select k.* into v from paylatch.idempotency_key k where k.merchant_id = p_merchant_id and k.key = p_key;
    used := v.key is not null;
    same := v.fingerprint = p_fingerprint;
    flow_id := v.flow_id;
    refund_id := v.refund_id;
    if v.operation <> p_operation then
        perform paylatch.refuse_key(p_key, array['operation']);
    end if;
end $$;
comment on function paylatch.take_key(text, text, text, bytea) is 'open_key(); PL/pgSQL keeps the word found for itself.';

create function paylatch.open_key(
    p_merchant_id text, p_operation text, p_key text, p_fingerprint bytea,
    out found boolean, out same boolean, out flow_id bigint, out refund_id bigint) language sql as $$
    select k.used, k.same, k.flow_id, k.refund_id from paylatch.take_key(p_merchant_id, p_operation, p_key, p_fingerprint) k
$$;
comment on function paylatch.open_key(text, text, text, bytea) is
    'Takes a key for this transaction and says whether it was used, with the same fingerprint or another, and for what. Waits for whoever holds it. Errors: PL001 used for another operation, PL004. Upholds rule 8.';

create function paylatch.bind_key(
    p_merchant_id text, p_operation text, p_key text, p_fingerprint bytea, p_flow_id bigint, p_refund_id bigint)
    returns void language plpgsql as $$
begin
    insert into paylatch.idempotency_key (merchant_id, key, operation, fingerprint, flow_id, refund_id, created_at)
    values (p_merchant_id, p_key, p_operation, p_fingerprint, p_flow_id, p_refund_id, paylatch.clock());
end $$;
comment on function paylatch.bind_key(text, text, text, bytea, bigint, bigint) is
    'Records what an opened key, not found, was used for. Upholds rule 8.';

-- A payload as far as it counts: without the scene's volatile fields, and null where it says null.
create function paylatch.payload_counted(p_payload jsonb, p_left_out text[]) returns jsonb language sql immutable parallel safe as $$
    select nullif(case when p_left_out <> '{}' and jsonb_typeof(p_payload) = 'object' then p_payload - p_left_out
                       else p_payload end, 'null')
$$;
comment on function paylatch.payload_counted(jsonb, text[]) is 'A payload without the top-level fields that do not count.';

create function paylatch.flow_fingerprint(
    p_scene text, p_user_id text, p_biz_key text, p_amount bigint, p_currency text, p_payload jsonb, p_left_out text[])
    returns bytea language sql immutable parallel safe as $$
    select paylatch.fingerprint(array['scene', 'user_id', 'biz_key', 'amount', 'currency', 'payload'],
        array[p_scene, p_user_id, p_biz_key, p_amount::text, p_currency, paylatch.payload_counted(p_payload, p_left_out)::text])
$$;
comment on function paylatch.flow_fingerprint(text, text, text, bigint, text, jsonb, text[]) is
    'The fingerprint of a request for a payment: its declared business fields. The deadline and the scene''s volatile fields do not count.';

-- Days of keys: the present one and two ahead, and a net for what falls outside. A day that the net already holds rows
-- of stays there. Uniqueness is each partition's; the lock and the look-up over all of them do the rest.
create function paylatch.make_key_partitions(p_now timestamptz) returns integer language plpgsql
    set search_path = pg_catalog, pg_temp set timezone = 'UTC' as $$
declare
    v_from timestamptz;
    v_name text;
    v_made integer := 0;
begin
    for v_from in select null union all
                  select date_trunc('day', p_now) + make_interval(days => n) from generate_series(0, 2) n loop
        v_name := 'idempotency_key_' || coalesce(to_char(v_from, 'YYYY_MM_DD'), 'other');
        continue when to_regclass('paylatch.' || v_name) is not null;
        continue when v_from is not null and exists (
            select from paylatch.idempotency_key k where k.created_at >= v_from and k.created_at < v_from + interval '1 day');
        execute format('create table paylatch.%I (like paylatch.idempotency_key including defaults including constraints)', v_name);
        execute format('alter table paylatch.%I add constraint %I unique (merchant_id, key)', v_name, v_name || '_once');
        execute format('create trigger t11_no_truncate before truncate on paylatch.%I
                        for each statement execute function paylatch.refuse_truncate()', v_name);
        execute format('alter table paylatch.%I owner to paylatch_owner', v_name);
        execute format('alter table paylatch.idempotency_key attach partition paylatch.%I %s', v_name,
                       case when v_from is null then 'default'
                            else format('for values from (%L) to (%L)', v_from, v_from + interval '1 day') end);
        execute format('alter table paylatch.%I enable always trigger t10_guard, enable always trigger t11_no_truncate', v_name);
        v_made := v_made + 1;
    end loop;
    return v_made;
end $$;
comment on function paylatch.make_key_partitions(timestamptz) is 'Makes the partitions of idempotency keys for today and two days ahead, and the net; returns how many were missing.';

-- Forgets whole days: past by key_ttl_hours, with every flow and refund of theirs ended for as long. Writers of the
-- partition are kept out while it is looked at, so none slips in between.
create function paylatch.drop_key_partitions(p_now timestamptz) returns integer language plpgsql
    set search_path = pg_catalog, pg_temp set timezone = 'UTC' as $$
declare
    v_name text;
    v_before timestamptz := p_now - make_interval(hours => paylatch.key_ttl_hours());
    v_due boolean;
    v_dropped integer := 0;
begin
    for v_name in select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
                  where i.inhparent = 'paylatch.idempotency_key'::regclass order by 1 loop
        continue when case when v_name <> 'idempotency_key_other'
                           then to_date(right(v_name, 10), 'YYYY_MM_DD') + 1 > v_before end;
        execute format('lock table paylatch.%I in share mode', v_name);
        -- The net has no day of its own; an empty one stays.
        execute format($q$select not exists (
            select from paylatch.%1$I k left join paylatch.pay_flow f using (flow_id) left join paylatch.refund r using (refund_id)
            where k.created_at > $1
               or f.status not in ('BIZ_SUCCESS', 'REFUNDED', 'PAY_FAIL') or f.updated_at > $1
               or r.status in ('REQUESTED', 'PENDING') or r.updated_at > $1)
            and ($2 or exists (select from paylatch.%1$I))$q$, v_name)
            into v_due using v_before, v_name <> 'idempotency_key_other';
        continue when not v_due;
        execute format('drop table paylatch.%I', v_name);
        v_dropped := v_dropped + 1;
    end loop;
    return v_dropped;
end $$;
comment on function paylatch.drop_key_partitions(timestamptz) is
    'Drops the days of idempotency keys that are due: everything they were used for has ended at least paylatch.key_ttl_hours ago. Returns how many.';

-- Once an hour. Both need a lock that creation waits behind, so they wait only a moment for theirs (a dump holds it off
-- for as long as it runs), say so where they did not get it, and try again in the next hour.
create function paylatch.tend_keys(p_caller text, p_now timestamptz) returns jsonb language plpgsql
    set search_path = pg_catalog, pg_temp set lock_timeout = '200ms' as $$
declare
    v_period timestamptz;
    v_dropped integer;
    v_made integer;
begin
    if exists (select from paylatch.task_run where task = 'keys' and period_at = date_bin('1 hour', p_now, '2000-01-01')
               and finished_at is not null) then
        return null;
    end if;
    v_period := paylatch.begin_task('keys', '1 hour', p_caller, p_now);
    if v_period is null then
        return null;
    end if;
    begin
        v_dropped := paylatch.drop_key_partitions(p_now);
    exception when lock_not_available or deadlock_detected then
        null;
    end;
    begin
        v_made := paylatch.make_key_partitions(p_now);
    exception when lock_not_available or deadlock_detected then
        null;
    end;
    perform paylatch.end_task('keys', v_period, jsonb_build_object('days_dropped', v_dropped, 'days_made', v_made));
    return jsonb_build_object('days_dropped', v_dropped, 'days_made', v_made);
end $$;
comment on function paylatch.tend_keys(text, timestamptz) is
    'The hourly task: drops the days of idempotency keys that are due and makes the coming ones; null for what could not get its lock within 200 ms. Null where it has run this hour.';
