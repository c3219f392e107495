//! NATS JetStream: each event to SUBJECT.TYPE, under its `event_id` as message id, acknowledged by the stream.
//!
//! The stream drops what comes twice within its duplicate window; subscribers drop the rest.

use std::error::Error as _;
use std::time::Duration;

use async_nats::header::{HeaderMap, NATS_MESSAGE_ID};
use async_nats::jetstream::context::PublishErrorKind;
use async_nats::jetstream::{self, ErrorCode, stream};
use async_nats::{ConnectOptions, ServerAddr};

use super::{Event, PublishError};
use crate::config;

/// A connection, and the stream that takes our events.
pub(super) struct Nats {
    context: jetstream::Context,
    subject: String,
}

impl Nats {
    /// Connects, and makes sure that the stream is there and takes our subjects.
    pub(super) async fn open(settings: &config::Relay) -> Result<Self, String> {
        let timeout = Duration::from_millis(settings.publish_timeout_ms);
        let addresses = addresses(settings.url.as_ref().map_or("", |url| url.expose()))?;
        let mut options = ConnectOptions::new().name("paylatchd").connection_timeout(timeout);
        if let Some(token) = &settings.token {
            options = options.token(token.expose().to_owned());
        }
        if let (Some(user), Some(password)) = (&settings.user, &settings.password) {
            options = options.user_and_password(user.clone(), password.expose().to_owned());
        }
        let client = options.connect(addresses).await.map_err(|e| format!("connect to NATS: {e}"))?;
        let context = jetstream::ContextBuilder::new()
            .timeout(timeout)
            .ack_timeout(timeout)
            .max_ack_inflight(settings.max_in_flight)
            .build(client);
        let subjects = format!("{}.>", settings.subject);
        let wanted =
            stream::Config { name: settings.stream.clone(), subjects: vec![subjects.clone()], ..Default::default() };
        let stream = context.get_or_create_stream(wanted).await;
        let stream = stream.map_err(|e| format!("stream {} cannot be used or made: {e}", settings.stream))?;
        let taken = &stream.cached_info().config.subjects;
        if !taken.iter().any(|pattern| covers(pattern, &subjects)) {
            return Err(format!(
                "stream {} takes {}, not {subjects}: add that to its subjects, or set relay's subject or stream",
                settings.stream,
                taken.join(", ")
            ));
        }
        Ok(Self { context, subject: settings.subject.clone() })
    }

    /// Waits until the stream has stored it.
    pub(super) async fn publish(&self, event: &Event) -> Result<(), PublishError> {
        let mut headers = HeaderMap::new();
        headers.insert(NATS_MESSAGE_ID, event.event_id.as_str());
        let subject = format!("{}.{}", self.subject, event.kind);
        let sent = self.context.publish_with_headers(subject, headers, event.envelope.clone().into()).await;
        let acknowledged = match sent {
            Ok(acknowledged) => acknowledged.await,
            Err(error) => Err(error),
        };
        acknowledged.map(|_| ()).map_err(|error| {
            let code = error.source().and_then(|s| s.downcast_ref::<jetstream::Error>()).map(|e| e.error_code());
            if error.kind() == PublishErrorKind::MaxPayloadExceeded
                || code == Some(ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM)
            {
                PublishError::Refused(error.to_string())
            } else {
                PublishError::Unavailable(format!("publish to NATS: {error}"))
            }
        })
    }
}

fn addresses(urls: &str) -> Result<Vec<ServerAddr>, String> {
    // The address itself may hold a password.
    let parsed = urls.split(',').map(|url| url.trim().parse::<ServerAddr>());
    parsed.collect::<Result<_, _>>().map_err(|_| "relay's url is no NATS address, as nats://127.0.0.1:4222".to_owned())
}

/// Whether a stream with this subject pattern takes all of `wanted`, which ends in `>`.
fn covers(pattern: &str, wanted: &str) -> bool {
    let mut wanted = wanted.split('.');
    for token in pattern.split('.') {
        match (token, wanted.next()) {
            (">", Some(_)) => return true,
            ("*", Some(other)) if other != ">" => {}
            (token, Some(other)) if token == other => {}
            _ => return false,
        }
    }
    wanted.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_must_take_every_type() {
        for pattern in [">", "paylatch.>", "*.>", "paylatch.*"] {
            assert_eq!(covers(pattern, "paylatch.>"), pattern.ends_with('>'), "{pattern}");
        }
        for pattern in ["paylatch", "paylatch.flow.>", "other.>", ""] {
            assert!(!covers(pattern, "paylatch.>"), "{pattern}");
        }
        assert!(covers("eu.*.>", "eu.pay.>"));
        assert!(!covers("eu.pay.flow.>", "eu.pay.>"));
    }

    #[test]
    fn an_address_that_is_none_is_not_repeated() {
        assert!(addresses("nats://a:4222, tls://user:pass@b:4222").is_ok());
        let error = addresses("nats://user:hunter2@:port").err();
        assert!(error.is_some_and(|error| !error.contains("hunter2")));
    }
}
