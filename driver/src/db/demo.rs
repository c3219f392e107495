//! What the demo asks of its own database, beyond the commands: functions of its application (`demo/app.sql`).

use sqlx::FromRow;

use super::Db;
use crate::demo::{Due, Payment, Refund};
use crate::error::Error;

/// How many payments of a demo's run stand where.
#[derive(Debug, Clone, PartialEq, Eq, FromRow)]
pub struct Standing {
    /// What they are for.
    pub scene: String,
    /// Their currency.
    pub currency: String,
    /// Their state.
    pub status: String,
    /// Whether they wait for a person.
    pub frozen: bool,
    /// How many.
    pub flows: i64,
    /// How much money, as a person reads it.
    pub shown: String,
}

/// How many answers to one action were lost in a demo's run.
#[derive(Debug, Clone, PartialEq, Eq, FromRow)]
pub struct LostAnswers {
    /// The action.
    pub action: String,
    /// How many.
    pub answers: i64,
}

/// A payment that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromRow)]
pub struct Ended {
    /// The flow.
    pub flow_id: i64,
    /// In the minor unit.
    pub amount: i64,
    /// Whether what was paid for was done.
    pub succeeded: bool,
}

/// What came of asking for a refund.
#[derive(Debug, Clone, PartialEq, Eq, FromRow)]
pub struct RefundAnswer {
    /// reserved, replayed, over_limit and so on.
    pub outcome: String,
    /// The refund, if there is one.
    pub refund_id: Option<i64>,
}

/// What is on its way beside payments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromRow)]
pub struct OnItsWay {
    /// Refunds that have not ended.
    pub refunds: i64,
    /// Webhooks that were received and not applied.
    pub webhooks: i64,
    /// Events that were not published.
    pub events: i64,
}

/// Webhooks as the database counts them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromRow)]
pub struct Webhooks {
    /// How many.
    pub events: i64,
    /// How often they came, all together.
    pub received: i64,
}

impl Db {
    /// Makes the login of a demo's daemon and returns its name.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn demo_driver_login(&self, password: &str) -> Result<String, Error> {
        let query = sqlx::query_as("select app.make_driver_login($1)").bind(password);
        let (user,) = self.one("make the daemon's login", query).await?;
        Ok(user)
    }

    /// Where the payments of a demo's run stand.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn demo_standing(&self, first_flow_id: i64) -> Result<Vec<Standing>, Error> {
        let query = "select scene, currency, status, frozen, flows, shown from app.standing($1)";
        self.rows("count payments", sqlx::query_as(query).bind(first_flow_id)).await
    }

    /// Every payment of a demo's run.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn demo_payments(&self, first_flow_id: i64) -> Result<Vec<Payment>, Error> {
        let query = "select * from app.payments($1)";
        self.rows("list payments", sqlx::query_as(query).bind(first_flow_id)).await
    }

    /// A payment of a demo's run that lived through a lost answer.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn demo_lost_answer(&self, first_flow_id: i64) -> Result<Option<i64>, Error> {
        let query = sqlx::query_as("select app.lost_answer($1)").bind(first_flow_id);
        let (flow_id,) = self.one("find a lost answer", query).await?;
        Ok(flow_id)
    }

    /// A payment of a demo's run that has not ended.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn demo_unfinished(&self, first_flow_id: i64) -> Result<Option<i64>, Error> {
        let query = sqlx::query_as("select app.unfinished($1)").bind(first_flow_id);
        let (flow_id,) = self.one("find an unfinished payment", query).await?;
        Ok(flow_id)
    }

    /// How many answers were lost in a demo's run.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn demo_lost_answers(&self, first_flow_id: i64) -> Result<Vec<LostAnswers>, Error> {
        let query = "select action, answers from app.lost_answers($1)";
        self.rows("count lost answers", sqlx::query_as(query).bind(first_flow_id)).await
    }

    /// Which of these payments have ended.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn demo_ended(&self, flow_ids: &[i64]) -> Result<Vec<Ended>, Error> {
        let query = "select flow_id, amount, succeeded from app.ended($1)";
        self.rows("find ended payments", sqlx::query_as(query).bind(flow_ids)).await
    }

    /// Asks for money back, as an application does in SQL.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn demo_refund(&self, flow_id: i64, amount: i64, key: Option<&str>) -> Result<RefundAnswer, Error> {
        let query = "select outcome, refund_id from paylatch.request_refund($1, $2, 'the customer is not happy', $3)";
        self.one("request_refund", sqlx::query_as(query).bind(flow_id).bind(amount).bind(key)).await
    }

    /// Every refund of a demo's run but the compensations.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn demo_refunds(&self, first_flow_id: i64) -> Result<Vec<Refund>, Error> {
        let query = "select * from app.refunds($1)";
        self.rows("list refunds", sqlx::query_as(query).bind(first_flow_id)).await
    }

    /// What of a demo's run is on its way, beside payments.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn demo_on_its_way(&self, first_flow_id: i64) -> Result<OnItsWay, Error> {
        let query = "select refunds, webhooks, events from app.on_its_way($1)";
        self.one("count what is on its way", sqlx::query_as(query).bind(first_flow_id)).await
    }

    /// The webhooks of a demo's run.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn demo_webhooks(&self, first_flow_id: i64) -> Result<Webhooks, Error> {
        let query = "select events, received from app.webhooks($1)";
        self.one("count webhooks", sqlx::query_as(query).bind(first_flow_id)).await
    }

    /// The events that a demo's run must have made.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn demo_events_due(&self, first_flow_id: i64) -> Result<Vec<Due>, Error> {
        let query = "select event_id, type from app.events_due($1)";
        self.rows("list events", sqlx::query_as(query).bind(first_flow_id)).await
    }

    /// Makes the demo's place in the events.
    ///
    /// # Errors
    /// See [`Error::class`].
    pub async fn demo_sink(&self) -> Result<(), Error> {
        let (_,): (bool,) = self.one("add_sink", sqlx::query_as("select paylatch.add_sink('nats')")).await?;
        Ok(())
    }
}
