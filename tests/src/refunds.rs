//! Refunds by hand: asking for one, and looking at it.

use sqlx::{FromRow, PgConnection};

use crate::Database;

/// What `request_refund` answers.
#[derive(Debug, Clone, PartialEq, Eq, FromRow)]
pub struct Asked {
    /// reserved, needs_approval, over_limit ...
    pub outcome: String,
    /// Its identity, where there is one.
    pub refund_id: Option<i64>,
    /// Its number.
    pub refund_order_no: Option<String>,
    /// Where it stands.
    pub status: Option<String>,
    /// What is left to refund.
    pub refundable: i64,
}

/// What an application sees of a refund.
#[derive(Debug, Clone, PartialEq, Eq, FromRow)]
pub struct Refund {
    /// Its identity.
    pub refund_id: i64,
    /// Why it exists.
    pub kind: String,
    /// Its number.
    pub refund_order_no: String,
    /// Where it stands.
    pub status: String,
    /// In minor units.
    pub amount: i64,
    /// Raised by one with every change.
    pub version: i64,
    /// Why it waits for a person.
    pub frozen_reason: Option<String>,
}

/// Asks for a refund.
pub async fn ask(session: &mut PgConnection, flow_id: i64, amount: i64) -> Asked {
    let ask = sqlx::query_as("select * from paylatch.request_refund($1, $2, 'a test')").bind(flow_id).bind(amount);
    ask.fetch_one(session).await.unwrap_or_else(|e| panic!("ask for {amount} of flow {flow_id}: {e}"))
}

impl Database {
    /// Asks for a refund, as a superuser.
    pub async fn ask_refund(&self, flow_id: i64, amount: i64) -> Asked {
        ask(&mut self.pool().acquire().await.expect("a session"), flow_id, amount).await
    }

    /// Every refund of a flow, oldest first.
    pub async fn refunds(&self, flow_id: i64) -> Vec<Refund> {
        let refunds = sqlx::query_as("select * from paylatch.get_refunds($1)").bind(flow_id).fetch_all(self.pool());
        refunds.await.unwrap_or_else(|e| panic!("refunds of flow {flow_id}: {e}"))
    }
}
