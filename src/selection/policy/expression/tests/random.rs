//! Random expressions over random rows: the compiled program against the `cel` crate's interpreter.
//!
//! `POINTSMAN_SEEDS` sets how many seeds, `POINTSMAN_SEED` the first one.

use std::{collections::HashMap, sync::Arc};

use cel::{Context, Env, ExecutionError, Value, extensions};

use super::{
    super::{INPUTS, InputFacts, Presence, Purpose, Rows, Scope, ValueType},
    Cell, Expression, Sheet,
};
use crate::selection::trust::Trust;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

const TEXTS: [&str; 5] = ["", "a", "partial", "ab", "gold"];
const INTS: [i64; 8] = [0, 1, -1, 2, 7, i64::MAX, i64::MIN, 4_096];
const DOUBLES: [f64; 7] = [0.0, 1.0, -1.5, 2.5, 1e300, 1e-9, 64.0];

struct Writer<'a> {
    rng: &'a mut fastrand::Rng,
    purpose: Purpose,
}

impl Writer<'_> {
    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.rng.usize(..of.len())]
    }

    fn input(&mut self, value: ValueType, row_texts: bool) -> Option<&'static InputFacts> {
        let folds = self.purpose == Purpose::Scorer;
        let fits = |facts: &&InputFacts| {
            facts.value == value
                && (folds || facts.scope != Scope::Candidates)
                && (row_texts || value != ValueType::Text || facts.scope == Scope::Request)
        };
        let all: Vec<_> = INPUTS.iter().filter(fits).collect();
        (!all.is_empty()).then(|| all[self.rng.usize(..all.len())])
    }

    fn literal(&mut self, value: ValueType) -> String {
        match value {
            ValueType::Bool => self.rng.bool().to_string(),
            ValueType::Int => match self.pick(&INTS) {
                i64::MIN => "(-9223372036854775807 - 1)".to_owned(),
                literal => format!("({literal})"),
            },
            ValueType::UInt => format!("{}u", self.pick(&[0, 1, 3, 9, u64::MAX])),
            ValueType::Double => format!("({:?})", self.pick(&DOUBLES)),
            ValueType::Text => format!("'{}'", self.pick(&TEXTS)),
        }
    }

    fn write(&mut self, value: ValueType, depth: u32) -> String {
        self.write_text(value, depth, true)
    }

    fn write_text(&mut self, value: ValueType, depth: u32, row_texts: bool) -> String {
        if depth == 0 || self.rng.u8(..8) == 0 {
            return match self.input(value, row_texts) {
                Some(facts) if self.rng.u8(..3) > 0 => facts.name.to_owned(),
                _ => self.literal(value),
            };
        }
        let below = depth - 1;
        // A choice by candidate makes a text one of the candidate.
        if row_texts && self.rng.u8(..6) == 0 {
            let condition = self.write(ValueType::Bool, below);
            let [a, b] = [0, 1].map(|_| self.write_text(value, below, row_texts));
            return format!("({condition} ? {a} : {b})");
        }
        match value {
            ValueType::Bool => self.truth(below),
            ValueType::Text => self.write_text(value, 0, row_texts),
            ValueType::Int if self.rng.u8(..4) == 0 => match self.rng.u8(..3) {
                0 => format!("int({})", self.write(ValueType::UInt, below)),
                1 => format!("int({})", self.write(ValueType::Double, below)),
                _ => format!("size({})", self.write_text(ValueType::Text, below, false)),
            },
            ValueType::UInt if self.rng.u8(..4) == 0 => {
                let from = self.pick(&[ValueType::Int, ValueType::Double]);
                format!("uint({})", self.write(from, below))
            }
            ValueType::Double if self.rng.u8(..3) == 0 => {
                if self.rng.bool() {
                    let from = self.pick(&[ValueType::Int, ValueType::UInt]);
                    format!("double({})", self.write(from, below))
                } else {
                    let function = self.pick(&["ceil", "floor", "round", "trunc", "sqrt", "abs", "sign"]);
                    format!("math.{function}({})", self.write(value, below))
                }
            }
            _ => {
                let [a, b] = [0, 1].map(|_| self.write(value, below));
                match self.rng.u8(..8) {
                    0 => format!("math.greatest({a}, {b})"),
                    1 => format!("math.least({a}, {b})"),
                    2 if value == ValueType::Int => format!("math.abs({a})"),
                    3 if value != ValueType::UInt => format!("-({a})"),
                    _ => {
                        let symbol = self.pick(if value == ValueType::Double {
                            &["+", "-", "*", "/"][..]
                        } else {
                            &["+", "-", "*", "/", "%"]
                        });
                        format!("({a} {symbol} {b})")
                    }
                }
            }
        }
    }

    fn truth(&mut self, below: u32) -> String {
        let of = self.pick(&[ValueType::Int, ValueType::UInt, ValueType::Double, ValueType::Text]);
        match self.rng.u8(..9) {
            0 => format!("!({})", self.write(ValueType::Bool, below)),
            1 | 2 => format!("({} && {})", self.write(ValueType::Bool, below), self.write(ValueType::Bool, below)),
            3 | 4 => format!("({} || {})", self.write(ValueType::Bool, below), self.write(ValueType::Bool, below)),
            5 => {
                let maybe: Vec<_> = INPUTS.iter().filter(|facts| facts.presence == Presence::Maybe).collect();
                match self.rng.u8(..4) {
                    0 => "'x-tier' in session.headers".to_owned(),
                    1 => "session.headers['x-tier'] == 'gold'".to_owned(),
                    _ => format!("has({})", maybe[self.rng.usize(..maybe.len())].name),
                }
            }
            6 if of == ValueType::Text => {
                let method = self.pick(&["startsWith", "endsWith", "contains"]);
                let [a, b] = [0, 1].map(|_| self.write_text(of, below, false));
                format!("{a}.{method}({b})")
            }
            6 => {
                let literals: Vec<_> = (0..self.rng.usize(1..4))
                    .map(|_| match of {
                        ValueType::Int => self.rng.u8(..).to_string(),
                        ValueType::Double => format!("{:?}", self.pick(&[0.0, 1.0, 2.5])),
                        _ => self.literal(of),
                    })
                    .collect();
                format!("({} in [{}])", self.write(of, below), literals.join(", "))
            }
            7 if of == ValueType::Double => format!("math.isFinite({})", self.write(of, below)),
            _ => {
                let order = of != ValueType::Text;
                let symbol = self.pick(if order { &["==", "!=", "<", "<=", ">", ">="][..] } else { &["==", "!="] });
                format!("({} {symbol} {})", self.write(of, below), self.write(of, below))
            }
        }
    }
}

fn cell(rng: &mut fastrand::Rng, facts: &InputFacts) -> Cell {
    match facts.value {
        ValueType::Bool => Cell::Bool(rng.bool()),
        ValueType::Int => Cell::Int(if rng.bool() { INTS[rng.usize(..INTS.len())] } else { rng.i64(-9..99) }),
        ValueType::UInt => Cell::UInt(if rng.u8(..8) == 0 { u64::MAX } else { rng.u64(..9) }),
        ValueType::Double => {
            Cell::Double(if rng.bool() { DOUBLES[rng.usize(..DOUBLES.len())] } else { rng.f64() * 100.0 })
        }
        ValueType::Text if facts.scope == Scope::Row => Cell::Trust(Trust::ALL[rng.usize(..5)]),
        ValueType::Text => Cell::Text(TEXTS[rng.usize(..TEXTS.len())]),
    }
}

fn sheet(rng: &mut fastrand::Rng) -> Sheet {
    let mut sheet = Sheet { rows: vec![HashMap::new(); rng.usize(1..9)], ..Sheet::default() };
    for facts in INPUTS {
        let missing = |rng: &mut fastrand::Rng| facts.presence == Presence::Maybe && rng.bool();
        match facts.scope {
            Scope::Request if !missing(rng) => drop(sheet.shared.insert(facts.input, cell(rng, facts))),
            Scope::Row => {
                for row in &mut sheet.rows {
                    if !missing(rng) {
                        row.insert(facts.input, cell(rng, facts));
                    }
                }
            }
            _ => {}
        }
    }
    if rng.bool() {
        sheet.headers.insert("x-tier", TEXTS[rng.usize(..TEXTS.len())]);
    }
    sheet
}

/// A fold, computed by the book.
fn folded(sheet: &Sheet, name: &str) -> Value {
    let name = name.strip_prefix("candidates.").expect("only those are folded");
    let Some((fold, base)) = name.split_once('_') else { return Value::Int(sheet.len() as i64) };
    let base = INPUTS.iter().find(|facts| facts.name.ends_with(&format!(".{base}"))).expect("an input");
    let cells: Vec<Cell> = (0..sheet.len()).map(|row| sheet.cell(base.input, row).expect("always there")).collect();
    let ints: Vec<i64> =
        cells.iter().filter_map(|cell| if let Cell::Int(value) = cell { Some(*value) } else { None }).collect();
    let doubles: Vec<f64> =
        cells.iter().filter_map(|cell| if let Cell::Double(value) = cell { Some(*value) } else { None }).collect();
    match (fold, ints.is_empty()) {
        ("min", false) => Value::Int(*ints.iter().min().expect("some")),
        ("max", false) => Value::Int(*ints.iter().max().expect("some")),
        ("min", true) => Value::Float(doubles.iter().copied().fold(f64::INFINITY, f64::min)),
        ("max", true) => Value::Float(doubles.iter().copied().fold(f64::NEG_INFINITY, f64::max)),
        (_, false) => {
            Value::Float(ints.iter().map(|&value| i128::from(value)).sum::<i128>() as f64 / ints.len() as f64)
        }
        (_, true) => Value::Float(doubles.iter().sum::<f64>() / doubles.len() as f64),
    }
}

/// The variables of one row, as maps of the crate.
fn context(env: &Arc<Env>, sheet: &Sheet, row: usize) -> Context<'static, 'static> {
    let mut groups: HashMap<&str, HashMap<String, Value>> = HashMap::new();
    let mut context = Context::with_env(Arc::clone(env));
    for facts in INPUTS {
        let value = if facts.scope == Scope::Candidates {
            folded(sheet, facts.name)
        } else {
            match sheet.cell(facts.input, row) {
                None => {
                    groups.entry(facts.name.split('.').next().expect("a part")).or_default();
                    continue;
                }
                Some(Cell::Bool(value)) => Value::Bool(value),
                Some(Cell::Int(value)) => Value::Int(value),
                Some(Cell::UInt(value)) => Value::UInt(value),
                Some(Cell::Double(value)) => Value::Float(value),
                Some(Cell::Text(value)) => Value::from(value),
                Some(Cell::Trust(trust)) => Value::from(trust.as_str()),
            }
        };
        match facts.name.split_once('.') {
            Some((group, field)) => drop(groups.entry(group).or_default().insert(field.to_owned(), value)),
            None => context.add_variable_from_value(facts.name, value),
        }
    }
    let headers: HashMap<String, Value> =
        sheet.headers.iter().map(|(name, value)| ((*name).to_owned(), Value::from(*value))).collect();
    groups.entry("session").or_default().insert("headers".to_owned(), Value::from(headers));
    for (group, fields) in groups {
        context.add_variable_from_value(group, Value::from(fields));
    }
    context
}

/// NaN has no order in the crate, which then finds no overload; CEL and this program say false.
fn about_nan(error: &ExecutionError) -> bool {
    matches!(error, ExecutionError::NoSuchOverload(_) | ExecutionError::ValuesNotComparable(..))
}

#[test]
fn programs_agree_with_the_interpreter() {
    let mut env = Env::stdlib();
    env.add_extension(extensions::math).expect("nothing is there twice");
    let env = Arc::new(env);
    let first = number("POINTSMAN_SEED", fastrand::u64(..1 << 32));
    let (mut values, mut faults, mut skipped) = (0, 0, 0);
    for seed in first..first + number("POINTSMAN_SEEDS", 300) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let purpose = if rng.bool() { Purpose::Filter } else { Purpose::Scorer };
        let wanted = match purpose {
            Purpose::Filter => ValueType::Bool,
            Purpose::Scorer => [ValueType::Int, ValueType::UInt, ValueType::Double][rng.usize(..3)],
        };
        let depth = rng.u32(1..6);
        let text = Writer { rng: &mut rng, purpose }.write(wanted, depth);
        let mut compiled = match Expression::compile(&text, purpose) {
            Ok(compiled) => compiled,
            // Only for its size.
            Err(error) => {
                assert!(
                    error.message.contains("more than") || error.message.contains("longer than"),
                    "seed {seed}: {text}\n{error}"
                );
                continue;
            }
        };
        let program = env.compile(&text).unwrap_or_else(|error| panic!("seed {seed}: {text}\n{error}"));
        let sheet = sheet(&mut rng);
        for row in 0..sheet.len() {
            // A scorer sees all rows, so that folds are right; a fault elsewhere hides this row.
            let (ours, view) = if purpose == Purpose::Filter {
                let view = sheet.only(row);
                let mut keep = [false];
                (compiled.keep(&view, &mut keep).map(|()| Value::Bool(keep[0])), view)
            } else {
                let mut costs = vec![f64::NAN; sheet.len()];
                let scored = compiled.score(&sheet, &mut costs);
                match scored {
                    Err((at, _)) if at != row => continue,
                    scored => (scored.map(|()| Value::Float(costs[row])), sheet.clone()),
                }
            };
            let at = if purpose == Purpose::Filter { 0 } else { row };
            let theirs = program.execute(&context(&env, &view, at)).map(|value| match value {
                Value::Int(value) => Value::Float(value as f64),
                Value::UInt(value) => Value::Float(value as f64),
                other => other,
            });
            let agree = match (&ours, &theirs) {
                (_, Err(error)) if about_nan(error) => {
                    skipped += 1;
                    continue;
                }
                (Ok(Value::Float(ours)), Ok(Value::Float(theirs))) => {
                    values += 1;
                    ours == theirs || ours.is_nan() && theirs.is_nan()
                }
                (Ok(ours), Ok(theirs)) => {
                    values += 1;
                    ours == theirs
                }
                (Err(_), Err(_)) => {
                    faults += 1;
                    true
                }
                _ => false,
            };
            assert!(agree, "seed {seed}, row {row}: {text}\nours: {ours:?}\ntheirs: {theirs:?}\n{view:?}");
        }
    }
    println!("first seed {first}: {values} values, {faults} faults, {skipped} rows with an order of NaN");
    assert!(values > faults / 4 && values > 100, "most have values");
}
