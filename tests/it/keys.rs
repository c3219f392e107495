//! F20 and rule 8: one idempotency key, one flow, whoever asks, however often, from wherever, and around midnight.

mod life;
mod merchants;
mod replay;
mod tokens;
mod twins;

use paylatch_tests::Database;
use serde_json::{Value, json};
use sqlx::{FromRow, PgConnection, Row};

/// What became of one request.
#[derive(Debug, Clone, PartialEq, FromRow)]
struct Created {
    outcome: String,
    flow_id: Option<i64>,
    client_status: Option<String>,
}

/// Why a request was refused: SQLSTATE, and the names in DETAIL.
#[derive(Debug, PartialEq)]
struct Refused {
    code: String,
    fields: Vec<String>,
}

/// A request of 1500 US cents of `topup` under a key, changed by `with`.
fn request(key: &str, with: Value) -> Value {
    let mut request = json!({
        "scene": "topup", "user_id": "alice", "biz_key": "one", "amount": 1500, "currency": "USD", "idempotency_key": key,
    });
    for (name, value) in with.as_object().expect("an object") {
        request[name] = value.clone();
    }
    request
}

/// Makes the requests as one set.
async fn ask_all(session: &mut PgConnection, requests: &[Value]) -> Result<Vec<Created>, Refused> {
    let query = sqlx::query_as("select outcome, flow_id, client_status from paylatch.create_pay_flows($1)");
    query.bind(json!(requests)).fetch_all(session).await.map_err(|error| refusal(&error))
}

/// Makes one request by `create_pay_flow`, with its JSON payload spelt as it is given.
async fn ask_spelt(session: &mut PgConnection, request: &Value, payload: Option<&str>) -> Result<Created, Refused> {
    let text = |name: &str| request[name].as_str().map(str::to_owned);
    let query = sqlx::query_as(
        "select outcome, flow_id, client_status from paylatch.create_pay_flow($1, $2, $3, $4, $5,
             idempotency_key => $6, payload => $7::jsonb, merchant_id => $8, biz_deadline => $9::timestamptz)",
    );
    let query = query.bind(text("scene")).bind(text("user_id")).bind(text("biz_key")).bind(request["amount"].as_i64());
    let query = query.bind(text("currency")).bind(text("idempotency_key")).bind(payload);
    let query = query.bind(text("merchant_id")).bind(text("biz_deadline"));
    query.fetch_one(session).await.map_err(|error| refusal(&error))
}

/// Makes one request.
async fn ask(session: &mut PgConnection, request: &Value) -> Result<Created, Refused> {
    let payload = request.get("payload").map(Value::to_string);
    ask_spelt(session, request, payload.as_deref()).await
}

fn refusal(error: &sqlx::Error) -> Refused {
    let Some(error) = error.as_database_error() else { panic!("{error}") };
    let detail = error.downcast_ref::<sqlx::postgres::PgDatabaseError>().detail().unwrap_or_default();
    let detail: Value = serde_json::from_str(detail).unwrap_or_default();
    let fields = detail["fields"].as_array().cloned().unwrap_or_default();
    let fields = fields.iter().filter_map(|field| field.as_str().map(str::to_owned)).collect();
    Refused { code: error.code().unwrap_or_default().into_owned(), fields }
}

fn refused(code: &str, fields: &[&str]) -> Refused {
    Refused { code: code.to_owned(), fields: fields.iter().map(|field| (*field).to_owned()).collect() }
}

async fn flows(db: &Database) -> i64 {
    db.row("select count(*) from paylatch.pay_flow").await.get(0)
}

async fn keys(db: &Database) -> i64 {
    db.row("select count(*) from paylatch.idempotency_key").await.get(0)
}
