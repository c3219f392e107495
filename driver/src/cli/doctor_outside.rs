//! What the doctor sees from outside the database: the way to it, the clocks, the configuration, the counterparties.

use std::time::Duration;

use time::OffsetDateTime;
use tokio::net::TcpStream;

use super::doctor::{Finding, Level};
use crate::clock;
use crate::config::{self, Config};
use crate::db::{self, Db, PolicyEndpoint};
use crate::endpoint::EndpointError;
use crate::error::Error;
use crate::relay::RelayAdapter;
use crate::wallet::{StripeWallet, WalletAdapter, stripe};

/// A backend may be older than our session by this much without a pooler between.
const BACKEND_AGE_SLACK_MS: i64 = 500;
/// A difference between clocks that a person should know about.
const SKEW_LIMIT_MS: i128 = 1000;

/// Whether something stands between us and the server, and whether it gives each session a backend of its own.
pub(super) async fn pooler(settings: &config::Database) -> Finding {
    const WHAT: &str = "way to the server";
    let seen = match look_for_pooler(settings).await {
        Ok(seen) => seen,
        Err(error) => return Finding::failed(WHAT, &error),
    };
    match (seen, settings.transaction_pooling) {
        (Pooling::None, false) => Finding::new(Level::Ok, WHAT, "direct: each session has its own new backend"),
        (Pooling::None | Pooling::Session, true) => Finding::new(
            Level::Warn,
            WHAT,
            "each session has its own backend; database.transaction_pooling costs two round trips a command for nothing",
        ),
        (Pooling::Session, false) => Finding::new(
            Level::Warn,
            WHAT,
            "a pooler, whose sessions keep their backends as far as can be seen now; if its mode is transaction, set \
             database.transaction_pooling = true",
        ),
        (Pooling::Transaction, true) => {
            Finding::new(Level::Ok, WHAT, "a pooler that gives out backends by transaction, as configured")
        }
        (Pooling::Transaction, false) => Finding::new(
            Level::Error,
            WHAT,
            "a pooler that gives out backends by transaction: set database.transaction_pooling = true",
        ),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pooling {
    None,
    Session,
    Transaction,
}

/// A backend older than its session was not made for it; a backend that serves two open sessions belongs to neither.
async fn look_for_pooler(settings: &config::Database) -> Result<Pooling, Error> {
    let begun = clock::instant();
    let mut one = Db::session(settings, "doctor").await?;
    let mut two = Db::session(settings, "doctor").await?;
    let (mut ones, mut twos, mut reused) = (Vec::new(), Vec::new(), false);
    for _ in 0..5 {
        let (pid, age_ms) = db::backend_of(&mut one).await?;
        reused |= age_ms > i64::try_from(begun.elapsed().as_millis()).unwrap_or(i64::MAX) + BACKEND_AGE_SLACK_MS;
        ones.push(pid);
        twos.push(db::backend_of(&mut two).await?.0);
    }
    Ok(pooling(&ones, &twos, reused))
}

fn pooling(ones: &[i32], twos: &[i32], reused: bool) -> Pooling {
    let moved = |pids: &[i32]| pids.windows(2).any(|pair| pair[0] != pair[1]);
    if moved(ones) || moved(twos) || ones.iter().any(|pid| twos.contains(pid)) {
        Pooling::Transaction
    } else if reused {
        Pooling::Session
    } else {
        Pooling::None
    }
}

/// The server's clock beside ours, as closely as a round trip allows.
pub(super) async fn clocks(db: &Db) -> Finding {
    const WHAT: &str = "clocks";
    // The first query of a session pays for connecting; the second one measures.
    let mut measured = Err(Error::NotFound("not asked".to_owned()));
    for _ in 0..2 {
        let before = clock::now();
        measured = db.server_clock().await.map(|server| (before, server, clock::now()));
    }
    match measured {
        Ok((before, server, after)) => skew(before, server, after),
        Err(error) => Finding::failed(WHAT, &error),
    }
}

fn skew(before: OffsetDateTime, server: OffsetDateTime, after: OffsetDateTime) -> Finding {
    let (least, most) = ((server - after).whole_milliseconds(), (server - before).whole_milliseconds());
    let surely = if least > 0 {
        least
    } else if most < 0 {
        most
    } else {
        0
    };
    let round_trip = (after - before).whole_milliseconds();
    let says = format!("the server is {least} to {most} ms ahead of this machine, a round trip takes {round_trip} ms");
    if surely.abs() <= SKEW_LIMIT_MS {
        return Finding::new(Level::Ok, "clocks", says);
    }
    let why = "no payment depends on it, but a business that checks valid_until may, and so does reading logs";
    Finding::new(Level::Warn, "clocks", format!("{says}: {why}; set both by NTP"))
}

/// Whether the configuration serves every channel and business that the database expects.
pub(super) fn coverage(config: &Config, expected: &[PolicyEndpoint]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for PolicyEndpoint { kind, name } in expected {
        let (served, level, what) = match kind.as_str() {
            "wallet" => (config.wallet.contains_key(name), Level::Error, "actions"),
            // Another daemon may publish them.
            "relay" => (config.relay.contains_key(name), Level::Warn, "events"),
            _ => (config.business.contains_key(name), Level::Error, "actions"),
        };
        if !served {
            let says = format!("the database hands out its {what}; add section [{kind}.{name}]");
            findings.push(Finding::new(level, format!("{kind} {name}"), says));
        }
    }
    let expects = |kind: &str, name: &String| expected.iter().any(|e| e.kind == kind && e.name == *name);
    let wallets = config.wallet.keys().map(|name| ("wallet", name));
    let businesses = config.business.keys().map(|name| ("business", name));
    for (kind, name) in wallets.chain(businesses).filter(|(kind, name)| !expects(kind, name)) {
        let says = "configured, but no channel or scene of the database names it";
        findings.push(Finding::new(Level::Warn, format!("{kind} {name}"), says));
    }
    for name in config.relay.keys().filter(|name| !expects("relay", name)) {
        let says = format!("configured, but the database has no such sink: select paylatch.add_sink('{name}')");
        findings.push(Finding::new(Level::Error, format!("relay {name}"), says));
    }
    findings
}

/// Whether each counterparty of the configuration can be reached.
pub(super) async fn counterparties(config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, wallet) in &config.wallet {
        let what = format!("wallet {name}");
        findings.push(match wallet.adapter {
            WalletAdapter::Null => {
                Finding::new(Level::Warn, what, "adapter \"null\" takes no money: for benchmarks only")
            }
            WalletAdapter::Stripe => stripe_key(what, wallet).await,
            WalletAdapter::Http | WalletAdapter::Sim => reach(what, wallet.base_url(), wallet.connect_timeout_ms).await,
        });
    }
    for (name, business) in &config.business {
        let what = format!("business {name}");
        findings.push(reach(what, business.base_url.as_deref(), business.connect_timeout_ms).await);
    }
    for (name, relay) in &config.relay {
        for broker in brokers(relay) {
            findings.push(reach(format!("relay {name}"), Some(&broker), relay.publish_timeout_ms).await);
        }
    }
    findings
}

/// Whether Stripe takes the secret key, and whether money moves with it.
async fn stripe_key(what: String, settings: &config::Wallet) -> Finding {
    let opened = settings.endpoint().ok_or(EndpointError::NoBaseUrl);
    let wallet = match opened.and_then(|endpoint| StripeWallet::open(&endpoint, &settings.webhook_secrets)) {
        Ok(wallet) => wallet,
        Err(error) => return Finding::new(Level::Error, what, error.to_string()),
    };
    if let Err(answer) = wallet.probe().await {
        let says = answer.message.or(answer.code).unwrap_or_default();
        return Finding::new(Level::Error, what, format!("asking {}: {says}", settings.base_url().unwrap_or_default()));
    }
    let secrets =
        if settings.webhook_secrets.is_empty() { "; without webhook_secrets it takes no webhooks" } else { "" };
    match settings.token.as_ref().and_then(|token| stripe::Mode::of(token.expose())) {
        Some(stripe::Mode::Live) => Finding::new(Level::Ok, what, format!("Stripe takes the key, live{secrets}")),
        _ => Finding::new(Level::Warn, what, format!("Stripe takes the key, a test key: no money moves{secrets}")),
    }
}

/// The brokers of a relay, as URLs with ports.
fn brokers(relay: &config::Relay) -> Vec<String> {
    let (list, scheme, port) = match relay.adapter {
        RelayAdapter::Nats => (relay.url.as_ref().map_or("", |url| url.expose()), "nats", 4222),
        RelayAdapter::Kafka => (relay.brokers.as_deref().unwrap_or_default(), "kafka", 9092),
    };
    let url = |address: &str| {
        let address = address.trim();
        let url = if address.contains("://") { address.to_owned() } else { format!("{scheme}://{address}") };
        match reqwest::Url::parse(&url) {
            Ok(parsed) if parsed.port().is_none() => format!("{url}:{port}"),
            _ => url,
        }
    };
    list.split(',').map(url).collect()
}

async fn reach(what: String, base_url: Option<&str>, connect_timeout_ms: u64) -> Finding {
    let Some(address) = base_url.and_then(address) else {
        return Finding::new(Level::Error, what, "its base_url names no host");
    };
    let timeout = Duration::from_millis(connect_timeout_ms);
    let begun = clock::instant();
    match tokio::time::timeout(timeout, TcpStream::connect(&address)).await {
        Ok(Ok(_)) => {
            let took = begun.elapsed().as_millis();
            Finding::new(Level::Ok, what, format!("{address} accepts connections ({took} ms)"))
        }
        Ok(Err(error)) => Finding::new(Level::Error, what, format!("{address}: {error}")),
        Err(_) => Finding::new(Level::Error, what, format!("{address}: no connection within {connect_timeout_ms} ms")),
    }
}

fn address(base_url: &str) -> Option<String> {
    let url = reqwest::Url::parse(base_url).ok()?;
    Some(format!("{}:{}", url.host_str()?, url.port_or_known_default()?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn shared_backends_give_a_pooler_away() {
        assert_eq!(pooling(&[7, 7, 7], &[8, 8, 8], false), Pooling::None);
        assert_eq!(pooling(&[7, 7, 7], &[8, 8, 8], true), Pooling::Session);
        assert_eq!(pooling(&[7, 7, 7], &[7, 7, 7], true), Pooling::Transaction);
        assert_eq!(pooling(&[7, 9, 7], &[8, 8, 8], false), Pooling::Transaction);
    }

    #[test]
    fn a_skew_counts_only_beyond_the_round_trip() {
        let at = |ms: i64| OffsetDateTime::UNIX_EPOCH + Duration::from_millis(ms.unsigned_abs());
        assert_eq!(skew(at(10_000), at(13_000), at(15_000)).level, Level::Ok, "the answer took long");
        assert_eq!(skew(at(10_000), at(13_000), at(10_020)).level, Level::Warn);
        assert_eq!(skew(at(10_000), at(7_000), at(10_020)).level, Level::Warn);
        assert_eq!(skew(at(10_000), at(10_010), at(10_020)).level, Level::Ok);
    }

    #[test]
    fn what_is_expected_and_not_served_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "[wallet.sim]\nadapter = \"null\"\n[business.old]\nadapter = \"http\"\nbase_url = \"http://b\"";
        std::fs::write(file.path(), text).unwrap();
        let config = Config::load(Some(file.path()), Some("postgres://h/d".into())).unwrap();
        let expected = |kind: &str, name: &str| PolicyEndpoint { kind: kind.into(), name: name.into() };
        let found = coverage(&config, &[expected("wallet", "sim"), expected("business", "shop")]);
        let found: Vec<_> = found.iter().map(|f| (f.level, f.what.as_str())).collect();
        assert_eq!(found, [(Level::Error, "business shop"), (Level::Warn, "business old")]);
    }

    #[test]
    fn brokers_are_reached_at_their_ports() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "[relay.bus]\nadapter = \"nats\"\nurl = \"nats://u:p@a, tls://b:5222\"\n
                    [relay.log]\nadapter = \"kafka\"\nbrokers = \"c,d:1\"";
        std::fs::write(file.path(), text).unwrap();
        let config = Config::load(Some(file.path()), Some("postgres://h/d".into())).unwrap();
        let reached = |name: &str| brokers(&config.relay[name]).iter().map(|b| address(b).unwrap()).collect::<Vec<_>>();
        assert_eq!(
            (reached("bus"), reached("log")),
            (vec!["a:4222".into(), "b:5222".into()], vec!["c:9092".into(), "d:1".into()])
        );
        let expected = [PolicyEndpoint { kind: "relay".into(), name: "bus".into() }];
        let found: Vec<_> = coverage(&config, &expected).into_iter().map(|f| (f.level, f.what)).collect();
        assert_eq!(found, [(Level::Error, "relay log".into())]);
    }

    #[test]
    fn an_address_has_a_port() {
        assert_eq!(address("https://pay.example/api").as_deref(), Some("pay.example:443"));
        assert_eq!(address("http://[::1]:8080").as_deref(), Some("[::1]:8080"));
    }
}
