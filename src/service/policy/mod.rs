//! The policies in force: resolved at start, replaced when their document changes, and shown.
//!
//! A changed document is taken whole or not at all. It is read, checked, resolved and every policy of a served role made
//! before anything is replaced; what replaces then keeps bookings, sessions and waiting requests. One that is refused
//! leaves the last good one in force, and that is told in log, metrics and status.

mod follow;
mod status;

use std::{
    collections::BTreeMap,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;

pub(super) use self::follow::follow;
pub use self::status::{PolicyErrorStatus, PolicyStatus};
use super::tasks::panic_text;
use crate::selection::{
    SelectionConfig, SelectionCore,
    config::ConfigError,
    policy::{
        document::{
            self, CompositionReport, DocumentError, ErrorKind, PolicyComposition, PolicyDocument, RouterSettings,
        },
        registry::RouterPluginRegistry,
        stages::WorkerSelectionPolicyFactory,
    },
    worker::WorkerRole,
};

/// Outcomes of reloads, as metrics name them. The first two took effect or needed none.
pub const OUTCOMES: [&str; 7] = ["applied", "unchanged", "unreadable", "too_large", "syntax", "value", "policy"];

/// What a service is started with.
#[derive(Clone)]
pub struct PolicySource {
    /// Linked policy types.
    pub registry: RouterPluginRegistry,
    /// Policies of all roles, resolved.
    pub composition: PolicyComposition,
    /// The document they are from.
    pub document: Option<PolicyDocument>,
    /// What `router:` would come to without a document.
    pub given: RouterSettings,
    /// Follow the document's file.
    pub watch: bool,
    /// The role that the host serves above all: a document that cannot serve it is refused.
    pub role: WorkerRole,
    /// Policies of the host's own, which no document replaces.
    pub factory: Option<WorkerSelectionPolicyFactory>,
}

impl fmt::Debug for PolicySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicySource").field("composition", &self.composition).finish_non_exhaustive()
    }
}

impl PolicySource {
    /// What `config` chooses among the types that ship, without a document. A host of `role` needs its policy; those of
    /// other roles may be impossible until their workers come.
    ///
    /// # Errors
    /// The choice for `role` is not possible.
    pub fn of(config: &SelectionConfig, registry: RouterPluginRegistry, role: WorkerRole) -> Result<Self, ConfigError> {
        let composition = PolicyComposition::resolve(&registry, config, None, &[role], &Default::default())
            .map_err(|error| ConfigError(error.to_string()))?;
        let given = RouterSettings::default();
        Ok(Self { registry, composition, document: None, given, watch: false, role, factory: None })
    }

    /// Policies of the host's own for every role; a document may still give the classes of the queue.
    pub fn fixed(
        factory: WorkerSelectionPolicyFactory,
        config: &SelectionConfig,
        registry: RouterPluginRegistry,
    ) -> Self {
        let composition = PolicyComposition::fixed(&factory, config);
        let (given, role) = (RouterSettings::default(), WorkerRole::default());
        Self { registry, composition, document: None, given, watch: false, role, factory: Some(factory) }
    }
}

/// Why a reload was refused; what was in force stays.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct PolicyReloadError {
    /// One of [`OUTCOMES`].
    pub outcome: &'static str,
    /// The whole text.
    pub text: String,
    /// Line and column in the document, from 1; absent where the whole file is meant.
    pub line_column: Option<(u64, u64)>,
    /// The field, as `worker_selection.instances[0].type`; empty for the document itself.
    pub field: String,
}

impl PolicyReloadError {
    fn of(error: DocumentError, file: &str) -> Self {
        Self {
            outcome: error.reason_word(),
            text: error.in_file(file),
            line_column: (error.place.line > 0).then_some((error.place.line, error.place.column)),
            field: error.place.field,
        }
    }

    /// A file without a place in it.
    fn whole(outcome: &'static str, text: String) -> Self {
        Self { outcome, text, line_column: None, field: String::new() }
    }
}

/// The policies in force.
pub(super) struct Policies {
    registry: RouterPluginRegistry,
    /// Settings without what a document says.
    config: SelectionConfig,
    given: RouterSettings,
    /// `router:` as it is in force until the process ends.
    router: RouterSettings,
    watch: bool,
    role: WorkerRole,
    factory: Option<WorkerSelectionPolicyFactory>,
    /// Serialises reloads.
    state: Mutex<State>,
}

struct State {
    generation: u64,
    loaded_at_ms: u64,
    document: Option<PolicyDocument>,
    composition: PolicyComposition,
    effective: CompositionReport,
    outcomes: BTreeMap<&'static str, u64>,
    error: Option<(PolicyReloadError, u64)>,
}

impl fmt::Debug for Policies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policies").field("watch", &self.watch).finish_non_exhaustive()
    }
}

impl Policies {
    /// `config` is what the core was started with, the document's part included.
    pub(super) fn new(source: PolicySource, config: &SelectionConfig) -> Arc<Self> {
        let PolicySource { registry, composition, document, given, watch, role, factory } = source;
        let effective = CompositionReport::new(&composition, config, document.as_ref());
        let router = document.as_ref().map_or_else(|| given.clone(), |document| document.router.or(&given));
        let state = State {
            generation: 1,
            loaded_at_ms: now_ms(),
            document,
            composition,
            effective,
            outcomes: OUTCOMES.iter().map(|outcome| (*outcome, 0)).collect(),
            error: None,
        };
        let config = SelectionConfig { worker_selection: None, profiles: Default::default(), ..config.clone() };
        Arc::new(Self { registry, config, given, router, watch, role, factory, state: Mutex::new(state) })
    }

    /// Replaces what is in force by what `text` says, or keeps it. `Ok(false)` when it says the same.
    pub(super) fn reload(&self, core: &SelectionCore, text: &str) -> Result<bool, PolicyReloadError> {
        let mut state = self.state.lock();
        let file = state.document.as_ref().map_or("<inline>", PolicyDocument::file).to_owned();
        // A parser or a policy that panics is refused like others; nothing was replaced before it.
        let replaced = catch_unwind(AssertUnwindSafe(|| self.replace(core, text, &file, &mut state)));
        let outcome = match replaced {
            Ok(outcome) => outcome.map_err(|error| PolicyReloadError::of(error, &file)),
            Err(panic) => {
                let text = format!("the policy document cannot be applied: {}", panic_text(&*panic));
                Err(PolicyReloadError::whole("policy", text))
            }
        };
        self.settle(&mut state, outcome)
    }

    /// Takes note of a document that is refused. What is known already is not told again.
    pub(super) fn refuse(&self, error: PolicyReloadError) {
        let mut state = self.state.lock();
        if state.error.as_ref().is_none_or(|(known, _)| *known != error) {
            self.settle(&mut state, Err(error)).ok();
        }
    }

    /// The document that is there is the one in force: an error of the time between is over.
    pub(super) fn confirm(&self) {
        let mut state = self.state.lock();
        if state.error.take().is_some() {
            tracing::info!(generation = state.generation, "policy document is as it was again");
        }
    }

    fn settle(&self, state: &mut State, outcome: Result<bool, PolicyReloadError>) -> Result<bool, PolicyReloadError> {
        let word = match &outcome {
            Ok(true) => "applied",
            Ok(false) => "unchanged",
            Err(error) => error.outcome,
        };
        *state.outcomes.entry(word).or_default() += 1;
        match &outcome {
            Ok(true) => {
                let digest = state.document.as_ref().map(PolicyDocument::digest);
                tracing::info!(generation = state.generation, digest, "policy document applied");
                state.error = None;
            }
            Ok(false) => state.error = None,
            Err(error) => {
                tracing::warn!(
                    error = %error.text,
                    reason = error.outcome,
                    generation_kept = state.generation,
                    "policy document refused"
                );
                state.error = Some((error.clone(), now_ms()));
            }
        }
        outcome
    }

    fn replace(&self, core: &SelectionCore, text: &str, file: &str, state: &mut State) -> Result<bool, DocumentError> {
        let document = PolicyDocument::parse(text, file)?;
        self.check_fixed(&document, state.document.as_ref())?;
        // Policies that carry state keep it when only comments or places changed.
        if state.document.as_ref().is_some_and(|known| known.says_the_same(&document)) {
            state.document = Some(document);
            return Ok(false);
        }
        let mut config = self.config.clone();
        document::apply(&document, &mut config);
        let mut served = core.roles();
        served.push(self.role);
        let composition = match &self.factory {
            Some(factory) => PolicyComposition::fixed(factory, &config),
            None => {
                let failures = core.plugin_failures();
                PolicyComposition::resolve(&self.registry, &config, Some(&document), &served, failures)?
            }
        };
        // Made and thrown away, so that a factory that panics is found before anything is replaced.
        for role in served.iter().map(|role| composition.of(*role)) {
            role.inputs(&config).map_err(|error| match &role.instance {
                Some(instance) => document.refuse_instance(instance, error.reason),
                None => error,
            })?;
        }
        if let Some(promise) = document::index_promise(&self.router) {
            composition.check_index_promise(promise, &config, Some(&document), &served)?;
        }
        let refuse = |error: ConfigError| DocumentError {
            kind: ErrorKind::Resolution,
            place: document.place("worker_selection"),
            reason: error.to_string(),
        };
        core.replace_policies(&config, &composition.plugins()).map_err(refuse)?;
        core.set_profiles(document.profiles.clone());
        for (role, error) in composition.unresolved() {
            tracing::warn!(role = %role.role, %error, "requests to workers of this role will fail");
        }
        state.effective = CompositionReport::new(&composition, &config, Some(&document));
        state.composition = composition;
        state.document = Some(document);
        state.generation += 1;
        state.loaded_at_ms = now_ms();
        Ok(true)
    }

    /// Settings of the process stay as they are until it ends.
    fn check_fixed(&self, document: &PolicyDocument, known: Option<&PolicyDocument>) -> Result<(), DocumentError> {
        let wanted = document.router.or(&self.given);
        let refuse = |field: &str, reason: String| DocumentError {
            kind: ErrorKind::Invalid,
            place: document.place(field),
            reason,
        };
        if let Some((name, in_force, asked)) = self.router.first_difference(&wanted) {
            let field = format!("router.{name}");
            let reason = format!(
                "{field} cannot change while the selector runs: {in_force} is in force, {asked} needs a restart"
            );
            return Err(refuse(&field, reason));
        }
        if self.factory.is_some() && document.worker_selection.is_some() {
            let reason = "worker_selection has no effect: the host supplies the policies";
            return Err(refuse("worker_selection", reason.to_owned()));
        }
        let classifier = known.and_then(|known| known.request_classifier.as_ref());
        if classifier != document.request_classifier.as_ref() {
            let reason = "request_classifier cannot change while the selector runs: it needs a restart";
            return Err(refuse("request_classifier", reason.to_owned()));
        }
        Ok(())
    }

    pub(super) fn watched_file(&self) -> Option<(String, String)> {
        let state = self.state.lock();
        let document = state.document.as_ref().filter(|_| self.watch)?;
        Some((document.file().to_owned(), document.text().to_owned()))
    }
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
