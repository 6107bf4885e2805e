//! The loops of the evaluator: a step over the lanes of one chunk, for one pair of types.
//!
//! Results come after their operands within a file (see `program`), so a file splits where the result is.

use super::program::{Column, Failing, Register};

/// `out = f(a, b)` within one file.
pub(super) fn binary<T: Copy>(
    file: &mut [Column<T>],
    (a, b, out): (Register, Register, Register),
    n: usize,
    f: impl Fn(T, T) -> T,
) {
    let (before, rest) = file.split_at_mut(usize::from(out));
    let (a, b) = (&before[usize::from(a)][..n], &before[usize::from(b)][..n]);
    for ((out, &x), &y) in rest[0][..n].iter_mut().zip(a).zip(b) {
        *out = f(x, y);
    }
}

/// `(out, fault) = f(a, b)` within one file.
pub(super) fn checked<T: Copy>(
    file: &mut [Column<T>],
    faults: &mut [Column<u16>],
    (a, b, out): (Register, Register, Register),
    column: Register,
    n: usize,
    f: impl Fn(T, T) -> (T, u16),
) {
    let (before, rest) = file.split_at_mut(usize::from(out));
    let (a, b) = (&before[usize::from(a)][..n], &before[usize::from(b)][..n]);
    let faults = &mut faults[usize::from(column)][..n];
    for (((out, fault), &x), &y) in rest[0][..n].iter_mut().zip(faults).zip(a).zip(b) {
        (*out, *fault) = f(x, y);
    }
}

/// `out = f(a, b)`, a truth about numbers.
pub(super) fn compare<T: Copy>(
    file: &[Column<T>],
    bools: &mut [Column<bool>],
    (a, b, out): (Register, Register, Register),
    n: usize,
    f: impl Fn(T, T) -> bool,
) {
    let (a, b) = (&file[usize::from(a)][..n], &file[usize::from(b)][..n]);
    for ((out, &x), &y) in bools[usize::from(out)][..n].iter_mut().zip(a).zip(b) {
        *out = f(x, y);
    }
}

/// `out = f(a)` from one file to another.
pub(super) fn map<T: Copy, U>(
    from: &[Column<T>],
    to: &mut [Column<U>],
    a: Register,
    out: Register,
    n: usize,
    f: impl Fn(T) -> U,
) {
    for (out, &x) in to[usize::from(out)][..n].iter_mut().zip(&from[usize::from(a)][..n]) {
        *out = f(x);
    }
}

/// `(out, fault) = f(a)` from one file to another.
pub(super) fn map_checked<T: Copy, U>(
    from: &[Column<T>],
    to: &mut [Column<U>],
    faults: &mut [Column<u16>],
    (a, out): (Register, Register),
    column: Register,
    n: usize,
    f: impl Fn(T) -> (U, u16),
) {
    let faults = &mut faults[usize::from(column)][..n];
    for ((out, fault), &x) in to[usize::from(out)][..n].iter_mut().zip(faults).zip(&from[usize::from(a)][..n]) {
        (*out, *fault) = f(x);
    }
}

/// `out = c ? a : b` within one file.
pub(super) fn select<T: Copy>(
    bools: &[Column<bool>],
    file: &mut [Column<T>],
    c: Register,
    (a, b, out): (Register, Register, Register),
    n: usize,
) {
    let (before, rest) = file.split_at_mut(usize::from(out));
    let (a, b) = (&before[usize::from(a)][..n], &before[usize::from(b)][..n]);
    let conditions = &bools[usize::from(c)][..n];
    for (((out, &condition), &x), &y) in rest[0][..n].iter_mut().zip(conditions).zip(a).zip(b) {
        *out = if condition { x } else { y };
    }
}

/// A step fails with the first operand that did, else by itself. A step that cannot fail by itself has no number in
/// `raises`, and its column holds what an earlier chunk left there.
pub(super) fn copy_faults(faults: &mut [Column<u16>], failing: Failing, n: usize) {
    let (before, rest) = faults.split_at_mut(usize::from(failing.column));
    let own = &mut rest[0][..n];
    if failing.raises == 0 {
        own.fill(0);
    }
    for column in failing.operands.iter().rev().flatten() {
        for (own, &theirs) in own.iter_mut().zip(&before[usize::from(*column)][..n]) {
            *own = if theirs == 0 { *own } else { theirs };
        }
    }
}
