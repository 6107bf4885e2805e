//! Filters and scorers that are CEL expressions.

use std::sync::Arc;

use super::{
    Make, WorkerSelectionPolicyProviderError,
    document::Component,
    refused,
    rows::{One, View},
};
use crate::selection::policy::{
    context::WorkerSelectionContext,
    expression::{Expression, Fault, InputGroup, Purpose},
    inputs::{WorkerCandidate, WorkerCandidates, WorkerInputs},
    stages::{WorkerFilter, WorkerScorer, WorkerSelectionPolicyError},
};

/// An expression with its place in the policy.
#[derive(Clone)]
struct Named {
    name: String,
    expression: Expression,
    inputs: WorkerInputs,
}

impl Named {
    fn new(
        path: &str,
        entry: &Component,
        text: &str,
        purpose: Purpose,
    ) -> Result<Self, WorkerSelectionPolicyProviderError> {
        if entry.parameters.is_some() {
            return Err(refused(path, "an expression has no `parameters`"));
        }
        let expression = Expression::compile(text, purpose).map_err(|error| refused(&format!("{path}.cel"), error))?;
        let groups = expression.inputs().iter().map(|input| match input.facts().group {
            InputGroup::None => WorkerInputs::NONE,
            InputGroup::Cache => WorkerInputs::CACHE,
            InputGroup::Load => WorkerInputs::LOAD,
            InputGroup::PreferredTaint => WorkerInputs::PREFERRED_TAINT,
        });
        let inputs = groups.fold(WorkerInputs::NONE, |union, group| union | group);
        Ok(Self { name: entry.named(path), expression, inputs })
    }

    fn failed(&self, stage: &str, candidate: Option<WorkerCandidate<'_>>, fault: &Fault) -> WorkerSelectionPolicyError {
        let whom = candidate.map_or_else(String::new, |candidate| {
            let rank = candidate.worker();
            format!(" for worker {} rank {}", rank.worker_id, rank.dp_rank)
        });
        let text = self.expression.text();
        WorkerSelectionPolicyError::failed(format!("{stage} {:?}{whom}: {fault} of `{text}`", self.name))
    }
}

#[derive(Clone)]
struct CelFilter(Named);

#[derive(Clone)]
struct CelScorer {
    named: Named,
    weight: f64,
}

/// The filter of a text.
pub(super) fn cel_filter(
    path: &str,
    entry: &Component,
    text: &str,
) -> Result<Make<dyn WorkerFilter>, WorkerSelectionPolicyProviderError> {
    let filter = CelFilter(Named::new(path, entry, text, Purpose::Filter)?);
    Ok(Arc::new(move || Box::new(filter.clone())))
}

/// The scorer of a text.
pub(super) fn cel_scorer(
    path: &str,
    entry: &Component,
    text: &str,
    weight: f64,
) -> Result<Make<dyn WorkerScorer>, WorkerSelectionPolicyProviderError> {
    let scorer = CelScorer { named: Named::new(path, entry, text, Purpose::Scorer)?, weight };
    Ok(Arc::new(move || Box::new(scorer.clone())))
}

impl WorkerFilter for CelFilter {
    fn required_worker_inputs(&self) -> WorkerInputs {
        self.0.inputs
    }

    fn keep(
        &mut self,
        context: &WorkerSelectionContext<'_>,
        candidate: WorkerCandidate<'_>,
    ) -> Result<bool, WorkerSelectionPolicyError> {
        let mut keep = [false];
        let kept = self.0.expression.keep(&View { context, candidates: One(candidate) }, &mut keep);
        kept.map_err(|(_, fault)| self.0.failed("filter", Some(candidate), &fault))?;
        Ok(keep[0])
    }

    fn component_name(&self) -> &str {
        &self.0.name
    }
}

impl WorkerScorer for CelScorer {
    fn required_worker_inputs(&self) -> WorkerInputs {
        self.named.inputs
    }

    fn score(
        &mut self,
        context: &WorkerSelectionContext<'_>,
        candidates: WorkerCandidates<'_>,
        costs: &mut [f64],
    ) -> Result<(), WorkerSelectionPolicyError> {
        let scored = self.named.expression.score(&View { context, candidates }, costs);
        scored.map_err(|(row, fault)| self.named.failed("scorer", candidates.get(row), &fault))?;
        if self.weight != 1.0 {
            costs.iter_mut().for_each(|cost| *cost *= self.weight);
        }
        Ok(())
    }

    fn component_name(&self) -> &str {
        &self.named.name
    }
}
