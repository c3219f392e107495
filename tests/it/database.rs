//! The two halves of the database: code in the extension, data in migrations.

use std::process::Command;

use paylatch_tests::cluster::{bin_dir, output, root};
use paylatch_tests::database::migrate;
use paylatch_tests::lines::assert_same_lines;
use paylatch_tests::{Database, process};
use tempfile::TempDir;

/// The schema as pg_dump writes it, without the migrator's own bookkeeping.
fn schema(db: &Database) -> Vec<String> {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("schema.sql");
    let mut dump = Command::new(bin_dir().join("pg_dump"));
    output(dump.args(["--schema-only", "--schema", "paylatch", "--file"]).arg(&file).arg(db.url()));
    let text = std::fs::read_to_string(file).unwrap();
    // pg_dump makes up a token for these two lines.
    text.lines().filter(|line| !line.contains("restrict ")).map(str::to_owned).collect()
}

fn by_psql(db: &Database) {
    let mut files: Vec<_> = std::fs::read_dir(root().join("migrations")).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    for file in files {
        let mut psql = Command::new(bin_dir().join("psql"));
        psql.args(["--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1", "--single-transaction", "--file"]).arg(file);
        output(psql.arg(db.url()));
    }
}

#[tokio::test]
async fn paylatchd_and_psql_migrate_alike() {
    let (one, other) = (Database::empty().await, Database::empty().await);
    migrate(one.url());
    by_psql(&other);
    assert_same_lines(&schema(&one), &schema(&other));
}

#[tokio::test]
async fn migrating_again_or_side_by_side_changes_nothing() {
    let db = Database::empty().await;
    let start = || Command::new(process::paylatchd()).arg("migrate").env("PAYLATCH_DATABASE_URL", db.url()).spawn();
    let both = [start().unwrap(), start().unwrap()];
    for mut child in both {
        assert!(child.wait().unwrap().success(), "one of two migrations at once fails");
    }
    let before = schema(&db);
    migrate(db.url());
    assert_same_lines(&schema(&db), &before);
}

/// Code without data says what is missing, and how to bring it: every command that anybody may be granted.
#[tokio::test]
async fn commands_before_the_migrations_say_so() {
    let db = Database::empty().await;
    db.execute("create schema paylatch; create extension paylatch").await;
    for command in [
        "create_pay_flow('shop', 'alice', 'one', 100, 'USD')",
        "create_pay_flows('[]')",
        "get_pay_flow(1)",
        "find_pay_flow('sh_1_1')",
        "get_pay_order('shop', 'alice', 'one')",
        "cancel_pay_flow(1)",
        "advance(1)",
        "explain(1)",
        "claim_actions('d', 1)",
        "report_evidence('d', '[]')",
        "tick('d')",
        "metrics()",
        "policy_endpoints()",
        "schema_version()",
        "scan()",
        "verify()",
        "doctor()",
        "freeze_pay_flow(1, 'why')",
        "resume_pay_flow(1, 'why')",
        "resolve_incident(1, 'why')",
        "arm()",
        "create_api_token('m', 'n', '\\x00')",
        "revoke_api_token(1)",
        "api_tokens()",
        "authenticate('\\x00')",
        "api_is_open()",
        "create_webhook_endpoint('m', 'https://a.example/')",
        "rotate_webhook_secret(1)",
        "disable_webhook_endpoint(1, 'why')",
        "enable_webhook_endpoint(1)",
        "webhook_endpoints()",
        "deliveries()",
        "redeliver_webhook(1)",
        "claim_deliveries('d')",
        "settle_deliveries('d', 1, 1, '[]')",
    ] {
        let error =
            sqlx::raw_sql(sqlx::AssertSqlSafe(format!("select * from paylatch.{command}"))).execute(db.pool()).await;
        let error = error.map(|_| ()).expect_err(command).into_database_error().expect(command);
        let error = error.downcast_ref::<sqlx::postgres::PgDatabaseError>();
        assert_eq!((error.code(), error.message()), ("PL007", "paylatch is installed but not migrated"), "{command}");
        assert!(error.hint().is_some_and(|hint| hint.contains("`paylatchd migrate`")), "{command}: {:?}", error.hint());
    }
}

/// The extension's members hold no data, and the tables hold on to it.
#[tokio::test]
async fn the_extension_cannot_be_dropped_from_under_the_data() {
    let db = Database::fresh().await;
    assert_eq!(db.refused("drop extension paylatch").await.0, "2BP01");
    let members = "select count(*) from pg_depend d join pg_extension e on e.oid = d.refobjid
                   where e.extname = 'paylatch' and d.deptype = 'e' and d.classid = 'pg_class'::regclass
                     and (select relkind from pg_class where oid = d.objid) <> 'c'";
    assert_eq!(db.value::<i64>(members).await, 0, "a table, view or sequence belongs to the extension");
}

/// An index on a column that changes would make every update of a flow write all indexes.
#[tokio::test]
async fn no_index_of_a_flow_is_on_a_column_that_changes() {
    let db = Database::fresh().await;
    let indexed: Vec<String> = sqlx::query_scalar(
        "select distinct a.attname::text from pg_index i
         join pg_attribute a on a.attrelid = i.indrelid and (a.attnum = any (i.indkey) or i.indpred is not null)
         where i.indrelid = 'paylatch.pay_flow'::regclass order by 1",
    )
    .fetch_all(db.pool())
    .await
    .unwrap();
    assert_eq!(indexed, ["attempt_no", "flow_id", "order_id"]);
}
