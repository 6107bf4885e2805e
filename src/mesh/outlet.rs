//! The publisher: changes of this replica go out at once, beacons twice a second.
//!
//! Invariant: a beacon's sequence is the number of booking messages published before it, and a subscriber gets them in
//! that order.

use std::{
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};
use tokio_util::task::AbortOnDropHandle;

use super::{
    MeshConfig,
    peers::Peers,
    wire::{
        beacon::{Beacon, Envelope, MAX_ORIGINS, MAX_PARTITIONS, Missed, OriginState, PartitionState},
        encode_session, encode_slot,
    },
};
use crate::{
    events::transport::{Publisher, PublisherStats},
    selection::{
        SelectionCore,
        core::{MissedCall, OriginDigest, PartitionDigests},
        replication::{BookingEvent, ReplicaOutlet, RouterId, SessionEvent},
    },
};

/// A new subscriber gets a beacon within this time.
const LOOK_FOR_SUBSCRIBERS: Duration = Duration::from_millis(50);

/// Publishes what happens here.
pub(super) struct Outlet {
    publisher: Publisher,
    router_id: RouterId,
    instance_id: String,
    advertise_url: Option<String>,
    http_port: Option<u16>,
    /// Held while a message gets its number and goes out.
    order: Mutex<Sequences>,
    /// Partition the next beacon begins with.
    turn: AtomicU64,
    leaving: AtomicBool,
    beacons: AtomicU64,
    hurry: Notify,
    task: OnceLock<AbortOnDropHandle<()>>,
}

/// Messages published since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sequences {
    pub(super) bookings: u64,
    pub(super) sessions: u64,
}

impl Outlet {
    pub(super) fn new(publisher: Publisher, instance_id: String, config: &MeshConfig) -> Self {
        Self {
            publisher,
            router_id: fastrand::u64(1..),
            instance_id,
            advertise_url: config.advertise_url.clone(),
            http_port: config.http_port,
            order: Mutex::default(),
            turn: AtomicU64::new(0),
            leaving: AtomicBool::new(false),
            beacons: AtomicU64::new(0),
            hurry: Notify::new(),
            task: OnceLock::new(),
        }
    }

    /// Starts the beacons.
    pub(super) fn start(self: &Arc<Self>, core: &Arc<SelectionCore>, peers: &Arc<Peers>, interval: Duration) {
        let (outlet, core, peers) = (Arc::downgrade(self), Arc::downgrade(core), Arc::downgrade(peers));
        let task = AbortOnDropHandle::new(tokio::spawn(send_beacons(outlet, core, peers, interval)));
        let _first = self.task.set(task);
    }

    pub(super) fn router_id(&self) -> RouterId {
        self.router_id
    }

    pub(super) fn instance_id(&self) -> &str {
        &self.instance_id
    }

    pub(super) fn advertise_url(&self) -> Option<&str> {
        self.advertise_url.as_deref()
    }

    /// The publisher as others reach it: the host of the advertised URL, if there is one.
    fn advertised_endpoint(&self) -> Option<String> {
        let url = reqwest::Url::parse(self.advertise_url.as_deref()?).ok()?;
        Some(format!("tcp://{}:{}", url.host_str()?, self.publisher.local_addr().port()))
    }

    /// The publisher as far as it is known here: where no URL is advertised and all interfaces are bound, `*` stands for
    /// whatever host this replica is reached under.
    pub(super) fn known_endpoint(&self) -> String {
        let address = self.publisher.local_addr();
        self.advertised_endpoint().unwrap_or_else(|| match address.ip() {
            ip if ip.is_unspecified() => format!("tcp://*:{}", address.port()),
            _ => format!("tcp://{address}"),
        })
    }

    pub(super) fn sequences(&self) -> Sequences {
        *self.order.lock()
    }

    pub(super) fn beacons(&self) -> u64 {
        self.beacons.load(Ordering::Relaxed)
    }

    pub(super) fn stats(&self) -> PublisherStats {
        self.publisher.stats()
    }

    pub(super) fn has_queued(&self) -> bool {
        self.publisher.has_queued()
    }

    fn beacon(&self, core: &SelectionCore, is_heard: impl Fn(RouterId) -> bool) {
        let mut partitions = core.partition_digests();
        if partitions.len() > MAX_PARTITIONS {
            let turn = self.turn.fetch_add(MAX_PARTITIONS as u64, Ordering::Relaxed);
            let first = usize::try_from(turn % partitions.len() as u64).unwrap_or(0);
            partitions.rotate_left(first);
            partitions.truncate(MAX_PARTITIONS);
        }
        let partitions = partitions.into_iter().map(|digests| self.state(digests, &is_heard)).collect();
        let mut beacon = Beacon {
            instance_id: self.instance_id.clone(),
            url: self.advertise_url.clone(),
            http_port: self.http_port,
            leaving: self.leaving.load(Ordering::Relaxed),
            partitions,
            ..Beacon::default()
        };
        let order = self.order.lock();
        beacon.sequence = order.bookings;
        beacon.session_sequence = order.sessions;
        beacon.sent = unix_nanos();
        self.publisher.publish(Envelope::beacon(self.router_id, beacon).encode());
        drop(order);
        self.beacons.fetch_add(1, Ordering::Relaxed);
    }

    /// What a beacon tells of a partition: what this replica made, and what nobody speaks for any more.
    fn state(&self, digests: PartitionDigests, is_heard: impl Fn(RouterId) -> bool) -> PartitionState {
        let PartitionDigests { partition, block_size, mut origins, .. } = digests;
        if !origins.iter().any(|digest| digest.origin == self.router_id) {
            origins.push(OriginDigest { origin: self.router_id, ..OriginDigest::default() });
        }
        // Its own first: it is the one that must not be cut off.
        origins.sort_by_key(|digest| (digest.origin != self.router_id, digest.origin));
        origins.retain(|digest| digest.origin == self.router_id || !is_heard(digest.origin));
        if origins.len() > MAX_ORIGINS {
            // The others take turns.
            let others = &mut origins[1..];
            let first = self.beacons() % others.len() as u64 * (MAX_ORIGINS as u64 - 1) % others.len() as u64;
            others.rotate_left(first as usize);
        }
        let origins = origins
            .iter()
            .take(MAX_ORIGINS)
            .map(|digest| OriginState {
                router_id: digest.origin,
                bookings: digest.load.bookings,
                high: (digest.load.sum >> 64) as u64,
                low: digest.load.sum as u64,
                sessions: digest.sessions,
            })
            .collect();
        PartitionState {
            model_name: partition.model_name.to_string(),
            routing_group: partition.routing_group.to_string(),
            block_size,
            origins,
        }
    }

    /// Tells whoever missed it of a call that came here.
    pub(super) fn tell_missed(&self, call: &MissedCall) {
        let missed = Missed {
            model_name: call.partition.model_name.to_string(),
            routing_group: call.partition.routing_group.to_string(),
            selection_id: call.selection_id.to_string(),
            worker_id: call.rank.worker_id,
            dp_rank: call.rank.dp_rank,
            origin: call.origin,
            freed: call.freed,
            age: u64::try_from(call.age.as_nanos()).unwrap_or(u64::MAX),
        };
        let _order = self.order.lock();
        self.publisher.publish(Envelope::missed(self.router_id, missed).encode());
    }

    /// A last beacon, then waits until everything is with the kernel.
    pub(super) async fn leave(&self, limit: Duration) {
        self.leaving.store(true, Ordering::Relaxed);
        let before = self.beacons();
        self.hurry.notify_one();
        let said = async {
            while self.beacons() == before {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let deadline = Instant::now() + limit;
        // Without it the peers notice the end of the connection.
        let _in_time = tokio::time::timeout(limit / 2, said).await;
        self.publisher.drain(deadline.saturating_duration_since(Instant::now())).await;
    }
}

impl ReplicaOutlet for Outlet {
    fn booking(&self, event: BookingEvent) -> u64 {
        let heard = self.publisher.subscribers() > 0;
        let message = heard.then(|| encode_slot(&event, self.router_id));
        let mut order = self.order.lock();
        order.bookings += 1;
        if let Some(message) = message {
            self.publisher.publish(message);
        }
        order.bookings
    }

    fn session(&self, event: SessionEvent) {
        let message = encode_session(&event);
        let mut order = self.order.lock();
        order.sessions += 1;
        self.publisher.publish(message);
    }
}

/// Nanoseconds since the Unix epoch; 0 before it.
pub(super) fn unix_nanos() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

async fn send_beacons(outlet: Weak<Outlet>, core: Weak<SelectionCore>, peers: Weak<Peers>, interval: Duration) {
    let mut next = Instant::now();
    let mut subscribers = 0;
    loop {
        let (Some(this), Some(core), Some(peers)) = (outlet.upgrade(), core.upgrade(), peers.upgrade()) else { return };
        let now_subscribed = this.publisher.subscribers();
        let is_new = now_subscribed > subscribers;
        subscribers = now_subscribed;
        let now = Instant::now();
        if now >= next || is_new || this.leaving.load(Ordering::Relaxed) {
            this.beacon(&core, |router_id| peers.is_heard(router_id));
            next = now + interval;
        }
        drop((core, peers));
        let pause = LOOK_FOR_SUBSCRIBERS.min(next.saturating_duration_since(Instant::now()));
        let hurried = tokio::time::timeout(pause, this.hurry.notified()).await;
        if hurried.is_err() && this.leaving.load(Ordering::Relaxed) {
            // The last word has been said.
            return;
        }
    }
}
