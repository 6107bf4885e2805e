//! A document, and what a selector would make of it and of nothing else.

use std::path::Path;

use crate::{
    cli::selector,
    selection::{
        SelectionConfig,
        policy::{
            document::{PolicyComposition, PolicyDocument},
            instances::WorkerSelectionOverrides,
            registry::{RouterPluginRegistry, WorkerSelectionPolicyRegistryError},
        },
        worker::WorkerRole,
    },
};

/// A document and what it comes to.
pub struct Loaded {
    pub document: PolicyDocument,
    pub config: SelectionConfig,
    /// Every role resolved.
    pub composition: PolicyComposition,
}

/// Reads a document and makes the policies of every role.
///
/// # Errors
/// The text with which a selector would refuse it.
pub fn load(path: &Path, registry: &RouterPluginRegistry) -> Result<Loaded, String> {
    let settings = selector::settings_of_document(path, registry)?;
    settings.selection.validate().map_err(|error| error.to_string())?;
    let document = settings.policies.document.ok_or("no document")?;
    let composition = PolicyComposition::resolve(
        registry,
        &settings.selection,
        Some(&document),
        &WorkerRole::ALL,
        &Default::default(),
    )
    .map_err(|error| error.in_file(document.file()))?;
    Ok(Loaded { document, config: settings.selection, composition })
}

/// Makes the factory of an instance that no role uses.
///
/// # Errors
/// The text of the refusal.
pub fn make(registry: &RouterPluginRegistry, config: &SelectionConfig, instance: &str) -> Result<(), String> {
    let worker_selection_overrides =
        WorkerSelectionOverrides { global: Some(instance.to_owned()), ..WorkerSelectionOverrides::default() };
    let config = SelectionConfig { worker_selection_overrides, ..config.clone() };
    match registry.resolve_for_worker_type(&config, WorkerRole::Aggregated) {
        Ok(_) => Ok(()),
        // Its place is told with more exactness by the document.
        Err(WorkerSelectionPolicyRegistryError::Provider { policy_type, source, .. }) => {
            Err(format!("invalid parameters for worker-selection policy type {policy_type:?}: {source}"))
        }
        Err(error) => Err(error.to_string()),
    }
}
