//! Policy document, role overrides and linked policy types, put together at start.

use std::path::Path;

use super::flags::{PolicyArgs, SelectorArgs};
use crate::{
    cli::environment::Environment,
    http::Face,
    selection::{
        SelectionConfig,
        policy::{
            document::{self, DocumentError, MAX_DOCUMENT_BYTES, PolicyComposition, PolicyDocument, RouterSettings},
            instances::WorkerSelectionOverrides,
            registry::RouterPluginRegistry,
        },
        worker::WorkerRole,
    },
    service::{PolicySource, file::read_bounded},
};

/// The role whose policy has to be there at start; the others are looked at when workers of theirs come.
const SERVED: [WorkerRole; 1] = [WorkerRole::Aggregated];

/// Environment names that choose policies.
pub const NAMES: [&str; 4] = [
    "DYN_ROUTER_POLICY_CONFIG",
    "DYN_ROUTER_WORKER_SELECTION_POLICY",
    "DYN_ROUTER_PREFILL_POLICY",
    "DYN_ROUTER_DECODE_POLICY",
];

/// What decides at start.
#[derive(Debug)]
pub struct Policies {
    /// By role.
    pub composition: PolicyComposition,
    /// The document, where one is configured.
    pub document: Option<PolicyDocument>,
    /// What `router:` would come to without a document.
    pub given: RouterSettings,
}

impl Policies {
    /// What the service starts with.
    pub fn source(self, registry: &RouterPluginRegistry, watch: bool) -> PolicySource {
        let Self { composition, document, given } = self;
        PolicySource {
            registry: registry.clone(),
            composition,
            document,
            given,
            watch,
            role: WorkerRole::Aggregated,
            factory: None,
        }
    }
}

/// Reads the configured document.
///
/// # Errors
/// It cannot be read, parsed or meant.
pub fn load(args: &PolicyArgs, env: &Environment<'_>) -> Result<Option<PolicyDocument>, String> {
    let path = args.router_policy_config.clone().or_else(|| env.text("DYN_ROUTER_POLICY_CONFIG"));
    path.map(|path| read(Path::new(&path))).transpose()
}

/// Reads a document.
///
/// # Errors
/// It cannot be read, parsed or meant.
pub fn read(path: &Path) -> Result<PolicyDocument, String> {
    let file = path.display().to_string();
    let unreadable = |reason: String| format!("failed to read router policy config {file}: {reason}");
    let bytes = read_bounded(path, MAX_DOCUMENT_BYTES).map_err(|error| unreadable(error.to_string()))?;
    let bytes = bytes.ok_or_else(|| DocumentError::too_large().in_file(&file))?;
    let text = String::from_utf8(bytes).map_err(|error| unreadable(format!("not UTF-8: {error}")))?;
    PolicyDocument::parse(&text, &file).map_err(|error| error.in_file(&file))
}

/// Chooses by role and makes what the served role needs.
///
/// # Errors
/// An instance that is not there, or that its provider refuses.
pub fn resolve(
    args: &SelectorArgs,
    env: &Environment<'_>,
    registry: &RouterPluginRegistry,
    selection: &mut SelectionConfig,
    document: Option<PolicyDocument>,
    given: RouterSettings,
    warnings: &mut Vec<String>,
) -> Result<Policies, String> {
    selection.worker_selection_overrides = overrides(&args.policy, env);
    if let Some(document) = &document {
        document::apply(document, selection);
    }
    let composition = PolicyComposition::resolve(registry, selection, document.as_ref(), &SERVED, &Default::default())
        .map_err(|error| document.as_ref().map_or_else(|| error.to_string(), |known| error.in_file(known.file())))?;
    for (role, error) in composition.unresolved() {
        warnings.push(format!("requests to {} workers will fail: {error}", role.role));
    }
    let router = document.as_ref().map_or_else(|| given.clone(), |document| document.router.or(&given));
    let promise = document::index_promise(&router).or((args.http.face == Face::Indexer).then_some("--face indexer"));
    if let Some(promise) = promise {
        composition.check_index_promise(promise, selection, document.as_ref(), &SERVED).map_err(|error| {
            document.as_ref().map_or_else(|| error.to_string(), |known| error.in_file(known.file()))
        })?;
    }
    Ok(Policies { composition, document, given })
}

fn overrides(args: &PolicyArgs, env: &Environment<'_>) -> WorkerSelectionOverrides {
    let chosen = |flag: &Option<String>, name: &str| {
        flag.clone().filter(|word| !word.trim().is_empty()).or_else(|| env.trimmed(name))
    };
    WorkerSelectionOverrides {
        global: env.trimmed("DYN_ROUTER_WORKER_SELECTION_POLICY"),
        prefill: chosen(&args.router_prefill_policy, "DYN_ROUTER_PREFILL_POLICY"),
        decode: chosen(&args.router_decode_policy, "DYN_ROUTER_DECODE_POLICY"),
    }
}
