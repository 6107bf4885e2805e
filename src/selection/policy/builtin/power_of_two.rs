//! `power-of-two-choices`: the least busy of a few ranks drawn at random.

use serde::{Deserialize, Serialize};

use super::{
    check, picker_factory, provider as provider_of,
    rank_choice::{busyness, generator, loads, no_rows},
};
use crate::selection::policy::{
    context::WorkerSelectionContext,
    inputs::{WorkerInputView, WorkerInputs},
    parameters::WorkerSelectionPolicyProviderError,
    stages::{WorkerPicker, WorkerSelectionPolicyError, WorkerSelectionPolicyFactory, WorkerSelectionPolicyProvider},
};

/// Most ranks drawn.
const MOST_CHOICES: usize = 16;

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct Parameters {
    /// Ranks drawn, 1 to 16.
    choices: usize,
}

impl Default for Parameters {
    fn default() -> Self {
        Self { choices: 2 }
    }
}

pub(super) fn provider() -> WorkerSelectionPolicyProvider {
    provider_of(factory)
}

fn factory(own: Parameters) -> Result<WorkerSelectionPolicyFactory, WorkerSelectionPolicyProviderError> {
    check((1..=MOST_CHOICES).contains(&own.choices), || format!("choices must be between 1 and {MOST_CHOICES}"))?;
    Ok(picker_factory(true, move |config, partition| PowerOfTwo {
        choices: own.choices,
        rng: generator(config, partition),
    }))
}

struct PowerOfTwo {
    choices: usize,
    rng: fastrand::Rng,
}

impl WorkerPicker for PowerOfTwo {
    fn required_worker_inputs(&self) -> WorkerInputs {
        WorkerInputs::LOAD
    }

    fn pick(
        &mut self,
        _: &WorkerSelectionContext<'_>,
        input: WorkerInputView<'_>,
    ) -> Result<usize, WorkerSelectionPolicyError> {
        let loads = loads(input)?;
        let mut drawn = [0; MOST_CHOICES];
        let mut best: Option<usize> = None;
        // Distinct ranks: each draw is among those left, then moved past the ones taken, which are kept sorted.
        for taken in 0..self.choices.min(loads.len()) {
            let mut row = self.rng.usize(0..loads.len() - taken);
            let mut place = 0;
            while place < taken && drawn[place] <= row {
                row += 1;
                place += 1;
            }
            drawn.copy_within(place..taken, place + 1);
            drawn[place] = row;
            if best.is_none_or(|best| busyness(&loads[row]) < busyness(&loads[best])) {
                best = Some(row);
            }
        }
        best.ok_or_else(no_rows)
    }
}
