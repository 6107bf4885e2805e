//! A policy to be simulated: its name on the command line or its document, and the core that decides by it.
//!
//! A name is `NAME` or `NAME:KEY=VALUE,KEY=VALUE`. `default` and `sticky` take the knobs of the default cost, a linked
//! policy type its own parameters, and all of them the settings of [`SETTINGS`].

use std::{fmt::Write, sync::Arc, time::Duration};

use crate::selection::{
    SelectionConfig, SelectionCore,
    config::{self, ConfigError, SessionAffinityMode},
    ingest::EventSources,
    moment::Clock,
    policy::{
        document::{self, DocumentError, PolicyComposition, PolicyDocument},
        registry::RouterPluginRegistry,
    },
    worker::WorkerRole,
};

/// The built-in cost, as the reference has it.
const DEFAULT: &str = "default";
/// The built-in cost for the first turn of a session, whose later ones stay where that went.
const STICKY: &str = "sticky";
/// How long an idle session stays bound, unless the document says otherwise.
const AFFINITY_TTL: Duration = Duration::from_secs(3600);

/// Knobs of the default cost.
const KNOBS: [&str; 5] = ["scale", "credit", "credit-decay", "request-weight", "temperature"];
/// What every candidate takes: sessions bound `hard` or `soft`; the router's queue, its threshold as a share of the
/// workers' token budget and its order; seconds for which own bookings are taken for cached.
pub const SETTINGS: [&str; 4] = ["affinity", "queue", "queue-order", "predicted-ttl"];

/// Why there is no such policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CandidateError {
    /// It is neither built in nor linked.
    #[error("unknown policy {name:?}; there are {available}, and policy documents by path")]
    Unknown {
        /// As it was given.
        name: String,
        /// What there is.
        available: String,
    },
    /// What follows the name.
    #[error("policy {name:?}: {reason}")]
    Setting {
        /// As it was given.
        name: String,
        /// Which, and why.
        reason: String,
    },
    /// The document, or the policy it describes.
    #[error("policy {name:?}: {source}")]
    Document {
        /// As it was given.
        name: String,
        /// Why.
        source: DocumentError,
    },
    /// The core refuses the settings.
    #[error("policy {name:?}: {source}")]
    Config {
        /// As it was given.
        name: String,
        /// Why.
        source: ConfigError,
    },
}

/// A policy and the settings it runs with.
#[derive(Clone, Debug)]
pub struct Candidate {
    label: String,
    config: SelectionConfig,
    document: Option<PolicyDocument>,
    registry: RouterPluginRegistry,
}

impl Candidate {
    /// The policy that `spec` names; its label is `spec`.
    ///
    /// # Errors
    /// No such policy, parameter or value.
    pub fn named(spec: &str, registry: &RouterPluginRegistry) -> Result<Self, CandidateError> {
        let (name, pairs) = spec.split_once(':').unwrap_or((spec, ""));
        let fail = |reason: String| CandidateError::Setting { name: spec.to_owned(), reason };
        let mut config = SelectionConfig::default();
        let mut parameters = String::new();
        let is_built_in = [DEFAULT, STICKY].contains(&name);
        if name == STICKY {
            bind_sessions(&mut config, SessionAffinityMode::Hard);
        }
        if !is_built_in && !registry.policy_types().any(|known| known == name) {
            let mut available = vec![DEFAULT, STICKY];
            available.extend(registry.policy_types());
            return Err(CandidateError::Unknown { name: spec.to_owned(), available: available.join(", ") });
        }
        for pair in pairs.split(',').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(|| fail(format!("expected KEY=VALUE, not {pair:?}")))?;
            if SETTINGS.contains(&key) {
                set(&mut config, key, value).map_err(fail)?;
            } else if is_built_in && KNOBS.contains(&key) {
                *knob(&mut config, key) = number(key, value).map_err(fail)?;
            } else if is_built_in {
                let known = [&KNOBS[..], &SETTINGS[..]].concat().join(", ");
                return Err(fail(format!("unknown knob {key:?}; there are {known}")));
            } else {
                let plain = |text: &str| {
                    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.+-".contains(&byte))
                };
                if !plain(key) || !plain(value) {
                    return Err(fail(format!("{pair:?} is no plain KEY=VALUE; use a policy document")));
                }
                // Writing to a string cannot fail.
                write!(parameters, "{}{key}: {value}", if parameters.is_empty() { "" } else { ", " }).ok();
            }
        }
        let document = (!is_built_in).then(|| {
            let text = format!(
                "worker_selection:\n  aggregated: simulated\n  instances:\n    - {{name: simulated, type: {name}, \
                 parameters: {{{parameters}}}}}\n"
            );
            PolicyDocument::parse(&text, spec)
        });
        let document =
            document.transpose().map_err(|source| CandidateError::Document { name: spec.to_owned(), source })?;
        if let Some(document) = &document {
            document::apply(document, &mut config);
        }
        Self { label: spec.to_owned(), config, document, registry: registry.clone() }.checked()
    }

    /// The policy of a document, with the settings a selector makes of it.
    ///
    /// # Errors
    /// It cannot be made, or asks for what is not simulated.
    pub fn of_document(
        label: String,
        config: SelectionConfig,
        document: Option<PolicyDocument>,
        registry: &RouterPluginRegistry,
    ) -> Result<Self, CandidateError> {
        if config.request_classifier.is_some() {
            let reason = "request classifiers are not simulated".to_owned();
            return Err(CandidateError::Setting { name: label, reason });
        }
        Self { label, config, document, registry: registry.clone() }.checked()
    }

    /// How the user named it.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Whether its workers tell what they cache.
    pub fn uses_kv_events(&self) -> bool {
        self.config.use_kv_events
    }

    fn checked(self) -> Result<Self, CandidateError> {
        self.config.validate().map_err(|source| CandidateError::Config { name: self.label.clone(), source })?;
        self.composition(&self.config)?;
        Ok(self)
    }

    fn composition(&self, config: &SelectionConfig) -> Result<PolicyComposition, CandidateError> {
        let served = [WorkerRole::Aggregated];
        PolicyComposition::resolve(&self.registry, config, self.document.as_ref(), &served, &Default::default())
            .map_err(|source| CandidateError::Document { name: self.label.clone(), source })
    }

    /// A core that decides by it. Ties and random choices follow from `seed`.
    ///
    /// # Errors
    /// The policy cannot be made.
    pub fn core(
        &self,
        seed: u64,
        clock: Arc<dyn Clock>,
        sources: Arc<dyn EventSources>,
    ) -> Result<Arc<SelectionCore>, CandidateError> {
        let config = SelectionConfig { seed: Some(seed), ..self.config.clone() };
        let plugins = self.composition(&config)?.plugins();
        SelectionCore::try_new_with_plugins(config, clock, sources, plugins)
            .map_err(|source| CandidateError::Config { name: self.label.clone(), source })
    }
}

fn knob<'a>(config: &'a mut SelectionConfig, key: &str) -> &'a mut f64 {
    match key {
        "scale" => &mut config.prefill_load_scale,
        "credit" => &mut config.overlap_score_credit,
        "credit-decay" => &mut config.overlap_score_credit_decay,
        "request-weight" => &mut config.decode_active_request_weight,
        _ => &mut config.router_temperature,
    }
}

fn set(config: &mut SelectionConfig, key: &str, value: &str) -> Result<(), String> {
    let refused = |error: ConfigError| error.to_string();
    match key {
        "affinity" => bind_sessions(config, value.parse().map_err(refused)?),
        "queue" => config.queue_threshold = Some(number(key, value)?),
        "queue-order" => config.queue_policy = value.parse().map_err(refused)?,
        _ => config.predicted_ttl = Some(config::seconds(key, number(key, value)?).map_err(refused)?),
    }
    Ok(())
}

fn bind_sessions(config: &mut SelectionConfig, mode: SessionAffinityMode) {
    config.session_affinity_ttl = Some(AFFINITY_TTL);
    config.session_affinity_mode = mode;
}

fn number(key: &str, value: &str) -> Result<f64, String> {
    value.parse().map_err(|_| format!("{key} must be a number, not {value:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selection::policy::builtin::router_plugin_registry;

    fn named(spec: &str) -> Result<Candidate, String> {
        Candidate::named(spec, &router_plugin_registry()).map_err(|error| error.to_string())
    }

    #[test]
    fn names_become_settings_and_parameters() {
        let tuned = named("default:scale=4,credit=1.5,queue=2,queue-order=wspt").expect("known knobs");
        assert_eq!((tuned.config.prefill_load_scale, tuned.config.overlap_score_credit), (4.0, 1.5));
        assert_eq!(tuned.config.queue_threshold, Some(2.0));
        let sticky = named("sticky:scale=2").expect("known");
        assert_eq!(sticky.config.session_affinity_ttl, Some(AFFINITY_TTL));
        let named = named("least-loaded:measure=prefill_tokens").expect("a linked type");
        let instance = named.config.worker_selection.as_ref().and_then(|section| section.instance("simulated"));
        assert_eq!(instance.map(|instance| instance.policy_type()), Some("least-loaded"));
    }

    #[test]
    fn what_is_not_there_is_refused_by_name() {
        let error = |spec: &str| named(spec).expect_err("refused");
        assert!(error("best").starts_with("unknown policy \"best\"; there are default, sticky, consistent-hashing"));
        assert_eq!(
            error("default:speed=1"),
            "policy \"default:speed=1\": unknown knob \"speed\"; there are scale, credit, credit-decay, request-weight, \
             temperature, affinity, queue, queue-order, predicted-ttl"
        );
        assert!(error("default:scale=-1").ends_with("prefill_load_scale must be finite and non-negative"));
        assert!(error("default:scale=x").ends_with("scale must be a number, not \"x\""));
        assert!(error("default:scale").ends_with("expected KEY=VALUE, not \"scale\""));
        assert!(error("least-loaded:measure=speed").contains("measure"));
        assert!(error("least-loaded:measure={}").ends_with("is no plain KEY=VALUE; use a policy document"));
    }
}
