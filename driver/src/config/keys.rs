//! Reading the file: layers, named sections, unknown keys, and the template made from the same descriptions.

use std::collections::BTreeMap;
use std::fmt::Write;

use confique::meta::{FieldKind, Meta};
use confique::toml::FormatOptions;
use confique::{Config as _, Layer as _};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::{Business, Config, ConfigError, Relay, Secret, Wallet};

type ConfigLayer = <Config as confique::Config>::Layer;

/// Keys whose tables are named by the user.
const NAMED: &[(&str, &Meta)] = &[("wallet", &Wallet::META), ("business", &Business::META), ("relay", &Relay::META)];

/// The configuration in `text`, below the environment and `url`, above the defaults. `source` names the text.
pub(super) fn read(text: &str, source: &str, url: Option<String>) -> Result<Config, ConfigError> {
    let table: toml::Table = toml::from_str(text).map_err(|e| located(text, source, &e))?;
    refuse_unknown(&table, &Config::META, "")?;
    let file: ConfigLayer = toml::from_str(text).map_err(|e| located(text, source, &e))?;
    let mut layer = ConfigLayer::from_env().map_err(|e| ConfigError::new(source, format!("{e:#}")))?;
    if let Some(url) = url {
        layer.database.url = Some(Secret::from(url));
    }
    let layer = layer.with_fallback(file).with_fallback(ConfigLayer::default_values());
    if layer.database.url.is_none() {
        let problem = "is missing: set PAYLATCH_DATABASE_URL, give --database-url, or give --config a file with it";
        return Err(ConfigError::new("database.url", problem));
    }
    Config::from_layer(layer).map_err(|e| ConfigError::new(source, format!("{e:#}")))
}

/// Reads a table of sections that the user named, each with the defaults of `C`.
pub(super) fn sections<'de, D, C>(deserializer: D) -> Result<BTreeMap<String, C>, D::Error>
where
    D: Deserializer<'de>,
    C: confique::Config,
    C::Layer: Deserialize<'de>,
{
    let named = BTreeMap::<String, C::Layer>::deserialize(deserializer)?;
    let complete = |(name, layer): (String, C::Layer)| {
        let section = C::from_layer(layer.with_fallback(C::Layer::default_values()));
        section.map(|section| (name.clone(), section)).map_err(|e| D::Error::custom(format!("section {name}: {e:#}")))
    };
    named.into_iter().map(complete).collect()
}

/// Reads a list of secrets; an error says nothing of what was there.
pub(super) fn secrets<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Secret>, D::Error> {
    let refuse = || D::Error::custom("must be a list of texts, as [\"whsec_...\"]");
    let toml::Value::Array(values) = toml::Value::deserialize(deserializer)? else { return Err(refuse()) };
    values
        .into_iter()
        .map(|value| value.as_str().map(|text| Secret::from(text.to_owned())).ok_or_else(refuse))
        .collect()
}

/// Where in the file and what, but not the line itself: it may hold a password.
fn located(text: &str, source: &str, error: &toml::de::Error) -> ConfigError {
    let line = error.span().and_then(|span| text.get(..span.start)).map(|before| before.matches('\n').count() + 1);
    ConfigError::new(line.map_or_else(|| source.to_owned(), |line| format!("{source}:{line}")), error.message().trim())
}

/// A key that nothing reads is a mistake that would otherwise show much later.
fn refuse_unknown(table: &toml::Table, meta: &Meta, above: &str) -> Result<(), ConfigError> {
    for (key, value) in table {
        let path = format!("{above}{key}");
        let Some(field) = meta.fields.iter().find(|field| field.name == key) else {
            let known: Vec<_> = meta.fields.iter().map(|field| field.name).collect();
            return Err(ConfigError::new(path, format!("no such key; there are: {}", known.join(", "))));
        };
        let Some(inner) = value.as_table() else { continue };
        let named = NAMED.iter().find(|(name, _)| above.is_empty() && *name == key);
        match (named, &field.kind) {
            (Some((_, meta)), _) => {
                for (name, section) in inner.iter().filter_map(|(name, value)| Some((name, value.as_table()?))) {
                    refuse_unknown(section, meta, &format!("{path}.{name}."))?;
                }
            }
            (None, FieldKind::Nested { meta }) => refuse_unknown(inner, meta, &format!("{path}."))?,
            (None, FieldKind::Leaf { .. }) => {}
        }
    }
    Ok(())
}

/// Every key with its description and its default.
pub(super) fn example() -> String {
    let whole = confique::toml::template::<Config>(FormatOptions::default());
    // The sections that the user names come last, each as a table of its own.
    let mut text: String = without_named(&whole);
    named_section::<Wallet>(&mut text, "wallet.sim");
    named_section::<Business>(&mut text, "business.shop");
    named_section::<Relay>(&mut text, "relay.nats");
    text
}

/// The template without the two maps, which it would print as empty inline tables.
fn without_named(whole: &str) -> String {
    let is_map =
        |block: &&str| !NAMED.iter().any(|(name, _)| block.lines().any(|l| l.starts_with(&format!("#{name} ="))));
    whole.split_inclusive("\n\n").filter(is_map).collect()
}

fn named_section<C: confique::Config>(text: &mut String, name: &str) {
    let section = confique::toml::template::<C>(FormatOptions::default());
    let (doc, fields) = section.split_once("\n\n").unwrap_or(("", &section));
    let kind = name.split('.').next().unwrap_or_default();
    let about = Config::META.fields.iter().find(|field| field.name == kind).map_or(&[][..], |field| field.doc);
    let _ = writeln!(text, "\n{doc}");
    for line in about {
        let _ = writeln!(text, "#{line}");
    }
    let _ = write!(text, "#[{name}]\n{fields}");
}
