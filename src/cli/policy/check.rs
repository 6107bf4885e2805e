//! `pointsman policy check`: whether a document can be used, and what it comes to.

use std::path::PathBuf;

use clap::Args;

use super::offline;
use crate::{
    cli::CliError,
    selection::policy::{document::CompositionReport, registry::RouterPluginRegistry},
};

/// Check a policy document with all linked policy types, and print what it comes to
///
/// Exit code 0 when every role and every instance of the document can be made, 1 when not. Flags and environment names
/// that choose policies are not looked at.
#[derive(Clone, Debug, Args)]
pub struct CheckArgs {
    /// The document (YAML)
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Checks and prints.
///
/// # Errors
/// The document is refused.
pub fn run(args: &CheckArgs, registry: &RouterPluginRegistry) -> Result<(), CliError> {
    let checked = check(args, registry);
    match &checked {
        Ok(report) if args.json => print_json(&serde_json::json!({"valid": true, "effective": report}))?,
        Ok(report) => print!("{report}"),
        Err(error) if args.json => print_json(&serde_json::json!({"valid": false, "error": error}))?,
        Err(_) => {}
    }
    checked.map(drop).map_err(CliError::Failed)
}

fn print_json(value: &serde_json::Value) -> Result<(), CliError> {
    println!("{}", serde_json::to_string_pretty(value).map_err(CliError::failed)?);
    Ok(())
}

fn check(args: &CheckArgs, registry: &RouterPluginRegistry) -> Result<CompositionReport, String> {
    let loaded = offline::load(&args.file, registry)?;
    offline::make_unused(registry, &loaded)?;
    let offline::Loaded { document, config, composition } = loaded;
    let report = CompositionReport::new(&composition, &config, Some(&document));
    registry.resolve_request_classifier(&config).map_err(|error| error.to_string())?;
    Ok(report)
}
