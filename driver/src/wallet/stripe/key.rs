//! The secret key: what may be one, and whether money moves with it.

/// Which of an account's two worlds a key opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Nothing is real.
    Test,
    /// Money moves.
    Live,
}

impl Mode {
    /// The mode of a secret or restricted key; `None` for anything else.
    pub fn of(key: &str) -> Option<Self> {
        let rest = key.strip_prefix("sk_").or_else(|| key.strip_prefix("rk_"))?;
        let mode = [("test_", Self::Test), ("live_", Self::Live)]
            .into_iter()
            .find_map(|(prefix, mode)| rest.strip_prefix(prefix).map(|rest| (rest, mode)));
        mode.filter(|(rest, _)| !rest.is_empty()).map(|(_, mode)| mode)
    }
}

/// Why a key cannot be used, without a word of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyProblem {
    /// Which setting to change.
    pub key: &'static str,
    /// What to do.
    pub says: &'static str,
}

/// Looks at the secret key before anyone is asked: what is plainly wrong is said at the start, not by the first payment.
///
/// # Errors
/// What is wrong with it.
pub fn check_key(key: Option<&str>, base_url: &str) -> Result<Mode, KeyProblem> {
    let wrong = |says| Err(KeyProblem { key: "token", says });
    let Some(key) = key.filter(|key| !key.is_empty()) else {
        return wrong("is missing: set PAYLATCH_WALLET_NAME_TOKEN to the secret key, sk_... or rk_...");
    };
    if key.starts_with("pk_") {
        return wrong("is a publishable key, which cannot charge: give the secret key, sk_... or rk_...");
    }
    if key.starts_with("whsec_") {
        return wrong("is a webhook's signing secret, which belongs to webhook_secrets: give the secret key here");
    }
    let Some(mode) = Mode::of(key) else {
        return wrong("is no secret key of Stripe: it begins with sk_test_, sk_live_, rk_test_ or rk_live_");
    };
    if mode == Mode::Live && !base_url.starts_with("https://") {
        let says = "must begin with https://, since the key is a live one; leave it out for Stripe itself";
        return Err(KeyProblem { key: "base_url", says });
    }
    Ok(mode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_key_has_a_mode() {
        for (key, mode) in [
            ("sk_test_1", Some(Mode::Test)),
            ("rk_test_1", Some(Mode::Test)),
            ("sk_live_1", Some(Mode::Live)),
            ("rk_live_1", Some(Mode::Live)),
            ("sk_live_", None),
            ("sk_1", None),
            ("pk_live_1", None),
            ("live_1", None),
        ] {
            assert_eq!(Mode::of(key), mode, "{key}");
        }
    }

    #[test]
    fn what_is_plainly_wrong_is_said() {
        let said = |key, base_url| check_key(key, base_url).map_err(|problem| (problem.key, problem.says));
        const HOME: &str = "https://api.stripe.com";
        for (key, word) in [
            (None, "missing"),
            (Some(""), "missing"),
            (Some("pk_live_1"), "publishable"),
            (Some("whsec_1"), "webhook_secrets"),
            (Some("hunter2"), "begins with"),
        ] {
            assert!(matches!(said(key, HOME), Err(("token", says)) if says.contains(word)), "{key:?}");
        }
        assert!(matches!(said(Some("sk_live_1"), "http://127.0.0.1"), Err(("base_url", _))));
        assert_eq!(said(Some("sk_live_1"), HOME), Ok(Mode::Live));
        assert_eq!(said(Some("sk_test_1"), "http://127.0.0.1"), Ok(Mode::Test));
    }
}
