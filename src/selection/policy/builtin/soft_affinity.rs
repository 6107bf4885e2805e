//! `soft-affinity-load-guard`: a session stays on its rank up to a load, then moves only to a clearly lighter one.

use serde::{Deserialize, Serialize};

use super::{
    check, picker_factory, provider as provider_of,
    rank_choice::{any_least, busyness, first_least, generator, loads, no_rows},
};
use crate::selection::policy::{
    context::WorkerSelectionContext,
    inputs::{WorkerInputView, WorkerInputs},
    parameters::WorkerSelectionPolicyProviderError,
    stages::{WorkerPicker, WorkerSelectionPolicyError, WorkerSelectionPolicyFactory, WorkerSelectionPolicyProvider},
};

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct Parameters {
    /// Active requests up to which the target keeps its sessions.
    max_active_requests: u64,
    /// Active requests that another rank must have fewer, 1 or more.
    move_margin: u64,
}

impl Default for Parameters {
    fn default() -> Self {
        Self { max_active_requests: 32, move_margin: 2 }
    }
}

pub(super) fn provider() -> WorkerSelectionPolicyProvider {
    provider_of(factory)
}

fn factory(own: Parameters) -> Result<WorkerSelectionPolicyFactory, WorkerSelectionPolicyProviderError> {
    check(own.move_margin >= 1, || "move_margin must be at least 1".to_owned())?;
    Ok(picker_factory(false, move |config, partition| LoadGuard { own, rng: generator(config, partition) }))
}

struct LoadGuard {
    own: Parameters,
    rng: fastrand::Rng,
}

impl WorkerPicker for LoadGuard {
    fn required_worker_inputs(&self) -> WorkerInputs {
        WorkerInputs::LOAD
    }

    fn pick(
        &mut self,
        context: &WorkerSelectionContext<'_>,
        input: WorkerInputView<'_>,
    ) -> Result<usize, WorkerSelectionPolicyError> {
        let loads = loads(input)?;
        let requests = |row: usize| loads[row].active_requests() as u64;
        let of_target = context.affinity_target().and_then(|target| {
            let rows = input.candidates().iter().enumerate();
            let bound = rows.filter(|(_, candidate)| target.is(candidate.worker()));
            first_least(bound.map(|(row, _)| (row, busyness(&loads[row]))))
        });
        if let Some(row) = of_target
            && requests(row) <= self.own.max_active_requests
        {
            return Ok(row);
        }
        let lightest = any_least(loads.iter().map(busyness).enumerate(), &mut self.rng).ok_or_else(no_rows)?;
        match of_target {
            Some(row) if requests(lightest).saturating_add(self.own.move_margin) > requests(row) => Ok(row),
            _ => Ok(lightest),
        }
    }
}
