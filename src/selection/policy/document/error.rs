//! Why a policy document is refused, with the place.

use std::fmt;

/// Where in the document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Line, from 1; 0 where the whole document is meant.
    pub line: u64,
    /// Column, from 1; 0 where the whole document is meant.
    pub column: u64,
    /// The field, as `policy_classes[0].quantum`; empty for the document itself.
    pub field: String,
}

/// What kind of mistake it is, which decides the beginning of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// It is not YAML, or a value has another type: `failed to parse router policy config`.
    Parse,
    /// It can be read and not be meant: `invalid router policy config: `.
    Invalid,
    /// A policy cannot be made of it: no prefix (spec scheduling 1.5).
    Resolution,
}

/// Why a document is refused. A refused document changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentError {
    /// What kind of mistake.
    pub kind: ErrorKind,
    /// Where.
    pub place: Place,
    /// What, in the words of spec scheduling 1.5 where it has some.
    pub reason: String,
}

impl std::error::Error for DocumentError {}

impl fmt::Display for DocumentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, None)
    }
}

impl DocumentError {
    /// A text beyond [`super::MAX_DOCUMENT_BYTES`].
    pub fn too_large() -> Self {
        let reason = format!("longer than {} bytes", super::MAX_DOCUMENT_BYTES);
        Self { kind: ErrorKind::Parse, place: Place::default(), reason }
    }

    /// The whole text with the name of the file it is about.
    pub fn in_file(&self, file: &str) -> String {
        struct InFile<'a>(&'a DocumentError, &'a str);
        impl fmt::Display for InFile<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.write(f, Some(self.1))
            }
        }
        InFile(self, file).to_string()
    }

    /// A stable word for metrics.
    pub fn reason_word(&self) -> &'static str {
        match self.kind {
            ErrorKind::Parse => "syntax",
            ErrorKind::Invalid => "value",
            ErrorKind::Resolution => "policy",
        }
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, file: Option<&str>) -> fmt::Result {
        let Place { line, column, field } = &self.place;
        match (self.kind, file) {
            (ErrorKind::Parse, Some(file)) => write!(f, "failed to parse router policy config {file}: ")?,
            (ErrorKind::Parse, None) => f.write_str("failed to parse router policy config: ")?,
            (ErrorKind::Invalid, _) => f.write_str("invalid router policy config: ")?,
            (ErrorKind::Resolution, _) => {}
        }
        let is_parse = self.kind == ErrorKind::Parse;
        if is_parse && !field.is_empty() {
            write!(f, "{field}: ")?;
        }
        f.write_str(&self.reason)?;
        let mut parts = Vec::new();
        if let Some(file) = file.filter(|_| !is_parse) {
            parts.push(file.to_owned());
        }
        if *line > 0 {
            parts.push(format!("line {line}, column {column}"));
        }
        if !is_parse && !field.is_empty() {
            parts.push(field.clone());
        }
        if parts.is_empty() { Ok(()) } else { write!(f, " ({})", parts.join(", ")) }
    }
}
