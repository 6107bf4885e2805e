//! The views of a selection as the inputs of an expression.

use crate::selection::{
    policy::{
        context::WorkerSelectionContext,
        expression::{Input, Rows},
        inputs::{WorkerCacheInput, WorkerCandidate, WorkerCandidates, WorkerLoadInput},
    },
    request::{InputTrigger, SessionContext},
    trust::Trust,
};

/// Candidates of a call: one, or all.
pub(super) trait Table {
    fn len(&self) -> usize;

    fn get(&self, row: usize) -> Option<WorkerCandidate<'_>>;
}

/// The only candidate of a call.
pub(super) struct One<'a>(pub WorkerCandidate<'a>);

impl Table for One<'_> {
    fn len(&self) -> usize {
        1
    }

    #[inline]
    fn get(&self, row: usize) -> Option<WorkerCandidate<'_>> {
        (row == 0).then_some(self.0)
    }
}

impl Table for WorkerCandidates<'_> {
    fn len(&self) -> usize {
        (*self).len()
    }

    #[inline]
    fn get(&self, row: usize) -> Option<WorkerCandidate<'_>> {
        (*self).get(row)
    }
}

/// One call of a component.
pub(super) struct View<'a, T> {
    pub context: &'a WorkerSelectionContext<'a>,
    pub candidates: T,
}

/// CEL's `int` ends at `i64::MAX`, which no count reaches.
fn int(count: impl TryInto<i64>) -> i64 {
    count.try_into().unwrap_or(i64::MAX)
}

impl<T: Table> View<'_, T> {
    fn rows<V>(&self, from: usize, values: &mut [V], of: impl Fn(WorkerCandidate<'_>) -> V) {
        for (row, value) in (from..).zip(values) {
            if let Some(candidate) = self.candidates.get(row) {
                *value = of(candidate);
            }
        }
    }

    fn loads<V>(&self, from: usize, values: &mut [V], of: impl Fn(&WorkerLoadInput) -> V) {
        let unknown = WorkerLoadInput::default();
        self.rows(from, values, |candidate| of(candidate.load().unwrap_or(&unknown)));
    }

    fn caches<V: Default>(&self, from: usize, values: &mut [V], of: impl Fn(WorkerCacheInput<'_>) -> V) {
        self.rows(from, values, |candidate| candidate.cache().map_or_else(V::default, &of));
    }

    fn session(&self) -> Option<&SessionContext> {
        self.context.session_context()
    }
}

impl<T: Table> Rows for View<'_, T> {
    fn len(&self) -> usize {
        self.candidates.len()
    }

    fn bools(&self, input: Input, from: usize, values: &mut [bool]) {
        match input {
            Input::LoadAvailable => self.loads(from, values, |load| load.is_available()),
            Input::HasTierMatches => values.fill(self.context.cache().is_some_and(|cache| cache.has_tier_matches())),
            Input::TracksPrefill => values.fill(self.context.tracks_prefill_tokens()),
            Input::IsQuery => values.fill(self.context.is_query()),
            Input::SessionFinal => {
                values.fill(self.session().and_then(|session| session.session_final).unwrap_or(false))
            }
            _ => wrong_type(input),
        }
    }

    fn ints(&self, input: Input, from: usize, values: &mut [i64]) {
        let context = self.context;
        let capacity = |candidate: WorkerCandidate<'_>| context.worker_capacity(candidate.worker());
        match input {
            Input::DpRank => self.rows(from, values, |candidate| i64::from(candidate.worker().dp_rank)),
            Input::CachedTokens => self.caches(from, values, |cache| int(cache.accounting_cache_estimate().1)),
            Input::ActivePrefillTokens => self.loads(from, values, |load| int(load.active_prefill_tokens())),
            Input::ActiveRequests => self.loads(from, values, |load| int(load.active_requests())),
            Input::TotalKvBlocks => {
                self.rows(from, values, |candidate| int(capacity(candidate).total_kv_blocks().unwrap_or(0)));
            }
            Input::MaxBatchedTokens => {
                self.rows(from, values, |candidate| int(capacity(candidate).max_num_batched_tokens().unwrap_or(0)));
            }
            Input::PromptTokens => values.fill(int(context.prompt_tokens())),
            Input::RequestBlocks => values.fill(int(context.request_blocks())),
            Input::BlockSize => values.fill(i64::from(context.block_size())),
            Input::StrictPriority => values.fill(i64::from(context.strict_priority())),
            Input::ExpectedOutputTokens => values.fill(i64::from(context.expected_output_tokens().unwrap_or(0))),
            Input::PinnedRank => values.fill(context.pinned_worker().map_or(0, |pin| i64::from(pin.dp_rank))),
            Input::AffinityRank => {
                let rank = context.affinity_target().and_then(|target| target.dp_rank);
                values.fill(rank.map_or(0, i64::from));
            }
            _ => wrong_type(input),
        }
    }

    fn uints(&self, input: Input, from: usize, values: &mut [u64]) {
        match input {
            Input::WorkerId => self.rows(from, values, |candidate| candidate.worker().worker_id),
            Input::PinnedWorkerId => values.fill(self.context.pinned_worker().map_or(0, |pin| pin.worker_id)),
            Input::AffinityWorkerId => {
                values.fill(self.context.affinity_target().map_or(0, |target| target.worker_id));
            }
            _ => wrong_type(input),
        }
    }

    fn doubles(&self, input: Input, from: usize, values: &mut [f64]) {
        match input {
            Input::DeviceBlocks => self.caches(from, values, |cache| cache.device_overlap_blocks()),
            Input::HostBlocks => self.caches(from, values, |cache| cache.host_overlap_blocks()),
            Input::DiskBlocks => self.caches(from, values, |cache| cache.disk_overlap_blocks()),
            Input::EstimatedBlocks => self.caches(from, values, |cache| cache.accounting_cache_estimate().0),
            Input::DecodeBlocks => self.loads(from, values, |load| load.decode_cost_blocks()),
            Input::TaintMultiplier => {
                self.rows(from, values, |candidate| candidate.preferred_taint_multiplier().unwrap_or(1.0));
            }
            Input::PriorityJump => values.fill(self.context.priority_jump()),
            Input::TemperatureOverride => values.fill(self.context.router_temperature_override().unwrap_or(0.0)),
            _ => wrong_type(input),
        }
    }

    fn present(&self, input: Input, from: usize, present: &mut [bool]) {
        let context = self.context;
        let is_present = match input {
            Input::TotalKvBlocks => {
                return self.rows(from, present, |candidate| {
                    context.worker_capacity(candidate.worker()).total_kv_blocks().is_some()
                });
            }
            Input::MaxBatchedTokens => {
                return self.rows(from, present, |candidate| {
                    context.worker_capacity(candidate.worker()).max_num_batched_tokens().is_some()
                });
            }
            Input::ExpectedOutputTokens => context.expected_output_tokens().is_some(),
            Input::TemperatureOverride => context.router_temperature_override().is_some(),
            Input::PinnedWorkerId | Input::PinnedRank => context.pinned_worker().is_some(),
            Input::AffinityWorkerId => context.affinity_target().is_some(),
            Input::AffinityRank => context.affinity_target().is_some_and(|target| target.dp_rank.is_some()),
            Input::SessionFinal => self.session().is_some_and(|session| session.session_final.is_some()),
            Input::SessionId | Input::ParentSessionId | Input::InputTrigger | Input::PolicyClass => {
                self.text(input).is_some()
            }
            _ => true,
        };
        present.fill(is_present);
    }

    fn trusts(&self, from: usize, values: &mut [Trust]) {
        self.caches(from, values, |cache| cache.trust());
    }

    fn text(&self, input: Input) -> Option<&str> {
        match input {
            Input::SessionId => self.context.session_id(),
            Input::ParentSessionId => self.session()?.parent_session_id.as_deref(),
            Input::InputTrigger => Some(match self.session()?.input_trigger? {
                InputTrigger::UserMessage => "user_message",
                InputTrigger::ToolResult => "tool_result",
                InputTrigger::Other => "other",
            }),
            Input::PolicyClass => self.context.policy_class(),
            _ => wrong_type(input),
        }
    }

    fn header(&self, name: &str) -> Option<&str> {
        let headers = self.session()?.agent_headers.as_ref()?;
        let named = || headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, values)| values);
        Some(headers.get(name).or_else(named)?.first()?.as_str())
    }
}

/// The evaluator asks each method for its type only, which a test of all inputs shows.
#[cold]
fn wrong_type<V>(input: Input) -> V {
    unreachable!("{} has another type", input.facts().name)
}
