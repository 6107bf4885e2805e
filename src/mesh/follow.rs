//! One followed publisher: its messages are applied as they come, its beacons tell what was lost.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    compare::Comparison,
    followed::{Contact, Drop, Followed, Offsets, RECONNECT_PAUSE, State},
    outlet::unix_nanos,
    peers::{Peers, Standing},
    wire::{
        MESH_TOPIC, SESSION_TOPIC, SLOT_TOPIC,
        beacon::{Beacon, Envelope, MeshDecodeError, Missed},
        decode_session, decode_slot,
    },
};
use crate::{
    events::transport::{Message, Subscriber, SubscriberEvent},
    selection::{
        PartitionKey, WorkerWithDpRank,
        core::{Mirrored, MissedCall},
        replication::{BookingChange, RouterId},
    },
};

/// Messages applied before other tasks of the thread get a turn, and what larger ones count as.
const TURN: usize = 128;
const TURN_BYTES: usize = 16 << 10;
/// Lag that is worth a warning.
const ALARM: Duration = Duration::from_millis(100);

/// What a subscriber asks for.
pub(super) fn topics(sessions: bool) -> &'static [&'static [u8]] {
    if sessions { &[SLOT_TOPIC, SESSION_TOPIC, MESH_TOPIC] } else { &[SLOT_TOPIC, MESH_TOPIC] }
}

/// Follows one publisher until its task is ended.
pub(super) async fn follow(peers: Weak<Peers>, followed: Arc<Followed>, mut subscriber: Subscriber) {
    let mut turn = 0;
    loop {
        let pause = peers.upgrade().map_or(RECONNECT_PAUSE, |peers| peers.config.beacon_interval);
        let event = match tokio::time::timeout(pause, subscriber.recv()).await {
            Ok(event) => event,
            Err(_) => {
                if followed.state.lock().is_dead(pause) {
                    tracing::info!(peer = %followed.endpoint, "a peer is silent: connecting anew");
                    subscriber.reconnect();
                }
                continue;
            }
        };
        let Some(peers) = peers.upgrade() else { return };
        match event {
            SubscriberEvent::Connected => {
                let mut state = followed.state.lock();
                state.connected = true;
                state.speaks = false;
                state.last_error = None;
                drop(state);
                followed.contact.send_if_modified(|contact| {
                    let waits = *contact == Contact::Waiting;
                    if waits {
                        *contact = Contact::Connected(Instant::now());
                    }
                    waits
                });
            }
            SubscriberEvent::Disconnected(error) => {
                let mut state = followed.state.lock();
                state.disconnects += u64::from(state.connected);
                state.connected = false;
                state.lag = None;
                state.last_error = Some(error.to_string());
                drop(state);
                followed.contact.send_replace(Contact::Done);
            }
            SubscriberEvent::Dropped(count) => {
                let mut state = followed.state.lock();
                *state.dropped.entry(Drop::ReceiverBehind).or_default() += count;
                if state.warns("behind") {
                    tracing::warn!(peer = %followed.endpoint, count, "this replica is behind a peer and dropped messages");
                }
            }
            SubscriberEvent::Message(message) => {
                let bytes: usize = message.iter().map(|frame| frame.len()).sum();
                let taken = catch_unwind(AssertUnwindSafe(|| take(&peers, &followed, &message)));
                if taken.is_err() {
                    followed.state.lock().drop_message(Drop::Panicked);
                }
                turn += 1 + bytes / TURN_BYTES;
                if turn >= TURN {
                    turn = 0;
                    tokio::task::yield_now().await;
                }
            }
        }
    }
}

fn take(peers: &Peers, followed: &Arc<Followed>, message: &Message) {
    let outcome = match &message[..] {
        [topic, payload] if **topic == *SLOT_TOPIC => {
            followed.state.lock().received[0] += 1;
            slot(peers, followed, payload)
        }
        [topic, payload] if **topic == *SESSION_TOPIC => {
            followed.state.lock().received[1] += 1;
            session(peers, followed, payload)
        }
        [topic, payload] if **topic == *MESH_TOPIC => mesh(peers, followed, payload),
        [_, _] => Err(Drop::Topic),
        _ => Err(Drop::Frames),
    };
    match outcome {
        Ok(true) => drop(followed.applied.fetch_add(1, Ordering::Relaxed)),
        Ok(false) => {}
        Err(reason) => followed.state.lock().drop_message(reason),
    }
}

fn mirrored(outcome: Mirrored) -> Result<bool, Drop> {
    match outcome {
        Mirrored::Applied | Mirrored::EndedEarly => Ok(true),
        Mirrored::Known | Mirrored::Early => Ok(false),
        Mirrored::Dropped(drop) => Err(Drop::Mirror(drop.reason())),
    }
}

fn slot(peers: &Peers, followed: &Followed, payload: &[u8]) -> Result<bool, Drop> {
    let message = decode_slot(payload).map_err(|_| Drop::Decode)?;
    if message.router_id == peers.outlet.router_id() {
        return Err(Drop::Own);
    }
    check_speaker(peers, followed, message.router_id)?;
    if let Some(limit) = peers.config.peer_stale_after
        && matches!(message.event.change, BookingChange::Admitted(_))
        && lateness(&followed.state.lock(), peers.config.beacon_interval).is_some_and(|late| late > limit)
    {
        return Err(Drop::Stale);
    }
    mirrored(peers.core.mirror_booking(message.event, message.router_id))
}

/// How late a message that comes now is: what the last beacon showed, or how long none came.
fn lateness(state: &State, interval: Duration) -> Option<Duration> {
    let missing = state.heard?.elapsed().saturating_sub(interval * 2);
    Some(state.lag.unwrap_or_default().max(missing))
}

/// Whether what a publisher tells of `router_id` counts: one that has said who it is speaks for nobody else, and nobody
/// else speaks for it.
fn check_speaker(peers: &Peers, followed: &Followed, router_id: RouterId) -> Result<(), Drop> {
    let is_another = followed.state.lock().speaker().is_some_and(|speaker| speaker != router_id);
    if is_another {
        return Err(Drop::Contested);
    }
    if peers.counts(router_id, &followed.endpoint) { Ok(()) } else { Err(Drop::SecondEndpoint) }
}

fn session(peers: &Peers, followed: &Followed, payload: &[u8]) -> Result<bool, Drop> {
    let event = decode_session(payload).map_err(|_| Drop::Decode)?;
    if event.version.writer_id == peers.outlet.router_id() {
        return Err(Drop::Own);
    }
    check_speaker(peers, followed, event.version.writer_id)?;
    mirrored(peers.core.mirror_session(&event))
}

fn mesh(peers: &Peers, followed: &Arc<Followed>, payload: &[u8]) -> Result<bool, Drop> {
    let envelope = match Envelope::decode(payload) {
        Ok(envelope) => envelope,
        Err(error @ MeshDecodeError::Version(_)) => {
            let mut state = followed.state.lock();
            if let MeshDecodeError::Version(version) = error {
                state.wire_version = Some(version);
            }
            if state.warns("version") {
                tracing::warn!(peer = %followed.endpoint, %error, "a peer's messages are refused");
            }
            return Err(Drop::Version);
        }
        Err(_) => return Err(Drop::Decode),
    };
    if let Some(beacon) = envelope.beacon {
        hear(peers, followed, envelope.router_id, envelope.version, beacon)?;
    }
    match envelope.missed {
        Some(_) if envelope.router_id == peers.outlet.router_id() => Err(Drop::Own),
        Some(missed) => {
            check_speaker(peers, followed, envelope.router_id)?;
            Ok(peers.core.catch_up(&call(missed)))
        }
        None => Ok(false),
    }
}

fn call(missed: Missed) -> MissedCall {
    MissedCall {
        partition: PartitionKey::new(missed.model_name, missed.routing_group),
        selection_id: Arc::from(missed.selection_id),
        rank: WorkerWithDpRank::new(missed.worker_id, missed.dp_rank),
        origin: missed.origin,
        freed: missed.freed,
        age: Duration::from_nanos(missed.age),
    }
}

/// A beacon: the peer lives, and this is where it stands.
fn hear(
    peers: &Peers,
    followed: &Arc<Followed>,
    router_id: RouterId,
    version: u32,
    beacon: Beacon,
) -> Result<(), Drop> {
    let (now, received) = (Instant::now(), unix_nanos());
    let has_our_name = router_id == peers.outlet.router_id();
    let is_self = has_our_name && *beacon.instance_id == *peers.outlet.instance_id();
    let standing = if is_self {
        None
    } else if has_our_name {
        Some(Standing::Contested)
    } else {
        Some(peers.hear(router_id, &beacon.instance_id, &followed.endpoint))
    };
    let mut state = followed.state.lock();
    if state.instance_id.as_deref() != Some(&*beacon.instance_id) {
        let restarted = state.instance_id.is_some();
        state.counted_from = None;
        state.offsets = Offsets::default();
        state.comparison = Comparison::default();
        if restarted && state.warns("restarted") {
            tracing::info!(peer = %followed.endpoint, "a peer restarted");
        }
    }
    state.router_id = Some(router_id);
    state.wire_version = Some(version);
    state.is_self = is_self;
    state.leaving = beacon.leaving;
    state.heard = Some(now);
    state.speaks = true;
    state.last_sequence = beacon.sequence;
    let host = || host_of(&followed.endpoint).zip(beacon.http_port);
    state.url = beacon.url.clone().or_else(|| host().map(|(host, port)| format!("http://{host}:{port}")));
    state.instance_id = Some(beacon.instance_id);
    let lag = state.offsets.lag(beacon.sent, received, now);
    state.lag = Some(lag);
    if lag > ALARM {
        state.late += 1;
        if state.warns("late") {
            tracing::warn!(peer = %followed.endpoint, lag_ms = lag.as_millis(), "a peer's messages arrive late");
        }
    }
    let published = [beacon.sequence, beacon.session_sequence];
    let lost = match state.counted_from {
        // One that counts backwards is beyond comparison.
        Some(from) => {
            std::array::from_fn(|of| published[of].saturating_sub(from[of]).saturating_sub(state.received[of]))
        }
        None => [0, 0],
    };
    let since = state.counted_from.map(|from| from[0]);
    state.counted_from = Some(published);
    state.received = [0, 0];
    let lost = lost[0].saturating_add(lost[1]);
    state.gaps = state.gaps.saturating_add(lost);
    drop(state);
    followed.contact.send_replace(Contact::Done);
    match standing {
        Some(Standing::Counts) => {}
        Some(Standing::Contested) => {
            if followed.state.lock().warns("contested") {
                tracing::warn!(
                    peer = %followed.endpoint, router_id,
                    "a peer goes by the router id of another process: what it says is dropped"
                );
            }
            return Err(Drop::Contested);
        }
        Some(Standing::SecondEndpoint) | None => return Ok(()),
    }
    if lost > 0 {
        tracing::debug!(peer = %followed.endpoint, lost, "messages of a peer were lost");
    }
    super::compare::compare(peers, followed, router_id, &beacon.partitions, since.filter(|_| lost > 0));
    Ok(())
}

/// The host of a TCP endpoint.
fn host_of(endpoint: &str) -> Option<&str> {
    endpoint.strip_prefix("tcp://")?.rsplit_once(':').map(|(host, _)| host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_of_an_endpoint() {
        assert_eq!(host_of("tcp://10.0.0.1:9092"), Some("10.0.0.1"));
        assert_eq!(host_of("tcp://[::1]:9092"), Some("[::1]"));
        assert_eq!(host_of("ipc:///tmp/x"), None);
    }
}
