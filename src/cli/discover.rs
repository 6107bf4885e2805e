//! `pointsman discover`: a workers file applied to selectors elsewhere.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use tokio::{sync::watch, task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use super::{CliError, read_token, runtime};
use crate::{
    discovery::{
        Snapshot,
        apply::{
            self, ApplyOptions, PassError, PassReport, Preview, RemoteOptions, RemoteTarget, Target, TargetStatus,
        },
        file::{self, FollowOptions, WorkersFile},
    },
    selection::{catalog::SnapshotVersion, endpoint::check_zmq_endpoint},
    telemetry::shutdown::StopSignals,
};

/// Longest time for one pass of `--once` or `--dry-run`, whatever its calls are allowed each.
const ONCE_TIMEOUT: Duration = Duration::from_secs(300);

/// Apply a workers file to selectors elsewhere, and follow its changes
///
/// Selectors of this program take the file as a catalog of its own; the reference's selectors get the same workers by
/// their /workers routes.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub struct DiscoverArgs {
    /// Workers file (YAML or JSON) to follow
    #[arg(long, env = "POINTSMAN_WORKERS_FILE", value_name = "FILE")]
    workers_file: PathBuf,
    /// Base URL of a selector, and where it publishes its load if that is not port 9092 of the same host; repeat it for
    /// more
    #[arg(
        long = "selector",
        env = "POINTSMAN_SELECTORS",
        value_name = "URL[,tcp://HOST:PORT]",
        required = true,
        value_delimiter = ' '
    )]
    selectors: Vec<String>,
    /// Name under which the file's workers are owned, as `file.NAME`
    #[arg(long, env = "POINTSMAN_CATALOG_NAME", value_name = "NAME", default_value = "default", value_parser = catalog_name)]
    catalog_name: String,
    /// File with the bearer token that the selectors want
    #[arg(long, env = "POINTSMAN_ADMIN_TOKEN_FILE", value_name = "FILE")]
    admin_token_file: Option<PathBuf>,

    /// Apply the file once and exit: 0 when every selector took it
    #[arg(long, help_heading = "One-off runs")]
    once: bool,
    /// Say what would change at each selector, change nothing, and exit
    #[arg(long, help_heading = "One-off runs", conflicts_with = "once")]
    dry_run: bool,

    /// Directory that remembers which workers were registered, so that those that left the file meanwhile are removed
    #[arg(
        long,
        env = "POINTSMAN_STATE_DIR",
        value_name = "DIR",
        help_heading = "Selectors without /catalog (the reference's)"
    )]
    state_dir: Option<PathBuf>,
    /// Remove every worker that is not in the file, whoever registered it
    #[arg(long, help_heading = "Selectors without /catalog (the reference's)")]
    prune: bool,
}

const AFTER_HELP: &str = "\
Examples:
  Keep two selectors in step with a file:
    pointsman discover --workers-file workers.yaml --selector http://10.0.0.7:8092 --selector http://10.0.0.8:8092

  See what an edit would do:
    pointsman discover --workers-file workers.yaml --selector http://10.0.0.7:8092 --dry-run

  Drive the reference's selectors, remembering over restarts what was registered:
    pointsman discover --workers-file workers.yaml --selector http://10.0.0.9:8092 --state-dir /var/lib/pointsman";

/// Runs until a signal ends it, or once.
///
/// # Errors
/// A flag or file that cannot be used; with `--once`, a selector that did not take the file.
pub fn run(args: DiscoverArgs) -> Result<(), CliError> {
    let token = args.admin_token_file.as_deref().map(read_token).transpose()?;
    let targets = targets(&args, token)?;
    runtime(None)?.block_on(async move {
        if args.dry_run {
            preview(snapshot(&args)?, targets).await
        } else if args.once {
            once(snapshot(&args)?, targets).await
        } else {
            follow(args, targets).await
        }
    })
}

/// Reads a name that can stand in an owner and a path.
pub(super) fn catalog_name(name: &str) -> Result<String, String> {
    let valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > 128 || !name.chars().all(valid) {
        return Err("a catalog name is 1 to 128 letters, digits, `-`, `_` or `.`".to_owned());
    }
    Ok(name.to_owned())
}

fn targets(args: &DiscoverArgs, token: Option<Zeroizing<String>>) -> Result<Vec<RemoteTarget>, CliError> {
    let mut seen: Vec<String> = Vec::new();
    let mut targets = Vec::new();
    for address in &args.selectors {
        let (address, publisher) = match address.split_once(',') {
            Some((address, publisher)) => (address, Some(publisher)),
            None => (address.as_str(), None),
        };
        if let Some(publisher) = publisher {
            check_zmq_endpoint(publisher).map_err(CliError::Usage)?;
            tracing::warn!(selector = address, publisher, "this version does not wire selectors to each other");
        }
        let options = RemoteOptions {
            owner: format!("file.{}", args.catalog_name),
            token: token.clone(),
            state_dir: args.state_dir.clone(),
            prune: args.prune,
        };
        let target = RemoteTarget::new(address, options).map_err(CliError::Usage)?;
        if seen.iter().any(|name| name == target.name()) {
            return Err(CliError::Usage(format!("selector {} is named twice", target.name())));
        }
        seen.push(target.name().to_owned());
        targets.push(target);
    }
    Ok(targets)
}

fn snapshot(args: &DiscoverArgs) -> Result<Snapshot, CliError> {
    let workers = file::load(&args.workers_file).map_err(CliError::failed)?;
    let version = SnapshotVersion { epoch: FollowOptions::default().epoch, generation: 1 };
    Snapshot::new(version, workers).map_err(CliError::failed)
}

async fn follow(args: DiscoverArgs, targets: Vec<RemoteTarget>) -> Result<(), CliError> {
    let mut signals = StopSignals::install().map_err(CliError::failed)?;
    tracing::info!(
        workers_file = %args.workers_file.display(),
        owner = %format_args!("file.{}", args.catalog_name),
        selectors = args.selectors.join(" "),
        state_dir = ?args.state_dir,
        prune = args.prune,
        authenticated = args.admin_token_file.is_some(),
        "effective configuration"
    );
    let source = WorkersFile::follow(args.workers_file, FollowOptions::default()).map_err(CliError::failed)?;
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    for target in targets {
        let status = watch::Sender::new(TargetStatus::default());
        tasks.spawn(apply::run(target, source.status(), ApplyOptions::default(), status, stop.clone()));
    }
    tokio::select! {
        signal = signals.recv() => tracing::info!(signal, "stopping; what was applied stays"),
        // Tasks end at the word to stop alone.
        ended = tasks.join_next() => {
            return Err(CliError::Failed(format!("a selector's task ended: {ended:?}")));
        }
    }
    stop.cancel();
    while tasks.join_next().await.is_some() {}
    Ok(())
}

async fn once(snapshot: Snapshot, targets: Vec<RemoteTarget>) -> Result<(), CliError> {
    let outcomes = each(targets, move |mut target| {
        let snapshot = snapshot.clone();
        async move { target.apply(&snapshot).await }
    });
    let mut failed = 0;
    for (name, outcome) in outcomes.await {
        match outcome {
            Ok(report) => print_report(&name, &report),
            Err(error) => {
                failed += 1;
                println!("{name}: failed: {error}");
            }
        }
    }
    if failed == 0 { Ok(()) } else { Err(CliError::Failed(format!("{failed} of the selectors did not take the file"))) }
}

async fn preview(snapshot: Snapshot, targets: Vec<RemoteTarget>) -> Result<(), CliError> {
    let wanted = snapshot.clone();
    let outcomes = each(targets, move |mut target| {
        let snapshot = snapshot.clone();
        async move { target.preview(&snapshot).await }
    });
    let mut failed = 0;
    for (name, outcome) in outcomes.await {
        match outcome {
            Ok(preview) => print_preview(&name, &preview, &wanted),
            Err(error) => {
                failed += 1;
                println!("{name}: failed: {error}");
            }
        }
    }
    if failed == 0 { Ok(()) } else { Err(CliError::Failed(format!("{failed} of the selectors could not be asked"))) }
}

/// Runs `work` on every target at once; the results are in the order of the targets.
async fn each<R, F>(targets: Vec<RemoteTarget>, work: impl Fn(RemoteTarget) -> F) -> Vec<(String, Result<R, PassError>)>
where
    R: Send + 'static,
    F: Future<Output = Result<R, PassError>> + Send + 'static,
{
    let started: Vec<_> = targets
        .into_iter()
        .map(|target| (target.name().to_owned(), tokio::spawn(timeout(ONCE_TIMEOUT, work(target)))))
        .collect();
    let mut outcomes = Vec::new();
    for (name, task) in started {
        let outcome = match task.await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err(PassError::Refused(format!("not done within {} s", ONCE_TIMEOUT.as_secs()))),
            Err(error) => Err(PassError::Refused(error.to_string())),
        };
        outcomes.push((name, outcome));
    }
    outcomes
}

fn print_report(name: &str, report: &PassReport) {
    println!("{name}: applied, {} sent, {} removed", report.upserted, report.deleted);
    for (id, reasons) in &report.not_schedulable {
        println!("  worker {id} takes no bookings: {}", reasons.join("; "));
    }
}

fn print_preview(name: &str, preview: &Preview, wanted: &Snapshot) {
    let Preview { added, changed, removed, foreign } = preview;
    println!("{name}: {} to add, {} to change, {} to remove", added.len(), changed.len(), removed.len());
    let endpoint = |id: u64| {
        let endpoint = wanted.get(id).and_then(|w| w.request.fields.endpoint.as_deref());
        endpoint.unwrap_or("no endpoint").to_owned()
    };
    for (mark, ids) in [("+", added), ("~", changed)] {
        for id in ids {
            println!("  {mark} {id}  {}", endpoint(*id));
        }
    }
    for id in removed {
        println!("  - {id}");
    }
    for (id, owner) in foreign {
        println!("  ! {id} belongs to {owner} and stays as it is");
    }
}
