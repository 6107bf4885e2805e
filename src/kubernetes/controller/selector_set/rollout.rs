//! How the StatefulSet stands, and which pod holds up a roll-out that would mend it. Pure.

use k8s_openapi::api::apps::v1::StatefulSet;

use crate::kubernetes::source::SelectorPod;

/// A StatefulSet, as far as roll-outs are concerned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatefulSetView {
    /// Pods that it wants.
    pub wanted: i32,
    /// Pods that there are.
    pub replicas: i32,
    /// Of those, ready.
    pub ready: i32,
    /// Of those, of the newest template.
    pub updated: i32,
    /// Revision that pods had before the roll-out.
    pub current_revision: Option<String>,
    /// Revision of the newest template.
    pub update_revision: Option<String>,
    /// Counts changes of its spec.
    pub generation: i64,
    /// Generation that all of the above is about.
    pub observed_generation: i64,
}

impl StatefulSetView {
    /// The view of `object`.
    pub fn of(object: &StatefulSet) -> Self {
        let status = object.status.clone().unwrap_or_default();
        Self {
            wanted: object.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1),
            replicas: status.replicas,
            ready: status.ready_replicas.unwrap_or_default(),
            updated: status.updated_replicas.unwrap_or_default(),
            current_revision: status.current_revision,
            update_revision: status.update_revision,
            generation: object.metadata.generation.unwrap_or_default(),
            observed_generation: status.observed_generation.unwrap_or_default(),
        }
    }

    /// Its numbers are about its present spec.
    pub fn is_observed(&self) -> bool {
        self.observed_generation >= self.generation
    }

    /// All pods are there, of the newest template and ready.
    pub fn is_rolled_out(&self) -> bool {
        self.is_observed() && self.replicas == self.wanted && self.updated == self.wanted && self.ready == self.wanted
    }
}

/// The pod that is to be deleted so that a roll-out can go on: it runs an older template, is not ready and fails, so that
/// waiting for it is of no use. None while the newest revision is not known for certain. The highest ordinal goes
/// first, as in a roll-out.
pub fn blocking_pod<'a>(view: &StatefulSetView, pods: &'a [SelectorPod]) -> Option<&'a SelectorPod> {
    let newest = view.update_revision.as_deref().filter(|_| view.is_observed())?;
    // One at a time: while a pod ends, its successor is not known to be any better.
    if pods.iter().any(|pod| pod.terminating) {
        return None;
    }
    let blocks = |pod: &&SelectorPod| {
        !pod.ready && pod.failing.is_some() && pod.revision.as_deref().is_some_and(|revision| revision != newest)
    };
    pods.iter().filter(blocks).max_by_key(|pod| ordinal(&pod.name))
}

fn ordinal(pod: &str) -> u32 {
    pod.rsplit_once('-').and_then(|(_, ordinal)| ordinal.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view() -> StatefulSetView {
        StatefulSetView {
            wanted: 3,
            replicas: 3,
            update_revision: Some("new".to_owned()),
            generation: 4,
            observed_generation: 4,
            ..StatefulSetView::default()
        }
    }

    fn pod(ordinal: u32, revision: &str, failing: bool) -> SelectorPod {
        SelectorPod {
            name: format!("fleet-{ordinal}").into(),
            uid: ordinal.to_string().into(),
            ip: None,
            ready: !failing,
            terminating: false,
            finished: false,
            revision: Some(revision.into()),
            failing: failing.then(|| "ImagePullBackOff: no such image".to_owned()),
        }
    }

    #[test]
    fn a_failing_pod_of_an_older_template_is_the_one() {
        let pods = [pod(0, "bad", true), pod(10, "bad", true), pod(9, "bad", true), pod(11, "bad", false)];
        assert_eq!(blocking_pod(&view(), &pods).map(|pod| &*pod.name), Some("fleet-10"));
    }

    #[test]
    fn pods_that_may_get_well_are_left() {
        assert_eq!(blocking_pod(&view(), &[pod(0, "new", true)]), None, "deleting it again helps nobody");
        assert_eq!(blocking_pod(&view(), &[pod(0, "old", false)]), None, "it serves");
        let starting = SelectorPod { ready: false, ..pod(0, "old", false) };
        assert_eq!(blocking_pod(&view(), &[starting]), None);
        let stateless = SelectorPod { revision: None, ..pod(0, "old", true) };
        assert_eq!(blocking_pod(&view(), &[stateless]), None);
    }

    #[test]
    fn one_at_a_time_and_never_on_old_news() {
        let ending = SelectorPod { terminating: true, ..pod(1, "old", true) };
        assert_eq!(blocking_pod(&view(), &[pod(0, "old", true), ending]), None);
        let behind = StatefulSetView { observed_generation: 3, ..view() };
        assert_eq!(blocking_pod(&behind, &[pod(0, "old", true)]), None);
        let unknown = StatefulSetView { update_revision: None, ..view() };
        assert_eq!(blocking_pod(&unknown, &[pod(0, "old", true)]), None);
    }

    #[test]
    fn rolled_out_is_all_of_the_newest_and_ready() {
        let done = StatefulSetView { ready: 3, updated: 3, ..view() };
        assert!(done.is_rolled_out());
        for other in [
            StatefulSetView { ready: 2, ..done.clone() },
            StatefulSetView { updated: 2, ..done.clone() },
            StatefulSetView { replicas: 4, ..done.clone() },
            StatefulSetView { observed_generation: 3, ..done.clone() },
        ] {
            assert!(!other.is_rolled_out(), "{other:?}");
        }
    }
}
