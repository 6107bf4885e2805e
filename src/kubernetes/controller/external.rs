//! The finalizer of External sets: their selectors go on without the set, so its workers are taken from them first.
//!
//! Invariants: no finalizer is added to an object that is being deleted; one that is there goes when every selector that
//! answers has the empty catalog, and after [`LONGEST_WAIT`] in any case, so that a deletion always ends.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::{
    apply::{ApplyError, call},
    fleet::{FleetView, is_leaving},
};
use crate::{
    discovery::fleet::CatalogState,
    kubernetes::api::{
        SelectorSet,
        constants::{CATALOG_FINALIZER, FIELD_MANAGER},
        selector_set::Mode,
    },
};

/// Longest time that a deletion waits for selectors.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Whether `set` needs the finalizer and lacks it.
pub(super) fn needs_finalizer(set: &SelectorSet) -> bool {
    set.spec.mode == Mode::External && set.metadata.deletion_timestamp.is_none() && !has_finalizer(set)
}

fn has_finalizer(set: &SelectorSet) -> bool {
    set.metadata.finalizers.iter().flatten().any(|f| f == CATALOG_FINALIZER)
}

/// Whether a deletion of `set` need not wait any longer.
pub(super) fn may_go(set: &SelectorSet, view: Option<&FleetView>, now: Timestamp) -> bool {
    if !is_leaving(set) || !has_finalizer(set) {
        return false;
    }
    let since = set
        .metadata
        .deletion_timestamp
        .as_ref()
        .map_or(Duration::ZERO, |time| Duration::try_from(now.duration_since(time.0)).unwrap_or_default());
    let emptied = view.is_some_and(|view| {
        let emptied = |m: &super::fleet::MemberView| m.catalog.state == CatalogState::Applied;
        view.snapshot.as_ref().is_some_and(|s| s.workers().is_empty()) && view.members.iter().all(emptied)
    });
    emptied || since >= LONGEST_WAIT
}

/// Adds or removes the finalizer of `set`.
pub(super) async fn write(client: Client, set: &SelectorSet, wanted: bool) -> Result<(), ApplyError> {
    let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
    let name = set.metadata.name.as_deref().unwrap_or_default();
    let mut finalizers: Vec<&str> =
        set.metadata.finalizers.iter().flatten().map(String::as_str).filter(|f| *f != CATALOG_FINALIZER).collect();
    if wanted {
        finalizers.push(CATALOG_FINALIZER);
    }
    let body = json!({ "metadata": { "finalizers": finalizers, "resourceVersion": set.metadata.resource_version } });
    let api: Api<SelectorSet> = Api::namespaced(client, namespace);
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    match call("patch", format!("SelectorSet {name}"), api.patch(name, &params, &Patch::Merge(&body))).await {
        // Gone, or changed meanwhile: the next look decides anew.
        Err(error) if error.is_overtaken() => Ok(()),
        outcome => outcome.map(|_| ()),
    }
}
