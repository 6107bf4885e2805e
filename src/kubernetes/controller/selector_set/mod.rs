//! One pass over a SelectorSet: dereference, validate, build, apply. The status is written by whoever asked for the pass.
//!
//! | file | owns |
//! |---|---|
//! | `dereference` | reading what the spec names |
//! | `policy` | the policy document, judged by the selectors' own loader |
//! | `validate` | what of a spec can be built |
//! | `build` | the objects |
//! | `rollout` | how the StatefulSet stands, and the pod that holds up a roll-out |
//! | `notice` | what is told as Kubernetes Events |
//!
//! Invariants: a policy that cannot be used is never written; the last good one stays, or the built-in policy where there
//! was none. While a Secret is missing or the spec is wrong, the StatefulSet stays as it is: what runs goes on running.
//! Of a set of mode External nothing is built, and what it names is read to its end. A Managed set that is being deleted is
//! left alone: the garbage collector takes what it controls.

pub mod build;
mod dereference;
mod error;
mod notice;
mod policy;
mod rollout;
#[cfg(test)]
mod tests;
mod validate;

use std::{sync::Arc, time::Duration};

use k8s_openapi::{
    api::{apps::v1::StatefulSet, core::v1::Pod, networking::v1::NetworkPolicy, policy::v1::PodDisruptionBudget},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{
    Client, ResourceExt,
    api::{Api, ApiResource, DeleteParams, Preconditions},
};
use serde_json::Value;
use zeroize::Zeroizing;

use self::{
    build::Inputs,
    dereference::{Dereferenced, MonitorKinds, dereference},
    notice::Told,
    validate::{Validated, validate},
};
pub use self::{
    dereference::MissingReference,
    error::Error,
    notice::Notice,
    rollout::{StatefulSetView, blocking_pod},
};
use super::apply::{Applier, Desired, Outcome, call};
use crate::{
    kubernetes::{
        api::{
            SelectorSet,
            constants::{event, reason},
            selector_set::{Image, Mode},
        },
        source::SelectorPod,
    },
    selection::policy::registry::RouterPluginRegistry,
};

/// Time between two passes when nothing happens: Secrets are not watched.
pub const RESYNC: Duration = Duration::from_secs(300);
/// Time to the next look at a Secret that is missing.
const MISSING_AGAIN: Duration = Duration::from_secs(15);
/// Time to the next look at what is in the way.
const BLOCKED_AGAIN: Duration = Duration::from_secs(60);

/// What all passes share.
pub struct Context {
    client: Client,
    options: Options,
    applier: Applier,
    kinds: MonitorKinds,
    told: Told,
}

/// Settings of the operator that reach the objects.
#[derive(Clone)]
pub struct Options {
    /// Image of selectors, where a set does not say otherwise.
    pub selector_image: Image,
    /// Namespace that the operator runs in, for NetworkPolicies; absent outside a cluster.
    pub controller_namespace: Option<String>,
    /// Policy types that selectors of that image know.
    pub registry: RouterPluginRegistry,
}

/// What a pass came to.
#[derive(Debug)]
pub struct Reconciled {
    /// Objects of wanted names that belong to others; they are not touched.
    pub conflicts: Vec<Conflict>,
    /// What cannot be done, and why.
    pub refused: Vec<Refusal>,
    /// What the spec names and cannot be used.
    pub missing_references: Vec<MissingReference>,
    /// Whether the policy that the spec asks for can be used; why not.
    pub policy: Result<(), String>,
    /// How the StatefulSet stands; none where there is none.
    pub statefulset: Option<StatefulSetView>,
    /// Token that the selectors ask for, where one is configured and can be used.
    pub admin_token: Option<Zeroizing<String>>,
    /// What is new and a person should hear of.
    pub events: Vec<Notice>,
    /// Objects written or deleted, pods included.
    pub writes: u32,
    /// The pod that was deleted because it held up a roll-out.
    pub replaced_pod: Option<String>,
    /// When to look again, if nothing happens before.
    pub requeue: Duration,
}

impl Default for Reconciled {
    fn default() -> Self {
        Self {
            conflicts: Vec::new(),
            refused: Vec::new(),
            missing_references: Vec::new(),
            policy: Ok(()),
            statefulset: None,
            admin_token: None,
            events: Vec::new(),
            writes: 0,
            replaced_pod: None,
            requeue: RESYNC,
        }
    }
}

/// An object that belongs to somebody else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Kind and name.
    pub object: String,
    /// Whose it is.
    pub holder: String,
}

/// Something that is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Kind and name of an object, or `spec`.
    pub object: String,
    /// [`reason::INVALID_SPEC`] or [`reason::APPLY_REFUSED`].
    pub reason: &'static str,
    /// For a person.
    pub message: String,
}

impl Context {
    /// Shares `client` among passes.
    pub fn new(client: Client, options: Options) -> Self {
        Self { client, options, applier: Applier::default(), kinds: MonitorKinds::default(), told: Told::default() }
    }

    /// Forgets a set that is gone.
    pub fn forget(&self, namespace: &str, set: &str) {
        self.applier.forget(namespace, set);
        self.told.forget(namespace, set);
    }
}

/// One pass over `set`, whose pods are `pods`.
///
/// # Errors
/// The apiserver cannot be asked or fails; [`Error::backoff`] says when to try again.
pub async fn reconcile(context: &Context, set: Arc<SelectorSet>, pods: &[SelectorPod]) -> Result<Reconciled, Error> {
    let mut done = Reconciled::default();
    if set.metadata.deletion_timestamp.is_some() && set.spec.mode == Mode::Managed {
        return Ok(done);
    }
    let mut found = dereference(&context.client, &context.kinds, &set).await?;
    done.admin_token = found.admin_token.clone();
    done.missing_references = std::mem::take(&mut found.missing);
    if set.spec.mode == Mode::Managed {
        let pass = Pass {
            context,
            namespace: set.namespace().ok_or(Error::Incomplete("namespace"))?,
            owner: build::owner_reference(&set).ok_or(Error::Incomplete("uid"))?,
            set: &set,
        };
        pass.run(&found, pods, &mut done).await?;
    }
    if !done.missing_references.is_empty() {
        done.requeue = done.requeue.min(MISSING_AGAIN);
    }
    if !done.conflicts.is_empty() || !done.refused.is_empty() {
        done.requeue = done.requeue.min(BLOCKED_AGAIN);
    }
    let problems = problems(&done);
    let name = set.name_any();
    let news = context.told.news(&set.namespace().unwrap_or_default(), &name, problems);
    done.events.extend(news);
    Ok(done)
}

/// What a person has to mend.
pub fn problems(done: &Reconciled) -> Vec<Notice> {
    let mut problems = Vec::new();
    for Conflict { object, holder } in &done.conflicts {
        let note = format!("{object} is not this set's ({holder}); it is left as it is");
        problems.push(Notice::warning(reason::NAME_CONFLICT, "Apply", note));
    }
    for Refusal { object, reason, message } in &done.refused {
        problems.push(Notice::warning(reason, "Apply", format!("{object}: {message}")));
    }
    for MissingReference { field, object, message } in &done.missing_references {
        problems.push(Notice::warning(
            reason::REFERENCE_MISSING,
            "Dereference",
            format!("{field}: {object}: {message}"),
        ));
    }
    if let Err(message) = &done.policy {
        problems.push(Notice::warning(reason::POLICY_INVALID, "Validate", message));
    }
    problems
}

/// A pass over a Managed set.
struct Pass<'a> {
    context: &'a Context,
    set: &'a SelectorSet,
    namespace: String,
    owner: OwnerReference,
}

impl Pass<'_> {
    async fn run(&self, found: &Dereferenced, pods: &[SelectorPod], done: &mut Reconciled) -> Result<(), Error> {
        let (set, owner) = (self.set, &self.owner);
        let options = &self.context.options;
        let validated = validate(set, &options.selector_image);
        let foreign = validate::is_foreign(set.spec.image.as_ref(), &options.selector_image);
        let asked = policy::text(set.spec.router.as_ref(), &options.registry, foreign);
        let document = match &asked {
            Ok(text) => text,
            Err(_) => found.last_policy.as_deref().unwrap_or(policy::DEFAULT_DOCUMENT),
        };
        let changed = found.last_policy.as_deref().is_some_and(|last| last != document);
        done.policy = asked.as_ref().map(drop).map_err(Clone::clone);

        let config_map = self.apply(&Desired::of(&build::config_map(set, owner, document))?, done).await?;
        if changed && matches!(config_map, Outcome::Written(_)) {
            let note = "the policy document has changed; selectors follow it without a restart, but for its sections router \
                        and request_classifier";
            done.events.push(Notice::normal(event::POLICY_CHANGED, "Apply", note));
        }
        self.apply(&Desired::of(&build::peers_service(set, owner))?, done).await?;
        self.apply(&Desired::of(&build::client_service(set, owner))?, done).await?;
        match validated {
            Ok(validated) => self.apply_validated(&validated, found, document, done).await?,
            Err(reasons) => {
                let refusal = |message| Refusal { object: "spec".to_owned(), reason: reason::INVALID_SPEC, message };
                done.refused.extend(reasons.into_iter().map(refusal));
            }
        }
        let budget = build::disruption_budget(set, owner).map(|budget| Desired::of(&budget)).transpose()?;
        self.apply_or_remove(budget, &ApiResource::erase::<PodDisruptionBudget>(&()), done).await?;
        if let Some(resource) = &found.monitors.pod {
            self.apply_or_remove(build::pod_monitor(set, owner, resource)?, resource, done).await?;
        }
        if let Some(resource) = &found.monitors.service {
            self.apply_or_remove(build::service_monitor(set, owner, resource)?, resource, done).await?;
        }
        if done.statefulset.is_none() {
            done.statefulset = self.stateful_set_as_it_is().await?;
        }
        self.unblock(pods, done).await
    }

    /// What depends on all of the spec.
    async fn apply_validated(
        &self,
        validated: &Validated,
        found: &Dereferenced,
        document: &str,
        done: &mut Reconciled,
    ) -> Result<(), Error> {
        let restart_hash = restart_hash(found, document);
        let inputs = Inputs {
            set: self.set,
            validated,
            restart_hash: restart_hash.as_deref(),
            owner: &self.owner,
            controller_namespace: self.context.options.controller_namespace.as_deref(),
        };
        let network_policy = build::network_policy(&inputs).map(|policy| Desired::of(&policy)).transpose()?;
        self.apply_or_remove(network_policy, &ApiResource::erase::<NetworkPolicy>(&()), done).await?;
        // Pods that are started without the Secret would wait for it, or end at once, in the place of pods that serve.
        if done.missing_references.is_empty()
            && let Outcome::Unchanged(live) | Outcome::Written(live) =
                self.apply(&Desired::of(&build::stateful_set(&inputs))?, done).await?
        {
            done.statefulset = Some(view(live)?);
        }
        Ok(())
    }

    async fn apply(&self, desired: &Desired, done: &mut Reconciled) -> Result<Outcome, Error> {
        let outcome = self.context.applier.apply(&self.context.client, &self.namespace, &self.owner, desired).await?;
        match &outcome {
            Outcome::Unchanged(_) => {}
            Outcome::Written(_) => done.writes += 1,
            Outcome::Conflict(holder) => {
                done.conflicts.push(Conflict { object: desired.label(), holder: holder.clone() });
            }
            Outcome::Refused(message) => done.refused.push(Refusal {
                object: desired.label(),
                reason: reason::APPLY_REFUSED,
                message: message.clone(),
            }),
            Outcome::Later(pause) => done.requeue = done.requeue.min(*pause),
        }
        Ok(outcome)
    }

    /// Applies, or deletes what a former spec wanted. All of these have the name of the set.
    async fn apply_or_remove(
        &self,
        desired: Option<Desired>,
        resource: &ApiResource,
        done: &mut Reconciled,
    ) -> Result<(), Error> {
        if let Some(desired) = desired {
            self.apply(&desired, done).await?;
            return Ok(());
        }
        let applier = &self.context.applier;
        let name = self.set.name_any();
        let removed = applier.remove(&self.context.client, &self.namespace, &self.owner, resource, &name).await?;
        done.writes += u32::from(removed);
        Ok(())
    }

    async fn stateful_set_as_it_is(&self) -> Result<Option<StatefulSetView>, Error> {
        let api: Api<StatefulSet> = Api::namespaced(self.context.client.clone(), &self.namespace);
        let name = self.set.name_any();
        let live = call("get", format!("StatefulSet {name}"), api.get_opt(&name)).await?;
        let ours = |live: &StatefulSet| live.owner_references().iter().any(|owner| owner.uid == self.owner.uid);
        Ok(live.filter(ours).as_ref().map(StatefulSetView::of))
    }

    /// Deletes the pod that holds up a roll-out, if there is one.
    async fn unblock(&self, pods: &[SelectorPod], done: &mut Reconciled) -> Result<(), Error> {
        let Some(pod) = done.statefulset.as_ref().and_then(|view| blocking_pod(view, pods)) else { return Ok(()) };
        let api: Api<Pod> = Api::namespaced(self.context.client.clone(), &self.namespace);
        let same = Preconditions { uid: Some(pod.uid.to_string()), resource_version: None };
        let parameters = DeleteParams::default().preconditions(same);
        match call("delete", format!("Pod {}", pod.name), api.delete(&pod.name, &parameters)).await {
            Ok(_) => {}
            // Gone, or another of its name.
            Err(error) if error.is_overtaken() => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let failing = pod.failing.as_deref().unwrap_or_default();
        let note = format!("deleted pod {}, which held up the roll-out of a newer template: {failing}", pod.name);
        done.events.push(Notice::normal(event::POD_REPLACED, "Unblock", note));
        done.replaced_pod = Some(pod.name.to_string());
        done.writes += 1;
        Ok(())
    }
}

fn view(live: Value) -> Result<StatefulSetView, Error> {
    Ok(StatefulSetView::of(&serde_json::from_value(live)?))
}

/// What pods must be restarted for when it changes, and their template does not show: contents of Secrets, and those
/// sections of the policy document that a running selector does not take over.
fn restart_hash(found: &Dereferenced, document: &str) -> Option<String> {
    let fixed = policy::fixed_part(document);
    let parts = [
        found.tracking_key.as_ref().map(|key| &key[..]),
        found.admin_token.as_ref().map(|token| token.as_bytes()),
        Some(fixed.as_bytes()).filter(|fixed| !fixed.is_empty()),
    ];
    if parts.iter().all(Option::is_none) {
        return None;
    }
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        let part = part.unwrap_or_default();
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    Some(hasher.finalize().to_hex()[..16].to_owned())
}
