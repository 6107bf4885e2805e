//! `pointsman demo`: flags, and the terminal it draws on.

use std::{io, time::Duration};

use clap::Args;
use console::Term;

use super::CliError;
use crate::{
    demo::{
        Demo, DemoConfig, Outcome,
        picture::{self, Progress, Selectorship, Sides},
        workload::WorkloadConfig,
    },
    telemetry::shutdown::StopSignals,
};

/// Time between two pictures, redrawn and in plain lines.
const REDRAW: Duration = Duration::from_millis(200);
const PLAIN: Duration = Duration::from_secs(2);

/// See it work: engines, selectors and users on this machine, beside the same users without them
///
/// Two equal fleets of mock engines serve the same sessions: users of a few applications, each with a long system prompt,
/// whose prompts grow with every turn. One fleet is routed by three selectors that learned the engines from a workers
/// file and hear their KV events over ZMQ; the other takes requests in turn. The picture shows which engine got what,
/// how much of the prompts was cached, and how long the first token took.
///
/// Every call goes to the next selector, whoever made the booking. On the way one of them is killed, as by a power cut,
/// and started again; then it is compared with a peer, while users go on: the blocks it knows, and the bookings.
///
/// It needs no network, no cluster and no configuration, and ends by itself. Only the engines' arithmetic is made up:
/// their KV caches, events, sockets and schedulers work.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct DemoArgs {
    /// Selectors; with more than one, one is killed on the way
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=9))]
    selectors: u8,
    /// Engines on each side
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=16))]
    engines: u8,
    /// Seconds in which users ask
    #[arg(long, value_name = "S", default_value_t = 20, value_parser = clap::value_parser!(u8).range(2..=40))]
    seconds: u8,
    /// New sessions a second; each asks up to ten times
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..=50))]
    sessions_per_second: u8,
    /// Another seed, other users
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Go on, round after round, until Ctrl-C
    #[arg(long)]
    forever: bool,
    /// Plain lines instead of a picture that is redrawn (always so when the output is no terminal)
    #[arg(long)]
    plain: bool,
}

const AFTER_HELP: &str = "\
Examples:
  pointsman demo                      the comparison, about 20 seconds
  pointsman demo --forever            keep it up and look around: the selectors' addresses are printed first
  pointsman demo --engines 8 --sessions-per-second 10

Exit code: 0 when every request was answered and nothing was lost, 1 when something failed. Ctrl-C ends it early, with the summary so far.";

/// Runs the demo.
///
/// # Errors
/// Something cannot start, or a request failed.
pub fn run(args: &DemoArgs) -> Result<(), CliError> {
    let runtime = super::runtime(None)?;
    let outcome = runtime.block_on(show(args));
    runtime.shutdown_background();
    outcome
}

fn config(args: &DemoArgs) -> io::Result<DemoConfig> {
    let workload = WorkloadConfig {
        seed: args.seed,
        duration: Duration::from_secs(args.seconds.into()),
        sessions_per_second: args.sessions_per_second.into(),
        ..WorkloadConfig::default()
    };
    Ok(DemoConfig {
        selectors: args.selectors.into(),
        engines: args.engines.into(),
        workload,
        forever: args.forever,
        ..DemoConfig::new(std::env::current_exe()?)
    })
}

async fn show(args: &DemoArgs) -> Result<(), CliError> {
    let mut stop = StopSignals::install().map_err(CliError::failed)?;
    let mut screen = Screen::new(args.plain);
    let config = config(args).map_err(CliError::failed)?;
    let start = Demo::start(config.clone());
    let demo = tokio::select! {
        demo = start => demo.map_err(CliError::failed)?,
        _ = stop.recv() => return Ok(()),
    };
    screen.write(&intro(&demo, &config));
    let period = if screen.redraws() { REDRAW } else { PLAIN };
    let interrupted = tokio::select! {
        () = demo.run(period, |progress, sides, selectors| screen.progress(progress, sides, selectors)) => false,
        _ = stop.recv() => true,
    };
    let outcome = demo.outcome();
    let sides = Sides { selector: &outcome.selector, round_robin: &outcome.round_robin };
    screen.finish(&picture::summary(sides, &outcome.selectors));
    // A second signal ends what the first could not.
    tokio::select! {
        () = demo.stop() => {}
        _ = stop.recv() => {}
    }
    screen.take_failure().map_err(CliError::failed)?;
    verdict(&outcome, interrupted)
}

/// Whether the run was a good one.
fn verdict(outcome: &Outcome, interrupted: bool) -> Result<(), CliError> {
    let failed = outcome.selector.failed + outcome.round_robin.failed;
    if failed > 0 {
        let sides = [&outcome.selector, &outcome.round_robin];
        let why = sides.into_iter().find_map(|side| side.failure.as_deref()).unwrap_or("no reason given");
        return Err(CliError::Failed(format!("{failed} requests failed, the first: {why}")));
    }
    let selectors = &outcome.selectors;
    if let Some(why) = &selectors.failure {
        return Err(CliError::Failed(format!("a selector did not come back: {why}")));
    }
    if let Some(drill) = selectors.drill.filter(|drill| drill.first.is_cold() || drill.equal.is_none()) {
        let number = drill.selector;
        return Err(CliError::Failed(format!("selector {number} was ready before it knew what its peers know")));
    }
    if let Some(Err(why)) = &selectors.agreed {
        return Err(CliError::Failed(why.clone()));
    }
    if !outcome.complete && !interrupted {
        return Err(CliError::Failed("the machine was too busy: some requests were given up".to_owned()));
    }
    Ok(())
}

fn intro(demo: &Demo, config: &DemoConfig) -> Vec<String> {
    let engines = config.engines;
    let bold = |text: &str| console::style(text.to_owned()).bold();
    vec![
        String::new(),
        format!("  {}: the same users over two fleets of {engines} mock engines", bold("pointsman demo")),
        String::new(),
        format!("  selectors      {}", demo.selectors().urls().join("  ")),
        "                 (look around: /loads, /listeners, /replica_sync/status, /metrics)".to_owned(),
        format!("  workers file   {}", demo.selectors().workers_file().display()),
        format!(
            "  users          {} applications with system prompts of {} tokens, sessions of up to {} turns",
            config.workload.applications, config.workload.system_tokens, config.workload.max_turns
        ),
        format!(
            "  engines        {} KV blocks of {} tokens, {:.0} prompt tokens a second",
            config.engine.num_blocks, config.engine.block_size, config.engine.prefill_rate
        ),
        String::new(),
    ]
}

/// Standard output: a terminal that is redrawn, or lines.
struct Screen {
    term: Term,
    redraw: bool,
    /// Lines of the picture on the screen.
    drawn: usize,
    /// The first failure to write; nothing is written after it.
    failure: Option<io::Error>,
}

impl Screen {
    fn new(plain: bool) -> Self {
        let term = Term::buffered_stdout();
        let redraw = term.features().is_attended() && !plain;
        Self { term, redraw, drawn: 0, failure: None }
    }

    fn redraws(&self) -> bool {
        self.redraw
    }

    fn progress(&mut self, progress: Progress, sides: Sides<'_>, selectors: &Selectorship) {
        if self.redraw {
            let lines = picture::live(progress, sides, selectors);
            self.replace(&lines);
        } else {
            self.write(&[picture::plain(progress, sides, selectors)]);
        }
    }

    /// The last picture stays.
    fn finish(&mut self, lines: &[String]) {
        if self.redraw {
            self.replace(lines);
        } else {
            self.write(&[String::new()]);
            self.write(lines);
        }
        self.write(&[String::new()]);
    }

    fn replace(&mut self, lines: &[String]) {
        // A picture taller or wider than the terminal cannot be taken back line by line.
        let (height, width) = self.term.size();
        let (height, width) = (usize::from(height).saturating_sub(1), usize::from(width));
        let shown: Vec<String> =
            lines.iter().take(height.max(1)).map(|line| console::truncate_str(line, width, "").into_owned()).collect();
        let drawn = std::mem::replace(&mut self.drawn, shown.len());
        if let Err(error) = self.term.clear_last_lines(drawn) {
            self.failure.get_or_insert(error);
        }
        self.write(&shown);
    }

    fn write(&mut self, lines: &[String]) {
        if self.failure.is_some() {
            return;
        }
        let written = lines.iter().try_for_each(|line| self.term.write_line(line)).and_then(|()| self.term.flush());
        self.failure = written.err();
    }

    /// Whether everything could be shown. A reader that left (`| head`) is no failure.
    fn take_failure(&mut self) -> io::Result<()> {
        match self.failure.take() {
            Some(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
            _ => Ok(()),
        }
    }
}
