//! What the daemon counts of its own, beside what the database measures.
//!
//! Everything lies in one registry that belongs to one worker, so that several can run in one process.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use paylatch_core::outcome::Outcome;
use prometheus::{
    HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};

use crate::db::Sample;
use crate::evidence::Handout;

/// Upper bounds of the latency histogram, in seconds: from an in-process answer to the longest time-out in use.
const LATENCY_BOUNDS: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// What the HTTP API counts.
#[derive(Debug, Clone)]
pub struct HttpMetrics {
    requests: IntCounterVec,
    latency: HistogramVec,
    /// Requests under way, those that wait included.
    pub in_flight: IntGauge,
}

impl HttpMetrics {
    fn registered(registry: &Registry) -> prometheus::Result<Self> {
        let requests = IntCounterVec::new(
            Opts::new("paylatch_http_requests_total", "Requests to the HTTP API, by how they were answered."),
            &["method", "route", "status"],
        )?;
        let latency = HistogramVec::new(
            HistogramOpts::new("paylatch_http_request_seconds", "How long answers took, waiting included.")
                .buckets(LATENCY_BOUNDS.to_vec()),
            &["method", "route"],
        )?;
        let in_flight =
            IntGauge::new("paylatch_http_requests_in_flight", "Requests to the HTTP API that are under way.")?;
        registry.register(Box::new(requests.clone()))?;
        registry.register(Box::new(latency.clone()))?;
        registry.register(Box::new(in_flight.clone()))?;
        Ok(Self { requests, latency, in_flight })
    }

    /// Counts an answer.
    pub fn answered(&self, method: &str, route: &str, status: u16, took: Duration) {
        self.requests.with_label_values(&[method, route, &status.to_string()]).inc();
        self.latency.with_label_values(&[method, route]).observe(took.as_secs_f64());
    }

    /// Counts a request whose client left before its answer.
    pub fn left(&self, method: &str, route: &str) {
        self.requests.with_label_values(&[method, route, "left"]).inc();
    }
}

/// What the relays count.
#[derive(Debug, Clone)]
pub struct RelayMetrics {
    events: IntCounterVec,
    connected: IntGaugeVec,
}

impl RelayMetrics {
    fn registered(registry: &Registry) -> prometheus::Result<Self> {
        let events = IntCounterVec::new(
            Opts::new("paylatch_relay_events_total", "Events published to brokers, or refused by them."),
            &["sink", "result"],
        )?;
        let connected = IntGaugeVec::new(
            Opts::new("paylatch_relay_connected", "Whether the sink's broker takes events from this daemon."),
            &["sink"],
        )?;
        registry.register(Box::new(events.clone()))?;
        registry.register(Box::new(connected.clone()))?;
        Ok(Self { events, connected })
    }

    /// Counts what became of a batch.
    pub fn published(&self, sink: &str, published: usize, refused: usize) {
        for (result, count) in [("published", published), ("refused", refused)] {
            self.events.with_label_values(&[sink, result]).inc_by(count as u64);
        }
    }

    /// Notes whether the broker takes events.
    pub fn connected(&self, sink: &str, connected: bool) {
        self.connected.with_label_values(&[sink]).set(connected.into());
    }
}

/// A daemon's counters.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Registry,
    calls: IntCounterVec,
    latency: HistogramVec,
    reports: IntCounterVec,
    webhooks: IntCounterVec,
    /// Actions held: calls under way and answers not yet reported.
    pub in_flight: IntGauge,
    /// Statements that claimed actions.
    pub claims: IntCounter,
    /// Commands that the database did not carry out.
    pub database_errors: IntCounter,
    /// What the HTTP API counts.
    pub http: HttpMetrics,
    /// What the relays count.
    pub relay: RelayMetrics,
}

impl Metrics {
    /// A fresh set of counters, all zero.
    ///
    /// # Panics
    /// Never: the names are constant, well-formed and distinct, which a test shows.
    pub fn new() -> Self {
        Self::registered().unwrap_or_else(|e| unreachable!("metric names are well-formed: {e}"))
    }

    fn registered() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let calls = IntCounterVec::new(
            Opts::new("paylatch_calls_total", "Calls to wallets and businesses, by how they ended."),
            &["target", "action", "outcome"],
        )?;
        let latency = HistogramVec::new(
            HistogramOpts::new("paylatch_call_seconds", "How long calls took.").buckets(LATENCY_BOUNDS.to_vec()),
            &["target", "action"],
        )?;
        let reports = IntCounterVec::new(
            Opts::new("paylatch_reports_total", "Reported evidence, by what the database made of it."),
            &["disposition"],
        )?;
        let webhooks = IntCounterVec::new(
            Opts::new("paylatch_webhooks_total", "Webhooks, by how they were answered."),
            &["channel", "result"],
        )?;
        let in_flight =
            IntGauge::new("paylatch_held_actions", "Actions held: calls under way and answers not yet reported.")?;
        let claims = IntCounter::new("paylatch_claims_total", "Statements that claimed actions.")?;
        let database_errors =
            IntCounter::new("paylatch_database_errors_total", "Commands that the database did not carry out.")?;
        registry.register(Box::new(calls.clone()))?;
        registry.register(Box::new(latency.clone()))?;
        registry.register(Box::new(reports.clone()))?;
        registry.register(Box::new(webhooks.clone()))?;
        registry.register(Box::new(in_flight.clone()))?;
        registry.register(Box::new(claims.clone()))?;
        registry.register(Box::new(database_errors.clone()))?;
        let http = HttpMetrics::registered(&registry)?;
        let relay = RelayMetrics::registered(&registry)?;
        Ok(Self { registry, calls, latency, reports, webhooks, in_flight, claims, database_errors, http, relay })
    }

    /// Counts a call that was made.
    pub fn called(&self, handout: &Handout, outcome: Outcome, took: Duration) {
        let action = handout.action.as_str();
        self.calls.with_label_values(&[target(handout), action, outcome.as_str()]).inc();
        self.latency.with_label_values(&[target(handout), action]).observe(took.as_secs_f64());
    }

    /// Counts what became of one piece of evidence.
    pub fn reported(&self, disposition: &str) {
        self.reports.with_label_values(&[disposition]).inc();
    }

    /// Counts one webhook by how it was answered.
    pub fn webhook(&self, channel: &str, result: &str) {
        self.webhooks.with_label_values(&[channel, result]).inc();
    }

    /// All of it in Prometheus' text format, followed by what the database measured, if it could be asked.
    pub fn text(&self, database: Option<&[Sample]>) -> String {
        let mut text = TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap_or_default();
        let up = u8::from(database.is_some());
        let _ = write!(
            text,
            "# HELP paylatch_database_up Whether the database answered.\n# TYPE paylatch_database_up gauge\n\
             paylatch_database_up {up}\n"
        );
        text.push_str(&samples_text(database.unwrap_or_default()));
        text
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

/// Whom a call goes to: the channel or the business target.
fn target(handout: &Handout) -> &str {
    if handout.action.is_wallet() { &handout.channel } else { handout.business_target.as_deref().unwrap_or("") }
}

/// Samples of the database, those of one name together, as the format demands.
fn samples_text(samples: &[Sample]) -> String {
    let mut by_name: BTreeMap<&str, Vec<&Sample>> = BTreeMap::new();
    for sample in samples {
        by_name.entry(&sample.name).or_default().push(sample);
    }
    let mut text = String::new();
    for (name, samples) in by_name {
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        let _ = writeln!(text, "# TYPE paylatch_{name} {kind}");
        for sample in samples {
            let labels: Vec<_> = sample.labels.iter().map(|(k, v)| format!("{k}=\"{}\"", escaped(v))).collect();
            let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
            let _ = writeln!(text, "paylatch_{name}{labels} {}", sample.value);
        }
    }
    text
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(name: &str, labels: &[(&str, &str)], value: f64) -> Sample {
        let labels = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Sample { name: name.to_owned(), labels, value }
    }

    #[test]
    fn names_are_well_formed_and_distinct() {
        assert!(Metrics::registered().is_ok());
    }

    #[test]
    fn samples_of_one_name_stand_together() {
        let samples = [
            sample("flows", &[("status", "PAYED")], 2.0),
            sample("queue_lag_seconds", &[], 0.5),
            sample("flows", &[("status", "a\"b\\c\nd")], 1.0),
            sample("rounds_total", &[], 7.0),
        ];
        let text = Metrics::new().text(Some(&samples));
        let expected = "# TYPE paylatch_flows gauge\npaylatch_flows{status=\"PAYED\"} 2\n\
                        paylatch_flows{status=\"a\\\"b\\\\c\\nd\"} 1\n\
                        # TYPE paylatch_queue_lag_seconds gauge\npaylatch_queue_lag_seconds 0.5\n\
                        # TYPE paylatch_rounds_total counter\npaylatch_rounds_total 7\n";
        assert!(text.ends_with(expected), "{text}");
        assert!(text.contains("paylatch_database_up 1\n"));
    }

    #[test]
    fn a_silent_database_shows() {
        assert!(Metrics::new().text(None).ends_with("paylatch_database_up 0\n"));
    }
}
