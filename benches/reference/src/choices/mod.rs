//! Whether `default` chooses what the reference chooses, on the same input.
//!
//! | file | owns |
//! |---|---|
//! | this one | the runs, and the table |
//! | `arguments` | the command line |
//! | `decisions` | both followers at every decision, and what is counted |
//! | `ours` | our core, asked for the cost of every worker |
//! | `theirs` | the reference's core, fed in process |
//! | `logits` | costs of the reference, from its log |
//!
//! The simulator runs a workload with `default`, as `pointsman simulate` does. Everything its selector is fed goes, call by
//! call, to the reference's core: workers, cache events, first tokens, ends. At each request the reference says whom it
//! would choose and for what cost, and what another worker costs, each in turn; then it books the worker that our selector
//! chose, so that both stay in the same state. All costs must be those of ours to the last bit. Both break ties at random,
//! so another worker of exactly the same cost, by the figures of both, is a tie and no difference.
//!
//! Seen with seed 1, at 8 workers with loads 2 and 4 and at 32 with load 3 (there without `agentic` and `decode`): 221,089
//! choices, none differs, 3,924 of them tied.

mod arguments;
mod decisions;
mod logits;
mod ours;
mod theirs;

use std::{process::ExitCode, time::Instant};

use pointsman::{
    selection::{SelectionConfig, policy::builtin::router_plugin_registry},
    simulation::{
        MILLISECOND, SimulationError,
        candidate::Candidate,
        catalogue::{self, CatalogueError},
        engine::EngineConfig,
        fleet::{Fleet, FleetConfig, Outcome},
        grid::Cell,
        study,
        workload::Demand,
    },
};

use self::{arguments::Arguments, decisions::Decisions};

/// Model and routing group of all requests of the simulator.
const PARTITION: (&str, &str) = ("simulated", "default");

/// Compares all cells that `words` name.
pub fn run(words: impl Iterator<Item = String>) -> ExitCode {
    let outcome = Arguments::parse(words).map_err(Into::into).and_then(|arguments| compare(&arguments));
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

/// Whether nothing differs.
fn compare(arguments: &Arguments) -> Result<bool, Box<dyn std::error::Error>> {
    logits::listen();
    // Bookings expire after 300 s, for one core of virtual time and for the other of the machine's: here they do not.
    let config = SelectionConfig { active_request_expiry: None, ..SelectionConfig::default() };
    let default = Candidate::of_document("default".to_owned(), config, None, &router_plugin_registry())?;
    println!("choices of `default` beside the reference's on the same input, seed {}", arguments.seed);
    println!("workload load workers decisions  one best     same    tied differ      costs differ seconds");
    let (mut total, start) = (Decisions::default(), Instant::now());
    for name in &arguments.workloads {
        let workload = match catalogue::workload(name, arguments.traces.as_deref()) {
            Ok(workload) => workload,
            Err(missing @ CatalogueError::Missing { .. }) => {
                println!("skipped: {missing}");
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        for &level in &arguments.loads {
            for &workers in &arguments.workers {
                let (label, load) = study::level(level);
                let demand = Demand { workers, load, seed: arguments.seed, jitter: None };
                let cell = Cell::new(&workload, label, demand, &fleet());
                let (mut decisions, began) = (Decisions::default(), Instant::now());
                let outcome = follow(&cell, &default, &mut decisions)?;
                if outcome.refused > 0 {
                    return Err(format!("{} requests were refused: {:?}", outcome.refused, outcome.refusal).into());
                }
                row(name, &level.to_string(), &workers.to_string(), &decisions, began);
                decisions.examples.iter().for_each(|example| println!("  {example}"));
                total.add(&decisions);
            }
        }
    }
    row("all", "", "", &total, start);
    if total.choices == 0 {
        return Err("nothing was compared".into());
    }
    Ok(total.agree())
}

fn row(name: &str, level: &str, workers: &str, decisions: &Decisions, began: Instant) {
    let Decisions { choices, alone, same, tied, different, costs, other_costs, .. } = decisions;
    println!(
        "{name:<8} {level:>4} {workers:>7} {choices:>9} {alone:>9} {same:>8} {tied:>7} {different:>6} {costs:>10} \
         {other_costs:>6} {:>7.1}",
        began.elapsed().as_secs_f64()
    );
}

/// The fleet of `pointsman simulate` without flags.
fn fleet() -> FleetConfig {
    FleetConfig {
        workers: 1,
        engine: EngineConfig::default(),
        speeds: Vec::new(),
        event_delay: Some(50 * MILLISECOND),
        replicas: 1,
        mesh_lag: None,
        seed: 0,
    }
}

/// Runs the cell with both followers behind its selector.
fn follow(cell: &Cell, policy: &Candidate, decisions: &mut Decisions) -> Result<Outcome, SimulationError> {
    let mut followers = decisions::Followers::new(decisions);
    let sessions = cell.workload.sessions(&cell.demand)?;
    Fleet::new(cell.fleet.clone(), policy)?.observed_by(&mut |event| followers.hear(event)).run(sessions)
}
