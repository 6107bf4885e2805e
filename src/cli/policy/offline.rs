//! A document, and what a selector would make of it and of nothing else.

use std::path::Path;

use crate::{
    cli::selector,
    selection::{
        SelectionConfig,
        policy::{
            document::{PolicyComposition, PolicyDocument},
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

/// Makes every instance that is not made for a role.
///
/// # Errors
/// The text of the first refusal.
pub fn make_unused(registry: &RouterPluginRegistry, loaded: &Loaded) -> Result<(), String> {
    let Loaded { document, composition, .. } = loaded;
    let of_roles: Vec<&str> = composition.roles.iter().filter_map(|role| role.instance.as_deref()).collect();
    let instances = document.worker_selection.iter().flat_map(|section| &section.instances);
    for instance in instances.filter(|instance| !of_roles.contains(&&*instance.name)) {
        registry.check_instance(instance).map_err(|error| {
            let reason = match error {
                // Its place is told with more exactness by the document.
                WorkerSelectionPolicyRegistryError::Provider { policy_type, source, .. } => {
                    format!("invalid parameters for worker-selection policy type {policy_type:?}: {source}")
                }
                error => error.to_string(),
            };
            document.refuse_instance(&instance.name, reason).in_file(document.file())
        })?;
    }
    Ok(())
}
