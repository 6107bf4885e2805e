//! The reference's environment names (spec scheduling 1.1): read leniently, as it reads them.
//!
//! A boolean that is no known word and a number that does not parse count as unset; names that select one of several
//! words are strict. Ranges are checked later, on the merged settings.

use std::str::FromStr;

/// Deprecated names and what replaces them in a policy file.
const DEPRECATED: &[(&str, &str)] = &[
    ("DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT", "default policy parameters.overlap_score_credit"),
    ("DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT_DECAY", "default policy parameters.overlap_score_credit_decay"),
    ("DYN_ROUTER_PREFILL_LOAD_SCALE", "default policy parameters.prefill_load_scale"),
    ("DYN_ROUTER_DECODE_ACTIVE_REQUEST_WEIGHT", "default policy parameters.decode_active_request_weight"),
    ("DYN_ROUTER_TEMPERATURE", "default policy parameters.router_temperature"),
    ("DYN_ROUTER_KV_OVERLAP_SCORE_WEIGHT", "default policy parameters.prefill_load_scale"),
    ("DYN_OVERLAP_SCORE_WEIGHT", "default policy parameters.prefill_load_scale"),
    ("DYN_SHARED_CACHE_MULTIPLIER", "default policy parameters.shared_cache_multiplier"),
    ("DYN_ROUTER_PREFILL_POLICY", "worker_selection.prefill"),
    ("DYN_ROUTER_DECODE_POLICY", "worker_selection.decode"),
    ("DYN_ROUTER_QUEUE_THRESHOLD", "policy_classes[].prefill_busy_threshold_frac"),
    ("DYN_ROUTER_QUEUE_POLICY", "policy_classes[].queue_policy"),
];

/// A view of environment variables.
pub struct Environment<'a>(&'a dyn Fn(&str) -> Option<String>);

impl<'a> Environment<'a> {
    /// Reads through `lookup`, which answers `None` for a variable that is not set or not Unicode.
    pub fn new(lookup: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Self(lookup)
    }

    /// The value as it stands, an empty one included.
    pub fn text(&self, name: &str) -> Option<String> {
        (self.0)(name)
    }

    /// The value without surrounding blanks; an empty one counts as unset.
    pub fn trimmed(&self, name: &str) -> Option<String> {
        self.text(name).map(|v| v.trim().to_owned()).filter(|v| !v.is_empty())
    }

    /// A boolean word, or nothing.
    pub fn boolean(&self, name: &str) -> Option<bool> {
        boolean_word(&self.text(name)?)
    }

    /// A number, or nothing when it does not parse. Surrounding blanks do not parse.
    pub fn number<T: FromStr>(&self, name: &str) -> Option<T> {
        self.text(name)?.parse().ok()
    }

    /// One of several words.
    ///
    /// # Errors
    /// Whatever `parse` says of a value that is set; an empty value is a value.
    pub fn word<T>(&self, name: &str, parse: impl FnOnce(&str) -> Result<T, String>) -> Result<Option<T>, String> {
        self.text(name).map(|v| parse(&v)).transpose()
    }

    /// A line for every deprecated name that is set, whatever its value.
    pub fn deprecations(&self) -> Vec<String> {
        DEPRECATED
            .iter()
            .filter(|(name, _)| self.text(name).is_some())
            .map(|(name, replacement)| {
                format!(
                    "{name} is deprecated and goes away where the reference reaches v1.7; \
                     set {replacement} in DYN_ROUTER_POLICY_CONFIG instead"
                )
            })
            .collect()
    }
}

/// The boolean words, in any case, with surrounding blanks.
fn boolean_word(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Some(true),
        "0" | "false" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// The process's own environment.
pub fn process(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Refuses a variable that cannot be read, where ignoring it would change a choice.
///
/// # Errors
/// Names the first one.
pub fn check_unicode(names: &[&str]) -> Result<(), String> {
    for name in names {
        if let Err(error @ std::env::VarError::NotUnicode(_)) = std::env::var(name) {
            return Err(format!("could not read {name}: {error}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn booleans_are_words_in_any_case() {
        for (text, expected) in [
            ("1", Some(true)),
            (" TRUE ", Some(true)),
            ("Yes", Some(true)),
            ("on", Some(true)),
            ("0", Some(false)),
            ("False", Some(false)),
            ("NO", Some(false)),
            ("off\n", Some(false)),
            ("", None),
            ("maybe", None),
            ("2", None),
        ] {
            let lookup = |_: &str| Some(text.to_owned());
            assert_eq!(Environment::new(&lookup).boolean("X"), expected, "{text:?}");
        }
    }

    #[test]
    fn numbers_that_do_not_parse_are_unset() {
        for (text, expected) in
            [("1.5", Some(1.5)), ("None", None), ("", None), (" 5", None), ("inf", Some(f64::INFINITY))]
        {
            let lookup = |_: &str| Some(text.to_owned());
            assert_eq!(Environment::new(&lookup).number::<f64>("X"), expected, "{text:?}");
        }
    }

    #[test]
    fn every_deprecated_name_that_is_set_is_named() {
        let lookup = |name: &str| (name == "DYN_ROUTER_TEMPERATURE").then(|| "x".to_owned());
        let lines = Environment::new(&lookup).deprecations();
        assert_eq!(lines.len(), 1);
        assert!(lines[0].starts_with("DYN_ROUTER_TEMPERATURE is deprecated"), "{}", lines[0]);
        assert!(lines[0].contains("v1.7"), "{}", lines[0]);
    }
}
