//! A checked expression as a flat list of typed steps over registers.
//!
//! A register is a column of [`LANES`] values of one type; there is a file of registers for each type. Every register is
//! written by one step only, after those it is computed from, so within a file operands come before results. A step
//! that can fail has a column in the file of faults beside its result; 0 there means that the lane has a value.

use super::{
    error::{Fault, FaultKind, position},
    inputs::{Fold, Input, ValueType},
};

/// Rows that are evaluated together: long enough that a step's dispatch does not matter, short enough for the cache.
pub(super) const LANES: usize = 64;

/// Index of a register within the file of its type, or of a column of faults.
pub(super) type Register = u16;

/// Rows of one chunk.
pub(super) type Column<T> = [T; LANES];

/// What an expression computes with, a file a type. Text is a number of [`Program::texts`].
#[derive(Clone, Debug, Default)]
pub(super) struct Registers {
    pub bools: Vec<Column<bool>>,
    pub ints: Vec<Column<i64>>,
    pub uints: Vec<Column<u64>>,
    pub doubles: Vec<Column<f64>>,
    pub texts: Vec<Column<u16>>,
    pub faults: Vec<Column<u16>>,
}

/// Where a text comes from. The first ones are the words of `cache.trust`, in the order of the enum.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum TextSource {
    /// Written in the expression, or a word of `cache.trust`.
    Literal(Box<str>),
    /// Of the request.
    Input(Input),
    /// First value of a header.
    Header(Box<str>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
    /// Not for `double`.
    Remainder,
    Least,
    Greatest,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Relation {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// Functions from `double` to `double`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum RealFunction {
    Negate,
    Absolute,
    Ceiling,
    Floor,
    /// Half away from zero.
    Round,
    Truncate,
    SquareRoot,
    /// -1, 0, 1 or NaN.
    Sign,
}

/// Classes of `double`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum RealTest {
    NotANumber,
    Infinite,
    Finite,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Search {
    StartsWith,
    EndsWith,
    Contains,
}

/// What a step does. Operands are registers of the file that the operation names or implies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Op {
    /// An input of [`super::Scope::Request`] or `Row`; its type names the file.
    Load(Input),
    /// An input folded over all candidates.
    LoadFold(Input, Fold, Input),
    /// The number of candidates.
    LoadCount,
    /// A text of the request.
    LoadText(u16),
    Present(Input),
    HeaderPresent(u16),
    Int(Arithmetic, Register, Register),
    UInt(Arithmetic, Register, Register),
    Double(Arithmetic, Register, Register),
    NegateInt(Register),
    AbsoluteInt(Register),
    Real(RealFunction, Register),
    Test(RealTest, Register),
    Compare(ValueType, Relation, Register, Register),
    Not(Register),
    And(Register, Register),
    Or(Register, Register),
    /// Condition, then, else.
    Select(ValueType, Register, Register, Register),
    IntToUInt(Register),
    IntToDouble(Register),
    UIntToInt(Register),
    UIntToDouble(Register),
    DoubleToInt(Register),
    DoubleToUInt(Register),
    Search(Search, Register, Register),
    /// Length in code points.
    Size(Register),
}

/// How a step fails, by itself or by its operands.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Failing {
    /// The column of the result.
    pub column: Register,
    /// Columns of the operands, in order.
    pub operands: [Option<Register>; 3],
    /// First of the faults that the step itself can raise, as numbered in [`Program::faults`], from 1.
    pub raises: u16,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub op: Op,
    /// In the file of the result's type.
    pub out: Register,
    /// `None` when the step always has a value.
    pub failing: Option<Failing>,
}

/// The result of a program: type, register, column of faults.
#[derive(Clone, Copy, Debug)]
pub(super) struct Output {
    pub value: ValueType,
    pub register: Register,
    pub faults: Option<Register>,
}

/// A checked expression. Constants are in `registers` already, in every lane.
#[derive(Clone, Debug)]
pub(super) struct Program {
    /// Steps whose results are the same in all rows: run once a selection.
    pub once: Vec<Step>,
    /// Steps that are run for every chunk of rows.
    pub each: Vec<Step>,
    pub registers: Registers,
    pub texts: Vec<TextSource>,
    /// What can fail, and the byte offset of the operation; number 1 is the first.
    pub faults: Vec<(FaultKind, usize)>,
    pub output: Output,
}

impl Program {
    /// The fault with this number, as a user sees it.
    pub fn fault(&self, number: u16, text: &str) -> Fault {
        let index = usize::from(number).saturating_sub(1);
        let (kind, at) = self.faults.get(index).cloned().unwrap_or((FaultKind::Overflow, 0));
        let (line, column) = position(text, at);
        Fault { kind, line, column }
    }
}
