//! The recorded corpora of `tests/golden`, one test a case, played against the real binary over loopback.
//!
//! `POINTSMAN_GOLDEN_CMD='program --port {port}'` plays them against another program with this HTTP API, and then all
//! of them; `POINTSMAN_GOLDEN_INDEXER_CMD` those of the standalone indexer. `POINTSMAN_GOLDEN_CMD_B` gives the second
//! server of the replica corpus's pairs to another program. Between ours and the reference they are played in any case.

#[path = "golden_runner/client.rs"]
mod client;
#[path = "golden_runner/compare.rs"]
mod compare;
#[path = "golden_runner/http.rs"]
mod http;
#[path = "golden_runner/index.rs"]
mod index;
#[path = "golden_runner/ports.rs"]
mod ports;
#[path = "program/python.rs"]
mod python;
#[path = "golden_runner/replica/mod.rs"]
mod replica;
#[path = "golden_runner/scheduling.rs"]
mod scheduling;
#[path = "golden_runner/server.rs"]
mod server;
#[path = "golden_runner/sockets.rs"]
mod sockets;

use std::path::{Path, PathBuf};

use self::server::Program;
use libtest_mimic::{Arguments, Failed, Trial};
use serde_json::Value;

/// Cases that differ on purpose, or steps of one (`case@step`); each has a line in `docs/compatibility.md` and a test of
/// its own.
const DEVIATIONS: &str = include_str!("golden/deviations.txt");

fn files(folder: &str) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(folder);
    let mut paths: Vec<PathBuf> = std::fs::read_dir(&root)
        .unwrap_or_else(|e| panic!("{}: {e}", root.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|p| p.extension().is_some_and(|x| x == "json"))
        .collect();
    paths.sort();
    paths
}

fn corpus(folder: &str) -> Vec<(PathBuf, Value)> {
    let read = |p: &PathBuf| serde_json::from_slice(&std::fs::read(p).unwrap()).unwrap();
    files(folder).into_iter().map(|p| (p.clone(), read(&p))).collect()
}

/// Whether a program of ours plays, so that what it has not yet and what it does differently is left out.
fn is_ours() -> bool {
    let given = |name| std::env::var_os(name).is_some();
    !given("POINTSMAN_GOLDEN_CMD") || given("POINTSMAN_GOLDEN_CMD_B")
}

/// Whether there is a program for the standalone indexer's cases.
fn plays_indexer() -> bool {
    is_ours() || std::env::var_os("POINTSMAN_GOLDEN_INDEXER_CMD").is_some()
}

/// Steps of a case that differ on purpose.
fn left_out(name: &str) -> Vec<usize> {
    let words = DEVIATIONS.lines().filter_map(|l| l.split_whitespace().next()).filter(|_| is_ours());
    let steps = words.filter_map(|word| word.split_once('@')).filter(|(case, _)| *case == name);
    steps.map(|(_, step)| step.parse().unwrap()).collect()
}

fn trial(family: &str, name: &str, run: impl FnOnce() -> Result<(), String> + Send + 'static) -> Option<Trial> {
    let name = format!("{family}::{name}");
    let deviates = is_ours() && DEVIATIONS.lines().any(|l| l.split_whitespace().next() == Some(&name));
    (!deviates).then(|| Trial::test(name, move || run().map_err(Failed::from)))
}

fn main() {
    let mut arguments = Arguments::from_args();
    let mut trials = Vec::new();
    let mut cases = Vec::new();
    let pairing = |family, programs| move |path: &PathBuf| (family, path.clone(), programs);
    let replica = files("replica").into_iter().chain(files("replica-beyond"));
    let mut documents: Vec<_> = replica.map(|path| ("replica", path, [Program::First, Program::Second])).collect();
    if is_ours() {
        documents
            .extend(files("replica-ours").into_iter().map(|path| ("replica", path, [Program::First, Program::Second])));
        // A mesh of both, as there is one while an operator migrates.
        let pairs: Vec<_> = files("replica").into_iter().filter(|path| path.ends_with("pair.json")).collect();
        documents.extend(pairs.iter().map(pairing("ours_and_reference", [Program::Ours, Program::Reference])));
        documents.extend(pairs.iter().map(pairing("reference_and_ours", [Program::Reference, Program::Ours])));
    }
    for (family, path, programs) in documents {
        let left_out = |name: &str| left_out(&format!("{family}::{name}"));
        cases.extend(replica::cases(&path, programs, &left_out).into_iter().map(|case| (family, case)));
    }
    // A case that only waits goes first, on a thread beside those that work.
    cases.sort_by_key(|(_, case)| !case.slow);
    let waiting = cases.iter().filter(|(_, case)| case.slow).count();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    arguments.test_threads.get_or_insert(threads + waiting);
    for (family, case) in cases {
        trials.extend(trial(family, &case.name, case.run));
    }
    for (path, scenario) in corpus("http") {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let left_out = left_out(&format!("http::{name}"));
        trials.extend(trial("http", &name, move || http::play(&scenario, &left_out)));
    }
    for (path, document) in corpus("index/scenarios") {
        let family = if path.ends_with("beyond.json") { "beyond" } else { "index" };
        for scenario in document["scenarios"].as_array().unwrap().clone() {
            if scenario["service"] != "indexer" || plays_indexer() {
                let id = scenario["id"].as_str().unwrap().to_owned();
                let left_out = left_out(&format!("{family}::{id}"));
                trials.extend(trial(family, &id, move || index::play(&scenario, &left_out)));
            }
        }
    }
    for (_, document) in corpus("index").into_iter().filter(|(p, _)| p.ends_with("hashing.json")) {
        for vector in document["vectors"].as_array().unwrap().clone() {
            let id = vector["id"].as_str().unwrap().to_owned();
            trials.extend(trial("hashing", &id, move || index::play_vector(&vector)));
        }
    }
    let scheduling = corpus("scheduling");
    let tiers = scheduling.iter().find(|(p, _)| p.ends_with("cost_02_tiers.json")).unwrap().1.clone();
    for (path, document) in scheduling {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        if document["schema"] == "golden-scheduling/1" {
            let left_out = left_out(&format!("scheduling::{name}"));
            trials.extend(trial("scheduling", &name, move || scheduling::play(&document, &left_out)));
            continue;
        }
        for (temperature, row) in document["results"].as_object().cloned().into_iter().flatten() {
            if row.get("expected").is_some() {
                let (tiers, expected) = (tiers.clone(), row["expected"].clone());
                trials.extend(trial("temperature", &temperature.clone(), move || {
                    scheduling::play_temperature(&tiers, &temperature, &expected)
                }));
            }
        }
    }
    libtest_mimic::run(&arguments, trials).exit();
}
