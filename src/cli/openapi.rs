//! `pointsman openapi`: prints the OpenAPI document.

use std::io::Write;

use super::CliError;
use crate::http::openapi;

/// Writes the document to standard output.
///
/// # Errors
/// Standard output cannot be written.
pub(super) fn run() -> Result<(), CliError> {
    std::io::stdout().write_all(openapi::text().as_bytes()).map_err(CliError::failed)
}
