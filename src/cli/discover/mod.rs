//! `pointsman discover`: a workers file applied to selectors elsewhere, and those wired to each other.
//!
//! | file | owns |
//! |---|---|
//! | `mod` | flags, and the run that follows the file |
//! | `one_off` | `--once` and `--dry-run` |
//! | `state` | `/status`, `/metrics`, `/livez` |

mod one_off;
mod state;

use std::{net::IpAddr, path::PathBuf, sync::Arc};

use clap::Args;
use tokio::{sync::watch, task::JoinSet};
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use super::{CliError, read_token, runtime};
use crate::{
    discovery::{
        Snapshot,
        apply::{self, ApplyOptions, RemoteClient, RemoteOptions, RemoteTarget, Target, TargetStatus},
        file::{self, FollowOptions, WorkersFile},
        fleet::{Fleet, FleetMember},
        metrics,
        wiring::{self, Board, Wire, WireOptions, WiringStatus, check_publisher},
    },
    selection::catalog::SnapshotVersion,
    telemetry::{metrics::Metrics, shutdown::StopSignals},
};

/// Apply a workers file to selectors elsewhere, wire them to each other, and follow all changes
///
/// Selectors of this program take the file as a catalog of its own; the reference's selectors get the same workers by
/// their /workers routes. Each selector's publisher is registered as a replica-sync peer of all the others.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub struct DiscoverArgs {
    /// Workers file (YAML or JSON) to follow
    #[arg(long, env = "POINTSMAN_WORKERS_FILE", value_name = "FILE")]
    workers_file: PathBuf,
    /// Base URL of a selector, and where it publishes to its peers if it does not tell that itself and it is not port
    /// 9092 of the same host; repeat it for more
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

    /// Apply everything once and exit: 0 when all selectors have the file's workers and each other as peers
    #[arg(long, help_heading = "One-off runs")]
    once: bool,
    /// Say what would change at each selector, workers and peers, change nothing, and exit
    #[arg(long, help_heading = "One-off runs", conflicts_with = "once")]
    dry_run: bool,

    /// Directory that remembers what was registered, so that workers and peers that left meanwhile are removed
    #[arg(long, env = "POINTSMAN_STATE_DIR", value_name = "DIR", help_heading = "What is removed")]
    state_dir: Option<PathBuf>,
    /// Remove also what somebody else registered: peers that are none of these selectors, and, where there is no
    /// /catalog, workers that are not in the file
    #[arg(long, help_heading = "What is removed")]
    prune: bool,

    /// Port that tells the state: /status (JSON), /metrics (Prometheus), /livez; 0 takes a free one and logs it [default:
    /// none]
    #[arg(long, env = "POINTSMAN_DISCOVER_PORT", value_name = "PORT", help_heading = "State")]
    http_port: Option<u16>,
    /// Address to bind for it
    #[arg(long, env = "POINTSMAN_HOST", value_name = "HOST", default_value = "0.0.0.0", help_heading = "State")]
    host: IpAddr,
}

const AFTER_HELP: &str = "\
Examples:
  Keep two selectors in step with a file, and wired to each other:
    pointsman discover --workers-file workers.yaml --selector http://10.0.0.7:8092 --selector http://10.0.0.8:8092

  See what an edit would do:
    pointsman discover --workers-file workers.yaml --selector http://10.0.0.7:8092 --dry-run

  Drive the reference's selectors, one of which publishes on port 9192, remembering over restarts what was registered:
    pointsman discover --workers-file workers.yaml --selector http://10.0.0.9:8092,tcp://10.0.0.9:9192 \\
                       --selector http://10.0.0.10:8092 --state-dir /var/lib/pointsman";

/// Runs until a signal ends it, or once.
///
/// # Errors
/// A flag or file that cannot be used; with `--once`, a selector that does not have everything.
pub fn run(args: DiscoverArgs) -> Result<(), CliError> {
    let token = args.admin_token_file.as_deref().map(read_token).transpose()?;
    let selectors = selectors(&args, token.as_ref())?;
    runtime(None)?.block_on(async move {
        if args.dry_run {
            one_off::preview(snapshot(&args)?, selectors).await
        } else if args.once {
            one_off::once(snapshot(&args)?, selectors).await
        } else {
            follow(args, selectors).await
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

/// The selectors of the command line: as targets of a catalog, and as members of a mesh. Equal places are one selector.
struct Selectors {
    targets: Vec<RemoteTarget>,
    wires: Vec<Wire>,
    board: Arc<Board>,
}

fn selectors(args: &DiscoverArgs, token: Option<&Zeroizing<String>>) -> Result<Selectors, CliError> {
    let (mut targets, mut wires): (Vec<RemoteTarget>, Vec<Wire>) = (Vec::new(), Vec::new());
    let owner = format!("file.{}", args.catalog_name);
    for words in &args.selectors {
        let (address, publisher) = match words.split_once(',') {
            Some((address, publisher)) => (address, Some(publisher.to_owned())),
            None => (words.as_str(), None),
        };
        if let Some(publisher) = &publisher {
            check_publisher(publisher).map_err(CliError::Usage)?;
        }
        let options = RemoteOptions {
            owner: owner.clone(),
            token: token.cloned(),
            state_dir: args.state_dir.clone(),
            prune: args.prune,
            epochs_are_given: false,
        };
        let target = RemoteTarget::new(address, options).map_err(CliError::Usage)?;
        if targets.iter().any(|other| other.name() == target.name()) {
            return Err(CliError::Usage(format!("selector {} is named twice", target.name())));
        }
        targets.push(target);
        let options = WireOptions {
            publisher,
            owner: owner.clone(),
            state_dir: args.state_dir.clone(),
            prune: args.prune,
            keep: Vec::new(),
        };
        let client = RemoteClient::new(address, token.cloned()).map_err(CliError::Usage)?;
        wires.push(Wire::new(client, options));
    }
    let board = Board::new(wires.iter().map(|wire| wire.name().into()));
    Ok(Selectors { targets, wires, board })
}

fn snapshot(args: &DiscoverArgs) -> Result<Snapshot, CliError> {
    let workers = file::load(&args.workers_file).map_err(CliError::failed)?;
    let version = SnapshotVersion { epoch: FollowOptions::default().epoch, generation: 1 };
    Snapshot::new(version, workers).map_err(CliError::failed)
}

async fn follow(args: DiscoverArgs, selectors: Selectors) -> Result<(), CliError> {
    let mut signals = StopSignals::install().map_err(CliError::failed)?;
    let owner = format!("file.{}", args.catalog_name);
    tracing::info!(
        workers_file = %args.workers_file.display(),
        owner,
        selectors = args.selectors.join(" "),
        state_dir = ?args.state_dir,
        prune = args.prune,
        authenticated = args.admin_token_file.is_some(),
        http_port = ?args.http_port,
        "effective configuration"
    );
    let source = WorkersFile::follow(args.workers_file, FollowOptions::default()).map_err(CliError::failed)?;
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let mut members = Vec::new();
    for (target, wire) in selectors.targets.into_iter().zip(selectors.wires) {
        let catalog = watch::Sender::new(TargetStatus::default());
        let wired = watch::Sender::new(WiringStatus::default());
        members.push(FleetMember {
            selector: target.name().to_owned(),
            catalog: catalog.subscribe(),
            wiring: wired.subscribe(),
        });
        tasks.spawn(apply::run(target, source.status(), ApplyOptions::default(), catalog, stop.clone()));
        tasks.spawn(wiring::run(wire, selectors.board.clone(), ApplyOptions::default(), wired, stop.clone()));
    }
    let fleet = Fleet { source: source.status(), owner, members };
    if let Some(port) = args.http_port {
        let shown = Metrics::default();
        let named = |m: &FleetMember| (m.selector.clone(), m.catalog.clone());
        metrics::register(&shown, source.status(), source.counters(), fleet.members.iter().map(named).collect());
        let named = |m: &FleetMember| (m.selector.clone(), m.wiring.clone());
        metrics::register_wiring(&shown, fleet.members.iter().map(named).collect());
        tasks.spawn(state::serve(args.host, port, fleet.clone(), shown, stop.clone()).await?);
    }
    tasks.spawn(fleet.report(stop.clone()));
    tokio::select! {
        signal = signals.recv() => tracing::info!(signal, "stopping; what was applied stays"),
        // Tasks end at the word to stop alone.
        ended = tasks.join_next() => {
            return Err(CliError::Failed(format!("a task ended by itself: {ended:?}")));
        }
    }
    stop.cancel();
    while tasks.join_next().await.is_some() {}
    Ok(())
}
