-- What the HTTP API asks in one trip that an application would ask in several.

create function paylatch.post_payment(
    merchant_id text, idempotency_key text, scene text, user_id text, biz_key text, amount bigint, currency text,
    biz_deadline timestamptz default null, payload jsonb default null,
    out outcome text, out retry_after_ms bigint, out payment paylatch.flow_view)
    language plpgsql security definer set search_path = pg_catalog, pg_temp set paylatch.source = 'API' as $$
declare
    v_flow_id bigint;
    v_left interval;
begin
    perform paylatch.require_migrated();
    -- A payment that could only wait is better not begun. Once the breaker's time is over it is: somebody has to try.
    select x.moved_at + make_interval(secs => c.breaker_open_ms / 1000.0) - paylatch.clock() into v_left
    from paylatch.scene s
    join paylatch.channel c on c.channel = s.channel
    join paylatch.channel_state x on x.channel = s.channel
    where s.scene = post_payment.scene and x.breaker = 'open';
    if v_left > interval '0' and not exists (
            select from paylatch.idempotency_key k
            where (k.merchant_id, k.key) = (post_payment.merchant_id, post_payment.idempotency_key)) then
        outcome := 'channel_unavailable';
        retry_after_ms := ceil(extract(epoch from v_left) * 1000);
        return;
    end if;
    select c.outcome, c.flow_id into outcome, v_flow_id
    from paylatch.create_pay_flow(scene => post_payment.scene, user_id => post_payment.user_id, biz_key => post_payment.biz_key,
        amount => post_payment.amount, currency => post_payment.currency, merchant_id => post_payment.merchant_id,
        biz_deadline => post_payment.biz_deadline, payload => post_payment.payload,
        idempotency_key => post_payment.idempotency_key) c;
    select v.* into payment from paylatch.get_pay_flow(v_flow_id, post_payment.merchant_id) v;
end $$;
comment on function paylatch.post_payment(text, text, text, text, text, bigint, text, timestamptz, jsonb) is
    'create_pay_flow under a key, with the payment as clients see it. outcome: as there, or channel_unavailable: the breaker of the scene''s channel is open for retry_after_ms, and the key is new. Errors as there.';
