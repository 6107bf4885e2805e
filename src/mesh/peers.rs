//! Which publishers are followed.
//!
//! Invariants: an endpoint is identified by its spelling, as in the reference; a replica reached under two endpoints
//! counts once: what it says on the second is dropped. So is what a publisher says in the name of another one.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::StreamExt;
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::{
    MeshConfig, follow,
    followed::Followed,
    outlet::Outlet,
    repair::{self, Client},
};
use crate::{
    events::transport::Subscriber,
    selection::{SelectionCore, endpoint::check_zmq_endpoint, replication::RouterId},
};

/// Most endpoints followed.
const MAX_PEERS: usize = 4096;
/// A replica that sent no beacon for this many intervals is not heard any more.
pub(super) const MISSED_BEACONS: u32 = 4;

/// Peers whose load is taken over at the same time.
const TAKEN_OVER_AT_ONCE: usize = 4;

/// Why a peer cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The text of the reference.
    #[error("{0}")]
    Invalid(String),
    /// The socket refuses the endpoint; the text of the reference.
    #[error("failed to register replica peer `{0}`")]
    Refused(String),
    /// 4,096 are followed.
    #[error("too many replica peers: at most {MAX_PEERS} are followed")]
    TooMany,
}

/// Checks an endpoint as the reference does: its syntax, then what a socket refuses to connect to.
pub(super) fn check(endpoint: &str) -> Result<(), PeerError> {
    check_zmq_endpoint(endpoint).map_err(PeerError::Invalid)?;
    let Some((host, port)) = endpoint.strip_prefix("tcp://").and_then(|address| address.rsplit_once(':')) else {
        return Ok(());
    };
    let is_name = host != "*" && !host.contains(char::is_whitespace);
    if is_name && port.bytes().all(|digit| digit.is_ascii_digit()) {
        return Ok(());
    }
    Err(PeerError::Refused(endpoint.to_owned()))
}

/// One followed endpoint.
pub(super) struct Peer {
    pub(super) followed: Arc<Followed>,
    /// Both end with it.
    _tasks: [Option<AbortOnDropHandle<()>>; 2],
}

/// The replica's process behind an endpoint, by its own words.
#[derive(Clone, Debug)]
struct Voice {
    /// Endpoint whose messages count.
    endpoint: Arc<str>,
    instance_id: Arc<str>,
    heard: Instant,
}

/// Which endpoint a router id is believed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// This one.
    Counts,
    /// Another one, by the same process as far as is known.
    SecondEndpoint,
    /// Another one, by another process: one of both lies.
    Contested,
}

/// All followed endpoints.
pub(super) struct Peers {
    pub(super) core: Arc<SelectionCore>,
    pub(super) outlet: Arc<Outlet>,
    pub(super) client: Client,
    pub(super) config: MeshConfig,
    peers: Mutex<BTreeMap<Arc<str>, Peer>>,
    voices: Mutex<HashMap<RouterId, Voice>>,
    this: Weak<Self>,
}

impl Peers {
    pub(super) fn new(core: Arc<SelectionCore>, outlet: Arc<Outlet>, client: Client, config: MeshConfig) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            core,
            outlet,
            client,
            config,
            peers: Mutex::default(),
            voices: Mutex::default(),
            this: this.clone(),
        })
    }

    pub(super) fn register(&self, endpoint: &str) -> Result<bool, PeerError> {
        check(endpoint)?;
        let mut peers = self.peers.lock();
        if peers.contains_key(endpoint) {
            return Ok(false);
        }
        if peers.len() >= MAX_PEERS {
            return Err(PeerError::TooMany);
        }
        let followed = Arc::new(Followed::new(endpoint.into()));
        // Nothing of another process can be behind it: kept, as the reference does, and never connected.
        let tasks = if endpoint.starts_with("inproc://") {
            [None, None]
        } else {
            let topics = follow::topics(self.core.config().session_affinity_ttl.is_some());
            let subscriber = Subscriber::connect(endpoint, topics, self.config.transport.clone())
                .map_err(|_| PeerError::Refused(endpoint.to_owned()))?;
            let follow = tokio::spawn(follow::follow(self.this.clone(), Arc::clone(&followed), subscriber));
            let repair = tokio::spawn(repair::repair(self.this.clone(), Arc::clone(&followed)));
            [Some(AbortOnDropHandle::new(follow)), Some(AbortOnDropHandle::new(repair))]
        };
        peers.insert(endpoint.into(), Peer { followed, _tasks: tasks });
        Ok(true)
    }

    pub(super) fn deregister(&self, endpoint: &str) -> Result<bool, PeerError> {
        check_zmq_endpoint(endpoint).map_err(PeerError::Invalid)?;
        let removed = self.peers.lock().remove(endpoint);
        if removed.is_some() {
            self.voices.lock().retain(|_, voice| &*voice.endpoint != endpoint);
        }
        Ok(removed.is_some())
    }

    pub(super) fn endpoints(&self) -> Vec<String> {
        self.peers.lock().keys().map(|endpoint| endpoint.to_string()).collect()
    }

    pub(super) fn followed(&self) -> Vec<Arc<Followed>> {
        self.peers.lock().values().map(|peer| Arc::clone(&peer.followed)).collect()
    }

    /// Whether a replica has spoken for itself lately.
    pub(super) fn is_heard(&self, router_id: RouterId) -> bool {
        router_id == self.outlet.router_id()
            || self.voices.lock().get(&router_id).is_some_and(|voice| self.speaks(voice))
    }

    /// Whether its beacons come.
    fn speaks(&self, voice: &Voice) -> bool {
        let within = self.config.beacon_interval * MISSED_BEACONS;
        voice.heard.elapsed() <= within
    }

    /// The process `instance_id` said over `endpoint` that it lives; whether that endpoint is the one that counts.
    pub(super) fn hear(&self, router_id: RouterId, instance_id: &str, endpoint: &Arc<str>) -> Standing {
        let mut voices = self.voices.lock();
        // An endpoint speaks for one process: the one before is gone.
        voices.retain(|&known, voice| known == router_id || voice.endpoint != *endpoint);
        if let Some(voice) = voices.get(&router_id)
            && voice.endpoint != *endpoint
            && self.speaks(voice)
        {
            let is_same = *voice.instance_id == *instance_id;
            return if is_same { Standing::SecondEndpoint } else { Standing::Contested };
        }
        let voice = Voice { endpoint: Arc::clone(endpoint), instance_id: instance_id.into(), heard: Instant::now() };
        voices.insert(router_id, voice);
        Standing::Counts
    }

    /// Whether a booking that `router_id` tells of over `endpoint` counts: unless its beacons come over another one. Of
    /// those that send none, as the reference's selectors, all does.
    pub(super) fn counts(&self, router_id: RouterId, endpoint: &Arc<str>) -> bool {
        self.voices.lock().get(&router_id).is_none_or(|voice| voice.endpoint == *endpoint || !self.speaks(voice))
    }

    /// See [`super::Mesh::first_contacts`].
    pub(super) async fn first_contacts(&self, limit: Duration) -> Vec<String> {
        let deadline = Instant::now() + limit;
        let mut urls = Vec::new();
        for followed in self.followed() {
            // Each has the same deadline, so that many cost no more than one.
            let _answered = tokio::time::timeout_at(deadline, followed.contacted()).await;
            urls.extend(followed.url());
        }
        urls
    }

    /// See [`super::Mesh::warm_up`].
    pub(super) async fn warm_up(&self) {
        futures_util::stream::iter(self.followed())
            .for_each_concurrent(TAKEN_OVER_AT_ONCE, async |followed| {
                let Some(url) = followed.url() else { return };
                let taking = repair::take_over(self, &followed, &url);
                if tokio::time::timeout(self.config.repair_timeout, taking).await.is_err() {
                    tracing::warn!(peer = %followed.endpoint, "a peer's load could not be taken over in time");
                }
            })
            .await;
    }
}
