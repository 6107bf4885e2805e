//! Lays a checked expression out as a program: registers, common subexpressions, constants.

use std::collections::HashMap;

use super::{
    MAX_STEPS,
    error::FaultKind,
    evaluate::Machine,
    inputs::{Input, Rows, Scope, ValueType},
    program::{Column, Failing, LANES, Op, Output, Program, Register, Registers, Step, TextSource},
};
use crate::selection::trust::Trust;

/// A checked subexpression: where its value will be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operand {
    pub value: ValueType,
    pub register: Register,
    pub faults: Option<Register>,
    pub scope: Scope,
    pub constant: bool,
}

/// A value known while loading.
#[derive(Clone, Copy, Debug)]
pub(super) enum Constant {
    Bool(bool),
    Int(i64),
    UInt(u64),
    Double(f64),
}

/// More steps, registers or texts than allowed.
#[derive(Debug)]
pub(super) struct TooLarge;

#[derive(Debug)]
pub(super) struct Builder {
    once: Vec<Step>,
    each: Vec<Step>,
    registers: Registers,
    texts: Vec<TextSource>,
    faults: Vec<(FaultKind, usize)>,
    /// Results of steps that are there already.
    known: HashMap<Op, Operand>,
    /// Everything that was laid out, constants too.
    size: usize,
}

fn push<T: Copy>(file: &mut Vec<Column<T>>, value: T) -> Register {
    file.push([value; LANES]);
    // `MAX_STEPS` bounds every file.
    (file.len() - 1) as Register
}

impl Builder {
    pub fn new() -> Self {
        let texts = Trust::ALL.map(|trust| TextSource::Literal(trust.as_str().into())).into();
        let (once, each, faults) = (Vec::new(), Vec::new(), Vec::new());
        Self { once, each, registers: Registers::default(), texts, faults, known: HashMap::new(), size: 0 }
    }

    pub fn finish(self, output: Operand) -> Program {
        let Operand { value, register, faults, .. } = output;
        let output = Output { value, register, faults };
        let Self { once, each, registers, texts, faults, .. } = self;
        Program { once, each, registers, texts, faults, output }
    }

    fn grow(&mut self) -> Result<(), TooLarge> {
        self.size += 1;
        if self.size > MAX_STEPS { Err(TooLarge) } else { Ok(()) }
    }

    pub fn constant(&mut self, constant: Constant) -> Result<Operand, TooLarge> {
        self.grow()?;
        let files = &mut self.registers;
        let (value, register) = match constant {
            Constant::Bool(value) => (ValueType::Bool, push(&mut files.bools, value)),
            Constant::Int(value) => (ValueType::Int, push(&mut files.ints, value)),
            Constant::UInt(value) => (ValueType::UInt, push(&mut files.uints, value)),
            Constant::Double(value) => (ValueType::Double, push(&mut files.doubles, value)),
        };
        Ok(Operand { value, register, faults: None, scope: Scope::Request, constant: true })
    }

    pub fn text(&mut self, text: &str) -> Result<Operand, TooLarge> {
        self.grow()?;
        let number = self.source(TextSource::Literal(text.into()));
        let register = push(&mut self.registers.texts, number);
        Ok(Operand { value: ValueType::Text, register, faults: None, scope: Scope::Request, constant: true })
    }

    /// The number of a text.
    pub fn source(&mut self, source: TextSource) -> u16 {
        let at = self.texts.iter().position(|known| *known == source).unwrap_or_else(|| {
            self.texts.push(source);
            self.texts.len() - 1
        });
        // At most one text a step, after those of `cache.trust`.
        at as u16
    }

    /// Reads an input.
    pub fn load(&mut self, input: Input, at: usize) -> Result<Operand, TooLarge> {
        let facts = input.facts();
        let absent = || FaultKind::Absent(facts.name.into());
        let raises: &[FaultKind] = match facts.presence {
            super::inputs::Presence::Always => &[],
            super::inputs::Presence::Maybe => &[absent()],
        };
        let op = match facts.scope {
            Scope::Candidates => match input.folded() {
                Some((fold, base)) => Op::LoadFold(input, fold, base),
                None => Op::LoadCount,
            },
            Scope::Request if facts.value == ValueType::Text => Op::LoadText(self.source(TextSource::Input(input))),
            _ => Op::Load(input),
        };
        self.step(op, facts.value, facts.scope, &[], raises, at)
    }

    /// Reads the first value of a header.
    pub fn load_header(&mut self, name: &str, at: usize) -> Result<Operand, TooLarge> {
        let op = Op::LoadText(self.source(TextSource::Header(name.into())));
        let absent = FaultKind::Absent(format!("session.headers[\"{name}\"]").into());
        self.step(op, ValueType::Text, Scope::Request, &[], &[absent], at)
    }

    /// Computes `op`, which reads `operands` and can fail by itself as `raises` says.
    pub fn step(
        &mut self,
        op: Op,
        value: ValueType,
        scope: Scope,
        operands: &[Operand],
        raises: &[FaultKind],
        at: usize,
    ) -> Result<Operand, TooLarge> {
        if let Some(known) = self.known.get(&op) {
            return Ok(*known);
        }
        self.grow()?;
        let scope = operands.iter().map(|operand| operand.scope).fold(scope, Scope::max);
        let files = &mut self.registers;
        let out = match value {
            ValueType::Bool => push(&mut files.bools, false),
            ValueType::Int => push(&mut files.ints, 0),
            ValueType::UInt => push(&mut files.uints, 0),
            ValueType::Double => push(&mut files.doubles, 0.0),
            ValueType::Text => push(&mut files.texts, 0),
        };
        let mut failing = None;
        if !raises.is_empty() || operands.iter().any(|operand| operand.faults.is_some()) {
            let mut columns = [None; 3];
            for (column, operand) in columns.iter_mut().zip(operands) {
                *column = operand.faults;
            }
            let first = if raises.is_empty() { 0 } else { self.faults.len() as u16 + 1 };
            self.faults.extend(raises.iter().map(|kind| (kind.clone(), at)));
            failing = Some(Failing { column: push(&mut files.faults, 0), operands: columns, raises: first });
        }
        let step = Step { op, out, failing };
        let faults = failing.map(|failing| failing.column);
        let mut result = Operand { value, register: out, faults, scope, constant: false };
        if !operands.is_empty() && operands.iter().all(|operand| operand.constant) && self.folds(&step) {
            result = Operand { faults: None, constant: true, ..result };
        } else if scope == Scope::Row {
            self.each.push(step);
        } else {
            self.once.push(step);
        }
        self.known.insert(op, result);
        Ok(result)
    }

    /// Computes a step of constants into every lane; false when it fails, which then is left to each request, since its
    /// result may never be asked for.
    fn folds(&mut self, step: &Step) -> bool {
        Machine { registers: &mut self.registers, texts: &self.texts, rows: &Nothing, from: 0, n: LANES }.run(step);
        step.failing.is_none_or(|failing| self.registers.faults[usize::from(failing.column)][0] == 0)
    }
}

/// No inputs: what constants are computed from.
struct Nothing;

impl Rows for Nothing {
    fn len(&self) -> usize {
        0
    }

    fn bools(&self, _: Input, _: usize, _: &mut [bool]) {}

    fn ints(&self, _: Input, _: usize, _: &mut [i64]) {}

    fn uints(&self, _: Input, _: usize, _: &mut [u64]) {}

    fn doubles(&self, _: Input, _: usize, _: &mut [f64]) {}

    fn present(&self, _: Input, _: usize, _: &mut [bool]) {}

    fn trusts(&self, _: usize, _: &mut [Trust]) {}

    fn text(&self, _: Input) -> Option<&str> {
        None
    }

    fn header(&self, _: &str) -> Option<&str> {
        None
    }
}
