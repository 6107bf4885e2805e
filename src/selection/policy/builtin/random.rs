//! `random`: any rank, all alike.

use super::{NoParameters, picker_factory, provider as provider_of, rank_choice::generator};
use crate::selection::policy::{
    context::WorkerSelectionContext,
    inputs::WorkerInputView,
    parameters::WorkerSelectionPolicyProviderError,
    stages::{WorkerPicker, WorkerSelectionPolicyError, WorkerSelectionPolicyFactory, WorkerSelectionPolicyProvider},
};

pub(super) fn provider() -> WorkerSelectionPolicyProvider {
    provider_of(factory)
}

fn factory(_: NoParameters) -> Result<WorkerSelectionPolicyFactory, WorkerSelectionPolicyProviderError> {
    Ok(picker_factory(true, |config, partition| Random(generator(config, partition))))
}

struct Random(fastrand::Rng);

impl WorkerPicker for Random {
    fn pick(
        &mut self,
        _: &WorkerSelectionContext<'_>,
        input: WorkerInputView<'_>,
    ) -> Result<usize, WorkerSelectionPolicyError> {
        Ok(self.0.usize(0..input.candidates().len().max(1)))
    }
}
