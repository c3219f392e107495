#![allow(clippy::unwrap_used)]

use super::*;

const URL: &str = "postgres://u:hunter2@h/d";

fn read(text: &str) -> Result<Config, ConfigError> {
    keys::read(text, "paylatchd.toml", Some(URL.to_owned()))?.checked()
}

fn refusal(text: &str) -> String {
    read(text).unwrap_err().to_string()
}

#[test]
fn nothing_but_the_url_is_needed() {
    let config = read("").unwrap();
    assert_eq!(config.database.url.expose(), URL);
    assert_eq!((config.driver.poll_min_ms, config.driver.poll_max_ms), (2, 250));
    assert!(config.http.listen.0.unwrap().ip().is_loopback());
    assert!(config.driver_name().ends_with(&std::process::id().to_string()));
}

#[test]
fn sections_have_names_and_defaults() {
    let config = read(
        "[wallet.sim]\nadapter = \"sim\"\nbase_url = \"http://w\"\n[wallet.bench]\nadapter = \"null\"\n
         [business.shop]\nadapter = \"http\"\nbase_url = \"http://b\"\ncall_timeout_ms = 700\nconnect_timeout_ms = 70\n",
    )
    .unwrap();
    assert_eq!(config.wallet.keys().collect::<Vec<_>>(), ["bench", "sim"]);
    let endpoint = config.wallet["sim"].endpoint().unwrap();
    assert_eq!((endpoint.base_url.as_str(), endpoint.call_timeout), ("http://w", Duration::from_secs(5)));
    assert!(config.wallet["bench"].endpoint().is_none());
    assert_eq!(config.business["shop"].endpoint().unwrap().connect_timeout, Duration::from_millis(70));
}

#[test]
fn an_error_names_the_key_and_says_what_to_do() {
    assert!(refusal("[driver]\nlease = 5").contains("driver.lease: no such key; there are: name"));
    assert!(refusal("[wallet.sim]\nadapter = \"sim\"\nurl = \"\"").contains("wallet.sim.url: no such key"));
    assert!(
        refusal("[driver]\npoll_min_ms = 900").contains("driver.poll_min_ms: is 900; set it to 1 at least and 250")
    );
    assert!(refusal("[wallet.sim]\nadapter = \"sim\"").contains("wallet.sim.base_url: is missing"));
    assert!(refusal("[wallet.sim]\nbase_url = \"http://w\"").contains("section sim"));
    assert!(refusal("[log]\nlevel = \"a=b=c\"").contains("log.level"));
    assert!(refusal("[http]\nlisten = \"here\"").contains("paylatchd.toml:2: must be an address and port"));
    let none = keys::read("", "paylatchd.toml", None);
    if std::env::var_os("PAYLATCH_DATABASE_URL").is_none() {
        assert!(none.unwrap_err().to_string().contains("database.url: is missing: set PAYLATCH_DATABASE_URL"));
    }
}

#[test]
fn secrets_are_shown_nowhere() {
    let text = "[wallet.sim]\nadapter = \"http\"\nbase_url = \"http://w\"\ntoken = \"hunter2\"\n";
    let config = read(text).unwrap();
    assert_eq!(config.wallet["sim"].token.as_ref().unwrap().expose(), "hunter2");
    assert!(!format!("{config:?} {config:#?}").contains("hunter2"));
    for broken in [
        "[wallet.sim]\ntoken = [\"hunter2\"]",
        "[wallet.sim]\ntoken = \"hunter2",
        "[wallet.sim]\nwebhook_secrets = \"hunter2\"",
        "[wallet.sim]\nwebhook_secrets = [[\"hunter2\"]]",
        "[database]\nurl = {a=\"hunter2\"}",
    ] {
        assert!(!refusal(broken).contains("hunter2"), "{}", refusal(broken));
    }
}

#[test]
fn stripe_needs_a_secret_key_and_no_address() {
    let with = |more: &str| read(&format!("[wallet.card]\nadapter = \"stripe\"\n{more}"));
    let config = with("token = \"sk_test_1\"").unwrap();
    assert_eq!(config.wallet["card"].endpoint().unwrap().base_url, "https://api.stripe.com");
    let refused = |more: &str| with(more).unwrap_err().to_string();
    assert!(refused("").contains("wallet.card.token: is missing: set PAYLATCH_WALLET_NAME_TOKEN"), "{}", refused(""));
    let publishable = refused("token = \"pk_test_hunter2\"");
    assert!(publishable.contains("publishable") && !publishable.contains("hunter2"), "{publishable}");
    let unencrypted = refused("token = \"sk_live_hunter2\"\nbase_url = \"http://127.0.0.1\"");
    assert!(unencrypted.contains("wallet.card.base_url") && !unencrypted.contains("hunter2"), "{unencrypted}");
}

#[test]
fn the_environment_supplies_a_sections_secrets() {
    let config = read("[wallet.my-bank]\nadapter = \"http\"\nbase_url = \"http://w\"").unwrap();
    let config = config.overlaid(|name| (name == "PAYLATCH_WALLET_MY_BANK_TOKEN").then(|| "hunter2".to_owned()));
    assert_eq!(config.wallet["my-bank"].token.as_ref().unwrap().expose(), "hunter2");
    assert_eq!(config.wallet["my-bank"].base_url.as_deref(), Some("http://w"));
}

#[test]
fn two_webhook_secrets_are_live_at_most() {
    let with = |list: &str| {
        read(&format!("[wallet.w]\nadapter = \"http\"\nbase_url = \"http://w\"\nwebhook_secrets = {list}"))
    };
    assert_eq!(with("[\"a\", \"b\"]").unwrap().wallet["w"].webhook_secrets.len(), 2);
    assert!(
        with("[\"a\", \"b\", \"c\"]").unwrap_err().to_string().contains("wallet.w.webhook_secrets: give at most two")
    );
    let set = |name: &str| (name == "PAYLATCH_WALLET_W_WEBHOOK_SECRETS").then(|| "x, y".to_owned());
    let secrets = with("[\"a\"]").unwrap().overlaid(set).wallet["w"].webhook_secrets.clone();
    assert_eq!(secrets.iter().map(Secret::expose).collect::<Vec<_>>(), ["x", "y"]);
}

#[test]
fn the_example_is_a_configuration_with_every_key() {
    let example = Config::example();
    let keys: String = example
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(key) if key.ends_with('=') => format!("# {key}\n"),
            Some(key) if !key.starts_with(' ') && !key.is_empty() => format!("{key}\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    let keys = keys
        .replace("[wallet.sim]", "[wallet.sim]\nadapter = \"null\"")
        .replace("[business.shop]", "[business.shop]\nadapter = \"http\"\nbase_url = \"http://b\"")
        .replace("[relay.nats]", "[relay.nats]\nadapter = \"nats\"\nurl = \"nats://n\"");
    let config = read(&keys).unwrap_or_else(|e| panic!("{e}\n{keys}"));
    assert_eq!((config.wallet.len(), config.business.len(), config.relay.len()), (1, 1, 1), "{keys}");
    assert_eq!(format!("{:?}", config.driver), format!("{:?}", read("").unwrap().driver));
    for key in ["url =", "max_in_flight", "lease_ms", "token =", "adapter =", "PAYLATCH_LOG_LEVEL", "base_url ="] {
        assert!(example.contains(key), "{key}\n{example}");
    }
}

#[test]
fn a_relay_says_what_it_lacks() {
    let relay = |lines: &str| refusal(&format!("[relay.bus]\n{lines}"));
    assert!(relay("adapter = \"nats\"").contains("relay.bus.url: is missing"));
    assert!(relay("adapter = \"kafka\"").contains("relay.bus.brokers: is missing"));
    assert!(relay("adapter = \"kafka\"\nbrokers = \"k\"\nurl = \"nats://n\"").contains("relay.bus.url: is not for"));
    assert!(relay("adapter = \"nats\"\nurl = \"nats://n\"\nuser = \"u\"").contains("relay.bus.password"));
    assert!(relay("adapter = \"nats\"\nurl = \"nats://n\"\nsubject = \"a.>\"").contains("relay.bus.subject"));
    assert!(relay("adapter = \"nats\"\nurl = \"nats://n\"\nlease_ms = 2000").contains("relay.bus.publish_timeout_ms"));
    assert!(relay("adapter = \"nats\"\nurl = \"nats://n\"\nqueue = 1").contains("relay.bus.queue: no such key"));
    let config = read("[relay.bus]\nadapter = \"nats\"\nurl = \"nats://file\"").unwrap();
    let config = config.overlaid(|name| (name == "PAYLATCH_RELAY_BUS_URL").then(|| "nats://hunter2@n".to_owned()));
    assert_eq!(config.relay["bus"].url.as_ref().unwrap().expose(), "nats://hunter2@n");
    assert!(!format!("{config:?}").contains("hunter2"));
}
