//! Kubernetes Events: what a person should know of a change of conditions. Pure, but for the publishing.

use std::time::Duration;

use k8s_openapi::{api::core::v1::ObjectReference, apimachinery::pkg::apis::meta::v1::Condition};
use kube::runtime::events::Recorder;
use tokio::time::timeout;

use super::{selector_set::Notice, writer::Written};
use crate::kubernetes::api::constants::{GROUP, VERSION, condition, reason};

/// Longest time for one Event.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Reason of the Event about a set that needs nobody any more.
pub const RECOVERED: &str = "Recovered";

/// Reasons that are worth an Event as a warning when they come up.
/// Problems of applying are told by the reconcile that meets them.
const WARNINGS: [&str; 9] = [
    reason::NO_SELECTOR_READY,
    reason::CATALOG_REFUSED,
    reason::SELECTOR_UNREACHABLE,
    reason::PODS_FAILING,
    reason::INVALID_SPEC,
    reason::SELECTOR_SET_NOT_FOUND,
    reason::POOL_CONFLICT,
    reason::ALL_REJECTED,
    reason::SOME_REJECTED,
];

/// Reasons that are worth one as good news.
const NEWS: [&str; 2] = [reason::SELECTORS_READY, reason::WORKERS_FOUND];

/// What is worth an Event when `before` became `after`.
pub fn notices(before: &[Condition], after: &[Condition]) -> Vec<Notice> {
    let mut notices = Vec::new();
    for now in after {
        let then = before.iter().find(|c| c.type_ == now.type_);
        if then.is_some_and(|then| then.reason == now.reason) {
            continue;
        }
        let word = |words: &[&'static str]| words.iter().copied().find(|word| *word == now.reason);
        // A first look that finds nobody ready is a start, not a fault.
        let is_start = then.is_none() && now.reason == reason::NO_SELECTOR_READY;
        if let Some(reason) = word(&WARNINGS).filter(|_| !is_start) {
            notices.push(Notice::warning(reason, "Reconcile", &now.message));
        } else if let Some(reason) = word(&NEWS) {
            notices.push(Notice::normal(reason, "Reconcile", &now.message));
        } else if now.type_ == condition::DEGRADED && now.status == "False" && then.is_some() {
            notices.push(Notice::normal(RECOVERED, "Reconcile", &now.message));
        }
    }
    notices
}

/// Publishes what is worth it of `written`.
pub async fn publish_written(recorder: &Recorder, written: &Written) {
    let reference = ObjectReference {
        api_version: Some(format!("{GROUP}/{VERSION}")),
        kind: Some(written.key.kind.to_owned()),
        namespace: Some(written.key.namespace.clone()),
        name: Some(written.key.name.clone()),
        uid: Some(written.uid.clone()),
        ..ObjectReference::default()
    };
    for notice in notices(&written.before, &written.after) {
        publish(recorder, &reference, notice).await;
    }
}

/// Publishes one. An Event that cannot be had is logged: nothing depends on it.
pub async fn publish(recorder: &Recorder, reference: &ObjectReference, notice: Notice) {
    let reason = notice.reason;
    match timeout(CALL_TIMEOUT, recorder.publish(&notice.into_event(), reference)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, reason, "event not published"),
        Err(_) => tracing::debug!(reason, "event not published in time"),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::*;
    use crate::kubernetes::api::conditions::{Verdict, conditions};

    fn said(type_: &'static str, status: bool, reason: &'static str) -> Vec<Condition> {
        conditions(&[], &[Verdict::new(type_, status, reason, "text")], None, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn a_reason_is_told_when_it_comes_up_and_not_while_it_stays() {
        let good = said(condition::WORKERS_DISCOVERED, true, reason::WORKERS_FOUND);
        let bad = said(condition::WORKERS_DISCOVERED, true, reason::SOME_REJECTED);
        assert!(notices(&bad, &bad).is_empty());
        let told = notices(&good, &bad);
        assert_eq!((told.len(), told[0].is_warning, told[0].reason), (1, true, reason::SOME_REJECTED));
        assert!(!notices(&bad, &good)[0].is_warning);
    }

    #[test]
    fn a_start_is_no_fault_and_a_recovery_is_told() {
        assert!(notices(&[], &said(condition::AVAILABLE, false, reason::NO_SELECTOR_READY)).is_empty());
        assert!(notices(&[], &said(condition::DEGRADED, false, reason::AS_EXPECTED)).is_empty());
        let degraded = said(condition::DEGRADED, true, reason::PODS_FAILING);
        let well = said(condition::DEGRADED, false, reason::AS_EXPECTED);
        assert!(notices(&[], &degraded)[0].is_warning);
        assert_eq!(notices(&degraded, &well)[0].reason, RECOVERED);
    }
}
