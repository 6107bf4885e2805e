//! Why a workers file is refused, with the place.

use std::fmt;

/// Where in the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Line and column, from 1; absent where the whole file is meant.
    pub line_column: Option<(u64, u64)>,
    /// The field, as `workers[3].kv_events.endpoint`; empty for the document itself.
    pub field: String,
}

/// Why a workers file is refused. A refused file changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("cannot read {file}: {reason}")]
    Unreadable {
        /// As the user named it.
        file: String,
        /// The system's words.
        reason: String,
    },
    /// It is longer than the limit.
    #[error("{file}: longer than {limit} bytes")]
    TooLarge {
        /// As the user named it.
        file: String,
        /// The limit.
        limit: u64,
    },
    /// It has no content: a write that has not happened yet, not a wish for no workers.
    #[error("{file}: empty; `version: 1` and `workers: []` mean no workers")]
    Empty {
        /// As the user named it.
        file: String,
    },
    /// A half-written file or a typing error.
    #[error("{file}{place}: {reason}")]
    Syntax {
        /// As the user named it.
        file: String,
        /// Where.
        place: Place,
        /// What.
        reason: String,
    },
    /// A key that is none of the format's.
    #[error("{file}{place}: {reason}")]
    UnknownKey {
        /// As the user named it.
        file: String,
        /// Where.
        place: Place,
        /// Which one, and those there are.
        reason: String,
    },
    /// A value of another type, or one that cannot mean anything.
    #[error("{file}{place}: {reason}")]
    Value {
        /// As the user named it.
        file: String,
        /// Where.
        place: Place,
        /// What.
        reason: String,
    },
    /// Two workers with one id, or one name in one partition.
    #[error("{file}{place}: {what} is already taken on line {first_line}")]
    Duplicate {
        /// As the user named it.
        file: String,
        /// Where the second is.
        place: Place,
        /// Which id or name.
        what: String,
        /// Where the first is.
        first_line: u64,
    },
}

impl FileError {
    /// A stable word for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } => "unreadable",
            Self::TooLarge { .. } => "too_large",
            Self::Empty { .. } => "empty",
            Self::Syntax { .. } => "syntax",
            Self::UnknownKey { .. } => "unknown_key",
            Self::Value { .. } => "value",
            Self::Duplicate { .. } => "duplicate",
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((line, column)) = self.line_column {
            write!(f, ":{line}:{column}")?;
        }
        if !self.field.is_empty() {
            write!(f, ": {}", self.field)?;
        }
        Ok(())
    }
}
