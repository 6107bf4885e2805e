//! The word to stop: SIGTERM or SIGINT.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Catches SIGTERM and SIGINT from its creation on.
#[derive(Debug)]
pub struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    /// Starts catching.
    ///
    /// # Errors
    /// The handlers cannot be installed.
    pub fn install() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next of them; returns its name.
    pub async fn recv(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
