// One policy, compiled once against each crate: what changes is the path the names are imported from.

/// Prompt tokens that would have to be computed, in blocks.
struct Uncached;

impl WorkerScorer for Uncached {
    fn required_worker_inputs(&self) -> WorkerInputs {
        WorkerInputs::CACHE
    }

    fn score(
        &mut self,
        context: &WorkerSelectionContext<'_>,
        candidates: WorkerCandidates<'_>,
        costs: &mut [f64],
    ) -> Result<(), WorkerSelectionPolicyError> {
        let blocks = context.request_blocks() as f64;
        for (candidate, cost) in candidates.iter().zip(costs) {
            let cache = candidate.cache().ok_or_else(|| WorkerSelectionPolicyError::failed("no cache input"))?;
            *cost = (blocks - cache.device_overlap_blocks()).max(0.0);
        }
        Ok(())
    }
}

/// Prefill and decode work in progress, in blocks.
struct Work;

impl WorkerScorer for Work {
    fn required_worker_inputs(&self) -> WorkerInputs {
        WorkerInputs::LOAD
    }

    fn score(
        &mut self,
        context: &WorkerSelectionContext<'_>,
        candidates: WorkerCandidates<'_>,
        costs: &mut [f64],
    ) -> Result<(), WorkerSelectionPolicyError> {
        let block_size = context.block_size() as f64;
        for (candidate, cost) in candidates.iter().zip(costs) {
            let load = candidate.load().ok_or_else(|| WorkerSelectionPolicyError::failed("no load input"))?;
            *cost = load.active_prefill_tokens() as f64 / block_size + load.decode_cost_blocks() as f64;
        }
        Ok(())
    }
}

/// Requests in progress.
struct Requests;

impl WorkerScorer for Requests {
    fn required_worker_inputs(&self) -> WorkerInputs {
        WorkerInputs::LOAD
    }

    fn score(
        &mut self,
        _context: &WorkerSelectionContext<'_>,
        candidates: WorkerCandidates<'_>,
        costs: &mut [f64],
    ) -> Result<(), WorkerSelectionPolicyError> {
        for (candidate, cost) in candidates.iter().zip(costs) {
            let load = candidate.load().ok_or_else(|| WorkerSelectionPolicyError::failed("no load input"))?;
            *cost = 0.5 * load.active_requests() as f64;
        }
        Ok(())
    }
}

struct Lowest;

impl WorkerPicker for Lowest {
    fn pick(
        &mut self,
        _context: &WorkerSelectionContext<'_>,
        input: WorkerInputView<'_>,
    ) -> Result<usize, WorkerSelectionPolicyError> {
        let rows = input.candidates().iter().enumerate();
        rows.min_by(|(_, a), (_, b)| a.cost().total_cmp(&b.cost()))
            .map(|(row, _)| row)
            .ok_or_else(|| WorkerSelectionPolicyError::failed("no candidate"))
    }
}

pub fn three_scorers(config: KvRouterConfig) -> WorkerSelectionPolicy {
    WorkerSelectionPolicy::new(config, "decode", vec![Box::new(Uncached), Box::new(Work), Box::new(Requests)], Box::new(Lowest))
}
