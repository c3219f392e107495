-- Functions written in Rust with composite arguments (steps.rs, budgets.rs), and the row guards (guard.rs).

create function paylatch.flow_steps(
    facts paylatch.flow_facts[], rules paylatch.rules[], told paylatch.told[], now timestamptz, lease_ms integer,
    probing text[], paced text[]) returns paylatch.planned[]
    language c immutable parallel safe as 'MODULE_PATHNAME', 'paylatch_flow_steps';
create function paylatch.refund_steps(
    facts paylatch.refund_facts[], rules paylatch.rules[], told paylatch.told[], now timestamptz, lease_ms integer,
    probing text[], paced text[]) returns paylatch.planned[]
    language c immutable parallel safe as 'MODULE_PATHNAME', 'paylatch_refund_steps';
create function paylatch.retry_at(policy paylatch.policy, id bigint, tries integer, now timestamptz) returns timestamptz
    language c immutable parallel safe strict as 'MODULE_PATHNAME', 'paylatch_retry_at';
create function paylatch.grant_budget(
    limits paylatch.limits, breaker paylatch.breaker, now timestamptz, want integer, doubtful boolean)
    returns paylatch.grant_given
    language c immutable parallel safe as 'MODULE_PATHNAME', 'paylatch_grant';
create function paylatch.spend_budget(
    limits paylatch.limits, breaker paylatch.breaker, now timestamptz, calls integer) returns paylatch.breaker
    language c immutable parallel safe as 'MODULE_PATHNAME', 'paylatch_spend';
create function paylatch.settle_breaker(
    limits paylatch.limits, breaker paylatch.breaker, now timestamptz, answered integer, failed integer, run integer)
    returns paylatch.breaker
    language c immutable parallel safe as 'MODULE_PATHNAME', 'paylatch_settle';

create function paylatch.guard_flow() returns trigger language c as 'MODULE_PATHNAME', 'paylatch_guard_flow';
create function paylatch.guard_order() returns trigger language c as 'MODULE_PATHNAME', 'paylatch_guard_order';
create function paylatch.guard_refund() returns trigger language c as 'MODULE_PATHNAME', 'paylatch_guard_refund';
create function paylatch.journal() returns trigger language c as 'MODULE_PATHNAME', 'paylatch_journal';
create function paylatch.guard_append_only() returns trigger
    language c as 'MODULE_PATHNAME', 'paylatch_guard_append_only';

comment on function paylatch.flow_steps(paylatch.flow_facts[], paylatch.rules[], paylatch.told[], timestamptz, integer, text[], text[]) is
    'The steps of a set of flows, pure: applies what was told (at most one per flow) and says the new decision columns of each version, its next action and due time, as far as it goes without anything from outside. rules: of each scene and channel in the set. lease_ms: how long an action may stay out, at least; a lease is always three seconds longer than the call may take. Null: none leaves. probing: channels of which only questions leave; paced: channels whose wallet calls go through the queue and its budget. Upholds rules 1 to 4.';
comment on function paylatch.refund_steps(paylatch.refund_facts[], paylatch.rules[], paylatch.told[], timestamptz, integer, text[], text[]) is
    'One step each of refunds that are no compensations, pure, by the rules of a flow that is REFUNDING; status is the refund''s. Arguments as in flow_steps(). Upholds rules 1 and 4.';
comment on function paylatch.retry_at(paylatch.policy, bigint, integer, timestamptz) is
    'When work with this id is looked at again after so many tries, by its scene''s retry curve. Pure.';
comment on function paylatch.grant_budget(paylatch.limits, paylatch.breaker, timestamptz, integer, boolean) is
    'How many wallet calls a channel may be asked for now, of which refunds come first, and whether only questions may leave. Pure.';
comment on function paylatch.spend_budget(paylatch.limits, paylatch.breaker, timestamptz, integer) is
    'The channel''s moving parts after so many calls were handed out. Pure.';
comment on function paylatch.settle_breaker(paylatch.limits, paylatch.breaker, timestamptz, integer, integer, integer) is
    'The channel''s moving parts after answers: how many were answers, how many were none, and how many of the newest in a row were none. Pure.';
comment on function paylatch.guard_flow() is
    'Row guard of pay_flow: legal edge, version + 1, frozen columns, no delete; chains the log hash. Raises 23514 with the rule''s number. Upholds rules 3, 4 and 9.';
comment on function paylatch.guard_order() is
    'Row guard of pay_order: legal edge, version + 1, frozen columns, no delete. Raises 23514.';
comment on function paylatch.guard_refund() is
    'Row guard of refund: its beginning and number fit its kind, legal edge, version + 1, frozen columns, no delete; chains the log hash. Raises 23514. Upholds rules 1, 4, 7 and 9.';
comment on function paylatch.journal() is
    'Statement trigger of pay_flow, refund and pay_order: one log row for each accepted change of a flow or refund, and the events of edges, freezes, resumes and of orders. Upholds rules 4, 9 and 12.';
comment on function paylatch.guard_append_only() is
    'Row guard of append-only tables: refuses update and delete. Raises 23514. Upholds rule 9.';
