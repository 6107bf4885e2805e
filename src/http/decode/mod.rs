//! From a request's body to the core's types.
//!
//! A prompt's long arrays are read by a parser of our own and everything else by `serde_json`; whenever the fast way
//! does not succeed, the library decodes the whole body and its error is the answer. So every error, and every
//! acceptance, is the library's (spec http 2.2): bytes after the document are ignored, repeated members refused,
//! unknown ones skipped.

#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod indexer;
mod integers;
mod members;
pub mod wire;
pub mod workers;

use serde::de::DeserializeOwned;

/// Why a body was refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// Not JSON (400).
    #[error("Failed to parse the request body as JSON: {0}")]
    Syntax(String),
    /// JSON of the wrong shape (422).
    #[error("Failed to deserialize the JSON body into the target type: {0}")]
    Shape(String),
}

/// Decodes a body without a prompt.
///
/// # Errors
/// [`BodyError`].
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, BodyError> {
    let mut document = serde_json::Deserializer::from_slice(body);
    serde_path_to_error::deserialize(&mut document).map_err(|error| match error.inner().classify() {
        serde_json::error::Category::Data => BodyError::Shape(error.to_string()),
        _ => BodyError::Syntax(error.to_string()),
    })
}

/// Decodes a body with a prompt.
///
/// # Errors
/// [`BodyError`].
pub fn decode_prompted<T: DeserializeOwned + wire::Prompted>(body: &[u8]) -> Result<T, BodyError> {
    match decode_fast(body) {
        Some(value) => Ok(value),
        None => decode(body),
    }
}

fn decode_fast<T: DeserializeOwned + wire::Prompted>(body: &[u8]) -> Option<T> {
    let split = members::split(body)?;
    let mut value = T::deserialize(&mut serde_json::Deserializer::from_slice(&split.rest)).ok()?;
    let prompt = value.prompt_mut();
    if split.token_ids.is_some() {
        prompt.token_ids = split.token_ids;
    }
    if split.block_hashes.is_some() {
        prompt.block_hashes = split.block_hashes;
    }
    if split.sequence_hashes.is_some() {
        prompt.sequence_hashes = split.sequence_hashes;
    }
    Some(value)
}

#[cfg(test)]
mod tests;
