//! Digests of a peer against our own: whether it has what we have.
//!
//! A booking counts at its maker a moment before it counts here, so one difference means nothing. A difference that two
//! beacons in a row show unchanged is one, and the peer is asked. What asking did not mend is asked again ever more
//! rarely, until one of both sides changes.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::{
    follow::Followed,
    peers::Peers,
    wire::beacon::{MAX_PARTITIONS, PartitionState},
};
use crate::selection::{PartitionKey, core::OriginDigest, replication::RouterId};

/// Pause after an answer that changed nothing; doubles.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Most differences kept of one peer.
const MAX_DIFFERENCES: usize = 4 * MAX_PARTITIONS;

/// What is compared: one origin in one partition.
pub(super) type Subject = (PartitionKey, RouterId);

/// By how much a peer differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Difference {
    bookings: u64,
    sum: u128,
    sessions: u64,
    /// Of the partition here, when it was seen.
    membership: u64,
}

#[derive(Clone, Debug)]
struct Seen {
    difference: Difference,
    times: u32,
    /// Asked without effect: not again before this.
    pause: Option<(Instant, Duration)>,
}

/// Differences of one peer.
#[derive(Debug, Default)]
pub(super) struct Comparison(HashMap<Subject, Seen>);

impl Comparison {
    /// What a beacon showed; whether the peer is to be asked.
    fn saw(&mut self, subject: Subject, difference: Difference, now: Instant) -> bool {
        if difference.bookings == 0 && difference.sum == 0 && difference.sessions == 0 {
            self.0.remove(&subject);
            return false;
        }
        if self.0.len() >= MAX_DIFFERENCES && !self.0.contains_key(&subject) {
            return false;
        }
        let seen = self.0.entry(subject).or_insert(Seen { difference, times: 0, pause: None });
        if seen.difference != difference {
            *seen = Seen { difference, times: 0, pause: None };
        }
        seen.times = seen.times.saturating_add(1);
        seen.times >= 2 && seen.pause.is_none_or(|(until, _)| now >= until)
    }

    /// The peer was asked, and nothing changed.
    pub(super) fn asked_in_vain(&mut self, subject: &Subject, now: Instant) {
        if let Some(seen) = self.0.get_mut(subject) {
            let pause = seen.pause.map_or(FIRST_PAUSE, |(_, pause)| (pause * 2).min(LONGEST_PAUSE));
            seen.pause = Some((now + pause, pause));
        }
    }

    /// Partitions that differ for longer than a moment.
    pub(super) fn diverged(&self) -> Vec<PartitionKey> {
        let lasting = self.0.iter().filter(|(_, seen)| seen.times >= 2);
        let partitions: BTreeMap<PartitionKey, ()> = lasting.map(|((key, _), _)| (key.clone(), ())).collect();
        partitions.into_keys().collect()
    }
}

/// Compares a beacon of `sender` with what is here. `lost_since`: messages after that booking sequence were lost.
pub(super) fn compare(
    peers: &Peers,
    followed: &Arc<Followed>,
    sender: RouterId,
    theirs: &[PartitionState],
    lost_since: Option<u64>,
) {
    let now = Instant::now();
    for state in theirs {
        let key = PartitionKey::new(&*state.model_name, &*state.routing_group);
        let Some(ours) = peers.core.partition_digest(&key) else { continue };
        if ours.block_size != state.block_size {
            continue;
        }
        for theirs in &state.origins {
            let origin = theirs.router_id;
            // Each speaks for itself; of those that do not, whoever knows them.
            if origin == peers.outlet.router_id() || (origin != sender && peers.is_heard(origin)) {
                continue;
            }
            let known = ours.origins.iter().find(|known| known.origin == origin);
            let known = known.copied().unwrap_or(OriginDigest { origin, ..OriginDigest::default() });
            let difference = Difference {
                bookings: theirs.bookings.wrapping_sub(known.load.bookings),
                sum: theirs.sum().wrapping_sub(known.load.sum),
                sessions: theirs.sessions.wrapping_sub(known.sessions),
                membership: ours.membership,
            };
            let subject = (key.clone(), origin);
            let lasts = followed.state.lock().comparison.saw(subject.clone(), difference, now);
            let gap = lost_since.filter(|_| origin == sender);
            if lasts {
                followed.wanted.lock().want(subject, None);
                followed.wake.notify_one();
            } else if gap.is_some() && difference.sum != 0 {
                followed.wanted.lock().want(subject, gap);
                followed.wake.notify_one();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject() -> Subject {
        (PartitionKey::new("m", "g"), 7)
    }

    fn by(bookings: u64) -> Difference {
        Difference { bookings, sum: u128::from(bookings), sessions: 0, membership: 0 }
    }

    #[test]
    fn only_a_difference_that_stays_is_asked_for() {
        let (mut comparison, now) = (Comparison::default(), Instant::now());
        assert!(!comparison.saw(subject(), by(1), now));
        assert!(!comparison.saw(subject(), by(2), now), "it changed");
        assert!(comparison.saw(subject(), by(2), now));
        assert_eq!(comparison.diverged(), [subject().0]);
        assert!(!comparison.saw(subject(), by(0), now), "it is gone");
        assert_eq!(comparison.diverged(), []);
        assert!(!comparison.saw(subject(), by(2), now), "counted anew");
    }

    #[test]
    fn what_asking_does_not_mend_is_asked_ever_more_rarely() {
        let (mut comparison, mut now) = (Comparison::default(), Instant::now());
        comparison.saw(subject(), by(3), now);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            assert!(comparison.saw(subject(), by(3), now));
            comparison.asked_in_vain(&subject(), now);
            let (_, pause) = comparison.0[&subject()].pause.expect("a pause");
            assert!(!comparison.saw(subject(), by(3), now));
            pauses.push(pause.as_secs());
            now += pause + Duration::from_secs(1);
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 60, 60, 60]);
        assert!(!comparison.saw(subject(), Difference { membership: 1, ..by(3) }, now), "workers came: counted anew");
        assert!(comparison.saw(subject(), Difference { membership: 1, ..by(3) }, now));
    }
}
