//! What can be wrong with an expression: when it is loaded ([`ExpressionError`]), and with one row ([`Fault`]).

use std::fmt;

/// Why an expression was refused. The position is within the expression's own text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
pub struct ExpressionError {
    /// From 1.
    pub line: u32,
    /// From 1, in characters.
    pub column: u32,
    /// What is wrong, and where possible what to write instead.
    pub message: String,
}

impl ExpressionError {
    /// An error at a byte offset of `text`; an offset beyond the end or within a character is moved back.
    pub(super) fn at(text: &str, offset: usize, message: impl Into<String>) -> Self {
        let (line, column) = position(text, offset);
        Self { line, column, message: message.into() }
    }
}

/// Line and column, both from 1, of a byte offset.
pub(super) fn position(text: &str, offset: usize) -> (u32, u32) {
    let before = &text[..text.floor_char_boundary(offset)];
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX).saturating_add(1);
    (count(before.bytes().filter(|&byte| byte == b'\n').count()), count(before[line_start..].chars().count()))
}

/// Why an operation has no value for a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Of `int` or `uint`, or a conversion whose result does not fit.
    Overflow,
    /// Of `int` or `uint`; `double` has infinities.
    DivisionByZero,
    /// An input that this request or worker does not have, by name.
    Absent(Box<str>),
    /// A text that is too long to be searched.
    TextTooLong,
}

/// A failed operation of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What failed.
    pub kind: FaultKind,
    /// Line of the operation, from 1.
    pub line: u32,
    /// Column of the operation, from 1, in characters.
    pub column: u32,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            FaultKind::Overflow => f.write_str("the result does not fit its type")?,
            FaultKind::DivisionByZero => f.write_str("division by zero")?,
            FaultKind::Absent(name) => write!(f, "`{name}` is absent; test it with has()")?,
            FaultKind::TextTooLong => write!(f, "text longer than {} bytes", super::MAX_TEXT_BYTES)?,
        }
        write!(f, " at line {}, column {}", self.line, self.column)
    }
}
