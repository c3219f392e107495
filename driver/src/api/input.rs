//! Reading what a client sent, strictly: bodies within their size and time, fields one by one.
//!
//! Invariants: nothing is read into memory beyond `max_body_bytes`; a field that nothing reads is an error, and every
//! error names its field; a number of money is an integer as it stands in the text, never a float that was rounded; no
//! text that PostgreSQL could not store (NUL) gets further than this.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;
use futures::StreamExt;
use serde::de::{DeserializeOwned, Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::problem::{FieldError, Kind, Problem};

/// The largest amount: what a double holds exactly, and with it every JSON parser.
pub const MAX_AMOUNT: i64 = 9_007_199_254_740_991;

/// The longest `Idempotency-Key`.
const MAX_KEY: usize = 255;

/// Reads a body of at most `limit` bytes within `timeout`.
///
/// # Errors
/// `body-too-large`, `timeout`, or `bad-request` where it broke off.
pub async fn body(body: Body, limit: usize, timeout: Duration) -> Result<Vec<u8>, Problem> {
    let read = async {
        let mut bytes = Vec::new();
        let mut stream = body.into_data_stream();
        while let Some(chunk) = stream.next().await {
            let chunk = chunk.map_err(|_| Problem::says(Kind::BadRequest, "the body broke off"))?;
            if bytes.len() + chunk.len() > limit {
                return Err(too_large(limit));
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    };
    let slow = |_| Problem::says(Kind::Timeout, format!("the body must be here within {} ms", timeout.as_millis()));
    tokio::time::timeout(timeout, read).await.map_err(slow)?
}

/// An answer that is given before the body was read ends its connection. This says so to the client, which would
/// otherwise send its next request into the closing one.
pub async fn close_after_unread(request: Request, next: Next) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    let read = Arc::new(AtomicBool::new(false));
    let at_end = Arc::clone(&read);
    let request = request.map(|body| {
        let end = futures::stream::poll_fn(move |_| {
            at_end.store(true, Ordering::Relaxed);
            Poll::Ready(None)
        });
        Body::from_stream(body.into_data_stream().chain(end))
    });
    let mut response = next.run(request).await;
    if !read.load(Ordering::Relaxed) {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Refuses a body by what its headers say of it, before any of it is read.
///
/// # Errors
/// `unsupported-media-type`, `body-too-large`.
pub fn check_head(headers: &HeaderMap, limit: usize) -> Result<(), Problem> {
    let media_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = media_type.split(';').next().unwrap_or_default().trim();
    if !essence.eq_ignore_ascii_case("application/json") {
        return Err(Problem::says(Kind::UnsupportedMediaType, "send Content-Type: application/json"));
    }
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > limit as u64) {
        return Err(too_large(limit));
    }
    Ok(())
}

fn too_large(limit: usize) -> Problem {
    Problem::says(Kind::BodyTooLarge, format!("a body has at most {limit} bytes"))
}

/// The request's `Idempotency-Key`.
///
/// # Errors
/// `idempotency-key-missing`.
pub fn idempotency_key(headers: &HeaderMap) -> Result<String, Problem> {
    let mut keys = headers.get_all("idempotency-key").iter();
    let key = match (keys.next(), keys.next()) {
        (Some(key), None) => key.to_str().ok().map(str::trim),
        _ => None,
    };
    let fits = |key: &&str| (1..=MAX_KEY).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_graphic());
    key.filter(fits).map(str::to_owned).ok_or_else(|| {
        let says = format!("send one Idempotency-Key of 1 to {MAX_KEY} visible ASCII characters, a UUID for example");
        Problem::says(Kind::KeyMissing, says)
    })
}

/// An id as paths have it: a positive decimal number. Anything else is no id of ours, hence not found.
pub fn id(text: &str) -> Option<i64> {
    let digits = text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0') && text.len() <= 16;
    digits.then(|| text.parse().ok()).flatten()
}

/// A JSON object, taken field by field. Errors gather, so that one answer names them all.
pub struct Fields {
    fields: BTreeMap<String, Box<RawValue>>,
    errors: Vec<FieldError>,
}

impl Fields {
    /// The object in `body`.
    ///
    /// # Errors
    /// `bad-request` unless the body is one JSON object in UTF-8 that names no field twice.
    pub fn parse(body: &[u8]) -> Result<Self, Problem> {
        let text = std::str::from_utf8(body).map_err(|_| Problem::says(Kind::BadRequest, "the body is not UTF-8"))?;
        let Unique(fields) = serde_json::from_str(text)
            .map_err(|e| Problem::says(Kind::BadRequest, format!("the body is not a JSON object: {e}")))?;
        Ok(Self { fields, errors: Vec::new() })
    }

    /// A text of 1 to `most` characters. What stands for a wrong one is never used: [`Fields::finish`] refuses first.
    pub fn text(&mut self, name: &str, most: usize) -> String {
        match self.optional_text(name, most) {
            Some(text) => text,
            None => self.missing(name),
        }
    }

    /// The same, or nothing.
    pub fn optional_text(&mut self, name: &str, most: usize) -> Option<String> {
        let text: String = self.take(name, "a text")?;
        let length = text.chars().count();
        if length == 0 || length > most {
            return self.wrong(name, format!("give 1 to {most} characters"));
        }
        if text.contains('\0') {
            return self.wrong(name, "the character U+0000 cannot be stored".to_owned());
        }
        Some(text)
    }

    /// A whole number of minor units, at least `least`.
    pub fn amount(&mut self, name: &str, least: i64) -> i64 {
        match self.optional_amount(name, least) {
            Some(amount) => amount,
            None => self.missing(name),
        }
    }

    /// The same, or nothing.
    pub fn optional_amount(&mut self, name: &str, least: i64) -> Option<i64> {
        let expected = format!("a whole number of minor units from {least} to {MAX_AMOUNT}");
        let amount: i64 = self.take(name, &expected)?;
        if !(least..=MAX_AMOUNT).contains(&amount) {
            return self.wrong(name, format!("give {expected}"));
        }
        Some(amount)
    }

    /// A time, or nothing.
    pub fn optional_time(&mut self, name: &str) -> Option<OffsetDateTime> {
        let expected = "a time as RFC 3339 has it, 2026-12-01T08:00:00Z for example";
        let text: String = self.take(name, expected)?;
        match OffsetDateTime::parse(&text, &Rfc3339) {
            Ok(time) => Some(time),
            Err(_) => self.wrong(name, format!("give {expected}")),
        }
    }

    /// A JSON object as it was sent, or nothing; at most `most` bytes.
    pub fn optional_object(&mut self, name: &str, most: usize) -> Option<Box<RawValue>> {
        let raw = self.fields.remove(name).filter(|raw| raw.get() != "null")?;
        if raw.get().len() > most {
            return self.wrong(name, format!("give at most {most} bytes; store more elsewhere and pass a reference"));
        }
        // Read once, so that a nesting or a number that nobody could store is found here.
        match serde_json::from_str::<serde_json::Value>(raw.get()) {
            Ok(value) if !value.is_object() => self.wrong(name, "give a JSON object".to_owned()),
            Ok(value) if has_nul(&value) => self.wrong(name, "the character U+0000 cannot be stored".to_owned()),
            Ok(_) => Some(raw),
            Err(e) => self.wrong(name, format!("cannot be read: {e}")),
        }
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// `invalid`, with every wrong field, also those that nothing has asked for.
    pub fn finish(mut self, known: &[&str]) -> Result<(), Problem> {
        for name in self.fields.keys() {
            let detail = format!("there is no such field; there are: {}", known.join(", "));
            self.errors.push(FieldError { field: shown(name), detail });
        }
        if self.errors.is_empty() { Ok(()) } else { Err(Problem::invalid(self.errors)) }
    }

    fn take<T: DeserializeOwned>(&mut self, name: &str, expected: &str) -> Option<T> {
        let raw = self.fields.remove(name).filter(|raw| raw.get() != "null")?;
        match serde_json::from_str(raw.get()) {
            Ok(value) => Some(value),
            Err(_) => self.wrong(name, format!("give {expected}")),
        }
    }

    fn wrong<T>(&mut self, name: &str, detail: String) -> Option<T> {
        self.errors.push(FieldError { field: name.to_owned(), detail });
        None
    }

    fn missing<T: Default>(&mut self, name: &str) -> T {
        if !self.errors.iter().any(|error| error.field == name) {
            self.errors.push(FieldError { field: name.to_owned(), detail: "is missing".to_owned() });
        }
        T::default()
    }
}

/// A name that a stranger chose, short enough to be said back.
fn shown(name: &str) -> String {
    name.chars().take(64).collect()
}

fn has_nul(value: &serde_json::Value) -> bool {
    match value {
        serde_json::Value::String(text) => text.contains('\0'),
        serde_json::Value::Array(values) => values.iter().any(has_nul),
        serde_json::Value::Object(fields) => fields.iter().any(|(name, value)| name.contains('\0') || has_nul(value)),
        _ => false,
    }
}

/// A JSON object whose fields are named once each.
struct Unique(BTreeMap<String, Box<RawValue>>);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Unique;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Unique, A::Error> {
                let mut fields = BTreeMap::new();
                while let Some((name, value)) = map.next_entry::<String, Box<RawValue>>()? {
                    if fields.contains_key(&name) {
                        return Err(A::Error::custom(format!("field {:?} stands there twice", shown(&name))));
                    }
                    fields.insert(name, value);
                }
                Ok(Unique(fields))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn refused(body: &str, read: impl Fn(&mut Fields)) -> Vec<(String, String)> {
        let mut fields = Fields::parse(body.as_bytes()).unwrap();
        read(&mut fields);
        let problem = fields.finish(&["a", "b"]).unwrap_err();
        problem.errors().iter().map(|error| (error.field.clone(), error.detail.clone())).collect()
    }

    #[test]
    fn money_is_an_integer_as_it_stands_in_the_text() {
        for bad in ["1.0", "1e2", "\"1\"", "true", "9007199254740992", "0", "-1", "-0", "1E0", "99999999999999999999"] {
            let errors = refused(&format!("{{\"a\": {bad}}}"), |fields| {
                fields.amount("a", 1);
            });
            assert_eq!(errors.len(), 1, "{bad}: {errors:?}");
            assert!(errors[0].1.starts_with("give a whole number"), "{bad}: {errors:?}");
        }
        let mut fields = Fields::parse(b"{\"a\": 9007199254740991}").unwrap();
        assert_eq!(fields.amount("a", 1), MAX_AMOUNT);
        assert!(fields.finish(&[]).is_ok());
    }

    #[test]
    fn one_answer_names_every_wrong_field() {
        let errors = refused("{\"a\": \"\", \"c\": 1, \"d\": \"x\\u0000y\"}", |fields| {
            fields.text("a", 3);
            fields.text("b", 3);
            fields.text("d", 9);
        });
        let names: Vec<_> = errors.iter().map(|(field, _)| field.as_str()).collect();
        assert_eq!(names, ["a", "b", "d", "c"]);
        assert_eq!(errors[1].1, "is missing");
        assert_eq!(errors[3].1, "there is no such field; there are: a, b");
    }

    #[test]
    fn a_payload_stays_as_it_was_sent_if_it_can_be_stored() {
        let big = "{\"n\": 123456789012345678901234567890.10}";
        let mut fields = Fields::parse(format!("{{\"a\": {big}}}").as_bytes()).unwrap();
        assert_eq!(fields.optional_object("a", 100).unwrap().get(), big);
        let deep = format!("{{\"x\": {}{}}}", "[".repeat(200), "]".repeat(200));
        for bad in
            ["{\"x\": \"\\u0000\"}", "{\"\\u0000\": 1}", "[1]", "{\"n\": 1e999}", &deep, &format!("{{{:101}}}", "")]
        {
            let errors = refused(&format!("{{\"a\": {bad}}}"), |fields| {
                fields.optional_object("a", if bad == deep { 1000 } else { 100 });
            });
            assert_eq!(errors.len(), 1, "{bad}");
        }
    }

    #[test]
    fn what_is_no_object_is_no_request() {
        for bad in ["", "[]", "1", "{\"a\":1,\"a\":1}", "{\"a\":}", "{} {}", "{'a':1}", "\u{feff}{}"] {
            assert_eq!(Fields::parse(bad.as_bytes()).err().unwrap().kind(), Kind::BadRequest, "{bad}");
        }
        assert_eq!(Fields::parse(b"{\"a\":\"\xff\"}").err().unwrap().kind(), Kind::BadRequest);
    }

    #[test]
    fn keys_and_ids_have_their_shape() {
        let with = |key: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("idempotency-key", key.parse().unwrap());
            idempotency_key(&headers)
        };
        assert_eq!(with("a-1").unwrap(), "a-1");
        for bad in ["", "a b", &"k".repeat(256)] {
            assert!(with(bad).is_err(), "{bad}");
        }
        assert!(idempotency_key(&HeaderMap::new()).is_err());
        assert_eq!(id("901"), Some(901));
        for bad in ["", "0", "01", "-1", "+1", "1.0", "a", "99999999999999999", "9 "] {
            assert_eq!(id(bad), None, "{bad}");
        }
    }
}
