//! Workloads by the names of the command line.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use super::workload::{Generator, Trace, Workload, WorkloadError};

/// All of them, traces first.
pub const NAMES: [&str; 6] = ["conv", "synth", "tenants", "agentic", "hot", "decode"];

/// Names, files and load levels of the traces.
const TRACES: [(&str, &str, [f64; 4]); 2] = [
    ("conv", "conversation_trace.jsonl", Trace::CONVERSATION_LEVELS),
    ("synth", "synthetic_trace.jsonl", Trace::SYNTHETIC_LEVELS),
];

/// Why there is no such workload.
#[derive(Debug, thiserror::Error)]
pub enum CatalogueError {
    /// No workload has that name.
    #[error("unknown workload {name:?}; there are {}", NAMES.join(", "))]
    Unknown {
        /// As it was given.
        name: String,
    },
    /// Its trace is not there.
    #[error("{name} needs the trace {file}{}", missing(folder.as_deref()))]
    Missing {
        /// The workload.
        name: &'static str,
        /// The trace.
        file: &'static str,
        /// Where it was looked for.
        folder: Option<PathBuf>,
    },
    /// Its trace cannot be read.
    #[error(transparent)]
    Trace(#[from] WorkloadError),
}

fn missing(folder: Option<&Path>) -> String {
    match folder {
        Some(folder) => format!(", which is not in {}", folder.display()),
        None => "; name its folder with --traces".to_owned(),
    }
}

/// The workload called `name`; traces are looked for in the folder `traces`.
///
/// # Errors
/// There is none, or its trace is missing or broken.
pub fn workload(name: &str, traces: Option<&Path>) -> Result<Workload, CatalogueError> {
    if let Some(generator) = Generator::ALL.into_iter().find(|generator| generator.name() == name) {
        return Ok(Workload::Generated(generator));
    }
    let known = TRACES.iter().find(|(known, ..)| *known == name);
    let &(name, file, levels) = known.ok_or_else(|| CatalogueError::Unknown { name: name.to_owned() })?;
    let path = traces.map(|folder| folder.join(file));
    let Some(path) = path.filter(|path| path.is_file()) else {
        return Err(CatalogueError::Missing { name, file, folder: traces.map(Path::to_owned) });
    };
    Ok(Workload::Trace(Arc::new(Trace::open(name, path, levels)?)))
}

/// The load of the highest level of the workload called `name`, as the share that
/// [`Load::Share`](super::workload::Load::Share) means; `None` when there is none.
pub fn highest_share(name: &str) -> Option<f64> {
    let generated = Generator::ALL.into_iter().find(|generator| generator.name() == name);
    let traces = || TRACES.iter().find(|(known, ..)| *known == name).map(|(.., levels)| *levels);
    generated.map(Generator::levels).or_else(traces).map(|[.., highest]| highest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_known() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in NAMES {
            assert!(highest_share(name).is_some(), "{name}");
            match workload(name, Some(folder.path())) {
                Ok(workload) => assert_eq!(workload.name(), name),
                Err(error) => assert!(matches!(error, CatalogueError::Missing { .. }), "{name}: {error}"),
            }
        }
        let error = workload("steady", None).expect_err("no such workload").to_string();
        assert_eq!(error, "unknown workload \"steady\"; there are conv, synth, tenants, agentic, hot, decode");
    }
}
