//! The running selector: service, server, signals.

use std::net::SocketAddr;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::{super::CliError, flags::HttpArgs, flags::SelectorArgs};
use crate::{
    http::{self, AdminToken, HttpConfig},
    selection::SelectionConfig,
    service::{RecoveryConfig, SelectionServiceBuilder, ServiceConfig},
    telemetry::{
        readiness::{Condition, ReadyRequirements},
        shutdown::StopSignals,
    },
};

/// Serves until a signal, then drains. A second signal ends the process at once.
///
/// # Errors
/// The token file cannot be read; the runtime, the service or the socket cannot be made.
pub(super) fn run(args: &SelectorArgs, selection: SelectionConfig) -> Result<(), CliError> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.enable_all().thread_name("pointsman");
    if let Some(threads) = args.http.runtime_threads {
        runtime.worker_threads(usize::from(threads));
    }
    let runtime = runtime.build().map_err(CliError::failed)?;
    let outcome = runtime.block_on(serve(args, selection));
    // Blocking work that is still under way, a recovery for example, is not waited for.
    runtime.shutdown_background();
    outcome
}

async fn serve(args: &SelectorArgs, selection: SelectionConfig) -> Result<(), CliError> {
    let mut signals = StopSignals::install().map_err(CliError::failed)?;
    let http_config = http_config(&args.http)?;
    let service = SelectionServiceBuilder::new(service_config(args, selection)).build().map_err(CliError::failed)?;

    let address = SocketAddr::new(args.http.host, args.http.port);
    let listener = TcpListener::bind(address)
        .await
        .map_err(|error| CliError::Failed(format!("cannot listen on {address}: {error}")))?;
    let guarded = http_config.admin_token.is_some();
    let shutdown = CancellationToken::new();
    let server = http::serve(service, http_config, listener, shutdown.clone()).map_err(CliError::failed)?;
    tracing::info!(address = %server.address(), "listening");
    if !guarded {
        tracing::info!("catalog and peer changes need no token: --admin-token-file is not set");
    }

    let signal = signals.recv().await;
    tracing::info!(signal, "stopping");
    shutdown.cancel();
    tokio::select! {
        drained = server.finished() => {
            tracing::info!(cut_off = drained.cut_off, "stopped");
            Ok(())
        }
        signal = signals.recv() => Err(CliError::Failed(format!("{signal} while draining"))),
    }
}

fn http_config(args: &HttpArgs) -> Result<HttpConfig, CliError> {
    let admin_token = match &args.admin_token_file {
        None => None,
        Some(path) => {
            let file = path.display();
            let text = std::fs::read_to_string(path)
                .map_err(|error| CliError::Failed(format!("cannot read the admin token file {file}: {error}")))?;
            let token = AdminToken::new(text.lines().next().unwrap_or_default());
            Some(
                token
                    .ok_or_else(|| CliError::Failed(format!("the admin token file {file} has an empty first line")))?,
            )
        }
    };
    Ok(HttpConfig { admin_token, shutdown_delay: args.shutdown_delay, ..HttpConfig::default() })
}

fn service_config(args: &SelectorArgs, selection: SelectionConfig) -> ServiceConfig {
    let mut requires = ReadyRequirements::default();
    if args.workers.workers_file.is_some() {
        requires = requires.with(Condition::Catalog);
    }
    let peers = args.peers.indexer_peers.iter().map(|peer| peer.trim()).filter(|peer| !peer.is_empty());
    ServiceConfig {
        selection,
        recovery: RecoveryConfig { peers: peers.map(str::to_owned).collect(), ..RecoveryConfig::default() },
        ready_requires: args.http.ready_requires.unwrap_or(requires),
        ..ServiceConfig::default()
    }
}
