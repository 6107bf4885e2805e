//! `round-robin`: one rank after the other, in the order of (worker, rank).

use super::{NoParameters, picker_factory, provider as provider_of};
use crate::selection::{
    identity::WorkerWithDpRank,
    policy::{
        context::WorkerSelectionContext,
        inputs::WorkerInputView,
        parameters::WorkerSelectionPolicyProviderError,
        stages::{
            WorkerPicker, WorkerSelectionPolicyError, WorkerSelectionPolicyFactory, WorkerSelectionPolicyProvider,
        },
    },
};

pub(super) fn provider() -> WorkerSelectionPolicyProvider {
    provider_of(factory)
}

fn factory(_: NoParameters) -> Result<WorkerSelectionPolicyFactory, WorkerSelectionPolicyProviderError> {
    Ok(picker_factory(true, |_, _| RoundRobin { last: None }))
}

/// Remembers the rank, not a number: ranks that come and go shift nobody's turn.
struct RoundRobin {
    last: Option<WorkerWithDpRank>,
}

impl WorkerPicker for RoundRobin {
    fn pick(
        &mut self,
        context: &WorkerSelectionContext<'_>,
        input: WorkerInputView<'_>,
    ) -> Result<usize, WorkerSelectionPolicyError> {
        let rows = input.candidates();
        let next = self.last.map_or(0, |last| rows.partition_point(|row| row.worker() <= last));
        let row = if next < rows.len() { next } else { 0 };
        if !context.is_query() {
            self.last = rows.get(row).map(|row| row.worker());
        }
        Ok(row)
    }
}
