//! What readers and the writer meet on: atomics, the standard library's or, in model checking, loom's; and memory that
//! goes when readers have left.
#![allow(unsafe_code)]

use crossbeam_epoch::Guard;

#[cfg(not(model_check))]
pub(super) use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

#[cfg(model_check)]
pub(super) use loom::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

/// Waits a little for a writer in the middle of a change; after some rounds gives the processor away.
#[derive(Debug, Default)]
pub(super) struct Spin(u32);

impl Spin {
    /// One round.
    #[cfg(not(model_check))]
    pub(super) fn wait(&mut self) {
        self.0 += 1;
        if self.0 < 64 {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }

    /// One round.
    #[cfg(model_check)]
    pub(super) fn wait(&mut self) {
        self.0 += 1;
        loom::thread::yield_now();
    }
}

/// What is deferred between two collections. One collection frees up to eight bags of 64, so that more is freed than
/// deferred.
const COLLECT_EVERY: usize = 256;

thread_local! {
    /// Deferred by this thread and not yet followed by a collection.
    static DEFERRED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Frees what readers have left, in step with what is deferred: by itself the epoch collects once in 128 pins, which a
/// stream of changes outruns.
pub(super) fn collect(guard: &Guard) {
    DEFERRED.with(|deferred| {
        while deferred.get() >= COLLECT_EVERY {
            guard.flush();
            deferred.set(deferred.get() - COLLECT_EVERY);
        }
    });
}

/// Runs `free` when every guard that is there now is gone.
///
/// # Safety
/// Nobody who pins from now on can reach what `free` frees, and nothing else frees it.
#[cfg(not(model_check))]
pub(super) unsafe fn defer(guard: &Guard, free: impl FnOnce()) {
    DEFERRED.with(|deferred| deferred.set(deferred.get() + 1));
    // SAFETY: the caller's promise is what the epoch asks for; `free` owns what it needs, so that it may run on
    // another thread and later than the caller's borrows.
    unsafe { guard.defer_unchecked(free) };
}

/// Leaks: a model's memory must not be touched when the model is over, and loom does not see the epoch.
///
/// # Safety
/// None asked.
#[cfg(model_check)]
pub(super) unsafe fn defer(_guard: &Guard, free: impl FnOnce()) {
    std::mem::forget(free);
}

/// A number nobody outside can guess, to place hashes by.
pub(super) fn seed() -> u64 {
    if cfg!(model_check) { 7 } else { fastrand::u64(..) }
}
