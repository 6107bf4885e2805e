//! The `pointsman` binary: parse, dispatch.

use std::process::ExitCode;

fn main() -> ExitCode {
    pointsman::cli::run()
}
