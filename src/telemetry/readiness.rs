//! What `/readyz` waits for, and what has come true so far.
//!
//! A condition that came true stays true; only [`Readiness::begin_shutdown`] takes readiness away again.

use std::{
    fmt,
    str::FromStr,
    sync::atomic::{AtomicU8, Ordering},
};

/// One thing `/readyz` can wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Start-up recovery is over.
    Index,
    /// A source's catalog was applied once, even an empty one.
    Catalog,
    /// Each peer known at start answered or timed out.
    Peers,
}

impl Condition {
    /// All conditions, in the order they are named.
    pub const ALL: [Condition; 3] = [Condition::Index, Condition::Catalog, Condition::Peers];

    /// The word used in flags and answers.
    pub fn name(self) -> &'static str {
        match self {
            Self::Index => "index",
            Self::Catalog => "catalog",
            Self::Peers => "peers",
        }
    }

    fn bit(self) -> u8 {
        match self {
            Self::Index => 1,
            Self::Catalog => 2,
            Self::Peers => 4,
        }
    }
}

/// A set of conditions: `index,catalog,peers` in a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyRequirements(u8);

impl Default for ReadyRequirements {
    /// The index alone.
    fn default() -> Self {
        Self(Condition::Index.bit())
    }
}

impl ReadyRequirements {
    /// Nothing: ready as soon as the port is open.
    pub const NONE: Self = Self(0);

    /// This set and `condition`.
    pub fn with(self, condition: Condition) -> Self {
        Self(self.0 | condition.bit())
    }

    /// Whether `condition` is waited for.
    pub fn contains(self, condition: Condition) -> bool {
        self.0 & condition.bit() != 0
    }
}

/// A word in the list is no condition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown readiness condition `{0}`: expected a comma list of index, catalog, peers")]
pub struct UnknownCondition(String);

impl FromStr for ReadyRequirements {
    type Err = UnknownCondition;

    fn from_str(list: &str) -> Result<Self, Self::Err> {
        let mut set = Self::NONE;
        for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let condition = Condition::ALL
                .into_iter()
                .find(|condition| condition.name() == word)
                .ok_or_else(|| UnknownCondition(word.to_owned()))?;
            set = set.with(condition);
        }
        Ok(set)
    }
}

impl fmt::Display for ReadyRequirements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = Condition::ALL.into_iter().filter(|c| self.contains(*c)).map(Condition::name).collect();
        f.write_str(&names.join(","))
    }
}

const SHUTTING_DOWN: u8 = 1 << 7;

/// Which conditions hold, and whether the process is going down.
#[derive(Debug)]
pub struct Readiness {
    requires: ReadyRequirements,
    met: AtomicU8,
}

impl Readiness {
    /// Nothing has come true yet.
    pub fn new(requires: ReadyRequirements) -> Self {
        Self { requires, met: AtomicU8::new(0) }
    }

    /// `condition` came true.
    pub fn set(&self, condition: Condition) {
        self.met.fetch_or(condition.bit(), Ordering::AcqRel);
    }

    /// Whether `condition` came true, required or not.
    pub fn is_set(&self, condition: Condition) -> bool {
        self.met.load(Ordering::Acquire) & condition.bit() != 0
    }

    /// Not ready from now on.
    pub fn begin_shutdown(&self) {
        self.met.fetch_or(SHUTTING_DOWN, Ordering::AcqRel);
    }

    /// Whether [`Self::begin_shutdown`] was called.
    pub fn is_shutting_down(&self) -> bool {
        self.met.load(Ordering::Acquire) & SHUTTING_DOWN != 0
    }

    /// Required conditions that do not hold yet.
    pub fn missing(&self) -> Vec<Condition> {
        Condition::ALL.into_iter().filter(|c| self.requires.contains(*c) && !self.is_set(*c)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_parses_in_any_order_and_names_the_bad_word() {
        let set: ReadyRequirements = "peers, index".parse().expect("valid");
        assert_eq!(set.to_string(), "index,peers");
        assert!(!set.contains(Condition::Catalog));
        assert_eq!("".parse::<ReadyRequirements>(), Ok(ReadyRequirements::NONE));
        let error = "index,catalogue".parse::<ReadyRequirements>().expect_err("unknown word");
        assert!(error.to_string().contains("`catalogue`"), "{error}");
    }

    #[test]
    fn only_required_conditions_are_missing() {
        let readiness = Readiness::new(ReadyRequirements::default().with(Condition::Catalog));
        assert_eq!(readiness.missing(), [Condition::Index, Condition::Catalog]);
        readiness.set(Condition::Index);
        assert_eq!(readiness.missing(), [Condition::Catalog]);
        readiness.set(Condition::Catalog);
        assert_eq!(readiness.missing(), []);
        readiness.begin_shutdown();
        assert!(readiness.is_shutting_down());
        assert!(readiness.is_set(Condition::Index));
    }
}
