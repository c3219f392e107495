-- What happened, for good: the transition log, by month, and what a person must see.

create table paylatch.transition_log (
    ref_id bigint not null,
    version bigint not null,
    at timestamptz not null,
    latency_ms integer,
    kind text not null,
    from_status text,
    to_status text not null,
    source text not null,
    actor text not null,
    action text,
    outcome text,
    code text,
    request_id text,
    frozen_reason text,
    hash bytea not null,
    primary key (ref_id, version, kind, at)
) partition by range (at);
comment on table paylatch.transition_log is 'Append-only: one row per version of a flow or refund. hash covers the row and the hash before it.';
comment on column paylatch.transition_log.source is 'API, WEBHOOK, SCANNER, DRIVER, OPERATOR or RECON.';

create trigger t10_guard before update or delete on paylatch.transition_log
    for each row execute function paylatch.guard_append_only();
create trigger t11_no_truncate before truncate on paylatch.transition_log
    for each statement execute function paylatch.refuse_truncate();
alter table paylatch.transition_log enable always trigger t10_guard;
alter table paylatch.transition_log enable always trigger t11_no_truncate;
create index transition_log_at on paylatch.transition_log using brin (at) with (pages_per_range = 32);

create table paylatch.incident (
    incident_id bigint generated always as identity primary key,
    opened_at timestamptz not null default paylatch.clock(),
    kind text not null,
    flow_id bigint,
    refund_id bigint,
    says text not null,
    detail jsonb,
    resolved_at timestamptz,
    resolved_by text
);
comment on table paylatch.incident is 'What a person must see: frozen flows, evidence for an excluded branch, late charges.';
create index incident_open on paylatch.incident (flow_id) where resolved_at is null;

create table paylatch.late_report (
    late_report_id bigint generated always as identity primary key,
    at timestamptz not null default paylatch.clock(),
    flow_id bigint not null,
    disposition text not null,
    driver text not null,
    lease_token bigint,
    action text,
    outcome text,
    code text,
    request_id text,
    refund_id bigint
);
comment on table paylatch.late_report is 'Reports that came too late to decide: recorded, never applied.';
create index late_report_of_flow on paylatch.late_report (flow_id);

create trigger t10_guard before delete on paylatch.incident
    for each row execute function paylatch.guard_append_only();
create trigger t11_no_truncate before truncate on paylatch.incident
    for each statement execute function paylatch.refuse_truncate();
create trigger t10_guard before update or delete on paylatch.late_report
    for each row execute function paylatch.guard_append_only();
create trigger t11_no_truncate before truncate on paylatch.late_report
    for each statement execute function paylatch.refuse_truncate();

create table paylatch.task_run (
    task text not null,
    period_at timestamptz not null,
    started_at timestamptz not null,
    finished_at timestamptz,
    caller text not null,
    missed_periods integer not null default 0,
    says jsonb,
    primary key (task, period_at)
);
comment on table paylatch.task_run is 'Ledger of scheduled tasks: one row per task and period. missed_periods counts the periods that this run made up for.';

select paylatch.make_partitions(paylatch.clock());
