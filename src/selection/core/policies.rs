//! Which policy partitions get: by the role of their workers, from what the host links and its configuration chooses.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::{Mutex, MutexGuard};

use super::{PartitionFilter, SelectionCore, reconcile::RECORDS_AT_ONCE};
use crate::selection::{
    config::{ConfigError, SelectionConfig},
    error::SelectionError,
    load::LoadTracker,
    partition::{PartitionPolicies, PartitionPolicy, PartitionRef, PolicyFactory, Shadow},
    policy::{
        PickRequest, Picked, SelectionPolicy, builtin,
        failures::PluginFailures,
        inputs::WorkerInputs,
        plugins::Plugins,
        shadow::{ShadowCounts, ShadowReport},
        stages::WorkerSelectionPolicyFactory,
    },
    worker::WorkerRole,
};

/// What partitions of one role get.
#[derive(Clone)]
enum Choice {
    Default,
    From(WorkerSelectionPolicyFactory),
    Impossible(String),
}

impl Plugins<'_> {
    pub(super) fn policies(
        &self,
        config: &SelectionConfig,
        failures: &Arc<PluginFailures>,
        shadows: &Shadows,
    ) -> Result<Arc<PolicyFactory>, ConfigError> {
        let choices = match self {
            Self::Factory(factory) | Self::Composed { factory, .. } => {
                WorkerRole::ALL.map(|_| Choice::From(Arc::clone(factory)))
            }
            Self::Registry { registry, role } => {
                let mut resolved = registry.resolve_roles(config, failures);
                if let Err(error) = &resolved[*role as usize] {
                    return Err(ConfigError(error.to_string()));
                }
                WorkerRole::ALL.map(|role| match std::mem::replace(&mut resolved[role as usize], Ok(None)) {
                    Ok(None) => Choice::Default,
                    Ok(Some(factory)) => Choice::From(factory),
                    Err(error) => {
                        tracing::warn!(%role, %error, "policy of a role cannot be used; its selections will fail");
                        Choice::Impossible(error.to_string())
                    }
                })
            }
        };
        let beside = match self {
            Self::Composed { shadows, .. } => shadows.clone(),
            _ => [const { None }; WorkerRole::ALL.len()],
        };
        let counts = beside.each_ref().map(|beside| beside.as_ref().map(|source| shadows.of(&source.instance)));
        let failures = Arc::clone(failures);
        Ok(Arc::new(move |config, scope| {
            let role = scope.role as usize;
            let in_force = match &choices[role] {
                Choice::Default => PartitionPolicy::UnderLock(builtin::default_policy(config, scope)),
                Choice::From(factory) => PartitionPolicy::make(factory, config, scope, &failures),
                Choice::Impossible(reason) => PartitionPolicy::UnderLock(Box::new(Refusal(reason.clone()))),
            };
            let (Some(source), Some(counts)) = (&beside[role], &counts[role]) else { return in_force.into() };
            let shadow = PartitionPolicy::make(&source.factory, config, scope, &failures);
            PartitionPolicies { in_force, shadow: Some(Arc::new(Shadow::new(source, shadow, Arc::clone(counts)))) }
        }))
    }
}

/// Instances counted by name, over all documents there were; the rest are counted together.
const MAX_SHADOWS: usize = 100;
/// Name of the rest. It has characters that no instance has.
const OTHERS: &str = "(others)";

/// Counts of the instances that ever were a shadow.
#[derive(Debug, Default)]
pub(super) struct Shadows(Mutex<BTreeMap<Arc<str>, Arc<ShadowCounts>>>);

impl Shadows {
    fn of(&self, instance: &Arc<str>) -> Arc<ShadowCounts> {
        let mut known = self.0.lock();
        let named = known.len() < MAX_SHADOWS || known.contains_key(instance);
        Arc::clone(known.entry(if named { Arc::clone(instance) } else { OTHERS.into() }).or_default())
    }
}

/// Fails every selection with its reason.
struct Refusal(String);

impl SelectionPolicy for Refusal {
    fn name(&self) -> &str {
        "none"
    }

    fn pick(
        &mut self,
        _: &PickRequest<'_>,
        _: &mut LoadTracker,
        _: &mut fastrand::Rng,
    ) -> Result<Picked, SelectionError> {
        Err(SelectionError::Internal(self.0.clone()))
    }
}

impl SelectionCore {
    /// What plugins did wrong so far.
    pub fn plugin_failures(&self) -> &Arc<PluginFailures> {
        &self.plugin_failures
    }

    /// What shadow policies have shown so far, by instance.
    pub fn shadow_reports(&self) -> Vec<(Arc<str>, ShadowReport)> {
        self.shadows.0.lock().iter().map(|(name, counts)| (Arc::clone(name), counts.report())).collect()
    }

    /// Gives every partition a policy from `plugins`, chosen by `config`; the core's other settings stay. Bookings and
    /// sessions stay, state of the policies before does not. Listeners come or go as the new policies ask for.
    ///
    /// # Errors
    /// The policy for the host's role cannot be; nothing has changed then.
    pub fn replace_policies(&self, config: &SelectionConfig, plugins: &Plugins<'_>) -> Result<(), ConfigError> {
        let policies = plugins.policies(config, &self.plugin_failures, &self.shadows)?;
        // Under the catalog's lock no partition comes that would keep the old ones.
        let mut catalog = self.catalog.lock();
        *self.policies.write() = Arc::clone(&policies);
        for partition in self.partitions(&PartitionFilter::default()) {
            let read_cache = reads_cache(&partition);
            partition.replace_policy(&policies);
            if reads_cache(&partition) == read_cache {
                continue;
            }
            let attached = catalog.workers.iter().filter(|(_, entry)| {
                entry.attached.as_ref().is_some_and(|attached| Arc::ptr_eq(&attached.partition, &partition))
            });
            let records: Vec<_> = attached.map(|(_, entry)| Arc::clone(&entry.record)).collect();
            for (count, record) in records.into_iter().enumerate() {
                if count > 0 && count % RECORDS_AT_ONCE == 0 {
                    MutexGuard::bump(&mut catalog);
                }
                self.put(&mut catalog, Arc::clone(&record.request), record.state, Arc::clone(&record.owner));
            }
        }
        Ok(())
    }
}

fn reads_cache(partition: &PartitionRef) -> bool {
    partition.required_inputs().contains(WorkerInputs::CACHE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_beyond_the_bound_are_counted_together() {
        let shadows = Shadows::default();
        let of = |number: usize| shadows.of(&format!("i{number}").into());
        let named: Vec<_> = (0..MAX_SHADOWS).map(of).collect();
        let others: Vec<_> = (MAX_SHADOWS..3 * MAX_SHADOWS).map(of).collect();
        assert!(others.iter().all(|counts| Arc::ptr_eq(counts, &others[0])));
        assert!(named.iter().enumerate().all(|(number, counts)| Arc::ptr_eq(counts, &of(number))));
        let known: Vec<_> = shadows.0.lock().keys().cloned().collect();
        assert_eq!(known.len(), MAX_SHADOWS + 1);
        assert!(known.iter().any(|name| **name == *OTHERS));
    }
}
