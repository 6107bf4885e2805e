//! Loopback ports for server processes: outside the kernel's ephemeral range, never handed out twice in one process.

use std::{
    net::TcpListener,
    sync::atomic::{AtomicU32, Ordering},
};

static NEXT: AtomicU32 = AtomicU32::new(0);
const FIRST: u32 = 20_000;
const COUNT: u32 = 12_000;

/// A port nobody listens on now.
pub fn free() -> u16 {
    for _ in 0..COUNT {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = (FIRST + (std::process::id().wrapping_mul(97).wrapping_add(step)) % COUNT) as u16;
        if TcpListener::bind(("0.0.0.0", port)).is_ok() {
            return port;
        }
    }
    panic!("no free port");
}
