//! The effective composition as data and as text: what a document, flags and environment come to.

use std::{
    collections::BTreeMap,
    fmt::{self, Write},
};

use serde::Serialize;

use super::{PolicyComposition, PolicyDocument, RolePolicy, ShadowPolicy};
use crate::selection::{
    config::{QueuePolicy, SelectionConfig},
    policy::{inputs::WorkerInputs, instances::WorkerSelectionInstance},
    queue::profile::{PolicyClass, PolicyProfile},
    worker::WorkerRole,
};

/// The whole.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct CompositionReport {
    /// Policies, by role.
    pub roles: Vec<RoleReport>,
    /// Configured instances that no role and no shadow uses.
    pub unused_instances: Vec<String>,
    /// Classes of the queue, by model.
    pub profiles: Vec<ProfileReport>,
    /// Settings the document decides over flags and environment.
    pub router: BTreeMap<&'static str, String>,
    /// Type of the request classifier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_classifier: Option<String>,
}

/// The policy of a role.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct RoleReport {
    /// Role of the workers.
    pub role: &'static str,
    /// Instance; `default` = the built-in policy.
    pub instance: String,
    /// Registered type; absent for the built-in policy.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub policy_type: Option<String>,
    /// Parameters in force where the policy tells them, else those of the document.
    pub parameters: serde_json::Value,
    /// Input groups it asks for.
    pub inputs: Vec<&'static str>,
    /// Those of each component, in the order of calls; empty for the default cost.
    pub components: Vec<ComponentReport>,
    /// A second policy that is scored beside it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shadow: Option<ShadowReport>,
    /// Why it cannot be made; requests to workers of this role fail with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A filter, scorer or picker.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct ComponentReport {
    /// `filter`, `scorer` or `picker`.
    pub stage: &'static str,
    /// Its name.
    pub name: String,
    /// Input groups it asks for.
    pub inputs: Vec<&'static str>,
}

/// A second policy.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct ShadowReport {
    /// Its instance.
    pub instance: String,
    /// Share of the requests that it decides, 0 to 1.
    pub share: f64,
}

/// The queue of a model.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct ProfileReport {
    /// Model; absent for the profile of all others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Family of requests that name none.
    pub default_family: String,
    /// First uncached token of each bucket.
    pub buckets: BTreeMap<String, u64>,
    /// Its classes.
    pub classes: Vec<ClassReport>,
}

/// A class of the queue.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct ClassReport {
    /// Its name.
    pub name: String,
    /// Family and bucket; absent for a class that requests name directly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub family: Option<String>,
    /// Cache bucket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bucket: Option<String>,
    /// Order inside.
    pub queue_policy: &'static str,
    /// Share in uncached tokens.
    pub quantum: u64,
    /// Thresholds and limits that are set.
    pub limits: BTreeMap<&'static str, f64>,
}

impl CompositionReport {
    /// Describes `composition`. Each policy is made once to be asked what it reads.
    pub fn new(composition: &PolicyComposition, config: &SelectionConfig, document: Option<&PolicyDocument>) -> Self {
        let section = config.worker_selection.as_deref();
        let shadows = WorkerRole::ALL.iter().filter_map(|&role| composition.shadow.of(role));
        let mut used: Vec<&str> = shadows.map(|shadow| &*shadow.instance).collect();
        used.extend(composition.roles.iter().filter_map(|role| role.instance.as_deref()));
        let instances = section.map(|section| &section.instances[..]).unwrap_or_default();
        let unused = instances.iter().map(|instance| &*instance.name).filter(|name| !used.contains(name));
        let profiles = &composition.profiles;
        let synthetic = PolicyProfile::synthetic(config.queue_threshold, config.queue_policy);
        let root = ProfileReport::new(None, profiles.root.as_deref().unwrap_or(&synthetic));
        let models = profiles.models.iter().map(|(model, profile)| ProfileReport::new(Some(model), profile));
        Self {
            roles: composition.roles.iter().map(|role| role_report(role, composition, config)).collect(),
            unused_instances: unused.map(str::to_owned).collect(),
            profiles: std::iter::once(root).chain(models).collect(),
            router: document.map(|document| document.router.set().into_iter().collect()).unwrap_or_default(),
            request_classifier: document
                .and_then(|document| document.request_classifier.as_ref())
                .map(|classifier| classifier.classifier_type().to_owned()),
        }
    }
}

fn role_report(role: &RolePolicy, composition: &PolicyComposition, config: &SelectionConfig) -> RoleReport {
    let configured = role.instance.as_deref().and_then(|name| config.worker_selection.as_deref()?.instance(name));
    let (inputs, components, error) = match role.inputs(config) {
        Ok((inputs, components)) => (inputs, components, None),
        Err(error) => (WorkerInputs::NONE, Vec::new(), Some(error.to_string())),
    };
    let shadow =
        |shadow: &ShadowPolicy| ShadowReport { instance: shadow.instance.to_string(), share: shadow.share.fraction() };
    RoleReport {
        role: role.role.as_str(),
        instance: role.instance.clone().unwrap_or_else(|| "default".to_owned()),
        policy_type: role.policy_type.clone(),
        parameters: parameters(configured, config),
        inputs: inputs.names().collect(),
        components: components
            .into_iter()
            .map(|part| ComponentReport { stage: part.stage, name: part.name, inputs: part.inputs.names().collect() })
            .collect(),
        shadow: composition.shadow.of(role.role).map(shadow),
        error,
    }
}

/// What the policy runs with: as its type filled it in, and with the settings of the core where the default cost takes
/// over those. Numbers that JSON does not have are `null`.
fn parameters(configured: Option<&WorkerSelectionInstance>, config: &SelectionConfig) -> serde_json::Value {
    let inherited = default_parameters(config);
    let Some(instance) = configured else { return inherited };
    let mut shown = serde_json::to_value(instance.parameters.effective()).unwrap_or_default();
    if instance.policy_type() == "dynamo-default-cost-fn"
        && let (Some(shown), serde_json::Value::Object(inherited)) = (shown.as_object_mut(), inherited)
    {
        for (name, value) in inherited {
            let known = shown.entry(name).or_insert(serde_json::Value::Null);
            if known.is_null() {
                *known = value;
            }
        }
    }
    shown
}

/// The settings that the built-in policy runs with.
fn default_parameters(config: &SelectionConfig) -> serde_json::Value {
    serde_json::json!({
        "overlap_score_credit": config.overlap_score_credit,
        "overlap_score_credit_decay": config.overlap_score_credit_decay,
        "prefill_load_scale": config.prefill_load_scale,
        "decode_active_request_weight": config.decode_active_request_weight,
        "host_cache_hit_weight": config.host_cache_hit_weight,
        "disk_cache_hit_weight": config.disk_cache_hit_weight,
        "router_temperature": config.router_temperature,
    })
}

impl ProfileReport {
    fn new(model: Option<&String>, profile: &PolicyProfile) -> Self {
        Self {
            model: model.cloned(),
            default_family: profile.default_family.to_string(),
            buckets: profile.buckets.iter().map(|bucket| (bucket.name.to_string(), bucket.min_tokens)).collect(),
            classes: profile.classes.iter().map(ClassReport::new).collect(),
        }
    }
}

impl ClassReport {
    fn new(class: &PolicyClass) -> Self {
        let counts = [
            ("prefill_busy_threshold", class.prefill_busy_threshold),
            ("request_queue_limit_per_worker", class.request_queue_limit_per_worker),
            ("raw_isl_token_queue_limit_per_worker", class.raw_isl_token_queue_limit_per_worker),
            ("cached_token_queue_limit_per_worker", class.cached_token_queue_limit_per_worker),
        ];
        let mut limits: BTreeMap<_, _> =
            counts.into_iter().filter_map(|(name, value)| Some((name, value? as f64))).collect();
        limits.extend(class.prefill_busy_threshold_frac.map(|fraction| ("prefill_busy_threshold_frac", fraction)));
        Self {
            name: class.name.to_string(),
            family: class.cell.as_ref().map(|cell| cell.family.to_string()),
            bucket: class.cell.as_ref().map(|cell| cell.bucket.to_string()),
            queue_policy: match class.queue_policy {
                QueuePolicy::Fcfs => "fcfs",
                QueuePolicy::Lcfs => "lcfs",
                QueuePolicy::Wspt => "wspt",
            },
            quantum: class.quantum,
            limits,
        }
    }
}

impl fmt::Display for CompositionReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for role in &self.roles {
            write!(f, "{}: {}", role.role, role.instance)?;
            if let Some(policy_type) = &role.policy_type {
                write!(f, " ({policy_type})")?;
            }
            f.write_char('\n')?;
            for (name, value) in role.parameters.as_object().into_iter().flatten() {
                writeln!(f, "  {name}: {value}")?;
            }
            let listed = |inputs: &[&str]| if inputs.is_empty() { "nothing".to_owned() } else { inputs.join(", ") };
            writeln!(f, "  reads {}", listed(&role.inputs))?;
            for part in &role.components {
                writeln!(f, "  {} {} reads {}", part.stage, part.name, listed(&part.inputs))?;
            }
            if let Some(shadow) = &role.shadow {
                // As exact as a share is.
                let percent = (shadow.share * 1e6).round() / 1e4;
                writeln!(f, "  shadow {}, which decides {percent}% of the requests", shadow.instance)?;
            }
            if let Some(error) = &role.error {
                writeln!(f, "  requests fail: {error}")?;
            }
        }
        if !self.unused_instances.is_empty() {
            writeln!(f, "unused instances: {}", self.unused_instances.join(", "))?;
        }
        for profile in &self.profiles {
            match &profile.model {
                Some(model) => writeln!(f, "queue of model {model}, family {} unless named:", profile.default_family)?,
                None => writeln!(f, "queue, family {} unless named:", profile.default_family)?,
            }
            for class in &profile.classes {
                write!(f, "  {}", class.name)?;
                if let (Some(family), Some(bucket)) = (&class.family, &class.bucket) {
                    let first = profile.buckets.get(bucket).copied().unwrap_or_default();
                    write!(f, " ({family}, {bucket}: from {first} uncached tokens)")?;
                }
                write!(f, ": {}, quantum {}", class.queue_policy, class.quantum)?;
                for (name, value) in &class.limits {
                    write!(f, ", {name} {value}")?;
                }
                let waits = class.limits.keys().any(|name| name.starts_with("prefill_busy"));
                f.write_str(if waits { "\n" } else { ", never waits\n" })?;
            }
        }
        for (name, value) in &self.router {
            writeln!(f, "router.{name}: {value}")?;
        }
        if let Some(classifier) = &self.request_classifier {
            writeln!(f, "request classifier: {classifier}")?;
        }
        Ok(())
    }
}
