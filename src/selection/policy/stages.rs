//! The three traits of a policy, and how they make one (spec plugins 2.1).
//!
//! A policy ranks ranks that the host found eligible, and names one row. What each component declares it reads is asked
//! once, when the policy is made. Calls are serial: state needs no lock and belongs to one partition.

use std::{fmt, sync::Arc};

use super::{
    builtin::{default_cost::DefaultCostParameters, work_ahead::WorkAheadSettings},
    context::WorkerSelectionContext,
    inputs::{WorkerCandidate, WorkerCandidates, WorkerInputView, WorkerInputs},
    parameters::{WorkerSelectionPolicyParameters, WorkerSelectionPolicyProviderError},
};
use crate::selection::{config::SelectionConfig, identity::PartitionKey, worker::WorkerRole};

/// Why a policy could not choose. All of them are answered with 500.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkerSelectionPolicyError {
    /// A component said so.
    #[error("worker selection policy failed: {0}")]
    Failed(String),
    /// A cost was not written, is infinite or not a number, or makes the sum so.
    #[error("scorer {scorer_index} produced a non-finite cost for candidate row {row}")]
    NonFiniteCost {
        /// Place of the scorer in the policy.
        scorer_index: usize,
        /// Row.
        row: usize,
    },
    /// The picker named a row that does not exist.
    #[error("picker returned candidate row {row}, but the candidate table contains {candidate_count} rows")]
    InvalidPickerRow {
        /// What it named.
        row: usize,
        /// Rows there are.
        candidate_count: usize,
    },
}

impl WorkerSelectionPolicyError {
    /// The error of a component, with its reason.
    pub fn failed(reason: impl Into<String>) -> Self {
        Self::Failed(reason.into())
    }
}

/// Keeps or drops one candidate at a time. Filters are asked in the order of declaration; the first `false` drops.
pub trait WorkerFilter: Send {
    /// What `keep` reads.
    fn required_worker_inputs(&self) -> WorkerInputs {
        WorkerInputs::NONE
    }

    /// Whether the candidate stays.
    ///
    /// # Errors
    /// Any ends the selection, which fails.
    fn keep(
        &mut self,
        context: &WorkerSelectionContext<'_>,
        candidate: WorkerCandidate<'_>,
    ) -> Result<bool, WorkerSelectionPolicyError>;

    /// Its name in explanations. Ours.
    fn component_name(&self) -> &str {
        type_name::<Self>()
    }
}

/// Adds a cost to every candidate. Lower is better; negative costs are fine.
pub trait WorkerScorer: Send {
    /// What `score` reads.
    fn required_worker_inputs(&self) -> WorkerInputs {
        WorkerInputs::NONE
    }

    /// Writes the cost of each candidate; all are NaN before, and must be finite afterwards.
    ///
    /// # Errors
    /// Any ends the selection, which fails.
    fn score(
        &mut self,
        context: &WorkerSelectionContext<'_>,
        candidates: WorkerCandidates<'_>,
        costs: &mut [f64],
    ) -> Result<(), WorkerSelectionPolicyError>;

    /// Its name in explanations. Ours.
    fn component_name(&self) -> &str {
        type_name::<Self>()
    }
}

/// Names the row that gets the request.
pub trait WorkerPicker: Send {
    /// What `pick` reads.
    fn required_worker_inputs(&self) -> WorkerInputs {
        WorkerInputs::NONE
    }

    /// The row. There is at least one.
    ///
    /// # Errors
    /// Any ends the selection, which fails.
    fn pick(
        &mut self,
        context: &WorkerSelectionContext<'_>,
        input: WorkerInputView<'_>,
    ) -> Result<usize, WorkerSelectionPolicyError>;

    /// Its name in explanations. Ours.
    fn component_name(&self) -> &str {
        type_name::<Self>()
    }
}

/// The last part of a type's path, without what it is generic over.
fn type_name<T: ?Sized>() -> &'static str {
    let whole = std::any::type_name::<T>();
    let plain = whole.split('<').next().unwrap_or(whole);
    plain.rsplit("::").next().unwrap_or(plain)
}

/// The name of a partition, borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RoutingPartitionRef<'a> {
    /// Model name.
    pub model_name: &'a str,
    /// Routing group.
    pub routing_group: &'a str,
}

impl<'a> RoutingPartitionRef<'a> {
    /// The partition of `model_name` and `routing_group`.
    pub const fn new(model_name: &'a str, routing_group: &'a str) -> Self {
        Self { model_name, routing_group }
    }
}

impl<'a> From<&'a PartitionKey> for RoutingPartitionRef<'a> {
    fn from(key: &'a PartitionKey) -> Self {
        Self::new(&key.model_name, &key.routing_group)
    }
}

impl fmt::Display for RoutingPartitionRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "model={} routing_group={}", self.model_name, self.routing_group)
    }
}

/// Makes a fresh policy for one partition and role; called again after a panic in one it made.
pub type WorkerSelectionPolicyFactory =
    Arc<dyn for<'a> Fn(&SelectionConfig, WorkerRole, RoutingPartitionRef<'a>) -> WorkerSelectionPolicy + Send + Sync>;

/// Turns the parameters of an instance into the factory of its policies. Called once an instance, at start.
pub type WorkerSelectionPolicyProvider = Arc<
    dyn Fn(&WorkerSelectionPolicyParameters) -> Result<WorkerSelectionPolicyFactory, WorkerSelectionPolicyProviderError>
        + Send
        + Sync,
>;

/// A component with what it declared.
pub(super) struct Declared<T: ?Sized> {
    pub(super) inputs: WorkerInputs,
    pub(super) part: Box<T>,
}

/// Filters, scorers and a picker.
pub(in crate::selection) struct Stages {
    pub(super) filters: Vec<Declared<dyn WorkerFilter>>,
    pub(super) scorers: Vec<Declared<dyn WorkerScorer>>,
    pub(super) picker: Declared<dyn WorkerPicker>,
}

impl Stages {
    /// What any component reads.
    pub(super) fn inputs(&self) -> WorkerInputs {
        let filters = self.filters.iter().map(|filter| filter.inputs);
        let all = filters.chain(self.scorers.iter().map(|scorer| scorer.inputs));
        all.fold(self.picker.inputs, |union, inputs| union | inputs)
    }

    pub(super) fn components(&self) -> Vec<PolicyComponent> {
        let of = |stage, name: &str, inputs| PolicyComponent { stage, name: name.to_owned(), inputs };
        let filters = self.filters.iter().map(|filter| of("filter", filter.part.component_name(), filter.inputs));
        let scorers = self.scorers.iter().map(|scorer| of("scorer", scorer.part.component_name(), scorer.inputs));
        let picker = of("picker", self.picker.part.component_name(), self.picker.inputs);
        filters.chain(scorers).chain(std::iter::once(picker)).collect()
    }
}

pub(in crate::selection) enum Kind {
    Components(Box<Stages>),
    /// The default cost, which chooses without a full scan. `None` = with the settings of the core and the overrides of
    /// requests.
    DefaultCost(Option<DefaultCostParameters>),
    /// Prefill work ahead, which chooses without a full scan too.
    WorkAhead(WorkAheadSettings),
}

/// A policy of one partition.
pub struct WorkerSelectionPolicy {
    pub(in crate::selection) kind: Kind,
    pub(in crate::selection) exclusive_affinity: bool,
    pub(in crate::selection) label: &'static str,
    pub(in crate::selection) name: Option<Arc<str>>,
}

impl fmt::Debug for WorkerSelectionPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerSelectionPolicy").field("name", &self.name).field("label", &self.label).finish()
    }
}

impl WorkerSelectionPolicy {
    /// A policy without filters. The settings are not kept: parameters belong to the components. `worker_label` is for
    /// logs, usually [`WorkerRole::as_str`].
    pub fn new(
        config: SelectionConfig,
        worker_label: &'static str,
        scorers: Vec<Box<dyn WorkerScorer>>,
        picker: Box<dyn WorkerPicker>,
    ) -> Self {
        Self::new_with_filters(config, worker_label, Vec::new(), scorers, picker)
    }

    /// A policy of all three kinds of components.
    pub fn new_with_filters(
        _config: SelectionConfig,
        worker_label: &'static str,
        filters: Vec<Box<dyn WorkerFilter>>,
        scorers: Vec<Box<dyn WorkerScorer>>,
        picker: Box<dyn WorkerPicker>,
    ) -> Self {
        let filters =
            filters.into_iter().map(|part| Declared { inputs: part.required_worker_inputs(), part }).collect();
        let scorers =
            scorers.into_iter().map(|part| Declared { inputs: part.required_worker_inputs(), part }).collect();
        let picker = Declared { inputs: picker.required_worker_inputs(), part: picker };
        Self {
            kind: Kind::Components(Box::new(Stages { filters, scorers, picker })),
            exclusive_affinity: false,
            label: worker_label,
            name: None,
        }
    }

    /// The default cost: with `parameters` of its own, or with the settings of the core and the overrides of requests.
    pub(super) fn default_cost(parameters: Option<DefaultCostParameters>, worker_label: &'static str) -> Self {
        Self { kind: Kind::DefaultCost(parameters), exclusive_affinity: true, label: worker_label, name: None }
    }

    /// Prefill work ahead.
    pub(super) fn work_ahead(settings: WorkAheadSettings, worker_label: &'static str) -> Self {
        Self { kind: Kind::WorkAhead(settings), exclusive_affinity: true, label: worker_label, name: None }
    }

    /// Whether an eligible affinity target is the only candidate (advice otherwise, the default).
    #[must_use]
    pub fn with_exclusive_affinity(mut self, exclusive: bool) -> Self {
        self.exclusive_affinity = exclusive;
        self
    }

    /// The name in explanations, logs and metrics. Policies from a registry get that of their instance.
    #[must_use]
    pub fn with_name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// What any of its components reads.
    pub fn required_worker_inputs(&self) -> WorkerInputs {
        match &self.kind {
            Kind::Components(stages) => stages.inputs(),
            Kind::DefaultCost(_) => WorkerInputs::ALL,
            Kind::WorkAhead(_) => WorkerInputs::ALL | WorkerInputs::PROGRESS,
        }
    }

    /// Whether an eligible affinity target is the only candidate.
    pub fn uses_exclusive_affinity_target(&self) -> bool {
        self.exclusive_affinity
    }

    /// What each component reads, by stage and name, in the order of calls; none for the default cost
    /// and `work-ahead`.
    pub fn components(&self) -> Vec<PolicyComponent> {
        match &self.kind {
            Kind::Components(stages) => stages.components(),
            Kind::DefaultCost(_) | Kind::WorkAhead(_) => Vec::new(),
        }
    }
}

/// One component of a policy, as reports show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyComponent {
    /// `filter`, `scorer` or `picker`.
    pub stage: &'static str,
    /// Its name.
    pub name: String,
    /// What it reads.
    pub inputs: WorkerInputs,
}
