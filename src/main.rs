//! The `pointsman` binary: parse, dispatch.

use std::process::ExitCode;

/// Requests and events make and drop buffers of tens of kilobytes, often on different threads; glibc gives their pages
/// back to the system and fetches them anew each time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    pointsman::cli::run()
}
