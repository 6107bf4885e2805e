//! Log output: one subscriber for the process, text or JSON lines on standard error.

use std::io::IsTerminal;

use tracing_subscriber::{EnvFilter, fmt, prelude::*};

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// One readable line an event; coloured on a terminal.
    Text,
    /// One JSON object a line.
    Json,
}

/// Why logging could not start.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter is not understood.
    #[error("invalid log filter `{filter}`: {reason}")]
    Filter {
        /// As given.
        filter: String,
        /// The parser's words.
        reason: String,
    },
    /// Another subscriber is installed already.
    #[error("logging is already set up")]
    Installed,
}

/// Installs the process's subscriber. `filter` is `level` or `target=level,...`.
///
/// # Errors
/// A filter that cannot be parsed; a second call.
pub fn init(filter: &str, format: LogFormat) -> Result<(), LogError> {
    let parsed = EnvFilter::try_new(filter)
        .map_err(|e| LogError::Filter { filter: filter.to_owned(), reason: e.to_string() })?;
    let registry = tracing_subscriber::registry().with(parsed);
    let installed = match format {
        LogFormat::Json => {
            let lines = fmt::layer().json().flatten_event(true).with_current_span(false);
            registry.with(lines.with_writer(std::io::stderr)).try_init()
        }
        LogFormat::Text => {
            let lines = fmt::layer().with_ansi(std::io::stderr().is_terminal());
            registry.with(lines.with_writer(std::io::stderr)).try_init()
        }
    };
    installed.map_err(|_| LogError::Installed)
}

/// Whether `filter` can be parsed, for one that was inherited and may be ignored.
pub fn is_valid_filter(filter: &str) -> bool {
    EnvFilter::try_new(filter).is_ok()
}
