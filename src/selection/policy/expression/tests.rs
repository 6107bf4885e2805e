//! Tests of expressions: what is refused and where, what values they have, and the `cel` crate's interpreter as judge.

mod bounds;
mod random;
mod reference;
mod refusals;
mod values;

use std::collections::HashMap;

use super::{Expression, Fault, Input, Purpose, Rows};
use crate::selection::trust::Trust;

/// A value of an input.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Cell {
    Bool(bool),
    Int(i64),
    UInt(u64),
    Double(f64),
    Text(&'static str),
    Trust(Trust),
}

/// Inputs as a test wrote them; what it did not write is missing, or zero where nothing can be missing.
#[derive(Clone, Debug, Default)]
struct Sheet {
    shared: HashMap<Input, Cell>,
    rows: Vec<HashMap<Input, Cell>>,
    headers: HashMap<&'static str, &'static str>,
}

impl Sheet {
    fn cell(&self, input: Input, row: usize) -> Option<Cell> {
        self.shared.get(&input).or_else(|| self.rows[row].get(&input)).copied()
    }

    fn fill<V>(&self, input: Input, from: usize, values: &mut [V], of: impl Fn(Option<Cell>) -> V) {
        for (row, value) in (from..).zip(values) {
            *value = of(self.cell(input, row));
        }
    }

    /// The row alone.
    fn only(&self, row: usize) -> Self {
        Self { rows: vec![self.rows[row].clone()], ..self.clone() }
    }
}

impl Rows for Sheet {
    fn len(&self) -> usize {
        self.rows.len()
    }

    fn bools(&self, input: Input, from: usize, values: &mut [bool]) {
        self.fill(input, from, values, |cell| match cell {
            None => false,
            Some(Cell::Bool(value)) => value,
            other => panic!("{other:?}"),
        });
    }

    fn ints(&self, input: Input, from: usize, values: &mut [i64]) {
        self.fill(input, from, values, |cell| match cell {
            None => 0,
            Some(Cell::Int(value)) => value,
            other => panic!("{other:?}"),
        });
    }

    fn uints(&self, input: Input, from: usize, values: &mut [u64]) {
        self.fill(input, from, values, |cell| match cell {
            None => 0,
            Some(Cell::UInt(value)) => value,
            other => panic!("{other:?}"),
        });
    }

    fn doubles(&self, input: Input, from: usize, values: &mut [f64]) {
        self.fill(input, from, values, |cell| match cell {
            None => 0.0,
            Some(Cell::Double(value)) => value,
            other => panic!("{other:?}"),
        });
    }

    fn present(&self, input: Input, from: usize, present: &mut [bool]) {
        self.fill(input, from, present, |cell| cell.is_some());
    }

    fn trusts(&self, from: usize, values: &mut [Trust]) {
        self.fill(Input::CacheTrust, from, values, |cell| match cell {
            None => Trust::Unknown,
            Some(Cell::Trust(value)) => value,
            other => panic!("{other:?}"),
        });
    }

    fn text(&self, input: Input) -> Option<&str> {
        self.shared.get(&input).map(|cell| match cell {
            Cell::Text(text) => *text,
            other => panic!("{other:?}"),
        })
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).copied()
    }
}

fn filter(text: &str) -> Expression {
    Expression::compile(text, Purpose::Filter).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn scorer(text: &str) -> Expression {
    Expression::compile(text, Purpose::Scorer).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn kept(text: &str, sheet: &Sheet) -> Result<Vec<bool>, (usize, Fault)> {
    let mut keep = vec![false; sheet.len()];
    filter(text).keep(sheet, &mut keep).map(|()| keep)
}

fn scored(text: &str, sheet: &Sheet) -> Result<Vec<f64>, (usize, Fault)> {
    let mut costs = vec![f64::NAN; sheet.len()];
    scorer(text).score(sheet, &mut costs).map(|()| costs)
}

/// Rows with these numbers of active requests.
fn requests(active: impl IntoIterator<Item = i64>) -> Sheet {
    let rows = active.into_iter().map(|count| HashMap::from([(Input::ActiveRequests, Cell::Int(count))])).collect();
    Sheet { rows, ..Sheet::default() }
}
