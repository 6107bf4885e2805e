//! CEL expressions: any text is refused with a place within it, or has the same values in chunks as row by row.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pointsman::selection::{
    ingest::Trust,
    policy::expression::{Expression, Input, Purpose, Rows},
};

/// Rows of numbers made from their place, some of them extreme; what can be missing is there in every other row.
#[derive(Clone, Copy)]
struct Made {
    first: usize,
    len: usize,
}

impl Made {
    fn fill<V>(&self, from: usize, values: &mut [V], of: impl Fn(usize) -> V) {
        values.iter_mut().zip(self.first + from..).for_each(|(value, row)| *value = of(row));
    }
}

impl Rows for Made {
    fn len(&self) -> usize {
        self.len
    }

    fn bools(&self, _: Input, from: usize, values: &mut [bool]) {
        self.fill(from, values, |row| row % 3 == 0);
    }

    fn ints(&self, _: Input, from: usize, values: &mut [i64]) {
        self.fill(from, values, |row| [0, 1, -7, i64::MAX, i64::MIN, 64][row % 6]);
    }

    fn uints(&self, _: Input, from: usize, values: &mut [u64]) {
        self.fill(from, values, |row| [0, 1, 9, u64::MAX][row % 4]);
    }

    fn doubles(&self, _: Input, from: usize, values: &mut [f64]) {
        self.fill(from, values, |row| [0.0, -1.5, 1e300, f64::INFINITY, 3.0][row % 5]);
    }

    fn present(&self, _: Input, from: usize, present: &mut [bool]) {
        self.fill(from, present, |row| row % 2 == 0);
    }

    fn trusts(&self, from: usize, values: &mut [Trust]) {
        self.fill(from, values, |row| Trust::ALL[row % 5]);
    }

    fn text(&self, input: Input) -> Option<&str> {
        (input == Input::SessionId).then_some("session-7")
    }

    fn header(&self, name: &str) -> Option<&str> {
        (name.len() % 2 == 0).then_some("gold")
    }
}

const ALL: Made = Made { first: 0, len: 130 };

fuzz_target!(|text: &str| {
    for purpose in [Purpose::Filter, Purpose::Scorer] {
        let mut expression = match Expression::compile(text, purpose) {
            Ok(expression) => expression,
            Err(error) => {
                let lines = text.split('\n').count() as u32;
                assert!((1..=lines.max(1)).contains(&error.line) && error.column >= 1, "{error}");
                continue;
            }
        };
        // Values that are the same in all rows differ between these rows, so only expressions of rows are compared.
        let of_rows = expression.inputs().iter().all(|input| input.facts().name.starts_with("load."));
        match purpose {
            Purpose::Filter => {
                let mut all = [false; ALL.len];
                let result = expression.keep(&ALL, &mut all);
                for row in (0..ALL.len).filter(|_| of_rows) {
                    let mut one = [false];
                    let alone = expression.keep(&Made { first: row, len: 1 }, &mut one);
                    match (&result, alone) {
                        (Ok(()), Ok(())) => assert_eq!(one[0], all[row]),
                        (Err((first, fault)), Err((_, alone))) if *first == row => assert_eq!(*fault, alone),
                        (Err((first, _)), _) => assert!(*first != row),
                        (Ok(()), Err(_)) => panic!("row {row} fails alone only"),
                    }
                }
            }
            Purpose::Scorer => {
                let mut all = [0.0; ALL.len];
                let result = expression.score(&ALL, &mut all);
                for row in (0..ALL.len).filter(|_| of_rows) {
                    let mut one = [0.0];
                    let alone = expression.score(&Made { first: row, len: 1 }, &mut one);
                    match (&result, alone) {
                        (Ok(()), Ok(())) => assert!(one[0] == all[row] || (one[0].is_nan() && all[row].is_nan())),
                        (Err((first, fault)), Err((_, alone))) if *first == row => assert_eq!(*fault, alone),
                        (Err((first, _)), _) => assert!(*first != row),
                        (Ok(()), Err(_)) => panic!("row {row} fails alone only"),
                    }
                }
            }
        }
    }
});
