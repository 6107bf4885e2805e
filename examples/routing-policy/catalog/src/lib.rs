//! Every policy that this organisation links into its selectors: one line each.

use pointsman::plugins::{RouterPluginRegistry, WorkerSelectionPolicyRegistryError};

/// Adds all of them to `registry`.
///
/// # Errors
/// Two policies have one name.
pub fn register_all(registry: &mut RouterPluginRegistry) -> Result<(), WorkerSelectionPolicyRegistryError> {
    warm_and_idle::register(registry)?;
    soft_pin::register(registry)?;
    Ok(())
}
