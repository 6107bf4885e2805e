//! Filters and scorers written as CEL expressions.
//!
//! An expression is parsed with the `cel` crate, checked against the list of [`INPUTS`], and compiled once into a flat
//! typed program that evaluates candidates in chunks; nothing is interpreted or allocated while a request waits. What is
//! not in the supported part of CEL is an error when the expression is loaded, with line and column. Values, conversions
//! and errors are CEL's. Every bound is a constant here; the cost of a request is bounded by [`MAX_STEPS`] a candidate.

mod build;
mod check;
mod error;
mod evaluate;
mod functions;
mod inputs;
mod kernels;
mod parse;
mod program;
#[cfg(test)]
mod tests;

use std::{fmt, sync::Arc};

use self::{
    build::Builder,
    check::Checker,
    program::{Op, Output, Program},
};
pub use self::{
    error::{ExpressionError, Fault, FaultKind},
    inputs::{Fold, INPUTS, Input, InputFacts, InputGroup, Presence, Rows, Scope, ValueType},
};

/// Bytes of an expression's text.
pub const MAX_LENGTH: usize = 2_048;

/// Tokens of an expression: words, numbers, and every other character that is no space.
pub const MAX_TOKENS: usize = 512;

/// Opening brackets of an expression, wherever they are.
pub const MAX_BRACKETS: usize = 64;

/// Levels of parentheses, arguments and conditionals.
pub const MAX_NESTING: u16 = 24;

/// Levels of the checked tree: operators and calls within each other.
pub const MAX_DEPTH: usize = 64;

/// Elements of a list to the right of `in`.
pub const MAX_LIST: usize = 32;

/// Steps of the compiled program, constants included.
pub const MAX_STEPS: usize = 256;

/// Bytes of a text that `startsWith`, `endsWith`, `contains` and `size` look at; a longer one is a [`Fault`].
pub const MAX_TEXT_BYTES: usize = 1_024;

/// What an expression is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A `bool`; true keeps the candidate. Sees one candidate at a time.
    Filter,
    /// A number, the candidate's cost. Sees all candidates.
    Scorer,
}

/// A loaded expression. A clone has registers of its own.
#[derive(Clone)]
pub struct Expression {
    text: Arc<str>,
    program: Program,
    used: Vec<Input>,
}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Expression").field(&self.text).finish()
    }
}

impl Expression {
    /// Parses, checks and compiles a text.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub fn compile(text: &str, purpose: Purpose) -> Result<Self, ExpressionError> {
        let parsed = parse::parse(text)?;
        let folds = purpose == Purpose::Scorer;
        let mut checker = Checker { text, parsed: &parsed, builder: Builder::new(), folds, used: Vec::new() };
        let mut output = checker.expression(&parsed.root, 0)?;
        let at = parsed.start(&parsed.root);
        match (purpose, output.value) {
            (Purpose::Filter, ValueType::Bool) | (Purpose::Scorer, ValueType::Double) => {}
            (Purpose::Scorer, ValueType::Int) => {
                output = checker.compute(Op::IntToDouble(output.register), ValueType::Double, &[output], &[], at)?;
            }
            (Purpose::Scorer, ValueType::UInt) => {
                output = checker.compute(Op::UIntToDouble(output.register), ValueType::Double, &[output], &[], at)?;
            }
            (Purpose::Filter, other) => {
                return Err(checker.error(at, format!("a filter must be a bool, not {}", other.name())));
            }
            (Purpose::Scorer, other) => {
                return Err(checker.error(at, format!("a scorer must be a number, not {}", other.name())));
            }
        }
        let Checker { builder, mut used, .. } = checker;
        let mut seen = std::collections::HashSet::new();
        used.retain(|input| seen.insert(*input));
        Ok(Self { text: text.into(), program: builder.finish(output), used })
    }

    /// As written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Inputs that it reads or tests, each once, in order of appearance.
    pub fn inputs(&self) -> &[Input] {
        &self.used
    }

    /// Steps that are run once a selection, and for each chunk of candidates.
    pub fn steps(&self) -> (usize, usize) {
        (self.program.once.len(), self.program.each.len())
    }

    /// Whether each candidate is kept.
    ///
    /// # Errors
    /// The first row without a value, and why.
    ///
    /// # Panics
    /// The expression is no [`Purpose::Filter`], or `keep` is not as long as `rows`.
    pub fn keep(&mut self, rows: &impl Rows, keep: &mut [bool]) -> Result<(), (usize, Fault)> {
        let Output { value, register, faults } = self.program.output;
        assert_eq!((value, keep.len()), (ValueType::Bool, rows.len()), "a filter, with room for every row");
        let failed = self.program.run(rows, |registers, from, n| {
            keep[from..from + n].copy_from_slice(&registers.bools[usize::from(register)][..n]);
            first_fault(registers, faults, from, n)
        });
        self.failed(failed)
    }

    /// Each candidate's cost, which may be any double, infinite or NaN too.
    ///
    /// # Errors
    /// The first row without a value, and why.
    ///
    /// # Panics
    /// The expression is no [`Purpose::Scorer`], or `costs` is not as long as `rows`.
    pub fn score(&mut self, rows: &impl Rows, costs: &mut [f64]) -> Result<(), (usize, Fault)> {
        let Output { value, register, faults } = self.program.output;
        assert_eq!((value, costs.len()), (ValueType::Double, rows.len()), "a scorer, with room for every row");
        let failed = self.program.run(rows, |registers, from, n| {
            costs[from..from + n].copy_from_slice(&registers.doubles[usize::from(register)][..n]);
            first_fault(registers, faults, from, n)
        });
        self.failed(failed)
    }

    fn failed(&self, result: Result<(), (usize, u16)>) -> Result<(), (usize, Fault)> {
        result.map_err(|(row, number)| (row, self.program.fault(number, &self.text)))
    }
}

/// The first row of a chunk that has no value, with the number of the fault.
fn first_fault(
    registers: &program::Registers,
    column: Option<program::Register>,
    from: usize,
    n: usize,
) -> Result<(), (usize, u16)> {
    let Some(column) = column else { return Ok(()) };
    let faults = &registers.faults[usize::from(column)][..n];
    faults.iter().position(|&fault| fault != 0).map_or(Ok(()), |lane| Err((from + lane, faults[lane])))
}
