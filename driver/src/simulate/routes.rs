//! The simulator's doors: the wallet protocol, the business protocol, and what both share.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{ConnectInfo, DefaultBodyLimit, Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use time::OffsetDateTime;

use super::admin;
use super::answer::{Reply, after_effect, ledger_failed, refusal, without_effect};
use super::business_book::{Execution, Word};
use super::connection::Cut;
use super::fault::{Fault, Op, Plan};
use super::wallet_book::{Kind, Manner, Said, Standing, Terms};
use super::world::{Shared, World};

/// Most bytes of a request's body.
const REQUEST_LIMIT: usize = 256 * 1024;

type Sim = State<Arc<Shared>>;
type Line = ConnectInfo<Cut>;

/// All routes.
pub fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/charges", post(charge))
        .route("/charges/{order_no}", get(query_charge))
        .route("/charges/{order_no}/close", post(close_charge))
        .route("/refunds", post(refund))
        .route("/refunds/{refund_no}", get(query_refund))
        .route("/business/execute", post(execute))
        .route("/business/facts", get(fact))
        .route("/business/close", post(close_business))
        .merge(admin::routes())
        .layer(DefaultBodyLimit::max(REQUEST_LIMIT))
        .with_state(shared)
}

#[derive(Deserialize)]
struct ChargeBody {
    order_no: String,
    amount: i64,
    currency: String,
    user_id: String,
}

#[derive(Deserialize)]
struct RefundBody {
    refund_no: String,
    order_no: String,
    amount: i64,
    currency: String,
}

#[derive(Deserialize)]
struct ExecuteBody {
    order_no: String,
    biz_key: String,
    #[serde(default, with = "time::serde::rfc3339::option")]
    valid_until: Option<OffsetDateTime>,
}

#[derive(Deserialize)]
struct TargetBody {
    order_no: String,
    biz_key: String,
}

async fn charge(State(sim): Sim, ConnectInfo(cut): Line, body: Bytes) -> Response {
    let Some(ChargeBody { order_no, amount, currency, user_id }) = read(&body) else { return malformed() };
    if !is_number(&order_no) || amount <= 0 {
        return malformed();
    }
    let asked = Asked::about(Op::Charge, &order_no);
    meet(sim, cut, asked, move |world, plan| {
        let terms = Terms { order_no: order_no.clone(), amount, currency, user_id: Some(user_id) };
        begin(world, plan, Kind::Charge, &order_no, terms)
    })
    .await
}

async fn refund(State(sim): Sim, ConnectInfo(cut): Line, body: Bytes) -> Response {
    let Some(RefundBody { refund_no, order_no, amount, currency }) = read(&body) else { return malformed() };
    if !is_number(&refund_no) || !is_number(&order_no) || amount <= 0 {
        return malformed();
    }
    let asked = Asked::about(Op::Refund, &refund_no).also(&order_no);
    meet(sim, cut, asked, move |world, plan| {
        let terms = Terms { order_no, amount, currency, user_id: None };
        begin(world, plan, Kind::Refund, &refund_no, terms)
    })
    .await
}

async fn query_charge(State(sim): Sim, ConnectInfo(cut): Line, Path(order_no): Path<String>) -> Response {
    let asked = Asked::about(Op::QueryCharge, &order_no);
    meet(sim, cut, asked, move |world, _| query(world, Kind::Charge, &order_no)).await
}

async fn query_refund(State(sim): Sim, ConnectInfo(cut): Line, Path(refund_no): Path<String>) -> Response {
    let asked = Asked::about(Op::QueryRefund, &refund_no);
    meet(sim, cut, asked, move |world, _| query(world, Kind::Refund, &refund_no)).await
}

async fn close_charge(State(sim): Sim, ConnectInfo(cut): Line, Path(order_no): Path<String>) -> Response {
    if !is_number(&order_no) {
        return malformed();
    }
    let asked = Asked::about(Op::CloseCharge, &order_no);
    meet(sim, cut, asked, move |world, plan| {
        let said = match plan.fault {
            Fault::CloseLies => Said::Stands(Standing::Closed, None, None),
            _ => world.ask_wallet(|book, now_ms| book.close(&order_no, now_ms))?,
        };
        Ok(wallet_reply(said, Kind::Charge, &order_no, Told::Standing, world.request_id()))
    })
    .await
}

async fn execute(State(sim): Sim, ConnectInfo(cut): Line, body: Bytes) -> Response {
    let Some(ExecuteBody { order_no, biz_key, valid_until }) = read(&body) else { return malformed() };
    let asked = Asked::about(Op::Execute, &order_no).also(&biz_key);
    meet(sim, cut, asked, move |world, plan| {
        let valid_until_ms = valid_until.map(unix_ms);
        let execution = Execution { biz_key: &biz_key, order_no: &order_no, valid_until_ms };
        let word = world.ask_business(&biz_key, |book, now_ms| match plan.fault {
            Fault::Reject => book.reject(&biz_key, &order_no),
            Fault::LateEffect => book.execute(execution, Some(plan.arg), now_ms),
            _ => book.execute(execution, None, now_ms),
        })?;
        Ok(business_reply("status", plan, word, world.request_id()))
    })
    .await
}

async fn fact(State(sim): Sim, ConnectInfo(cut): Line, Query(target): Query<TargetBody>) -> Response {
    let TargetBody { order_no, biz_key } = target;
    let asked = Asked::about(Op::Fact, &order_no).also(&biz_key);
    meet(sim, cut, asked, move |world, plan| {
        let word = world.ask_business(&biz_key, |book, _| (book.fact(&biz_key, &order_no), None))?;
        Ok(business_reply("fact", plan, word, world.request_id()))
    })
    .await
}

async fn close_business(State(sim): Sim, ConnectInfo(cut): Line, body: Bytes) -> Response {
    let Some(TargetBody { order_no, biz_key }) = read(&body) else { return malformed() };
    let asked = Asked::about(Op::CloseBusiness, &order_no).also(&biz_key);
    meet(sim, cut, asked, move |world, plan| {
        let word = match plan.fault {
            Fault::CloseLies => Word::Closed,
            _ => world.ask_business(&biz_key, |book, _| book.close(&biz_key, &order_no))?,
        };
        Ok(business_reply("status", plan, word, world.request_id()))
    })
    .await
}

/// A request as scripts and counters know it.
struct Asked {
    op: Op,
    number: String,
    also: Option<String>,
}

impl Asked {
    fn about(op: Op, number: &str) -> Self {
        Self { op, number: number.to_owned(), also: None }
    }

    /// Another name that a script may match.
    fn also(self, name: &str) -> Self {
        Self { also: Some(name.to_owned()), ..self }
    }
}

/// What every request of the two protocols goes through: count, wait, fail or act, answer.
///
/// A request that waits does so on a task of its own: a wallet that is slow still acts when its client has given up.
async fn meet(
    sim: Arc<Shared>,
    cut: Cut,
    Asked { op, number, also }: Asked,
    act: impl FnOnce(&mut World, Plan) -> io::Result<Reply> + Send + 'static,
) -> Response {
    let plan = sim.lock().arrive(op, &number, also.as_deref());
    let slow_ms = if plan.fault == Fault::Slow { plan.arg } else { 0 };
    let wait_ms = plan.latency_ms.saturating_add(slow_ms);
    if wait_ms == 0 {
        return act_and_answer(&sim, &cut, plan, act).await;
    }
    let waiting = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(wait_ms)).await;
        act_and_answer(&sim, &cut, plan, act).await
    });
    waiting.await.unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
}

async fn act_and_answer(
    sim: &Shared,
    cut: &Cut,
    plan: Plan,
    act: impl FnOnce(&mut World, Plan) -> io::Result<Reply>,
) -> Response {
    if let Some(response) = without_effect(plan, cut) {
        return response;
    }
    let (reply, hold_ms) = {
        let mut world = sim.lock();
        let reply = act(&mut world, plan);
        (reply, world.take_hold_ms())
    };
    sim.queued().notify_one();
    if hold_ms > 0 {
        tokio::time::sleep(Duration::from_millis(hold_ms)).await;
    }
    match reply {
        Ok(reply) => after_effect(plan, cut, reply),
        Err(error) => ledger_failed(&error),
    }
}

fn begin(world: &mut World, plan: Plan, kind: Kind, number: &str, terms: Terms) -> io::Result<Reply> {
    let manner = match plan.fault {
        Fault::Refuse => Manner::Refuse,
        Fault::Processing => Manner::Processing(plan.arg),
        Fault::LateEffect => Manner::Late(plan.arg),
        Fault::ForgetKey => Manner::Forget,
        Fault::Excess => Manner::Excess,
        _ => Manner::Prompt,
    };
    let said = world.ask_wallet(|book, now_ms| book.begin(kind, number, terms, manner, now_ms))?;
    Ok(wallet_reply(said, kind, number, Told::Result, world.request_id()))
}

fn query(world: &mut World, kind: Kind, number: &str) -> io::Result<Reply> {
    let said = world.ask_wallet(|book, now_ms| book.query(kind, number, now_ms))?;
    Ok(wallet_reply(said, kind, number, Told::Standing, world.request_id()))
}

/// Whether an answer tells the result of an act, where a refusal is a 422, or where a number stands, where it is not.
#[derive(Clone, Copy, PartialEq)]
enum Told {
    Result,
    Standing,
}

fn wallet_reply(said: Said, kind: Kind, number: &str, told: Told, request_id: String) -> Reply {
    let (standing, terms, code) = match said {
        Said::Stands(standing, terms, code) => (standing, terms, code),
        Said::Conflict => return refusal(StatusCode::CONFLICT, "conflict"),
        Said::InProgress => return refusal(StatusCode::CONFLICT, "in_progress"),
        Said::NotFound => return refusal(StatusCode::NOT_FOUND, "not_found"),
    };
    let is_refused = told == Told::Result && matches!(standing, Standing::Failed | Standing::Closed);
    let (standing, code) = match standing {
        Standing::Closed if is_refused => (Standing::Failed, Some("closed".to_owned())),
        standing => (standing, code),
    };
    let status = match standing {
        _ if is_refused => StatusCode::UNPROCESSABLE_ENTITY,
        Standing::Processing => StatusCode::ACCEPTED,
        _ => StatusCode::OK,
    };
    let mut body = Map::new();
    if kind == Kind::Refund {
        body.insert("refund_no".to_owned(), json!(number));
    }
    let order_no = match kind {
        Kind::Charge => Some(number),
        Kind::Refund => terms.as_ref().map(|terms| terms.order_no.as_str()),
    };
    body.insert("order_no".to_owned(), json!(order_no));
    body.insert("status".to_owned(), json!(standing));
    body.insert("amount".to_owned(), json!(terms.as_ref().map(|terms| terms.amount)));
    body.insert("currency".to_owned(), json!(terms.as_ref().map(|terms| &terms.currency)));
    body.insert("request_id".to_owned(), json!(request_id));
    body.insert("code".to_owned(), json!(code));
    body.insert("message".to_owned(), Value::Null);
    Reply { status, body }
}

fn business_reply(key: &str, plan: Plan, word: Word, request_id: String) -> Reply {
    let (name, owner, code) = match word {
        _ if plan.fault == Fault::Contradictory => ("CONTRADICTORY", None, None),
        Word::Done(owner) => ("DONE", Some(owner), None),
        Word::NotDone(code) => ("NOT_DONE", None, code),
        Word::Rejected(code) => ("REJECTED", None, Some(code)),
        Word::Closed => ("CLOSED", None, None),
    };
    let mut body = Map::new();
    body.insert(key.to_owned(), json!(name));
    body.insert("owner".to_owned(), json!(owner));
    body.insert("request_id".to_owned(), json!(request_id));
    body.insert("code".to_owned(), json!(code));
    body.insert("message".to_owned(), Value::Null);
    Reply { status: StatusCode::OK, body }
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Option<T> {
    serde_json::from_slice(body).ok()
}

fn malformed() -> Response {
    refusal(StatusCode::BAD_REQUEST, "malformed").into_response()
}

/// The narrowest rule among the channels that paylatch numbers are made for.
fn is_number(text: &str) -> bool {
    (6..=32).contains(&text.len()) && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'z' | b'_'))
}

fn unix_ms(at: OffsetDateTime) -> i64 {
    i64::try_from(at.unix_timestamp_nanos() / 1_000_000).unwrap_or(i64::MAX)
}
