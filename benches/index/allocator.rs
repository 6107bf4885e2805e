//! Counts the bytes of live heap allocations as glibc takes them: 8 bytes of header, multiples of 16, 32 at least.
#![allow(unsafe_code)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

/// The system's allocator, counted.
pub struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// Bytes in use now.
pub fn live() -> usize {
    LIVE.load(Relaxed)
}

/// The most bytes in use at once since the last call of this, which begins anew.
#[allow(dead_code, reason = "not everybody who counts asks for it")]
pub fn peak() -> usize {
    PEAK.swap(live(), Relaxed)
}

fn add(layout: Layout) {
    let bytes = taken(layout);
    let now = LIVE.fetch_add(bytes, Relaxed) + bytes;
    PEAK.fetch_max(now, Relaxed);
}

fn taken(layout: Layout) -> usize {
    // Larger alignments are served from a larger block; what is cut off is given back.
    (layout.size() + 8).next_multiple_of(16).max(32)
}

// SAFETY: every call goes to the system's allocator unchanged; counting touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout);
        // SAFETY: the caller's promise is `System`'s.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout);
        // SAFETY: the caller's promise is `System`'s.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        LIVE.fetch_sub(taken(layout), Relaxed);
        // SAFETY: the caller's promise is `System`'s.
        unsafe { System.dealloc(block, layout) }
    }
}
