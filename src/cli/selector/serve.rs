//! The running selector: service, server, discovery, signals.

use std::net::SocketAddr;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use super::{
    super::{
        CliError,
        environment::{self, Environment},
        read_token, runtime,
    },
    discovery::Discovery,
    flags::{HttpArgs, SelectorArgs},
};
use crate::{
    events::listener::ListenerConfig,
    http::{self, AdminToken, HttpConfig},
    mesh::{BoundMesh, MeshConfig},
    selection::SelectionConfig,
    service::{PeerToken, PolicySource, RecoveryConfig, SelectionServiceBuilder, ServiceConfig},
    telemetry::{
        readiness::{Condition, ReadyRequirements},
        shutdown::StopSignals,
    },
};

/// Serves until a signal, then drains. A second signal ends the process at once.
///
/// # Errors
/// The token file cannot be read; the runtime, the service or the socket cannot be made.
pub(super) fn run(args: SelectorArgs, selection: SelectionConfig, policies: PolicySource) -> Result<(), CliError> {
    let runtime = runtime(args.http.runtime_threads)?;
    let outcome = runtime.block_on(serve(args, selection, policies));
    // Blocking work that is still under way, a recovery for example, is not waited for.
    runtime.shutdown_background();
    outcome
}

async fn serve(args: SelectorArgs, selection: SelectionConfig, policies: PolicySource) -> Result<(), CliError> {
    let mut signals = StopSignals::install().map_err(CliError::failed)?;
    let token = args.http.admin_token_file.as_deref().map(read_token).transpose()?;
    let http_config = http_config(&args.http, token.as_deref().map(String::as_str));
    let config = service_config(&args, selection, token);
    let listeners = ListenerConfig { stale_after: args.routing.kv_stale_after, ..ListenerConfig::default() };
    log_settings(&args, &config, &http_config);
    let address = SocketAddr::new(args.http.host, args.http.port);
    let listener = TcpListener::bind(address)
        .await
        .map_err(|error| CliError::Failed(format!("cannot listen on {address}: {error}")))?;
    let mut builder = SelectionServiceBuilder::new(config).listeners(listeners).policies(policies);
    if let Some(port) = args.peers.replica_sync_port {
        let http_port = listener.local_addr().map_err(CliError::failed)?.port();
        let mesh = BoundMesh::bind(mesh_config(&args, port, http_port)?).await.map_err(CliError::failed)?;
        builder = builder.mesh(mesh);
    }
    let service = builder.build().map_err(CliError::failed)?;
    let shutdown = CancellationToken::new();
    let server = http::serve(service.clone(), http_config, listener, shutdown.clone()).map_err(CliError::failed)?;
    tracing::info!(address = %server.address(), "listening");
    let discovery = Discovery::start(&args, &service, &shutdown).await?;

    let mut served = tokio::spawn(server.finished());
    tokio::select! {
        signal = signals.recv() => tracing::info!(signal, "stopping"),
        () = end_of_stdin(), if args.http.end_with_stdin => tracing::info!("stopping: standard input ended"),
        // It ends at the word to stop alone.
        _ = &mut served => return Err(CliError::Failed("the HTTP server ended by itself".to_owned())),
    }
    shutdown.cancel();
    let drained = tokio::select! {
        drained = &mut served => drained.map_err(CliError::failed)?,
        signal = signals.recv() => return Err(CliError::Failed(format!("{signal} while draining"))),
    };
    if let Some(discovery) = discovery {
        discovery.finished().await;
    }
    tracing::info!(cut_off = drained.cut_off, "stopped");
    Ok(())
}

/// Waits for the end of standard input, or its failure.
async fn end_of_stdin() {
    let read = || std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
    // However it ended, nobody is there any more.
    let _ended = tokio::task::spawn_blocking(read).await;
}

/// One line with everything in force; keys and tokens are not in it.
fn log_settings(args: &SelectorArgs, config: &ServiceConfig, http: &HttpConfig) {
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        selection = ?config.selection,
        recovery = ?config.recovery,
        ready_requires = %config.ready_requires,
        kv_stale_after = ?args.routing.kv_stale_after,
        workers_file = ?args.workers.workers_file,
        catalog_name = args.workers.catalog_name,
        face = ?http.face,
        shutdown_delay = ?http.shutdown_delay,
        "effective configuration"
    );
    if http.admin_token.is_none() {
        tracing::info!("catalog and peer changes need no token: --admin-token-file is not set");
    }
}

fn http_config(args: &HttpArgs, token: Option<&str>) -> HttpConfig {
    let env = Environment::new(&environment::process);
    HttpConfig {
        admin_token: token.and_then(AdminToken::new),
        face: args.face,
        pause_routes: env.boolean("DYN_KV_INDEXER_TEST_ENDPOINTS").unwrap_or(false),
        shutdown_delay: args.shutdown_delay,
        ..HttpConfig::default()
    }
}

fn mesh_config(args: &SelectorArgs, port: u16, http_port: u16) -> Result<MeshConfig, CliError> {
    let token = args.http.admin_token_file.as_deref().map(read_token).transpose()?;
    let host = &args.peers.replica_sync_host;
    Ok(MeshConfig {
        bind: format!("tcp://{host}:{port}"),
        peers: args.peers.replica_sync_peers.clone(),
        advertise_url: args.peers.advertise_url.clone(),
        http_port: Some(http_port),
        admin_token: token.map(|token| token.trim().into()),
        peer_stale_after: args.peers.peer_stale_after,
        ..MeshConfig::default()
    })
}

fn service_config(args: &SelectorArgs, selection: SelectionConfig, token: Option<Zeroizing<String>>) -> ServiceConfig {
    let mut requires = ReadyRequirements::default();
    if args.discovers() {
        requires = requires.with(Condition::Catalog);
    }
    let peers = args.peers.indexer_peers.iter().map(|peer| peer.trim()).filter(|peer| !peer.is_empty());
    ServiceConfig {
        selection,
        recovery: RecoveryConfig {
            peers: peers.map(str::to_owned).collect(),
            // The selectors of one set have one token.
            token: token.map(PeerToken::new),
            take_catalog: !args.discovers(),
            ..RecoveryConfig::default()
        },
        ready_requires: args.http.ready_requires.unwrap_or(requires),
        ..ServiceConfig::default()
    }
}
