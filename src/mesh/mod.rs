//! The mesh of replicas: bookings and sessions made here go to the others, theirs come here.
//!
//! | file | owns |
//! |---|---|
//! | `wire` | messages, those of the reference and our own |
//! | `outlet` | the publisher, sequence numbers, beacons |
//! | `peers` | which publishers are followed |
//! | `follow`, `followed` | one followed publisher: what it says; what is known of it |
//! | `compare` | digests, and when a difference is one |
//! | `repair` | asking a peer for what is missing |
//! | `state` | live bookings and sessions as a stream of frames |
//! | `status`, `metrics` | what of it is shown |
//! | `in_process` | the same messages between replicas of one process, carried by their host |
//! | `fuzzing` | the entry point of the fuzz target |
//!
//! A booking goes out at once, on the thread of its request, and nobody waits for a peer. Nothing is relayed. What is
//! lost is found by digests of the live bookings each replica made, which beacons carry twice a second, and is asked
//! for over HTTP. The reference's selectors may be part of the mesh: they get and send its own messages alone.
//!
//! Invariants: a peer's message changes nothing but what it names; every message that is not applied is counted by
//! reason; queues and tables are bounded; a peer that is slow, stuck or hostile delays no other.

mod compare;
mod follow;
mod followed;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
pub mod in_process;
mod metrics;
mod outlet;
mod peers;
mod repair;
mod state;
mod status;
mod wire;

use std::{fmt, sync::Arc, time::Duration};

use self::{outlet::Outlet, peers::Peers, repair::Client};
pub use self::{
    peers::PeerError,
    state::{StateQuery, state_frames},
    status::{MeshStatus, PeerState, PeerStatus},
    wire::{MESH_TOPIC, SESSION_TOPIC, SLOT_TOPIC, beacon::WIRE_VERSION},
};
use crate::{
    events::transport::{Publisher, TransportConfig, TransportError},
    selection::{SelectionCore, replication::Replication},
    telemetry::metrics::Metrics,
};

/// Largest booking message read, in bytes: a million blocks.
const MAX_MESSAGE_BYTES: usize = 32 << 20;

/// Settings of the mesh.
#[derive(Clone)]
pub struct MeshConfig {
    /// Where bookings are published: `tcp://*:9092`.
    pub bind: String,
    /// Endpoints of other replicas' publishers, followed from the start.
    pub peers: Vec<String>,
    /// Where other replicas reach this one's HTTP API; `None` = the host they follow and [`Self::http_port`].
    pub advertise_url: Option<String>,
    /// Port of this replica's HTTP API.
    pub http_port: Option<u16>,
    /// Bearer token of the peers' admin routes.
    pub admin_token: Option<Arc<str>>,
    /// A booking that arrives later than this is ignored; `None` = never.
    pub peer_stale_after: Option<Duration>,
    /// Time between two beacons.
    pub beacon_interval: Duration,
    /// Time a peer known at start has for its first word.
    pub contact_timeout: Duration,
    /// Time for one answer of a peer.
    pub repair_timeout: Duration,
    /// Sockets.
    pub transport: TransportConfig,
}

impl Default for MeshConfig {
    fn default() -> Self {
        Self {
            bind: "tcp://*:9092".to_owned(),
            peers: Vec::new(),
            advertise_url: None,
            http_port: None,
            admin_token: None,
            peer_stale_after: None,
            beacon_interval: Duration::from_millis(500),
            contact_timeout: Duration::from_secs(2),
            repair_timeout: Duration::from_secs(30),
            transport: TransportConfig {
                max_frame_bytes: MAX_MESSAGE_BYTES,
                max_message_bytes: 2 * MAX_MESSAGE_BYTES,
                // A mesh is whole again within seconds after what broke it is gone.
                connect_timeout: Duration::from_secs(4),
                reconnect_max: Duration::from_secs(1),
                heartbeat_interval: Duration::from_secs(2),
                heartbeat_timeout: Duration::from_secs(6),
                ..TransportConfig::default()
            },
        }
    }
}

impl fmt::Debug for MeshConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MeshConfig").field("bind", &self.bind).field("peers", &self.peers).finish_non_exhaustive()
    }
}

/// Why the mesh cannot start.
#[derive(Debug, thiserror::Error)]
pub enum MeshError {
    /// The publisher's address cannot be bound.
    #[error("failed to bind the replica sync publisher to {bind}")]
    Bind {
        /// The address.
        bind: String,
        /// Why.
        #[source]
        source: TransportError,
    },
    /// A peer named at start.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// The HTTP client cannot be made.
    #[error("failed to set up the client for repairs")]
    Client(#[source] reqwest::Error),
}

/// A mesh whose publisher is bound and that follows nobody yet.
#[derive(Debug)]
pub struct BoundMesh {
    publisher: Publisher,
    client: Client,
    config: MeshConfig,
}

impl BoundMesh {
    /// Binds the publisher.
    ///
    /// # Errors
    /// The address cannot be bound; a peer's endpoint is none.
    pub async fn bind(config: MeshConfig) -> Result<Self, MeshError> {
        for peer in &config.peers {
            peers::check(peer)?;
        }
        let client = Client::new(config.repair_timeout, config.admin_token.clone()).map_err(MeshError::Client)?;
        let publisher = Publisher::bind(&config.bind, config.transport.clone())
            .await
            .map_err(|source| MeshError::Bind { bind: config.bind.clone(), source })?;
        Ok(Self { publisher, client, config })
    }

    /// An endpoint that reaches the publisher from the same host.
    pub fn endpoint(&self) -> &str {
        self.publisher.endpoint()
    }

    /// Starts to publish what `core` does and to follow the peers named at start.
    pub(crate) fn start(self, core: &Arc<SelectionCore>, metrics: &Metrics) -> Mesh {
        let Self { publisher, client, config } = self;
        let outlet = Arc::new(Outlet::new(publisher, core.instance_id().to_owned(), &config));
        core.replicate(Replication { router_id: outlet.router_id(), outlet: outlet.clone() });
        let peers = Peers::new(Arc::clone(core), outlet.clone(), client, config.clone());
        for endpoint in &config.peers {
            // Checked when the mesh was bound.
            let _known = peers.register(endpoint);
        }
        outlet.start(core, &peers, config.beacon_interval);
        metrics::register(metrics, &outlet, &peers);
        Mesh { outlet, peers, config }
    }
}

/// A running mesh.
pub struct Mesh {
    outlet: Arc<Outlet>,
    peers: Arc<Peers>,
    config: MeshConfig,
}

impl fmt::Debug for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mesh").field("router_id", &self.outlet.router_id()).finish_non_exhaustive()
    }
}

impl Mesh {
    /// Follows a peer's publisher; `false` when it is followed already.
    ///
    /// # Errors
    /// The endpoint is none; too many peers.
    pub fn register_peer(&self, endpoint: &str) -> Result<bool, PeerError> {
        self.peers.register(endpoint)
    }

    /// Stops following; what the peer had booked stays. `false` when it is not followed.
    ///
    /// # Errors
    /// The endpoint is none.
    pub fn deregister_peer(&self, endpoint: &str) -> Result<bool, PeerError> {
        self.peers.deregister(endpoint)
    }

    /// Endpoints followed, sorted as text.
    pub fn peers(&self) -> Vec<String> {
        self.peers.endpoints()
    }

    /// Everything about the mesh.
    pub fn status(&self) -> MeshStatus {
        status::of(&self.outlet, &self.peers, &self.config)
    }

    /// Waits until each peer followed now has said something, cannot be reached, or has had its time. URLs of those of
    /// ours among them.
    pub async fn first_contacts(&self) -> Vec<String> {
        self.peers.first_contacts(self.config.contact_timeout).await
    }

    /// Takes over live bookings and sessions from the peers heard so far.
    pub async fn warm_up(&self) {
        self.peers.warm_up().await;
    }

    /// Gives what was published its turn to go out before the caller goes on. A call that its client was told of and nobody
    /// else would be lost with this process. Waits for no peer: one turn, taken or not.
    pub async fn let_out(&self) {
        if self.outlet.has_queued() {
            tokio::task::yield_now().await;
        }
    }

    /// Whether something published waits for its turn to go out.
    #[cfg(test)]
    pub(crate) fn has_queued(&self) -> bool {
        self.outlet.has_queued()
    }

    /// A last beacon, and everything published given to the network, within `limit`.
    pub async fn leave(&self, limit: Duration) {
        self.outlet.leave(limit).await;
    }
}
