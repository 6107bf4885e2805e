//! From text to the `cel` crate's tree, within bounds: the parser and what walks its tree recurse.

use std::panic::catch_unwind;

use cel::{
    IdedExpr, ParseErrors,
    common::ast::{Expr, SourceInfo},
    parser::Parser,
};

use super::{MAX_BRACKETS, MAX_LENGTH, MAX_NESTING, MAX_TOKENS, error::ExpressionError};

/// A parsed expression and where its parts are.
pub(super) struct Parsed {
    pub root: IdedExpr,
    pub places: SourceInfo,
}

impl Parsed {
    /// Byte offset where an expression begins, for names and literals, or of its operator.
    pub fn offset(&self, expr: &IdedExpr) -> usize {
        self.places.offset_for(expr.id).map_or(0, |(start, _)| start as usize)
    }

    /// Byte offset of the leftmost part of a name.
    pub fn start(&self, expr: &IdedExpr) -> usize {
        let mut expr = expr;
        while let Expr::Select(select) = &expr.expr {
            expr = &select.operand;
        }
        self.offset(expr)
    }
}

/// Parses a text.
pub(super) fn parse(text: &str) -> Result<Parsed, ExpressionError> {
    guard(text)?;
    let parser = || Parser::new().max_recursion_depth(MAX_NESTING).error_recovery_limit(4).parse_with_source_info(text);
    match catch_unwind(parser) {
        Ok(Ok((root, places))) => Ok(Parsed { root, places }),
        Ok(Err(errors)) => Err(refused(text, &errors)),
        // A bug of the parser is no reason to go down with it.
        Err(_) => Err(ExpressionError::at(text, 0, "the expression cannot be parsed")),
    }
}

fn refused(text: &str, errors: &ParseErrors) -> ExpressionError {
    let Some(error) = errors.errors.first() else {
        return ExpressionError::at(text, 0, "the expression cannot be parsed");
    };
    let (line, column) = error.pos;
    let number = |number: isize| u32::try_from(number).unwrap_or(0).max(1);
    let message = if error.msg.contains("Recursion limit") {
        format!("nested more than {MAX_NESTING} levels deep")
    } else {
        error.msg.clone()
    };
    ExpressionError { line: number(line), column: number(column), message }
}

/// Bounds what is given to the parser. Counts brackets and tokens wherever they are, in strings and comments too, so that
/// no disagreement with the parser about what is a string lets more of them through.
fn guard(text: &str) -> Result<(), ExpressionError> {
    if text.len() > MAX_LENGTH {
        let message = format!("longer than {MAX_LENGTH} bytes");
        return Err(ExpressionError::at(text, MAX_LENGTH, message));
    }
    if text.trim().is_empty() {
        return Err(ExpressionError::at(text, 0, "empty expression"));
    }
    let (mut brackets, mut tokens, mut in_word) = (0, 0, false);
    for (at, byte) in text.bytes().enumerate() {
        let word = byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii();
        if !(byte.is_ascii_whitespace() || word && in_word) {
            tokens += 1;
        }
        in_word = word;
        brackets += usize::from(matches!(byte, b'(' | b'[' | b'{'));
        if brackets > MAX_BRACKETS {
            return Err(ExpressionError::at(text, at, format!("more than {MAX_BRACKETS} opening brackets")));
        }
        if tokens > MAX_TOKENS {
            return Err(ExpressionError::at(text, at, format!("more than {MAX_TOKENS} tokens")));
        }
    }
    Ok(())
}
