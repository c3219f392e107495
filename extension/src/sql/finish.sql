-- Comments of the functions written in Rust (rules.rs, look.rs).

comment on function paylatch.version() is 'Version of the loaded extension library.';
comment on function paylatch.clock() is 'Now, as paylatch sees it: the one clock of the database, moved by the superuser setting paylatch.clock_offset_ms in tests.';
comment on function paylatch.key_ttl_hours() is 'How long an idempotency key outlives what it made, in hours: the setting paylatch.key_ttl_hours.';
comment on function paylatch.log_source() is 'What causes the present change: the running command''s source, or OPERATOR for a change made by hand.';
comment on function paylatch.log_actor() is 'Who makes the present change: the running command''s actor, or the session''s user.';
comment on function paylatch.in_command() is 'Whether a command of paylatch makes the present change.';
comment on function paylatch.system_identifier() is 'Identity of the running cluster, as initdb gave it.';
comment on function paylatch.can_transition(text, text) is 'Whether from_status -> to_status is one of the six edges. Error: 22023 for a word that is no state. Rule 4.';
comment on function paylatch.transitions() is 'The six edges, and what each waits for. Rule 4.';
comment on function paylatch.state_diagram() is 'The state graph as a Mermaid diagram.';
comment on function paylatch.is_terminal(text) is 'Whether no edge leaves the state. Error: 22023.';
comment on function paylatch.client_status(text, boolean) is 'What a client is shown: PROCESSING for the four unfinished states, MANUAL_REVIEW where frozen, else the state. Error: 22023.';
comment on function paylatch.lane_of(text) is 'The lane of the queue in which a flow of this state waits: new, ask, biz or refund. Error: 22023.';
comment on function paylatch.order_status_after(text) is 'What an order is while its newest attempt is in this state. Rule 5.';
comment on function paylatch.trade_order_no(text, text, bigint) is 'The charge''s order number: prefix, user and flow id in base 36, within [0-9a-z_]{6,32}. Rule 1.';
comment on function paylatch.refund_order_no(text) is 'The compensation''s number of a charge. Rule 1.';
comment on function paylatch.nth_refund_order_no(text, bigint) is 'The number of a charge''s nth refund that is not its compensation, n from 1, in base 36; null where it would exceed 32 characters (behind the longest charge from 36 on). Rule 1.';
comment on function paylatch.external_order_no(text, bigint) is 'The number of a charge''s nth refund that was made elsewhere; null where it would exceed 32 characters. Rule 1.';
comment on function paylatch.flow_id_of(text) is 'The flow behind an order number of ours, a charge''s or a refund''s; null for any other text.';
comment on function paylatch.order_prefix_of(text) is 'The scene''s prefix in an order number of ours, a charge''s or a refund''s; null for any other text.';
comment on function paylatch.is_order_prefix(text) is 'Whether a scene may use this prefix: a letter, then one or two of a-z0-9.';
comment on function paylatch.flow_id_from(bigint) is 'The flow id that a sequence value makes in this database''s shard (paylatch.shard_id, 0 to 1023), below 2^53.';
comment on function paylatch.minor_unit_digits(text) is 'Digits behind the point of an ISO 4217 currency; null for a code without minor units or unknown.';
comment on function paylatch.format_money(bigint, integer, text) is 'Minor units as a person reads them: (1250, 2, USD) is 12.50 USD.';
comment on function paylatch.fingerprint(text[], text[]) is 'The fingerprint of a request: 16 bytes over named values. The order of names does not matter; the field payload counts as JSON, by what it means. Error: 22023 where names and values do not pair up. Rule 8.';
comment on function paylatch.answers_state(text, text) is 'Whether evidence for this action can decide a flow in this state.';
comment on function paylatch.late_disposition(text, text, text, boolean) is 'What becomes of evidence that comes too late: replayed, stale, conflict or rejected. Rule 4.';
comment on function paylatch.late_refund_disposition(text, text, text, text) is 'What becomes of evidence that comes too late for a refund of this kind and state: replayed, stale, conflict or rejected. Rule 4.';
comment on function paylatch.inquiry_answer(text, boolean) is 'What an inquiry about a flow that ended as not charged makes of an answer: charged, clear, contradicted or open.';
comment on function paylatch.is_full_echo(text, bigint, text, text, bigint, text) is 'Whether what was told names exactly this number, amount and currency; a missing one is a difference.';
comment on function paylatch.can_refund_become(text, text) is 'Whether from_status -> to_status is an edge of a refund. Rule 4.';
comment on function paylatch.is_evidence(text, text) is 'Whether action and outcome are words of ours.';
comment on function paylatch.is_wallet_action(text) is 'Whether the action goes to the wallet; null for no action.';
comment on function paylatch.brings_reference(text, text) is 'Whether an answer brings the wallet''s own reference, so that its log row names it.';
comment on function paylatch.event_type(text, text, text, boolean, boolean) is 'The type of the event that a change makes, as flow.paying or refund.frozen; null where it makes none. Rule 12.';
comment on function paylatch.log_hash(bytea, text, bigint, bigint, timestamptz, text, text, text, text, text, text, text, text, text) is 'Hash of a log row behind the hash before it: 16 bytes of SHA-256. Rule 9.';
comment on function paylatch.look_from(text, timestamptz) is 'After which due time a claim looks for jobs of a channel, in the lanes refund, ask, new and biz: -infinity, unless this session''s looks from the beginning pass too many jobs that are gone.';
comment on function paylatch.looked(text, timestamptz[], integer) is 'Keeps what a look that began with look_from() has seen: before which due time each lane has nothing left (null: not known), and how many jobs it took.';

-- Ownership and privileges of the extension's functions: security definer commands run as paylatch_owner, which owns
-- the tables and nothing else; nobody else may call anything until a migration grants it.

do $$
declare
    v record;
begin
    -- Signatures are written with every name qualified, as verify() reads them back.
    perform set_config('search_path', 'pg_catalog, pg_temp', true);
    begin
        create role paylatch_owner nologin;
    exception when duplicate_object or unique_violation then
        null; -- roles are shared by the cluster's databases
    end;
    grant usage, create on schema paylatch to paylatch_owner;
    grant pg_read_all_stats, pg_read_all_settings to paylatch_owner;
    for v in select p.oid::regprocedure as signature from pg_catalog.pg_proc p
             where p.pronamespace = 'paylatch'::regnamespace loop
        execute format('alter function %s owner to paylatch_owner', v.signature);
        execute format('revoke all on function %s from public', v.signature);
    end loop;
    -- What was shipped, so that verify() notices a replaced function. Taken last, of everything that stands now.
    execute format($f$
        create function paylatch.manifest() returns jsonb language sql immutable parallel safe as
        $m$select %L::jsonb$m$ $f$,
        (select jsonb_object_agg(p.oid::regprocedure::text, paylatch.digest_of(p.oid)) from pg_catalog.pg_proc p
         where p.pronamespace = 'paylatch'::regnamespace));
    comment on function paylatch.manifest() is 'Digest of every function of the extension as it was installed.';
    alter function paylatch.manifest() owner to paylatch_owner;
    revoke all on function paylatch.manifest() from public;
end $$;
