//! A policy of components in its partition: a mutex of its own, panics contained, a new instance after one.
//!
//! The mutex is taken before the partition's lock and held from copy to booking, so selections of one partition are
//! serial and a burst does not meet one idle worker; lifecycle calls pass in between. A policy's state survives errors;
//! a panic costs the instance and the request it happened in.

use std::{
    any::Any,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
};

use parking_lot::Mutex;

use super::{Partition, PartitionState, shadow::Shadow};
use crate::selection::{
    config::SelectionConfig,
    error::SelectionError,
    policy::{
        CacheWeights, PickRequest, Picked, PolicyScope, SelectionPolicy, builtin,
        builtin::default_cost::DefaultCost,
        builtin::work_ahead::WorkAhead,
        eligibility,
        failures::{PluginComponent, PluginFailures, is_worth_a_line, panic_text},
        host::{Failure, Host, Terms},
        inputs::WorkerInputs,
        stages::{Kind, PolicyComponent, RoutingPartitionRef, WorkerSelectionPolicy, WorkerSelectionPolicyFactory},
    },
};

/// Decisions about one request; the last one is booked even if its rank changed meanwhile.
const ATTEMPTS: usize = 3;

/// The policy of a partition.
pub enum PartitionPolicy {
    /// Called under the partition's lock.
    UnderLock(Box<dyn SelectionPolicy>),
    /// Has a lock of its own.
    Own(Arc<OwnPolicy>),
}

/// What a partition decides with.
#[derive(Debug)]
pub struct PartitionPolicies {
    /// Decides.
    pub in_force: PartitionPolicy,
    /// Is compared, and decides a share.
    pub shadow: Option<Arc<Shadow>>,
}

impl PartitionPolicies {
    /// What both read.
    pub fn required_inputs(&self) -> WorkerInputs {
        let shadow = self.shadow.as_ref().map_or(WorkerInputs::NONE, |shadow| shadow.required_inputs());
        self.in_force.required_inputs() | shadow
    }
}

impl From<PartitionPolicy> for PartitionPolicies {
    fn from(in_force: PartitionPolicy) -> Self {
        Self { in_force, shadow: None }
    }
}

impl fmt::Debug for PartitionPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnderLock(policy) => f.debug_tuple("UnderLock").field(&policy.name()).finish(),
            Self::Own(own) => own.fmt(f),
        }
    }
}

impl From<Box<dyn SelectionPolicy>> for PartitionPolicies {
    fn from(policy: Box<dyn SelectionPolicy>) -> Self {
        PartitionPolicy::UnderLock(policy).into()
    }
}

impl PartitionPolicy {
    /// Asks `factory` for the policy of a partition. If it panics, requests fail until it does not.
    pub fn make(
        factory: &WorkerSelectionPolicyFactory,
        config: &Arc<SelectionConfig>,
        scope: &PolicyScope,
        failures: &Arc<PluginFailures>,
    ) -> Self {
        let maker = Maker {
            scope: scope.clone(),
            config: Arc::clone(config),
            factory: Arc::clone(factory),
            failures: Arc::clone(failures),
        };
        let instance = match maker.make() {
            Ok(Instance::UnderLock(policy)) => return Self::UnderLock(policy),
            made => made.ok(),
        };
        let inputs = instance.as_ref().map_or(WorkerInputs::ALL, Instance::inputs);
        let inputs = AtomicU8::new(inputs.bits());
        Self::Own(Arc::new(OwnPolicy { maker, inputs, instance: Mutex::new(instance) }))
    }

    /// What it reads.
    pub fn required_inputs(&self) -> WorkerInputs {
        match self {
            Self::UnderLock(policy) => policy.required_inputs(),
            Self::Own(own) => own.required_inputs(),
        }
    }
}

/// A policy of components, and how to make another one.
pub struct OwnPolicy {
    maker: Maker,
    /// What the last instance reads.
    inputs: AtomicU8,
    /// Absent after a panic, until the next request.
    instance: Mutex<Option<Instance>>,
}

impl fmt::Debug for OwnPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Own").field(&self.maker.scope.key).finish()
    }
}

enum Instance {
    Components {
        host: Box<Host>,
        name: Arc<str>,
    },
    /// A factory that panicked at first may make a policy of the other kind afterwards.
    UnderLock(Box<dyn SelectionPolicy>),
}

impl Instance {
    fn inputs(&self) -> WorkerInputs {
        match self {
            Self::Components { host, .. } => host.inputs(),
            Self::UnderLock(policy) => policy.required_inputs(),
        }
    }
}

/// What an instance is made with.
struct Maker {
    scope: PolicyScope,
    config: Arc<SelectionConfig>,
    factory: WorkerSelectionPolicyFactory,
    failures: Arc<PluginFailures>,
}

impl Maker {
    /// # Errors
    /// 500 when the factory panics.
    fn make(&self) -> Result<Instance, SelectionError> {
        let (config, scope) = (&self.config, &self.scope);
        let partition = RoutingPartitionRef::from(&scope.key);
        let made = catch_unwind(AssertUnwindSafe(|| (self.factory)(config, scope.role, partition)));
        let WorkerSelectionPolicy { kind, exclusive_affinity, name, .. } = made.map_err(|panic| {
            let times = self.failures.count_panic(PluginComponent::Factory);
            let text = panic_text(&*panic);
            if is_worth_a_line(times) {
                tracing::error!(partition = %scope.key, role = %scope.role, panic = text, times, "policy factory panicked");
            }
            SelectionError::Internal(format!("worker selection policy factory panicked: {text}"))
        })?;
        let accounting = CacheWeights { host: config.host_cache_hit_weight, disk: config.disk_cache_hit_weight };
        Ok(match kind {
            Kind::DefaultCost(None) => Instance::UnderLock(builtin::default_policy(config, scope)),
            Kind::DefaultCost(Some(parameters)) => {
                let policy = DefaultCost::new(parameters, accounting, scope.block_size, false);
                Instance::UnderLock(Box::new(policy.with_name(name)))
            }
            Kind::WorkAhead(settings) => Instance::UnderLock(Box::new(WorkAhead::new(
                settings,
                accounting,
                scope.block_size,
                exclusive_affinity,
                name,
            ))),
            Kind::Components(stages) => {
                let terms = Terms { accounting, block_size: scope.block_size, exclusive_affinity };
                let name = name.unwrap_or_else(|| Arc::from("custom"));
                Instance::Components { host: Box::new(Host::new(stages, terms)), name }
            }
        })
    }
}

impl OwnPolicy {
    /// What its components read.
    pub fn required_inputs(&self) -> WorkerInputs {
        WorkerInputs::from_bits(self.inputs.load(Ordering::Relaxed))
    }

    /// Its components; none while there is no instance.
    pub fn components(&self) -> Vec<PolicyComponent> {
        match &*self.instance.lock() {
            Some(Instance::Components { host, .. }) => host.components(),
            _ => Vec::new(),
        }
    }

    /// Chooses a rank for `request` and lets `then` act on it under the partition's lock. A booking whose rank changed
    /// since the table was copied is decided again, twice at most.
    ///
    /// # Errors
    /// Eligibility, the policy's error or panic, and what `then` says.
    pub(in crate::selection) fn choose<R>(
        &self,
        request: &PickRequest<'_>,
        partition: &Partition,
        then: impl FnOnce(&mut PartitionState, Picked) -> Result<R, SelectionError>,
    ) -> Result<R, SelectionError> {
        let mut then = Some(then);
        let mut instance = self.instance.lock();
        for attempt in 1..=ATTEMPTS {
            let (host, name) = match self.ready(&mut instance)? {
                Instance::Components { host, name } => (host, name),
                Instance::UnderLock(policy) => {
                    return partition.with_state(|state| {
                        let picked = policy.pick(request, &mut state.load, &mut state.rng)?;
                        then.take().map_or_else(|| Err(eligibility::nobody()), |then| then(state, picked))
                    })?;
                }
            };
            partition.with_state(|state| host.copy(request, &state.load))??;
            let decided = catch_unwind(AssertUnwindSafe(|| host.decide(request, partition.trusts())));
            let chosen = match decided {
                Err(panic) => return Err(self.panicked(&mut instance, partition, &*panic)),
                Ok(decided) => {
                    partition.health().recovered();
                    decided.map_err(|failure| self.failed(failure))?
                }
            };
            let is_last = attempt == ATTEMPTS;
            let settled = partition.with_state(|state| {
                if !is_last && !request.facts.is_query && !host.is_current(&chosen, &state.load) {
                    return Ok(None);
                }
                match host.picked(&chosen, request, &state.load, name) {
                    Some(picked) => then.take().map(|then| then(state, picked)).transpose(),
                    // The rank left. Another one may do.
                    None => Ok(None),
                }
            })??;
            if let Some(result) = settled {
                return Ok(result);
            }
        }
        Err(eligibility::nobody())
    }

    /// The instance, made anew when the last one is gone.
    fn ready<'a>(&self, instance: &'a mut Option<Instance>) -> Result<&'a mut Instance, SelectionError> {
        if let Some(instance) = instance {
            return Ok(instance);
        }
        let made = instance.insert(self.maker.make()?);
        self.inputs.store(made.inputs().bits(), Ordering::Relaxed);
        Ok(made)
    }

    fn failed(&self, failure: Failure) -> SelectionError {
        match failure {
            Failure::Host(error) => error,
            Failure::Policy(component, error) => {
                self.maker.failures.count_error(component);
                SelectionError::Internal(error.to_string())
            }
        }
    }

    #[cold]
    fn panicked(
        &self,
        instance: &mut Option<Instance>,
        partition: &Partition,
        panic: &(dyn Any + Send),
    ) -> SelectionError {
        let (component, at) = match instance.take() {
            Some(Instance::Components { host, .. }) => host.running(),
            _ => (PluginComponent::Factory, 0),
        };
        let times = self.maker.failures.count_panic(component);
        partition.health().failed();
        let (component, text, key) = (component.as_str(), panic_text(panic), &partition.key);
        if is_worth_a_line(times) {
            tracing::error!(partition = %key, component, at, panic = text, times, "worker selection policy panicked");
        }
        SelectionError::Internal(format!("worker selection policy panicked in {component} {at}: {text}"))
    }
}
