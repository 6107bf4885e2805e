//! Everything `pointsman` does, with the policies of our catalog beside the built-in ones.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut registry = pointsman::plugins::router_plugin_registry();
    if let Err(error) = policy_catalog::register_all(&mut registry) {
        eprintln!("error: {error}");
        return ExitCode::FAILURE;
    }
    pointsman::cli::run_with(&registry)
}
