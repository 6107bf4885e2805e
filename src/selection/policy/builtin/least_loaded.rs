//! `least-loaded`: the rank that does least.

use serde::{Deserialize, Serialize};

use super::{
    picker_factory, provider as provider_of,
    rank_choice::{any_least, busyness, generator, loads, no_rows},
};
use crate::selection::policy::{
    context::WorkerSelectionContext,
    inputs::{WorkerInputView, WorkerInputs},
    parameters::WorkerSelectionPolicyProviderError,
    stages::{WorkerPicker, WorkerSelectionPolicyError, WorkerSelectionPolicyFactory, WorkerSelectionPolicyProvider},
};

/// What counts as load.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum Measure {
    /// Live bookings, then prefill tokens.
    #[default]
    Requests,
    /// Prefill tokens in progress.
    PrefillTokens,
    /// Blocks with this request.
    Blocks,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct Parameters {
    measure: Measure,
}

pub(super) fn provider() -> WorkerSelectionPolicyProvider {
    provider_of(factory)
}

fn factory(own: Parameters) -> Result<WorkerSelectionPolicyFactory, WorkerSelectionPolicyProviderError> {
    Ok(picker_factory(true, move |config, partition| LeastLoaded {
        measure: own.measure,
        rng: generator(config, partition),
    }))
}

struct LeastLoaded {
    measure: Measure,
    rng: fastrand::Rng,
}

impl WorkerPicker for LeastLoaded {
    fn required_worker_inputs(&self) -> WorkerInputs {
        WorkerInputs::LOAD
    }

    fn pick(
        &mut self,
        _: &WorkerSelectionContext<'_>,
        input: WorkerInputView<'_>,
    ) -> Result<usize, WorkerSelectionPolicyError> {
        let (loads, rng) = (loads(input)?.iter().enumerate(), &mut self.rng);
        let row = match self.measure {
            Measure::Requests => any_least(loads.map(|(row, load)| (row, busyness(load))), rng),
            Measure::PrefillTokens => any_least(loads.map(|(row, load)| (row, load.active_prefill_tokens())), rng),
            Measure::Blocks => any_least(loads.map(|(row, load)| (row, load.decode_cost_blocks())), rng),
        };
        row.ok_or_else(no_rows)
    }
}
