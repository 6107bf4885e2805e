//! `pointsman bench`: offers load to a server with this HTTP API and measures it.
//!
//! | file | owns |
//! |---|---|
//! | `flags` | the command line |
//! | `fleet` | the workers a run registers |
//! | `prompt` | request bodies |
//! | `client` | connections |
//! | `load` | closed and open loops |
//! | `trace` | replay of recorded requests |
//! | `record`, `process` | what is measured, and the report |

mod client;
mod flags;
mod fleet;
mod load;
mod process;
mod prompt;
mod record;
mod trace;

use std::{
    convert::Infallible,
    io::IsTerminal,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

pub use flags::BenchArgs;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use tokio::time::sleep;

use self::{
    client::Server,
    load::Run,
    process::Process,
    prompt::Prompts,
    record::{Measured, Recorder, Report},
    trace::Replay,
};
use super::CliError;
use crate::telemetry::shutdown::StopSignals;

/// Pause between two updates of the progress bar.
const REDRAW: Duration = Duration::from_millis(200);

/// Runs the benchmark and prints its report.
///
/// # Errors
/// A server that cannot be reached or does not take the workers; requests that all failed.
pub fn run(args: BenchArgs) -> Result<(), CliError> {
    let mut builder = if args.load.client_threads == 1 {
        tokio::runtime::Builder::new_current_thread()
    } else {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(args.load.client_threads.into());
        builder
    };
    let runtime = builder.enable_all().build().map_err(CliError::failed)?;
    runtime.block_on(bench(args))
}

async fn bench(args: BenchArgs) -> Result<(), CliError> {
    let mut signals = StopSignals::install().map_err(CliError::failed)?;
    let process = args.server_pid.map(Process::new).transpose().map_err(CliError::Usage)?;
    let server = Server::resolve(&args.url).await.map_err(CliError::Failed)?;
    let workers = fleet::records(&args.fleet, &args.prompts).map_err(CliError::Usage)?;
    fleet::register_first(&server, &args.fleet, &workers).await.map_err(CliError::Failed)?;
    let outcome = tokio::select! {
        outcome = measure(&args, &server, &workers, process) => outcome,
        signal = signals.recv() => Err(CliError::Failed(format!("ended by {signal}"))),
    };
    if !args.fleet.keep_workers {
        fleet::remove(&server, &args.fleet).await;
    }
    let report = outcome?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report).map_err(CliError::failed)?);
    } else {
        report.print();
    }
    if report.requests == 0 {
        return Err(CliError::Failed("no request was answered with success".to_owned()));
    }
    if args.strict && !report.errors.is_empty() {
        return Err(CliError::Failed("some requests failed".to_owned()));
    }
    Ok(())
}

async fn measure(
    args: &BenchArgs,
    server: &Server,
    workers: &[Vec<u8>],
    process: Option<Process>,
) -> Result<Report, CliError> {
    fleet::register_others(server, workers).await.map_err(CliError::Failed)?;
    let (recorder, measured) = if let Some(path) = &args.trace.trace {
        let requests = trace::read(path, args.trace.limit, args.trace.trace_block_size).map_err(CliError::Failed)?;
        let replay = Replay::new(args).map_err(CliError::Usage)?;
        let bar = progress(args, requests.len() as u64, "requests");
        let meter = Meter::start(process);
        let replayed = Arc::clone(&replay).run(requests, server, args.load.connections);
        let recorder = beside(replayed, show(&bar, &replay.done)).await;
        bar.finish_and_clear();
        (recorder, meter.stop())
    } else {
        let prompts = Prompts::new(&args.prompts, &args.fleet.model, args.load.seed);
        let run = Run::new(&args.load, prompts);
        let mut tasks = run.start(&args.load, server);
        sleep(args.load.warmup).await;
        run.begin_measuring();
        let meter = Meter::start(process);
        let bar = progress(args, args.load.duration.as_millis() as u64, "");
        beside(sleep(args.load.duration), show_rate(&bar, &run.done)).await;
        let measured = meter.stop();
        run.stop();
        bar.finish_and_clear();
        let mut recorder = Recorder::default();
        while let Some(one) = tasks.join_next().await {
            recorder.merge(one.map_err(CliError::failed)?);
        }
        (recorder, measured)
    };
    Ok(Report::new(load_in_words(args), &recorder, measured))
}

/// CPU times over the measured time.
struct Meter {
    began: Instant,
    server: Option<(Process, Option<Duration>)>,
    own: Option<Duration>,
}

impl Meter {
    fn start(server: Option<Process>) -> Self {
        Self { began: Instant::now(), server: server.map(|p| (p, p.cpu())), own: Process::own().cpu() }
    }

    fn stop(self) -> Measured {
        let since = |now: Option<Duration>, then: Option<Duration>| Some(now?.saturating_sub(then?));
        Measured {
            elapsed: self.began.elapsed(),
            server_cpu: self.server.and_then(|(p, then)| since(p.cpu(), then)),
            server_resident: self.server.and_then(|(p, _)| p.resident()),
            client_cpu: since(Process::own().cpu(), self.own),
        }
    }
}

fn load_in_words(args: &BenchArgs) -> serde_json::Value {
    let name = |value: &dyn std::fmt::Debug| format!("{value:?}").to_lowercase();
    json!({
        "url": args.url,
        "cycle": name(&args.load.cycle),
        "loop": if args.trace.trace.is_some() { "trace" } else if args.load.rate.is_some() { "open" } else { "closed" },
        "rate": args.load.rate,
        "connections": args.load.connections,
        "hold": args.load.hold,
        "prompt": name(&args.prompts.prompt),
        "blocks": args.prompts.blocks,
        "block_size": args.prompts.block_size,
        "shared": args.prompts.shared,
        "prefixes": args.prompts.prefixes,
        "workers": args.fleet.workers,
        "data_parallel_size": args.fleet.data_parallel_size,
        "trace": args.trace.trace,
        "speed": args.trace.speed,
        "seed": args.load.seed,
    })
}

fn progress(args: &BenchArgs, length: u64, unit: &str) -> ProgressBar {
    if args.json || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let template =
        if unit.is_empty() { "{elapsed:>4} {wide_bar} {msg}" } else { "{elapsed:>4} {wide_bar} {pos}/{len} {msg}" };
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(length).with_style(style.progress_chars("━━─"))
}

/// Runs `work` to its end, and `other` only as long.
async fn beside<R>(work: impl Future<Output = R>, other: impl Future<Output = Infallible>) -> R {
    tokio::select! {
        result = work => result,
        never = other => match never {},
    }
}

/// Moves the bar with what is done.
async fn show(bar: &ProgressBar, done: &AtomicU64) -> Infallible {
    loop {
        sleep(REDRAW).await;
        bar.set_position(done.load(Ordering::Relaxed));
    }
}

/// Moves the bar with time, and tells the rate.
async fn show_rate(bar: &ProgressBar, done: &AtomicU64) -> Infallible {
    let began = Instant::now();
    let mut before = done.load(Ordering::Relaxed);
    loop {
        sleep(REDRAW).await;
        let now = done.load(Ordering::Relaxed);
        bar.set_position(u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX));
        bar.set_message(format!("{:.0} a second", (now - before) as f64 / REDRAW.as_secs_f64()));
        before = now;
    }
}
