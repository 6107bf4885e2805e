//! How well policies route: the routing quality index of the policy for new installations, what nine selectors cost it,
//! and the load it sustains, beside the reference's cost.
//!
//! `cargo bench --bench routing` runs all cells, those of traces where `POINTSMAN_TRACES` names their folder; without
//! `--bench` (as `cargo test --benches` calls it) or with `--small` it runs the few that take seconds. Numbers are of
//! virtual time, and the same on every machine.

#![allow(missing_docs, clippy::print_stdout)]

use std::{num::NonZeroUsize, path::PathBuf};

use pointsman::{
    plugins::router_plugin_registry,
    simulation::{
        MILLISECOND, SimulationError,
        candidate::Candidate,
        engine::EngineConfig,
        fleet::FleetConfig,
        study::{Scope, Study},
    },
};

const REPLICAS: u32 = 9;

fn main() -> Result<(), SimulationError> {
    let is = |word: &str| std::env::args().any(|argument| argument == word);
    let small = is("--small") || !is("--bench");
    let traces = std::env::var_os("POINTSMAN_TRACES").map(PathBuf::from);
    let registry = router_plugin_registry();
    let baseline = Candidate::named("default", &registry)?;
    let policy = Candidate::named("work-ahead", &registry)?;
    let study = Study {
        baseline: &baseline,
        policy: &policy,
        scope: if small { Scope::small() } else { Scope::full() },
        traces: traces.as_deref(),
        fleet: FleetConfig {
            workers: 1,
            engine: EngineConfig::default(),
            speeds: Vec::new(),
            event_delay: Some(50 * MILLISECOND),
            replicas: if small { 1 } else { REPLICAS },
            mesh_lag: Some(5 * MILLISECOND),
            seed: 0,
        },
        threads: std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
    };
    let index = study.quality(&|| {})?;
    println!("{} against {}, {} of {} cells", index.policy, index.baseline, index.cells_present, index.cells_defined);
    println!("rqi                 {:.4} ({:.4} to {:.4} by seed)", index.rqi, index.seeds.min, index.seeds.max);
    println!("rqi without agentic {:.4}", index.rqi_without_agentic.unwrap_or(f64::NAN));
    println!("rqi p99             {:.4}", index.rqi_p99);
    println!("rqi e2e             {:.4}", index.rqi_e2e);
    println!("worst               {:.4} ({}, {})", index.worst.p90, index.worst.workload, index.worst.load);
    if let Some(penalty) = index.replica_penalty {
        println!("{} selectors         {:.4} of one", penalty.replicas, penalty.p90);
    }
    if !small && let Some(sustainable) = study.sustainable()? {
        println!("sustained load      {:.4}", sustainable.ratio);
    }
    for skipped in &index.skipped {
        println!("left out: {skipped}");
    }
    Ok(())
}
