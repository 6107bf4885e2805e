//! The workers file: its format, and a source that follows it.
//!
//! A file is applied whole or not at all. What cannot be read, parsed or meant keeps the last good snapshot in force and
//! is told; a record that a selector calls incomplete (no endpoint, say) is no error here, it is applied and reported.

pub mod error;
mod expand;
pub mod follow;
mod reread;
mod schema;
mod tags;

pub use error::{FileError, Place};
pub use follow::{FollowOptions, WorkersFile};

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

use crate::{selection::catalog::DesiredWorker, service::file::read_bounded};
use schema::Document;

/// Largest file that is read, in bytes.
pub const MAX_FILE_BYTES: u64 = 256 << 20;

/// Reads the text of a workers file (YAML, or JSON as the subset of it that it is). `file` names it in errors.
///
/// # Errors
/// [`FileError`]; never a part of the workers.
pub fn parse(text: &str, file: &str) -> Result<Vec<DesiredWorker>, FileError> {
    let document = document(text, file)?;
    let defaults = document.defaults.unwrap_or_default();
    expand::assemble(&expand::expand(document.workers, &defaults, file)?, file)
}

/// The file as it is written; a parser that panics is an error like others.
fn document(text: &str, file: &str) -> Result<Document, FileError> {
    let parsed = catch_unwind(AssertUnwindSafe(|| deserialize(text, file)));
    parsed.unwrap_or_else(|_| {
        let reason = "the parser failed on this text".to_owned();
        Err(FileError::Syntax { file: file.to_owned(), place: Place::default(), reason })
    })
}

fn deserialize(text: &str, file: &str) -> Result<Document, FileError> {
    if text.trim_start_matches('\u{feff}').trim().is_empty() {
        return Err(FileError::Empty { file: file.to_owned() });
    }
    tags::check(text, file)?;
    let mut field = None;
    let document = serde_saphyr::with_deserializer_from_str_with_options(text, options(), |yaml| {
        serde_path_to_error::deserialize::<_, Document>(yaml).map_err(|error| {
            field = Some(error.path().to_string());
            error.into_inner()
        })
    });
    let document = document.map_err(|error| {
        let error = error.without_snippet();
        let line_column = error.location().map(|at| (at.line(), at.column()));
        let text = error.render_with_formatter(&serde_saphyr::UserMessageFormatter);
        // The renderer ends with the place, which the error shows in front.
        let reason = text.rsplit_once(" at line ").map_or(text.as_str(), |(reason, _)| reason);
        let reason = reason.trim_end_matches(" (used").to_owned();
        let place = Place { line_column, field: readable_path(field.as_deref().unwrap_or("")) };
        let file = file.to_owned();
        match kind(error, &place.field) {
            Kind::Syntax => FileError::Syntax { file, place, reason },
            Kind::UnknownKey => FileError::UnknownKey { file, place, reason },
            Kind::Value => FileError::Value { file, place, reason },
        }
    })?;
    expand::check_version(&document.version, file)?;
    Ok(document)
}

/// What an error of the parser is about.
enum Kind {
    Syntax,
    UnknownKey,
    Value,
}

/// `field` is where it occurred. What is missing, and a document of another shape, may be half-written: syntax.
fn kind(error: &serde_saphyr::Error, field: &str) -> Kind {
    use serde_saphyr::Error;
    match error {
        Error::SerdeUnknownField { .. } => Kind::UnknownKey,
        Error::InvalidScalar { .. }
        | Error::NonFiniteFloat { .. }
        | Error::InvalidBooleanStrict { .. }
        | Error::NullIntoString { .. }
        | Error::SerdeInvalidValue { .. }
        | Error::SerdeInvalidLength { .. }
        | Error::SerdeUnknownVariant { .. }
        | Error::ExternallyTaggedEnumExpectedScalarOrMapping { .. }
        | Error::UnexpectedValueForUnitEnumVariant { .. }
        | Error::TaggedScalarCannotDeserializeIntoString { .. }
        | Error::MergeValueNotMapOrSeqOfMaps { .. } => Kind::Value,
        Error::AliasError { error, .. } => kind(error, field),
        Error::Unexpected { .. } | Error::SerdeInvalidType { .. } if !matches!(field, "" | "workers") => Kind::Value,
        _ => Kind::Syntax,
    }
}

/// Reads the file at `path` once.
///
/// # Errors
/// [`FileError`].
pub fn load(path: &Path) -> Result<Vec<DesiredWorker>, FileError> {
    let file = path.display().to_string();
    let unreadable = |reason: String| FileError::Unreadable { file: file.clone(), reason };
    let bytes = read_bounded(path, MAX_FILE_BYTES).map_err(|e| unreadable(e.to_string()))?;
    let bytes = bytes.ok_or_else(|| FileError::TooLarge { file: file.clone(), limit: MAX_FILE_BYTES })?;
    parse(&text(bytes, &file)?, &file)
}

fn text(bytes: Vec<u8>, file: &str) -> Result<String, FileError> {
    String::from_utf8(bytes).map_err(|error| FileError::Syntax {
        file: file.to_owned(),
        place: Place::default(),
        reason: format!("not UTF-8: {error}"),
    })
}

fn options() -> serde_saphyr::Options {
    // The size of the text is bounded by the caller, so nodes are not counted again; nesting and alias expansion are.
    serde_saphyr::options! {
        strict_booleans: true,
        with_snippet: false,
        budget: serde_saphyr::budget! {
            max_events: usize::MAX,
            max_nodes: usize::MAX,
            max_total_scalar_bytes: usize::MAX,
        },
    }
}

/// Turns the deserializer's path into the file's: without the wrapper that carries positions, and without `?` or `.` for
/// what has no name.
fn readable_path(path: &str) -> String {
    let parts = path.split('.').filter(|part| !matches!(*part, "" | "value" | "?"));
    parts.collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests;
