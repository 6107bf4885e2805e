//! Player of `golden/replica` and `golden/replica-beyond`: fresh servers a case, peers played by libzmq sockets.
//!
//! "Nothing happened" is proved by a barrier: a good event for a worker of its own on the same connection, awaited in
//! `/loads`. Texts are compared strictly, published frames byte for byte.

mod document;
mod matching;
mod message;
mod peer;
mod program;
mod recorded;
mod stage;

use std::{path::Path, time::Duration};

use self::{
    document::Document,
    stage::{Programs, Stage},
};

const SLOT: &str = "dynamo.slot-tracker.v1";
const AFFINITY: &str = "dynamo.session-affinity.v1";
const BARRIER_WORKER: u64 = 999_999;
const DEADLINE: Duration = Duration::from_secs(20);

/// A case to run.
pub struct Case {
    /// `file/name`.
    pub name: String,
    /// It mostly waits.
    pub slow: bool,
    pub run: Box<dyn FnOnce() -> Result<(), String> + Send>,
}

/// The cases of one file, between these programs where they have two; `left_out` names the steps that are not played, by
/// the name of the case.
pub fn cases(path: &Path, programs: Programs, left_out: &dyn Fn(&str) -> Vec<usize>) -> Vec<Case> {
    let file = path.file_stem().unwrap().to_string_lossy().into_owned();
    let document = Document::read(&std::fs::read(path).unwrap()).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let case = |name: &str, run: Box<dyn FnOnce() -> Result<(), String> + Send>| Case {
        name: if name.is_empty() { file.clone() } else { format!("{file}/{name}") },
        slow: false,
        run,
    };
    match document {
        Document::Scenarios(scenarios) => scenarios
            .into_iter()
            .map(|s| {
                let left_out = left_out(&format!("{file}/{}", s.name));
                let slow = s.slow;
                Case { slow, ..case(&s.name.clone(), Box::new(move || Stage::play(&s, programs, &left_out))) }
            })
            .collect(),
        Document::Capture(c) => vec![case("", Box::new(move || recorded::capture(&c)))],
        Document::Vectors(vectors) => {
            vectors.into_iter().map(|v| case(&v.name.clone(), Box::new(move || recorded::vector(&v)))).collect()
        }
        Document::Startup(startup) => {
            startup.into_iter().map(|c| case(&c.name.clone(), Box::new(move || recorded::startup(&c)))).collect()
        }
    }
}
