//! `paylatchd webhook`: where merchants' events are sent, for an operator.

use clap::Subcommand;

use super::table::{number, table};
use crate::config::Config;
use crate::db::Db;
use crate::error::Error;

/// What may be done with endpoints and deliveries.
#[derive(Debug, Subcommand)]
pub enum WebhookCommand {
    /// Send a merchant's events to a URL from now on; prints the secret that they are signed with, this once
    Add {
        /// Whose events
        #[arg(long)]
        merchant: String,
        /// Where they go, https://HOST/PATH
        #[arg(long)]
        url: String,
        /// A type such as order.paid, or refund.*; may be repeated. Without any: all events
        #[arg(long = "event", value_name = "TYPE")]
        events: Vec<String>,
    },
    /// List every endpoint and how it is doing
    List,
    /// Make a new secret and print it; the one before signs as well for a while
    Rotate {
        /// Which endpoint
        endpoint: i64,
        /// For how many hours both sign
        #[arg(long, default_value_t = 24)]
        overlap_hours: i32,
    },
    /// Stop an endpoint
    Disable {
        /// Which endpoint
        endpoint: i64,
        /// Why, for whoever finds it stopped
        #[arg(long, default_value = "by hand")]
        why: String,
    },
    /// Have a stopped endpoint go on; what waits for it goes out
    Enable {
        /// Which endpoint
        endpoint: i64,
    },
    /// List the newest deliveries
    Deliveries {
        /// Of one endpoint
        #[arg(long)]
        endpoint: Option<i64>,
        /// pending, delivered or dead
        #[arg(long)]
        status: Option<String>,
    },
    /// Send once more: a delivery, or all deliveries of an event
    Redeliver {
        /// One delivery
        #[arg(long, required_unless_present = "event", conflicts_with = "event")]
        delivery: Option<i64>,
        /// An event's id, evt_...
        #[arg(long)]
        event: Option<String>,
    },
}

/// Does it.
pub async fn run(config: &Config, command: WebhookCommand) -> Result<(), Error> {
    let db = Db::connect(&config.database, "webhook").await?;
    let unknown =
        |endpoint: i64, what: &str| Error::NotFound(format!("there is no endpoint {endpoint} that is {what}"));
    match command {
        WebhookCommand::Add { merchant, url, events } => {
            let (endpoint, secret) = db.create_webhook_endpoint(&merchant, &url, &events).await?;
            eprintln!("endpoint {endpoint}; its secret, which is shown this once:");
            println!("{secret}");
        }
        WebhookCommand::Rotate { endpoint, overlap_hours } => {
            println!("{}", db.rotate_webhook_secret(endpoint, overlap_hours).await?);
        }
        WebhookCommand::Disable { endpoint, why } => {
            if !db.disable_webhook_endpoint(endpoint, &why).await? {
                return Err(unknown(endpoint, "enabled"));
            }
        }
        WebhookCommand::Enable { endpoint } => {
            if !db.enable_webhook_endpoint(endpoint).await? {
                return Err(unknown(endpoint, "disabled"));
            }
        }
        WebhookCommand::List => list(&db).await?,
        WebhookCommand::Deliveries { endpoint, status } => deliveries(&db, endpoint, status.as_deref()).await?,
        WebhookCommand::Redeliver { delivery, event } => {
            println!("{} to be sent", db.redeliver_webhook(delivery, event.as_deref()).await?);
        }
    }
    Ok(())
}

async fn list(db: &Db) -> Result<(), Error> {
    let mut rows = table(&["id", "merchant", "url", "events", "state", "pending", "dead"]);
    for endpoint in db.webhook_endpoints().await? {
        let state = match (&endpoint.disabled_why, endpoint.failures) {
            (Some(why), _) => format!("disabled: {why}"),
            (None, 0) => "ok".to_owned(),
            (None, failures) => format!("{failures} failures in a row"),
        };
        rows.add_row(vec![
            number(endpoint.endpoint_id),
            endpoint.merchant_id.into(),
            endpoint.url.into(),
            endpoint.events.map_or_else(|| "all".to_owned(), |events| events.join(" ")).into(),
            state.into(),
            number(endpoint.pending),
            number(endpoint.dead),
        ]);
    }
    println!("{rows}");
    Ok(())
}

async fn deliveries(db: &Db, endpoint: Option<i64>, status: Option<&str>) -> Result<(), Error> {
    let mut rows = table(&["id", "endpoint", "event", "type", "status", "tries", "last answer", "due"]);
    for delivery in db.deliveries(endpoint, status).await? {
        let answer = delivery.last_status.map(|status| status.to_string()).or(delivery.last_error);
        rows.add_row(vec![
            number(delivery.delivery_id),
            number(delivery.endpoint_id),
            delivery.event_id.into(),
            delivery.r#type.into(),
            delivery.status.into(),
            number(delivery.tries),
            answer.unwrap_or_default().into(),
            delivery.due_at.map(|at| at.to_string()).unwrap_or_default().into(),
        ]);
    }
    println!("{rows}");
    Ok(())
}
