//! The policy type `pipeline`: filters, scorers and a picker composed in YAML, from built-in components and CEL
//! expressions (docs/expressions.md).
//!
//! Everything is checked by [`provider`], once for an instance; a factory only clones what was checked, so that making a
//! policy for a partition cannot fail.

#[cfg(feature = "expressions")]
mod cel;
mod document;
mod filters;
mod pickers;
#[cfg(feature = "expressions")]
mod rows;
mod scorers;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use self::document::{Component, Document};
use super::{
    parameters::{WorkerSelectionPolicyParameters, WorkerSelectionPolicyProviderError},
    stages::{
        WorkerFilter, WorkerScorer, WorkerSelectionPolicy, WorkerSelectionPolicyFactory, WorkerSelectionPolicyProvider,
    },
};

/// The name of the policy type.
pub const PIPELINE: &str = "pipeline";

/// Filters of a pipeline, and scorers.
pub const MAX_COMPONENTS: usize = 16;

/// Bytes of a component's name.
pub const MAX_NAME_LENGTH: usize = 64;

/// Makes a component for a partition.
type Make<T> = Arc<dyn Fn() -> Box<T> + Send + Sync>;

/// Reads the parameters of an instance of type [`PIPELINE`].
pub fn provider() -> WorkerSelectionPolicyProvider {
    Arc::new(factory)
}

fn refused(path: &str, reason: impl std::fmt::Display) -> WorkerSelectionPolicyProviderError {
    WorkerSelectionPolicyProviderError::new(format!("{path}: {reason}"))
}

fn factory(
    parameters: &WorkerSelectionPolicyParameters,
) -> Result<WorkerSelectionPolicyFactory, WorkerSelectionPolicyProviderError> {
    let document: Document = parameters.deserialize()?;
    document.check()?;
    let make_filter = |(at, entry): (usize, &Component)| filter(&format!("filters[{at}]"), entry);
    let filters: Vec<_> = document.filters.iter().enumerate().map(make_filter).collect::<Result<_, _>>()?;
    let make_scorer = |(at, entry): (usize, &Component)| scorer(&format!("scorers[{at}]"), entry);
    let scorers: Vec<_> = document.scorers.iter().enumerate().map(make_scorer).collect::<Result<_, _>>()?;
    let picker = pickers::picker("picker", document.picker.as_ref())?;
    let exclusive = document.exclusive_affinity;
    Ok(Arc::new(move |config, role, _| {
        let filters = filters.iter().map(|make| make()).collect();
        let scorers = scorers.iter().map(|make| make()).collect();
        WorkerSelectionPolicy::new_with_filters(config.clone(), role.as_str(), filters, scorers, picker())
            .with_exclusive_affinity(exclusive)
    }))
}

fn filter(path: &str, entry: &Component) -> Result<Make<dyn WorkerFilter>, WorkerSelectionPolicyProviderError> {
    if entry.weight.is_some() {
        return Err(refused(path, "a filter has no weight"));
    }
    match (&entry.cel, &entry.component_type) {
        (Some(text), None) => cel_filter(path, entry, text),
        (None, Some(component_type)) => filters::filter(path, component_type, entry),
        _ => Err(refused(path, "needs either `cel` or `type`")),
    }
}

fn scorer(path: &str, entry: &Component) -> Result<Make<dyn WorkerScorer>, WorkerSelectionPolicyProviderError> {
    let weight = entry.weight.unwrap_or(1.0);
    if !weight.is_finite() {
        return Err(refused(&format!("{path}.weight"), "must be finite"));
    }
    match (&entry.cel, &entry.component_type) {
        (Some(text), None) => cel_scorer(path, entry, text, weight),
        (None, Some(component_type)) => scorers::scorer(path, component_type, entry, weight),
        _ => Err(refused(path, "needs either `cel` or `type`")),
    }
}

#[cfg(feature = "expressions")]
use self::cel::{cel_filter, cel_scorer};

#[cfg(not(feature = "expressions"))]
fn cel_filter(
    path: &str,
    _: &Component,
    _: &str,
) -> Result<Make<dyn WorkerFilter>, WorkerSelectionPolicyProviderError> {
    Err(refused(path, "this build has no expressions (feature `expressions`)"))
}

#[cfg(not(feature = "expressions"))]
fn cel_scorer(
    path: &str,
    _: &Component,
    _: &str,
    _: f64,
) -> Result<Make<dyn WorkerScorer>, WorkerSelectionPolicyProviderError> {
    Err(refused(path, "this build has no expressions (feature `expressions`)"))
}
