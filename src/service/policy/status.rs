//! What of the policies is shown: `GET /policy` and metrics.

use std::{collections::BTreeMap, fmt};

use prometheus_client::encoding::DescriptorEncoder;
use serde::Serialize;

use super::{Policies, PolicyReloadError};
use crate::{
    selection::policy::document::{CompositionReport, PolicyDocument},
    service::metrics::{Family, count},
};

/// The policies in force, and what became of their document.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct PolicyStatus {
    /// The document's file; absent without one.
    pub file: Option<String>,
    /// Whether changes of the file act.
    pub watched: bool,
    /// 1 at start; grows with every document that is applied.
    pub generation: u64,
    /// XXH3-128 of the document in force.
    pub digest: Option<String>,
    /// When it came into force, in milliseconds since 1970.
    pub loaded_at_ms: u64,
    /// What it comes to.
    pub effective: CompositionReport,
    /// The same as text.
    pub text: String,
    /// Reloads by outcome.
    pub reloads: BTreeMap<&'static str, u64>,
    /// Why the document that is there now is not in force; absent when it is.
    pub last_error: Option<PolicyErrorStatus>,
}

/// Why a document was refused.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct PolicyErrorStatus {
    /// The whole text.
    pub error: String,
    /// `unreadable`, `too_large`, `syntax`, `value` or `policy`.
    pub reason: &'static str,
    /// Line in the document, from 1.
    pub line: Option<u64>,
    /// Column in the document, from 1.
    pub column: Option<u64>,
    /// The field; empty for the document itself.
    pub field: String,
    /// When it was refused, in milliseconds since 1970.
    pub at_ms: u64,
}

impl PolicyErrorStatus {
    fn new((error, at_ms): &(PolicyReloadError, u64)) -> Self {
        Self {
            error: error.text.clone(),
            reason: error.outcome,
            line: error.line_column.map(|(line, _)| line),
            column: error.line_column.map(|(_, column)| column),
            field: error.field.clone(),
            at_ms: *at_ms,
        }
    }
}

impl Policies {
    pub(in crate::service) fn status(&self) -> PolicyStatus {
        let state = self.state.lock();
        let document = state.document.as_ref();
        PolicyStatus {
            file: document.map(|document| document.file().to_owned()),
            watched: self.watch && document.is_some(),
            generation: state.generation,
            digest: document.map(|document| PolicyDocument::digest(document).to_owned()),
            loaded_at_ms: state.loaded_at_ms,
            text: state.effective.to_string(),
            effective: state.effective.clone(),
            reloads: state.outcomes.clone(),
            last_error: state.error.as_ref().map(PolicyErrorStatus::new),
        }
    }

    pub(in crate::service) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let state = self.state.lock();
        let mut generation = Family::gauge("policy_generation", "Policy documents applied, the first included", []);
        generation.add([], count(state.generation));
        let mut failed = Family::gauge("policy_last_reload_failed", "Whether the policy document is refused now", []);
        failed.add([], f64::from(u8::from(state.error.is_some())));
        let mut reloads = Family::counter("policy_reloads", "Changes of the policy document, by outcome", ["outcome"]);
        for (outcome, number) in &state.outcomes {
            reloads.add([outcome], count(*number));
        }
        drop(state);
        generation.encode(encoder)?;
        failed.encode(encoder)?;
        reloads.encode(encoder)
    }
}
