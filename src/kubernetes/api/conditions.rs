//! Writing `status.conditions` by convention: `lastTransitionTime` moves with `status` alone.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};

/// What is to be said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// One of [`super::constants::condition`].
    pub type_: &'static str,
    /// `True`, `False`, or none for `Unknown`.
    pub status: Option<bool>,
    /// One of [`super::constants::reason`].
    pub reason: &'static str,
    /// For a person; one or two sentences.
    pub message: String,
}

impl Verdict {
    /// A verdict.
    pub fn new(
        type_: &'static str,
        status: impl Into<Option<bool>>,
        reason: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Self { type_, status: status.into(), reason, message: message.into() }
    }
}

/// `verdicts` as conditions: those of `before` whose status stays keep their time. Types that get no verdict go.
pub fn conditions(
    before: &[Condition],
    verdicts: &[Verdict],
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    let word = |status| match status {
        Some(true) => "True",
        Some(false) => "False",
        None => "Unknown",
    };
    let condition = |verdict: &Verdict| {
        let status = word(verdict.status);
        let kept = before.iter().find(|c| c.type_ == verdict.type_ && c.status == status);
        Condition {
            type_: verdict.type_.to_owned(),
            status: status.to_owned(),
            reason: verdict.reason.to_owned(),
            message: verdict.message.clone(),
            observed_generation: generation,
            last_transition_time: kept.map_or(Time(now), |c| c.last_transition_time.clone()),
        }
    };
    verdicts.iter().map(condition).collect()
}

#[cfg(test)]
mod tests {
    use super::{super::constants::condition::SYNCED, *};

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    #[test]
    fn time_moves_with_status_alone() {
        let first = conditions(&[], &[Verdict::new(SYNCED, false, "CatalogBehind", "1 of 3")], Some(1), at(1));
        let same = conditions(&first, &[Verdict::new(SYNCED, false, "CatalogRefused", "2 of 3")], Some(2), at(2));
        assert_eq!((same[0].last_transition_time.0, same[0].observed_generation), (at(1), Some(2)));
        assert_eq!((&*same[0].reason, &*same[0].message), ("CatalogRefused", "2 of 3"));
        let other = conditions(&same, &[Verdict::new(SYNCED, None, "Listing", "")], Some(2), at(3));
        assert_eq!((&*other[0].status, other[0].last_transition_time.0), ("Unknown", at(3)));
    }
}
