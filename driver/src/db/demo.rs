//! What the demo asks of its own database, beyond the commands: functions of its application (`demo/app.sql`).

use sqlx::FromRow;

use super::Db;
use crate::demo::Payment;
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
}
