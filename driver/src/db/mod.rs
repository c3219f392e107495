//! The database as the daemon sees it: one function per command, and all the SQL that the daemon has (this folder).
//!
//! Invariants: no table is named here, only functions (the role `paylatch_driver` has no right to anything else); no
//! transaction outlives the command it was opened for; a command ends within its time-out.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use paylatch_core::late::Disposition;
use paylatch_core::outcome::Action;
use paylatch_core::words::UnknownWord;
use serde::Serialize;
use sqlx::postgres::{PgArguments, PgConnectOptions, PgPoolOptions, PgRow};
use sqlx::query::QueryAs;
use sqlx::types::Json;
use sqlx::{AssertSqlSafe, FromRow, PgConnection, PgPool, Postgres, Row};
use time::OffsetDateTime;

use crate::config;
use crate::error::Error;
use crate::evidence::{Evidence, Handout};

mod api;
mod deliveries;
mod demo;
mod events;
mod inbox;

pub use self::api::{
    KnownToken, OrderRow, PaymentRow, PaymentWish, Posted, RefundAsked, RefundRow, RefundWish, TokenRow,
};
pub use self::deliveries::{Delivery, DeliveryState, Tried, WebhookEndpoint};
pub use self::demo::{Ended, LostAnswers, OnItsWay, RefundAnswer, Standing, Webhooks};
pub use self::inbox::{InboxEvent, InboxTold};

/// Names the first statement of a session in errors.
const CONNECT: &str = "connect to the database";

/// A pool of sessions and the name under which this daemon works. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Db {
    pool: PgPool,
    driver: String,
    timeout: Duration,
    transaction_pooling: bool,
    /// What a transaction behind a pooler begins with; a session of our own was opened with it.
    transaction_limits: Option<Arc<str>>,
}

/// What became of one piece of evidence.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// The flow that it was about.
    pub flow_id: i64,
    /// The refund that it was about, where that is a row of its own; then all that follows is the refund's.
    pub refund_id: Option<i64>,
    /// Whether it decided.
    pub disposition: Disposition,
    /// Where the flow stands now.
    pub status: Option<String>,
    /// Why the flow waits for a person, if it does.
    pub frozen_reason: Option<String>,
    /// The next action, where one follows at once.
    pub next: Option<Handout>,
}

/// One line of [`Db::explain`].
#[derive(Debug, Clone, PartialEq, Eq, FromRow)]
pub struct Explanation {
    /// flow, charge, business, refund, next, attention or timeline.
    pub topic: String,
    /// In words.
    pub says: String,
}

/// One rule of [`Db::verify`].
#[derive(Debug, Clone, PartialEq, Eq, FromRow)]
pub struct Rule {
    /// Its number in "Never"; 100 and above for guards and schema.
    pub rule: i32,
    /// What must hold.
    pub name: String,
    /// Whether it holds.
    pub ok: bool,
    /// How many rows break it.
    pub broken: i64,
    /// Which, for example.
    pub detail: Option<String>,
}

/// One check of [`Db::doctor`].
#[derive(Debug, Clone, PartialEq, Eq, FromRow)]
pub struct Check {
    /// What was looked at.
    pub check_name: String,
    /// Whether it is as it should be.
    pub ok: bool,
    /// info, warn or error: how bad it is if not.
    pub level: String,
    /// In words, with what to do.
    pub says: String,
}

/// One sample of [`Db::metrics`].
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Without a prefix.
    pub name: String,
    /// Label values by name.
    pub labels: BTreeMap<String, String>,
    /// The value.
    pub value: f64,
}

/// Something that the database expects the daemon's configuration to serve.
#[derive(Debug, Clone, PartialEq, Eq, FromRow)]
pub struct PolicyEndpoint {
    /// wallet or business.
    pub kind: String,
    /// The channel or the business target.
    pub name: String,
}

/// Versions as the database has them.
#[derive(Debug, Clone, PartialEq, Eq, FromRow)]
pub struct Versions {
    /// Of the extension as it was created or updated; `None` if it was not created.
    pub extension: Option<String>,
    /// Of the extension that the server has installed; `None` if it has none.
    pub available: Option<String>,
}

/// Who answers at the other end.
#[derive(Debug, Clone, PartialEq, Eq, FromRow)]
pub struct Server {
    /// As `server_version` says it.
    pub version: String,
    /// The database's name.
    pub database: String,
    /// The session's user.
    pub user: String,
    /// Whether it is a standby, which takes no writes.
    pub in_recovery: bool,
}

impl Db {
    /// Prepares the pool; connects to nothing yet.
    ///
    /// # Errors
    /// `database.url` is not a URL.
    pub fn open(settings: &config::Database, driver: &str) -> Result<Self, Error> {
        let options = connect_options(settings, driver)?;
        let timeout = Duration::from_millis(settings.command_timeout_ms);
        let pool = PgPoolOptions::new()
            .max_connections(settings.max_connections)
            .acquire_timeout(timeout)
            // A broken session shows when it is used, and the command is then tried again; asking first would cost
            // every command a round trip.
            .test_before_acquire(false)
            .connect_lazy_with(options);
        let transaction_pooling = settings.transaction_pooling;
        Ok(Self { pool, driver: driver.to_owned(), timeout, transaction_pooling, transaction_limits: None })
    }

    /// The same, after trying the way there once: a pool that cannot connect says no more than that it waited.
    ///
    /// # Errors
    /// Why there is no connection.
    pub async fn connect(settings: &config::Database, driver: &str) -> Result<Self, Error> {
        use sqlx::Connection as _;
        let session = Self::session(settings, driver).await?;
        // Whether the goodbye arrives makes no difference.
        let _ = session.close().await;
        Self::open(settings, driver)
    }

    /// A session of its own, outside the pool, for what takes long.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn session(settings: &config::Database, driver: &str) -> Result<PgConnection, Error> {
        use sqlx::ConnectOptions as _;
        let options = connect_options(settings, driver)?;
        let within = Duration::from_millis(settings.command_timeout_ms);
        let connected = tokio::time::timeout(within, options.connect()).await;
        let connected = connected.map_err(|_| Error::Silent { command: CONNECT, within })?;
        connected.map_err(|source| Error::Database { command: CONNECT, source })
    }

    /// The name under which this daemon works.
    pub fn driver(&self) -> &str {
        &self.driver
    }

    /// Takes up to `max` due actions, each leased for `lease`.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn claim_actions(&self, max: usize, lease: Duration) -> Result<Vec<Handout>, Error> {
        let query = sqlx::query_as("select * from paylatch.claim_actions($1, $2, $3)");
        let query = query.bind(&self.driver).bind(whole_i32(max as u128)).bind(whole_i32(lease.as_millis()));
        let rows: Vec<HandoutRow> = self.rows("claim_actions", query).await?;
        Ok(rows.into_iter().filter_map(HandoutRow::known).collect())
    }

    /// Reports evidence. With a `lease`, next actions that follow at once come along, leased for that long.
    ///
    /// # Errors
    /// See [`Error::class`]. Reporting the same again is harmless: lease tokens fence it.
    pub async fn report_evidence(
        &self,
        evidence: &[&Evidence],
        lease: Option<Duration>,
    ) -> Result<Vec<Verdict>, Error> {
        let query = sqlx::query_as("select * from paylatch.report_evidence($1, $2, $3)");
        let lease_ms = lease.map(|lease| whole_i32(lease.as_millis()));
        let query = query.bind(&self.driver).bind(Json(evidence)).bind(lease_ms);
        let rows: Vec<VerdictRow> = self.rows("report_evidence", query).await?;
        rows.into_iter().map(VerdictRow::verdict).collect()
    }

    /// Takes one flow's action, if it is due and its channel has a call left.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn claim_flow(&self, flow_id: i64, lease: Duration) -> Result<Option<Handout>, Error> {
        let query = sqlx::query_as("select * from paylatch.claim_flow($1, $2, $3)");
        let query = query.bind(&self.driver).bind(flow_id).bind(whole_i32(lease.as_millis()));
        let rows: Vec<HandoutRow> = self.rows("claim_flow", query).await?;
        Ok(rows.into_iter().find_map(HandoutRow::known))
    }

    /// Makes sure that the scanner runs. Returns what was done.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn tick(&self) -> Result<serde_json::Value, Error> {
        let (done,) = self.one("tick", sqlx::query_as("select paylatch.tick($1)").bind(&self.driver)).await?;
        Ok(done)
    }

    /// What is known of a flow, in words.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn explain(&self, flow_id: i64) -> Result<Vec<Explanation>, Error> {
        self.rows("explain", sqlx::query_as("select topic, says from paylatch.explain($1)").bind(flow_id)).await
    }

    /// The flow whose charge has this number, if there is one.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn find_pay_flow(&self, trade_order_no: &str) -> Result<Option<i64>, Error> {
        let query = sqlx::query_as("select flow_id from paylatch.find_pay_flow($1)").bind(trade_order_no);
        let rows: Vec<(Option<i64>,)> = self.rows("find_pay_flow", query).await?;
        Ok(rows.into_iter().find_map(|(flow_id,)| flow_id))
    }

    /// Whether each rule of "Never" holds, by number.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn verify(&self) -> Result<Vec<Rule>, Error> {
        let query = "select rule, name, ok, broken, detail from paylatch.verify() order by rule, name";
        self.rows("verify", sqlx::query_as(query)).await
    }

    /// What can be seen from inside the database.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn doctor(&self) -> Result<Vec<Check>, Error> {
        self.rows("doctor", sqlx::query_as("select check_name, ok, level, says from paylatch.doctor()")).await
    }

    /// Gauges and counters.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn metrics(&self) -> Result<Vec<Sample>, Error> {
        type Row = (String, Option<Json<BTreeMap<String, serde_json::Value>>>, Option<f64>);
        let query = sqlx::query_as("select name, labels, value from paylatch.metrics()");
        let rows: Vec<Row> = self.rows("metrics", query).await?;
        let label = |(name, value)| match value {
            serde_json::Value::String(text) => (name, text),
            other => (name, other.to_string()),
        };
        let sample = |(name, labels, value): Row| {
            let labels = labels.map(|Json(labels)| labels.into_iter().map(label).collect()).unwrap_or_default();
            Some(Sample { name, labels, value: value? })
        };
        Ok(rows.into_iter().filter_map(sample).collect())
    }

    /// Every channel and business target that the configuration must be able to serve.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn policy_endpoints(&self) -> Result<Vec<PolicyEndpoint>, Error> {
        let query = "select kind, name from paylatch.policy_endpoints() order by kind, name";
        self.rows("policy_endpoints", sqlx::query_as(query)).await
    }

    /// Versions as the catalog has them; needs nothing of ours to be there.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn versions(&self) -> Result<Versions, Error> {
        let query = "select (select extversion from pg_catalog.pg_extension where extname = 'paylatch') as extension,
                            (select default_version from pg_catalog.pg_available_extensions where name = 'paylatch')
                                as available";
        self.one("versions", sqlx::query_as(query)).await
    }

    /// The version of the library that the server has loaded.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn library_version(&self) -> Result<String, Error> {
        let (version,) = self.one("version", sqlx::query_as("select paylatch.version()")).await?;
        Ok(version)
    }

    /// The version of the extension that the migrations brought this database to.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn schema_version(&self) -> Result<String, Error> {
        let (version,) = self.one("schema_version", sqlx::query_as("select paylatch.schema_version()")).await?;
        Ok(version)
    }

    /// Who answers at the other end.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn server(&self) -> Result<Server, Error> {
        let query = "select current_setting('server_version') as version, current_database()::text as database,
                            session_user::text as \"user\", pg_is_in_recovery() as in_recovery";
        self.one(CONNECT, sqlx::query_as(query)).await
    }

    /// The server's own clock, as no fake can shift it.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn server_clock(&self) -> Result<OffsetDateTime, Error> {
        let (now,) = self.one("clock", sqlx::query_as("select clock_timestamp()")).await?;
        Ok(now)
    }

    /// Creates payments, as an application does. Returns the flow of each, in order.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn create_pay_flows(&self, requests: &[impl Serialize + Sync]) -> Result<Vec<i64>, Error> {
        let query = "select flow_id from paylatch.create_pay_flows($1) order by ordinal";
        let rows: Vec<(i64,)> = self.rows("create_pay_flows", sqlx::query_as(query).bind(Json(requests))).await?;
        Ok(rows.into_iter().map(|(flow_id,)| flow_id).collect())
    }

    /// Wishes a payment away, as an application does. Returns what became of the wish.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn cancel_pay_flow(&self, flow_id: i64) -> Result<String, Error> {
        let query = sqlx::query_as("select outcome from paylatch.cancel_pay_flow($1)").bind(flow_id);
        let (outcome,) = self.one("cancel_pay_flow", query).await?;
        Ok(outcome)
    }

    /// Runs a script of several statements.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn script(&self, command: &'static str, sql: &'static str) -> Result<(), Error> {
        let run = sqlx::raw_sql(sql).execute(&self.pool);
        self.within(command, async { run.await.map(|_| ()) }).await
    }

    /// Closes the pool's sessions.
    pub async fn close(&self) {
        self.pool.close().await;
    }

    pub(crate) async fn one<T>(&self, command: &'static str, query: Query<'_, T>) -> Result<T, Error>
    where
        T: for<'r> FromRow<'r, PgRow> + Send + Unpin,
    {
        let missing = Error::Database { command, source: sqlx::Error::RowNotFound };
        self.rows(command, query).await?.into_iter().next().ok_or(missing)
    }

    pub(crate) async fn rows<T>(&self, command: &'static str, query: Query<'_, T>) -> Result<Vec<T>, Error>
    where
        T: for<'r> FromRow<'r, PgRow> + Send + Unpin,
    {
        let work = async {
            if !self.transaction_pooling {
                return query.fetch_all(&self.pool).await;
            }
            // A transaction keeps one backend, so that what is prepared is there when it is executed.
            let mut transaction = self.pool.begin().await?;
            if let Some(limits) = &self.transaction_limits {
                sqlx::raw_sql(AssertSqlSafe(&**limits)).execute(&mut *transaction).await?;
            }
            let rows = query.persistent(false).fetch_all(&mut *transaction).await?;
            transaction.commit().await?;
            Ok(rows)
        };
        self.within(command, work).await
    }

    async fn within<T>(
        &self,
        command: &'static str,
        work: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, Error> {
        match tokio::time::timeout(self.timeout, work).await {
            Ok(done) => done.map_err(|source| Error::Database { command, source }),
            Err(_) => Err(Error::Silent { command, within: self.timeout }),
        }
    }
}

/// Which backend serves a session at the moment, and how many milliseconds ago it was started. Asked without a prepared
/// statement, so that any pooler lets it through.
///
/// # Errors
/// See [`Error::class`].
pub async fn backend_of(session: &mut PgConnection) -> Result<(i32, i64), Error> {
    let query = "select pid, (extract(epoch from clock_timestamp() - backend_start) * 1000)::bigint as age_ms
                 from pg_catalog.pg_stat_get_activity(pg_backend_pid())";
    let failed = |source| Error::Database { command: "find the session's backend", source };
    let row = sqlx::raw_sql(query).fetch_one(session).await.map_err(failed)?;
    Ok((row.try_get("pid").map_err(failed)?, row.try_get("age_ms").map_err(failed)?))
}

/// A query whose rows become `T`.
pub(crate) type Query<'q, T> = QueryAs<'q, Postgres, T, PgArguments>;

fn connect_options(settings: &config::Database, driver: &str) -> Result<PgConnectOptions, Error> {
    let options = PgConnectOptions::from_str(settings.url.expose());
    let options = options.map_err(|source| Error::Database { command: "read database.url", source })?;
    let options = options
        .application_name(&format!("paylatchd {driver}").chars().take(63).collect::<String>())
        // A pooler may refuse a start-up parameter that it does not know.
        .extra_float_digits(None);
    Ok(if settings.transaction_pooling { options.statement_cache_capacity(0) } else { options })
}

fn whole_i32(value: u128) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

/// A handout as the wire has it. Every column may be null, since a report without a next action returns it empty.
#[derive(Debug, FromRow)]
struct HandoutRow {
    flow_id: Option<i64>,
    lease_token: Option<i64>,
    version: Option<i64>,
    action: Option<String>,
    channel: Option<String>,
    scene: Option<String>,
    business_target: Option<String>,
    order_no: Option<String>,
    refund_no: Option<String>,
    merchant_id: Option<String>,
    user_id: Option<String>,
    biz_key: Option<String>,
    attempt_no: Option<i32>,
    amount: Option<i64>,
    currency: Option<String>,
    valid_until: Option<OffsetDateTime>,
    send_within_ms: Option<i32>,
    payload: Option<serde_json::Value>,
    refund_id: Option<i64>,
    channel_ref: Option<String>,
    charge_ref: Option<String>,
    sent_at: Option<OffsetDateTime>,
}

impl HandoutRow {
    /// The handout, unless it holds an action that this binary does not know: then its lease runs out, and a newer
    /// daemon takes it up. It must not spoil the others.
    fn known(self) -> Option<Handout> {
        let flow_id = self.flow_id;
        match self.handout()? {
            Ok(handout) => Some(handout),
            Err(unknown) => {
                tracing::error!(flow_id, error = %unknown, "this binary is too old for an action; it is left alone");
                None
            }
        }
    }

    fn handout(self) -> Option<Result<Handout, UnknownWord>> {
        let action = match self.action?.parse::<Action>() {
            Ok(action) => action,
            Err(unknown) => return Some(Err(unknown)),
        };
        Some(Ok(Handout {
            flow_id: self.flow_id?,
            lease_token: self.lease_token?,
            version: self.version?,
            action,
            channel: self.channel?,
            scene: self.scene?,
            business_target: self.business_target,
            order_no: self.order_no?,
            refund_no: self.refund_no,
            merchant_id: self.merchant_id?,
            user_id: self.user_id?,
            biz_key: self.biz_key?,
            attempt_no: self.attempt_no?,
            amount: self.amount?,
            currency: self.currency?,
            valid_until: self.valid_until,
            send_within: Duration::from_millis(u64::try_from(self.send_within_ms?).unwrap_or(0)),
            payload: self.payload,
            refund_id: self.refund_id,
            channel_ref: self.channel_ref,
            charge_ref: self.charge_ref,
            sent_at: self.sent_at,
        }))
    }
}

#[derive(Debug, FromRow)]
struct VerdictRow {
    disposition: String,
    status: Option<String>,
    frozen_reason: Option<String>,
    #[sqlx(flatten)]
    next: HandoutRow,
}

impl VerdictRow {
    fn verdict(self) -> Result<Verdict, Error> {
        let word = |source| Error::Word { command: "report_evidence", source };
        Ok(Verdict {
            // A rejected element need not have named a flow.
            flow_id: self.next.flow_id.unwrap_or_default(),
            refund_id: self.next.refund_id,
            disposition: self.disposition.parse().map_err(word)?,
            status: self.status,
            frozen_reason: self.frozen_reason,
            next: self.next.known(),
        })
    }
}
