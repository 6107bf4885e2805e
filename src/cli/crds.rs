//! `pointsman crds`: prints the CustomResourceDefinitions, for `kubectl apply --server-side -f -`.

use std::io::Write;

use super::CliError;
use crate::kubernetes::api;

/// Writes the definitions to standard output, as YAML documents.
///
/// # Errors
/// Standard output cannot be written.
pub(super) fn run() -> Result<(), CliError> {
    let texts: Vec<String> = api::crds().iter().map(api::crd_yaml).collect();
    std::io::stdout().write_all(texts.join("---\n").as_bytes()).map_err(CliError::failed)
}
