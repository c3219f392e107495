-- Who may do what. Nobody but the owner writes a table; roles call functions (rule 11). Guards cannot be switched off
-- by session_replication_role, so they are enabled ALWAYS.

do $$
declare
    v record;
begin
    for v in select c.oid::regclass as name, c.relkind from pg_catalog.pg_class c
             where c.relnamespace = 'paylatch'::regnamespace and c.relkind in ('r', 'p', 'v', 'S')
               and not exists (select from pg_catalog.pg_depend d      -- identity sequences follow their table
                               where c.relkind = 'S' and d.objid = c.oid and d.deptype = 'i'
                                 and d.classid = 'pg_class'::regclass) loop
        execute format('alter %s %s owner to paylatch_owner',
                       case v.relkind when 'v' then 'view' when 'S' then 'sequence' else 'table' end, v.name);
    end loop;
    for v in select t.tgrelid::regclass as name, t.tgname from pg_catalog.pg_trigger t
             join pg_catalog.pg_class c on c.oid = t.tgrelid
             where c.relnamespace = 'paylatch'::regnamespace and not t.tgisinternal and t.tgparentid = 0 loop
        execute format('alter table %s enable always trigger %I', v.name, v.tgname);
    end loop;
end $$;

grant usage on schema paylatch to paylatch_app, paylatch_driver, paylatch_operator, paylatch_approver, paylatch_auditor;

grant execute on function
    paylatch.version(), paylatch.clock(), paylatch.can_transition(text, text), paylatch.state_diagram(),
    paylatch.client_status(text, boolean), paylatch.format_money(bigint, integer, text),
    paylatch.minor_unit_digits(text), paylatch.trade_order_no(text, text, bigint), paylatch.refund_order_no(text),
    paylatch.flow_id_of(text), paylatch.is_terminal(text), paylatch.transitions(),
    paylatch.event_id(bigint, text, bigint, bigint)
to paylatch_app, paylatch_driver, paylatch_operator, paylatch_approver, paylatch_auditor;

grant execute on function
    paylatch.create_pay_flow(text, text, text, bigint, text, text, timestamptz, jsonb, text),
    paylatch.create_pay_flows(jsonb), paylatch.get_pay_flow(bigint, text), paylatch.find_pay_flow(text, text),
    paylatch.get_pay_order(text, text, text, text), paylatch.cancel_pay_flow(bigint, text),
    paylatch.advance(bigint, text), paylatch.explain(bigint),
    paylatch.request_refund(bigint, bigint, text, text, bigint, text, text),
    paylatch.get_refund(bigint, text), paylatch.get_refunds(bigint, text)
to paylatch_app, paylatch_operator, paylatch_driver; -- the daemon serves the HTTP API

grant execute on function
    paylatch.claim_actions(text, integer, integer), paylatch.claim_flow(text, bigint, integer),
    paylatch.report_evidence(text, jsonb, integer), paylatch.receive_webhooks(text, text, jsonb),
    paylatch.tick(text), paylatch.metrics(), paylatch.policy_endpoints(), paylatch.doctor(), paylatch.schema_version(),
    paylatch.verify(), paylatch.authenticate(bytea), paylatch.api_is_open(),
    paylatch.post_payment(text, text, text, text, text, bigint, text, timestamptz, jsonb)
to paylatch_driver;

grant execute on function
    paylatch.resume_pay_flow(bigint, text), paylatch.freeze_pay_flow(bigint, text), paylatch.resolve_incident(bigint, text),
    paylatch.resume_refund(bigint, text), paylatch.report_dispute(bigint, text, bigint, text),
    paylatch.replay_webhook(text, text), paylatch.arm(text), paylatch.scan(text), paylatch.verify(), paylatch.doctor(), paylatch.metrics(),
    paylatch.create_api_token(text, text, bytea, integer), paylatch.revoke_api_token(bigint), paylatch.api_tokens()
to paylatch_operator;

grant execute on function
    paylatch.get_pay_flow(bigint, text), paylatch.find_pay_flow(text, text), paylatch.get_pay_order(text, text, text, text),
    paylatch.explain(bigint), paylatch.verify(), paylatch.doctor(), paylatch.metrics()
to paylatch_auditor, paylatch_approver;
grant execute on function paylatch.get_refund(bigint, text), paylatch.get_refunds(bigint, text) to paylatch_auditor, paylatch_approver;
grant execute on function paylatch.approve_refund(bigint, text), paylatch.reject_refund(bigint, text) to paylatch_approver;
grant select on all tables in schema paylatch to paylatch_auditor;
revoke select on paylatch.api_token from paylatch_auditor; -- everything but digests
grant select (token_id, merchant_id, name, rate_per_second, created_at, created_by, revoked_at, revoked_by)
    on paylatch.api_token to paylatch_auditor;
grant select on paylatch.unfinished_refund to paylatch_approver;
grant select on paylatch.transition, paylatch.unfinished, paylatch.unfinished_refund, paylatch.stat_flow, paylatch.stat_refund,
    paylatch.stat_dispute, paylatch.stat_entry, paylatch.stat_call, paylatch.stat_queue, paylatch.stat_channel,
    paylatch.stat_task, paylatch.stat_webhook to paylatch_operator;

-- Events: whoever publishes them, whoever says where they go.
grant execute on function
    paylatch.claim_events(text, text, integer, integer),
    paylatch.settle_events(text, text, bigint, bigint[], jsonb, boolean)
to paylatch_driver;
grant execute on function
    paylatch.add_sink(text, boolean), paylatch.drop_sink(text), paylatch.redeliver(text, text)
to paylatch_operator;
grant select on paylatch.stat_outbox, paylatch.undelivered to paylatch_operator;

-- Merchants' webhooks. Who signs must read secrets; who audits must not.
grant execute on function
    paylatch.claim_deliveries(text, integer, integer, integer), paylatch.settle_deliveries(text, bigint, bigint, jsonb)
to paylatch_driver;
grant execute on function
    paylatch.create_webhook_endpoint(text, text, text[]), paylatch.rotate_webhook_secret(bigint, integer),
    paylatch.disable_webhook_endpoint(bigint, text), paylatch.enable_webhook_endpoint(bigint), paylatch.webhook_endpoints(),
    paylatch.deliveries(bigint, text, text, integer), paylatch.redeliver_webhook(bigint, text)
to paylatch_operator;
revoke select on paylatch.webhook_endpoint from paylatch_auditor;
grant select (endpoint_id, created_at, merchant_id, created_by, url, events, previous_until, disabled_at, disabled_by,
              disabled_why, failures, paused_until, lease_token, lease_until, lease_holder)
    on paylatch.webhook_endpoint to paylatch_auditor;
