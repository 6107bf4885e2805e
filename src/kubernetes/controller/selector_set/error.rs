//! Why a pass over a SelectorSet ended early. What the spec gets wrong is no error: it is told in [`super::Reconciled`].

use std::time::Duration;

use crate::kubernetes::controller::apply::ApplyError;

/// Why a pass ended early; what was applied before stays.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The apiserver failed, or cannot be reached.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// An object cannot be written as JSON.
    #[error("cannot write an object as JSON")]
    Serialise(#[from] serde_json::Error),
    /// The object lacks a field that every stored object has.
    #[error("the SelectorSet has no {0}")]
    Incomplete(&'static str),
}

impl Error {
    /// A stable word for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Apply(error) => error.reason(),
            Self::Serialise(_) => "serialise",
            Self::Incomplete(_) => "incomplete",
        }
    }

    /// How long to wait before attempt `failures`, counted from 1.
    pub fn backoff(&self, failures: u32) -> Duration {
        let (first, most) = match self {
            // The apiserver may be back any moment.
            Self::Apply(error) if matches!(error.reason(), "timeout" | "transport" | "apiserver") => (1, 30),
            // Somebody wrote at the same time.
            Self::Apply(error) if error.reason() == "conflict" => (1, 10),
            // A person has to act.
            _ => (15, 300),
        };
        Duration::from_secs((first << failures.saturating_sub(1).min(10)).min(most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_get_rarer_up_to_a_limit() {
        let error = Error::Apply(ApplyError::Timeout { verb: "get", object: "Service fleet".to_owned() });
        assert_eq!(error.reason(), "timeout");
        let waits: Vec<_> = [1, 2, 3, 9, u32::MAX].map(|failures| error.backoff(failures).as_secs()).into();
        assert_eq!(waits, [1, 2, 4, 30, 30]);
        assert_eq!(Error::Incomplete("uid").backoff(1).as_secs(), 15);
    }
}
