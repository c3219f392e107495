//! Rule 11 and its like: what each role can do is exactly what these tables say, and PUBLIC can do nothing.

use std::collections::BTreeSet;

use paylatch_tests::Database;
use paylatch_tests::database::{ROLES, refused};

/// Functions of the rules: they read nothing and change nothing, so every role may call them.
const RULES: &[&str] = &[
    "can_transition",
    "client_status",
    "clock",
    "event_id",
    "flow_id_of",
    "format_money",
    "is_terminal",
    "minor_unit_digits",
    "refund_order_no",
    "state_diagram",
    "trade_order_no",
    "transitions",
    "version",
];

/// What each role may call beside the rules.
const MAY_CALL: &[(&str, &[&str])] = &[
    (
        "app",
        &[
            "advance",
            "cancel_pay_flow",
            "create_pay_flow",
            "create_pay_flows",
            "explain",
            "find_pay_flow",
            "get_pay_flow",
            "get_pay_order",
            "get_refund",
            "get_refunds",
            "request_refund",
        ],
    ),
    (
        "driver",
        &[
            "advance",
            "api_is_open",
            "authenticate",
            "cancel_pay_flow",
            "claim_actions",
            "claim_deliveries",
            "claim_events",
            "claim_flow",
            "create_pay_flow",
            "create_pay_flows",
            "doctor",
            "explain",
            "find_pay_flow",
            "get_pay_flow",
            "get_refund",
            "get_refunds",
            "get_pay_order",
            "metrics",
            "policy_endpoints",
            "post_payment",
            "receive_webhooks",
            "report_evidence",
            "request_refund",
            "schema_version",
            "settle_deliveries",
            "settle_events",
            "tick",
            "verify",
        ],
    ),
    (
        "operator",
        &[
            "add_sink",
            "advance",
            "api_tokens",
            "arm",
            "cancel_pay_flow",
            "create_api_token",
            "create_pay_flow",
            "create_pay_flows",
            "create_webhook_endpoint",
            "deliveries",
            "disable_webhook_endpoint",
            "doctor",
            "drop_sink",
            "enable_webhook_endpoint",
            "explain",
            "find_pay_flow",
            "freeze_pay_flow",
            "get_pay_flow",
            "get_pay_order",
            "get_refund",
            "get_refunds",
            "metrics",
            "redeliver",
            "redeliver_webhook",
            "replay_webhook",
            "report_dispute",
            "request_refund",
            "resolve_incident",
            "resume_pay_flow",
            "resume_refund",
            "revoke_api_token",
            "rotate_webhook_secret",
            "scan",
            "verify",
            "webhook_endpoints",
        ],
    ),
    (
        "approver",
        &[
            "approve_refund",
            "doctor",
            "explain",
            "find_pay_flow",
            "get_pay_flow",
            "get_pay_order",
            "get_refund",
            "get_refunds",
            "metrics",
            "reject_refund",
            "verify",
        ],
    ),
    (
        "auditor",
        &[
            "doctor",
            "explain",
            "find_pay_flow",
            "get_pay_flow",
            "get_pay_order",
            "get_refund",
            "get_refunds",
            "metrics",
            "verify",
        ],
    ),
];

#[tokio::test]
async fn each_role_calls_what_the_table_says_and_nothing_else() {
    let db = Database::fresh().await;
    for (role, own) in MAY_CALL {
        let expected: BTreeSet<String> = RULES.iter().chain(*own).map(|name| (*name).to_owned()).collect();
        assert_eq!(callable(&db, &format!("test_{role}")).await, expected, "paylatch_{role}");
    }
}

#[tokio::test]
async fn only_operator_and_auditor_see_relations_and_no_role_writes_one() {
    let db = Database::fresh().await;
    let relations: Vec<(String, bool)> = sqlx::query_as(
        "select oid::regclass::text, relkind = 'v' from pg_class
         where relnamespace = 'paylatch'::regnamespace and relkind in ('r', 'p', 'v') order by 1",
    )
    .fetch_all(db.pool())
    .await
    .unwrap();
    assert!(relations.len() > 10, "{relations:?}");

    for role in ROLES.iter().chain(&["nobody"]) {
        for (relation, is_view) in &relations {
            let granted: String = db.value(&format!("select {} ", privileges(role, relation))).await;
            match *role {
                "auditor" => assert_eq!(granted, "SELECT", "{role} on {relation}"),
                "approver" if relation == "paylatch.unfinished_refund" => assert_eq!(granted, "SELECT", "{role}"),
                "operator" if *is_view => assert!(["", "SELECT"].contains(&granted.as_str()), "{role} on {relation}"),
                _ => assert_eq!(granted, "", "{role} on {relation}"),
            }
        }
    }
}

/// The same by trying: the grants that PostgreSQL reports are those that it enforces.
#[tokio::test]
async fn the_driver_is_refused_at_every_table() {
    let db = Database::fresh().await;
    let mut driver = db.session_as("driver").await;
    for table in [
        "channel",
        "scene",
        "pay_order",
        "pay_flow",
        "refund",
        "dispute",
        "job",
        "transition_log",
        "incident",
        "armed",
        "webhook_event",
        "outbox",
        "outbox_sink",
        "dead_letter",
        "idempotency_key",
        "merchant_login",
        "api_token",
        "webhook_endpoint",
        "delivery",
    ] {
        for attempt in [
            format!("select from paylatch.{table}"),
            format!("insert into paylatch.{table} default values"),
            format!("delete from paylatch.{table}"),
            format!("truncate paylatch.{table}"),
        ] {
            assert_eq!(refused(&mut driver, &attempt).await.0, "42501", "{attempt}");
        }
    }
    let attempt = "update paylatch.pay_flow set status = 'PAYED'";
    assert_eq!(refused(&mut driver, attempt).await.0, "42501");
}

#[tokio::test]
async fn public_can_do_nothing() {
    let db = Database::fresh().await;
    let in_schema = "has_schema_privilege('test_nobody', 'paylatch', 'usage')";
    assert!(!db.value::<bool>(&format!("select {in_schema}")).await);
    let callable = callable(&db, "test_nobody").await;
    assert!(callable.is_empty(), "PUBLIC may call {callable:?}");
    let mut nobody = db.session_as("nobody").await;
    assert_eq!(refused(&mut nobody, "select paylatch.version()").await.0, "42501");
}

#[tokio::test]
async fn nobody_creates_in_the_schema_and_no_role_logs_in() {
    let db = Database::fresh().await;
    for role in ROLES {
        let create = format!("select has_schema_privilege('paylatch_{role}', 'paylatch', 'create')");
        assert!(!db.value::<bool>(&create).await, "paylatch_{role} may create in the schema");
    }
    let logins = "select count(*) from pg_roles where rolname like 'paylatch\\_%' and (rolcanlogin or rolsuper)";
    assert_eq!(db.value::<i64>(logins).await, 0);
}

/// A security definer function without a pinned search_path runs whatever its caller puts into theirs.
#[tokio::test]
async fn definer_functions_pin_their_search_path() {
    let db = Database::fresh().await;
    let loose: Vec<String> = sqlx::query_scalar(
        "select oid::regprocedure::text from pg_proc
         where pronamespace = 'paylatch'::regnamespace and prosecdef
           and not coalesce('search_path=pg_catalog, pg_temp' = any (proconfig), false)",
    )
    .fetch_all(db.pool())
    .await
    .unwrap();
    assert!(loose.is_empty(), "{loose:?}");
}

async fn callable(db: &Database, role: &str) -> BTreeSet<String> {
    let functions: Vec<String> = sqlx::query_scalar(
        "select proname::text from pg_proc
         where pronamespace = 'paylatch'::regnamespace and has_function_privilege($1, oid, 'execute')",
    )
    .bind(role)
    .fetch_all(db.pool())
    .await
    .unwrap();
    functions.into_iter().collect()
}

/// An expression that lists what `test_<role>` may do with a relation, or with any of its columns.
fn privileges(role: &str, relation: &str) -> String {
    let each = "SELECT INSERT UPDATE REFERENCES".split(' ').map(|p| (p, "has_any_column_privilege"));
    let all = "DELETE TRUNCATE TRIGGER".split(' ').map(|p| (p, "has_table_privilege"));
    let cases =
        each.chain(all).map(|(p, f)| format!("case when {f}('test_{role}', '{relation}', '{p}') then '{p}' end"));
    format!("concat_ws(' ', {})", cases.collect::<Vec<_>>().join(", "))
}
