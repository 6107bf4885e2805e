//! The atomics readers and the writer share: the standard library's, or loom's in model checking.

#[cfg(not(loom))]
pub(super) use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

#[cfg(loom)]
pub(super) use loom::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

/// Waits a little for a writer in the middle of a change; after some rounds gives the processor away.
#[derive(Debug, Default)]
pub(super) struct Spin(u32);

impl Spin {
    /// One round.
    #[cfg(not(loom))]
    pub(super) fn wait(&mut self) {
        self.0 += 1;
        if self.0 < 64 {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }

    /// One round.
    #[cfg(loom)]
    pub(super) fn wait(&mut self) {
        self.0 += 1;
        loom::thread::yield_now();
    }
}
