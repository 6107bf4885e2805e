//! Runs a program: the steps that all rows share once, the others chunk by chunk.

use super::{
    inputs::{Fold, Input, Rows, Scope, ValueType},
    kernels::{binary, checked, compare, copy_faults, map, map_checked, select},
    program::{
        Arithmetic, Failing, LANES, Op, Program, RealFunction, RealTest, Register, Registers, Relation, Search, Step,
        TextSource,
    },
};
use crate::selection::trust::Trust;

impl Program {
    /// Evaluates all rows. `visit` gets the registers, the first row of the chunk and its length, and may stop.
    pub fn run<E>(
        &mut self,
        rows: &impl Rows,
        mut visit: impl FnMut(&Registers, usize, usize) -> Result<(), E>,
    ) -> Result<(), E> {
        let len = rows.len();
        let mut machine =
            Machine { registers: &mut self.registers, texts: &self.texts, rows, from: 0, n: len.min(LANES) };
        for step in &self.once {
            machine.run(step);
        }
        while machine.from < len {
            machine.n = LANES.min(len - machine.from);
            for step in &self.each {
                machine.run(step);
            }
            visit(machine.registers, machine.from, machine.n)?;
            machine.from += machine.n;
        }
        Ok(())
    }
}

/// One chunk: rows `from..from + n`.
pub(super) struct Machine<'a, R> {
    pub registers: &'a mut Registers,
    pub texts: &'a [TextSource],
    pub rows: &'a R,
    pub from: usize,
    pub n: usize,
}

impl<R: Rows> Machine<'_, R> {
    /// Runs one step on the chunk.
    pub fn run(&mut self, step: &Step) {
        let Step { op, out, failing } = *step;
        let n = self.n;
        let files = &mut *self.registers;
        let raises = failing.map_or(0, |failing| failing.raises);
        let fault_column = failing.map_or(0, |failing| failing.column);
        match op {
            Op::Load(input) => return self.load(input, out, failing),
            Op::LoadFold(input, fold, base) => self.fold(input, fold, base, out),
            Op::LoadCount => {
                let count = i64::try_from(self.rows.len()).unwrap_or(i64::MAX);
                files.ints[usize::from(out)][..n].fill(count);
            }
            Op::LoadText(number) => {
                files.texts[usize::from(out)][..n].fill(number);
                if let Some(failing) = failing {
                    let fault = if self.text(number).is_some() { 0 } else { failing.raises };
                    self.registers.faults[usize::from(failing.column)][..n].fill(fault);
                }
                return;
            }
            Op::Present(input) => self.rows.present(input, self.from, &mut files.bools[usize::from(out)][..n]),
            Op::HeaderPresent(number) => {
                let present = self.text(number).is_some();
                self.registers.bools[usize::from(out)][..n].fill(present);
            }
            Op::Int(op, a, b) => {
                let (file, faults) = (&mut files.ints, &mut files.faults);
                let overflow = |value: Option<i64>| value.map_or((0, raises), |value| (value, 0));
                let divided = |value: Option<i64>, by: i64| match value {
                    Some(value) => (value, 0),
                    None => (0, if by == 0 { raises } else { raises + 1 }),
                };
                match op {
                    Arithmetic::Add => {
                        checked(file, faults, (a, b, out), fault_column, n, |x, y| overflow(x.checked_add(y)))
                    }
                    Arithmetic::Subtract => {
                        checked(file, faults, (a, b, out), fault_column, n, |x, y| overflow(x.checked_sub(y)));
                    }
                    Arithmetic::Multiply => {
                        checked(file, faults, (a, b, out), fault_column, n, |x, y| overflow(x.checked_mul(y)));
                    }
                    Arithmetic::Divide => {
                        checked(file, faults, (a, b, out), fault_column, n, |x, y| divided(x.checked_div(y), y));
                    }
                    Arithmetic::Remainder => {
                        checked(file, faults, (a, b, out), fault_column, n, |x, y| divided(x.checked_rem(y), y));
                    }
                    Arithmetic::Least => binary(file, (a, b, out), n, i64::min),
                    Arithmetic::Greatest => binary(file, (a, b, out), n, i64::max),
                }
            }
            Op::UInt(op, a, b) => {
                let (file, faults) = (&mut files.uints, &mut files.faults);
                let or_fault = |value: Option<u64>| value.map_or((0, raises), |value| (value, 0));
                match op {
                    Arithmetic::Add => {
                        checked(file, faults, (a, b, out), fault_column, n, |x, y| or_fault(x.checked_add(y)))
                    }
                    Arithmetic::Subtract => {
                        checked(file, faults, (a, b, out), fault_column, n, |x, y| or_fault(x.checked_sub(y)));
                    }
                    Arithmetic::Multiply => {
                        checked(file, faults, (a, b, out), fault_column, n, |x, y| or_fault(x.checked_mul(y)));
                    }
                    Arithmetic::Divide => {
                        checked(file, faults, (a, b, out), fault_column, n, |x, y| or_fault(x.checked_div(y)));
                    }
                    Arithmetic::Remainder => {
                        checked(file, faults, (a, b, out), fault_column, n, |x, y| or_fault(x.checked_rem(y)));
                    }
                    Arithmetic::Least => binary(file, (a, b, out), n, u64::min),
                    Arithmetic::Greatest => binary(file, (a, b, out), n, u64::max),
                }
            }
            Op::Double(op, a, b) => {
                let file = &mut files.doubles;
                match op {
                    Arithmetic::Add => binary(file, (a, b, out), n, |x, y| x + y),
                    Arithmetic::Subtract => binary(file, (a, b, out), n, |x, y| x - y),
                    Arithmetic::Multiply => binary(file, (a, b, out), n, |x, y| x * y),
                    Arithmetic::Divide => binary(file, (a, b, out), n, |x, y| x / y),
                    Arithmetic::Remainder => binary(file, (a, b, out), n, |x, y| x % y),
                    // The first of two that do not differ, as in a chain of comparisons.
                    Arithmetic::Least => binary(file, (a, b, out), n, |x, y| if y < x { y } else { x }),
                    Arithmetic::Greatest => binary(file, (a, b, out), n, |x, y| if y > x { y } else { x }),
                }
            }
            Op::NegateInt(a) => checked(&mut files.ints, &mut files.faults, (a, a, out), fault_column, n, |x, _| {
                x.checked_neg().map_or((0, raises), |value| (value, 0))
            }),
            Op::AbsoluteInt(a) => checked(&mut files.ints, &mut files.faults, (a, a, out), fault_column, n, |x, _| {
                x.checked_abs().map_or((0, raises), |value| (value, 0))
            }),
            Op::Real(function, a) => {
                let file = &mut files.doubles;
                let at = (a, a, out);
                match function {
                    RealFunction::Negate => binary(file, at, n, |x, _| -x),
                    RealFunction::Absolute => binary(file, at, n, |x, _| x.abs()),
                    RealFunction::Ceiling => binary(file, at, n, |x, _| x.ceil()),
                    RealFunction::Floor => binary(file, at, n, |x, _| x.floor()),
                    RealFunction::Round => binary(file, at, n, |x, _| x.round()),
                    RealFunction::Truncate => binary(file, at, n, |x, _| x.trunc()),
                    RealFunction::SquareRoot => binary(file, at, n, |x, _| x.sqrt()),
                    RealFunction::Sign => binary(file, at, n, |x, _| {
                        if x.is_nan() { x } else { f64::from(i8::from(x > 0.0) - i8::from(x < 0.0)) }
                    }),
                }
            }
            Op::Test(test, a) => {
                let (from, to) = (&files.doubles, &mut files.bools);
                match test {
                    RealTest::NotANumber => map(from, to, a, out, n, f64::is_nan),
                    RealTest::Infinite => map(from, to, a, out, n, f64::is_infinite),
                    RealTest::Finite => map(from, to, a, out, n, f64::is_finite),
                }
            }
            Op::Compare(value, relation, a, b) => match value {
                ValueType::Int => relate(&files.ints, &mut files.bools, relation, (a, b, out), n),
                ValueType::UInt => relate(&files.uints, &mut files.bools, relation, (a, b, out), n),
                ValueType::Double => relate(&files.doubles, &mut files.bools, relation, (a, b, out), n),
                ValueType::Bool => match relation {
                    Relation::Equal => binary(&mut files.bools, (a, b, out), n, |x, y| x == y),
                    _ => binary(&mut files.bools, (a, b, out), n, |x, y| x != y),
                },
                ValueType::Text => self.compare_texts(relation, a, b, out),
            },
            Op::Not(a) => binary(&mut files.bools, (a, a, out), n, |x, _| !x),
            Op::And(a, b) => return self.logic(step, (a, b), false),
            Op::Or(a, b) => return self.logic(step, (a, b), true),
            Op::Select(value, c, a, b) => {
                match value {
                    ValueType::Int => select(&files.bools, &mut files.ints, c, (a, b, out), n),
                    ValueType::UInt => select(&files.bools, &mut files.uints, c, (a, b, out), n),
                    ValueType::Double => select(&files.bools, &mut files.doubles, c, (a, b, out), n),
                    ValueType::Text => select(&files.bools, &mut files.texts, c, (a, b, out), n),
                    ValueType::Bool => {
                        for lane in 0..n {
                            let chosen = if files.bools[usize::from(c)][lane] { a } else { b };
                            files.bools[usize::from(out)][lane] = files.bools[usize::from(chosen)][lane];
                        }
                    }
                }
                return self.selected_faults(c, failing);
            }
            Op::IntToUInt(a) => {
                map_checked(&files.ints, &mut files.uints, &mut files.faults, (a, out), fault_column, n, |x| {
                    u64::try_from(x).map_or((0, raises), |value| (value, 0))
                });
            }
            Op::IntToDouble(a) => map(&files.ints, &mut files.doubles, a, out, n, |x| x as f64),
            Op::UIntToInt(a) => {
                map_checked(&files.uints, &mut files.ints, &mut files.faults, (a, out), fault_column, n, |x| {
                    i64::try_from(x).map_or((0, raises), |value| (value, 0))
                });
            }
            Op::UIntToDouble(a) => map(&files.uints, &mut files.doubles, a, out, n, |x| x as f64),
            // Both bounds are powers of two, so they are exact; CEL excludes the lower one of `int` too.
            Op::DoubleToInt(a) => {
                map_checked(&files.doubles, &mut files.ints, &mut files.faults, (a, out), fault_column, n, |x| {
                    if x > i64::MIN as f64 && x < i64::MAX as f64 { (x as i64, 0) } else { (0, raises) }
                });
            }
            Op::DoubleToUInt(a) => {
                map_checked(&files.doubles, &mut files.uints, &mut files.faults, (a, out), fault_column, n, |x| {
                    if x >= 0.0 && x < u64::MAX as f64 { (x as u64, 0) } else { (0, raises) }
                });
            }
            Op::Search(search, a, b) => self.search(search, (a, b, out), failing),
            Op::Size(a) => self.size(a, out, failing),
        }
        if let Some(failing) = failing {
            copy_faults(&mut self.registers.faults, failing, n);
        }
    }

    fn load(&mut self, input: Input, out: Register, failing: Option<Failing>) {
        let Self { registers, rows, from, n, .. } = self;
        let at = usize::from(out);
        let facts = input.facts();
        match facts.value {
            ValueType::Bool => rows.bools(input, *from, &mut registers.bools[at][..*n]),
            ValueType::Int => rows.ints(input, *from, &mut registers.ints[at][..*n]),
            ValueType::UInt => rows.uints(input, *from, &mut registers.uints[at][..*n]),
            ValueType::Double => rows.doubles(input, *from, &mut registers.doubles[at][..*n]),
            ValueType::Text => {
                let mut trusts = [Trust::Unknown; LANES];
                rows.trusts(*from, &mut trusts[..*n]);
                for (number, trust) in registers.texts[at].iter_mut().zip(&trusts[..*n]) {
                    // The words are the first texts, in this order.
                    *number = *trust as u16;
                }
            }
        }
        if let Some(failing) = failing {
            let mut present = [true; LANES];
            rows.present(input, *from, &mut present[..*n]);
            let faults = &mut registers.faults[usize::from(failing.column)];
            for (fault, present) in faults.iter_mut().zip(&present[..*n]) {
                *fault = if *present { 0 } else { failing.raises };
            }
        }
    }

    /// Folds an input over all candidates into every lane. There is at least one candidate when steps are run.
    fn fold(&mut self, input: Input, fold: Fold, base: Input, out: Register) {
        debug_assert_eq!(input.facts().scope, Scope::Candidates);
        let (len, at, n) = (self.rows.len(), usize::from(out), self.n);
        let chunks = (0..len).step_by(LANES).map(|from| (from, LANES.min(len - from)));
        if base.facts().value == ValueType::Double {
            let mut column = [0.0_f64; LANES];
            let (mut least, mut greatest, mut sum) = (f64::INFINITY, f64::NEG_INFINITY, 0.0);
            for (from, count) in chunks {
                self.rows.doubles(base, from, &mut column[..count]);
                for &value in &column[..count] {
                    (least, greatest, sum) = (least.min(value), greatest.max(value), sum + value);
                }
            }
            let value = match fold {
                Fold::Min => least,
                Fold::Max => greatest,
                Fold::Mean => sum / len as f64,
            };
            self.registers.doubles[at][..n].fill(value);
            return;
        }
        let mut column = [0_i64; LANES];
        let (mut least, mut greatest, mut sum) = (i64::MAX, i64::MIN, 0_i128);
        for (from, count) in chunks {
            self.rows.ints(base, from, &mut column[..count]);
            for &value in &column[..count] {
                (least, greatest, sum) = (least.min(value), greatest.max(value), sum + i128::from(value));
            }
        }
        match fold {
            Fold::Min => self.registers.ints[at][..n].fill(least),
            Fold::Max => self.registers.ints[at][..n].fill(greatest),
            Fold::Mean => self.registers.doubles[at][..n].fill(sum as f64 / len as f64),
        }
    }

    fn text(&self, number: u16) -> Option<&str> {
        match self.texts.get(usize::from(number))? {
            TextSource::Literal(text) => Some(text),
            TextSource::Input(input) => self.rows.text(*input),
            TextSource::Header(name) => self.rows.header(name),
        }
    }

    fn compare_texts(&mut self, relation: Relation, a: Register, b: Register, out: Register) {
        for lane in 0..self.n {
            let [x, y] = [a, b].map(|register| self.registers.texts[usize::from(register)][lane]);
            let equal = x == y || self.text(x) == self.text(y);
            self.registers.bools[usize::from(out)][lane] = equal == (relation == Relation::Equal);
        }
    }

    /// The texts are those of the request, the same in every lane.
    fn search(&mut self, search: Search, (a, b, out): (Register, Register, Register), failing: Option<Failing>) {
        let [text, wanted] = [a, b].map(|register| self.text(self.registers.texts[usize::from(register)][0]));
        let (text, wanted) = (text.unwrap_or_default(), wanted.unwrap_or_default());
        let too_long = text.len().max(wanted.len()) > super::MAX_TEXT_BYTES;
        let found = !too_long
            && match search {
                Search::StartsWith => text.starts_with(wanted),
                Search::EndsWith => text.ends_with(wanted),
                Search::Contains => text.contains(wanted),
            };
        self.registers.bools[usize::from(out)][..self.n].fill(found);
        self.raise(failing, too_long);
    }

    fn size(&mut self, a: Register, out: Register, failing: Option<Failing>) {
        let text = self.text(self.registers.texts[usize::from(a)][0]).unwrap_or_default();
        let too_long = text.len() > super::MAX_TEXT_BYTES;
        let size = if too_long { 0 } else { i64::try_from(text.chars().count()).unwrap_or(i64::MAX) };
        self.registers.ints[usize::from(out)][..self.n].fill(size);
        self.raise(failing, too_long);
    }

    fn raise(&mut self, failing: Option<Failing>, failed: bool) {
        if let Some(failing) = failing {
            let fault = if failed { failing.raises } else { 0 };
            self.registers.faults[usize::from(failing.column)][..self.n].fill(fault);
        }
    }

    /// `&&` and `||`: the `decisive` value wins over a failure of the other side (CEL's rule); a failure over the rest.
    fn logic(&mut self, step: &Step, (a, b): (Register, Register), decisive: bool) {
        let Registers { bools, faults, .. } = &mut *self.registers;
        let Some(failing) = step.failing else {
            return if decisive {
                binary(bools, (a, b, step.out), self.n, |x, y| x | y)
            } else {
                binary(bools, (a, b, step.out), self.n, |x, y| x & y)
            };
        };
        let fault = |faults: &[_], side: usize, lane: usize| -> u16 {
            failing.operands[side].map_or(0, |column| {
                let column: &[u16; LANES] = &faults[usize::from(column)];
                column[lane]
            })
        };
        for lane in 0..self.n {
            let sides = [(a, 0), (b, 1)]
                .map(|(register, side)| (bools[usize::from(register)][lane], fault(faults, side, lane)));
            let decided = sides.iter().any(|&(value, fault)| fault == 0 && value == decisive);
            bools[usize::from(step.out)][lane] = decided == decisive;
            let first = if sides[0].1 != 0 { sides[0].1 } else { sides[1].1 };
            faults[usize::from(failing.column)][lane] = if decided { 0 } else { first };
        }
    }

    /// A choice fails with its condition, else with the chosen side only.
    fn selected_faults(&mut self, c: Register, failing: Option<Failing>) {
        let Some(Failing { column, operands, .. }) = failing else { return };
        let Registers { bools, faults, .. } = &mut *self.registers;
        for lane in 0..self.n {
            let of = |operand: Option<Register>| operand.map_or(0, |column| faults[usize::from(column)][lane]);
            let condition = of(operands[0]);
            let chosen = of(if bools[usize::from(c)][lane] { operands[1] } else { operands[2] });
            faults[usize::from(column)][lane] = if condition != 0 { condition } else { chosen };
        }
    }
}

fn relate<T: Copy + PartialOrd>(
    file: &[[T; LANES]],
    bools: &mut [[bool; LANES]],
    relation: Relation,
    at: (Register, Register, Register),
    n: usize,
) {
    match relation {
        Relation::Equal => compare(file, bools, at, n, |x, y| x == y),
        Relation::NotEqual => compare(file, bools, at, n, |x, y| x != y),
        Relation::Less => compare(file, bools, at, n, |x, y| x < y),
        Relation::LessOrEqual => compare(file, bools, at, n, |x, y| x <= y),
        Relation::Greater => compare(file, bools, at, n, |x, y| x > y),
        Relation::GreaterOrEqual => compare(file, bools, at, n, |x, y| x >= y),
    }
}
