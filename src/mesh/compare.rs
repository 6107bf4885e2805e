//! Digests of a peer against our own: whether it has what we have.
//!
//! A booking counts at its maker a moment before it counts here, so one difference means nothing. A difference that two
//! beacons in a row show unchanged is one, and the peer is asked. What asking did not mend is asked again ever more
//! rarely, until one of both sides changes.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::{
    followed::Followed,
    peers::Peers,
    wire::beacon::{MAX_PARTITIONS, OriginState, PartitionState},
};
use crate::selection::{PartitionKey, core::OriginDigest, replication::RouterId};

/// Pause after an answer that changed nothing; doubles.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// A difference a peer tells nothing of any more is forgotten after this time.
const FORGET: Duration = Duration::from_secs(60);
/// Shortest time between two questions about one loss.
const GAP_PAUSE: Duration = Duration::from_millis(250);
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
    /// Beacons that showed just this difference.
    times: u32,
    /// Something was lost since the two were equal: a difference that changes is one too.
    lossy: bool,
    /// Last seen.
    at: Instant,
    /// Asked for what came since a loss.
    asked: Option<Instant>,
    /// Asked without effect: not again before this.
    pause: Option<(Instant, Duration)>,
}

/// What a peer is to be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    Nothing,
    /// Bookings after the loss.
    Since,
    /// All of them.
    All,
}

/// Differences of one peer.
#[derive(Debug, Default)]
pub(super) struct Comparison(HashMap<Subject, Seen>);

impl Comparison {
    /// What a beacon showed, and whether messages were lost before it; what the peer is to be asked for.
    fn saw(&mut self, subject: Subject, difference: Difference, lost: bool, now: Instant) -> Ask {
        if difference.bookings == 0 && difference.sum == 0 && difference.sessions == 0 {
            self.0.remove(&subject);
            return Ask::Nothing;
        }
        if self.0.len() >= MAX_DIFFERENCES && !self.0.contains_key(&subject) {
            return Ask::Nothing;
        }
        let new = Seen { difference, times: 0, lossy: false, at: now, asked: None, pause: None };
        let seen = self.0.entry(subject).or_insert_with(|| new.clone());
        if seen.difference != difference {
            // Under traffic a difference changes with every beacon; asking in vain pauses it all the same.
            let pause = seen.pause.filter(|_| seen.lossy && seen.difference.membership == difference.membership);
            *seen = Seen { lossy: seen.lossy, asked: seen.asked, pause, times: u32::from(seen.lossy), ..new };
        }
        seen.at = now;
        seen.lossy |= lost;
        seen.times = seen.times.saturating_add(1);
        if seen.times >= 2 && seen.pause.is_none_or(|(until, _)| now >= until) {
            Ask::All
        } else if lost && seen.asked.is_none_or(|asked| now.duration_since(asked) >= GAP_PAUSE) {
            seen.asked = Some(now);
            Ask::Since
        } else {
            Ask::Nothing
        }
    }

    /// Forgets what the peer tells nothing of any more.
    fn forget_old(&mut self, now: Instant) {
        self.0.retain(|_, seen| now.duration_since(seen.at) < FORGET);
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
    let gone = partitions_without(peers, sender, theirs);
    for state in theirs.iter().chain(&gone) {
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
            let gap = lost_since.filter(|_| origin == sender && difference.sum != 0);
            let since = match followed.state.lock().comparison.saw(subject.clone(), difference, gap.is_some(), now) {
                Ask::Nothing => continue,
                Ask::Since => gap,
                Ask::All => None,
            };
            followed.wanted.lock().want(subject, since);
            followed.wake.notify_one();
        }
    }
    followed.state.lock().comparison.forget_old(now);
}

/// Partitions in which bookings of `sender` are known here and that it does not have: nothing of it lives there, whoever
/// said so. A beacon that is full may leave partitions out.
fn partitions_without(peers: &Peers, sender: RouterId, theirs: &[PartitionState]) -> Vec<PartitionState> {
    if theirs.len() >= MAX_PARTITIONS {
        return Vec::new();
    }
    let told: HashSet<(&str, &str)> = theirs.iter().map(|state| (&*state.model_name, &*state.routing_group)).collect();
    let ours = peers.core.partition_digests().into_iter();
    let untold = ours.filter(|digests| {
        !told.contains(&(&*digests.partition.model_name, &*digests.partition.routing_group))
            && digests.origins.iter().any(|known| known.origin == sender && known.load.bookings > 0)
    });
    let nothing = untold.map(|digests| PartitionState {
        model_name: digests.partition.model_name.to_string(),
        routing_group: digests.partition.routing_group.to_string(),
        block_size: digests.block_size,
        origins: vec![OriginState { router_id: sender, ..OriginState::default() }],
    });
    nothing.collect()
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
        assert_eq!(comparison.saw(subject(), by(1), false, now), Ask::Nothing);
        assert_eq!(comparison.saw(subject(), by(2), false, now), Ask::Nothing, "it changed");
        assert_eq!(comparison.saw(subject(), by(2), false, now), Ask::All);
        assert_eq!(comparison.diverged(), [subject().0]);
        assert_eq!(comparison.saw(subject(), by(0), false, now), Ask::Nothing, "it is gone");
        assert_eq!(comparison.diverged(), []);
        assert_eq!(comparison.saw(subject(), by(2), false, now), Ask::Nothing, "counted anew");
    }

    #[test]
    fn what_asking_does_not_mend_is_asked_ever_more_rarely() {
        let (mut comparison, mut now) = (Comparison::default(), Instant::now());
        comparison.saw(subject(), by(3), false, now);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            assert_eq!(comparison.saw(subject(), by(3), false, now), Ask::All);
            comparison.asked_in_vain(&subject(), now);
            let (_, pause) = comparison.0[&subject()].pause.expect("a pause");
            assert_eq!(comparison.saw(subject(), by(3), false, now), Ask::Nothing);
            pauses.push(pause.as_secs());
            now += pause + Duration::from_secs(1);
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(
            comparison.saw(subject(), Difference { membership: 1, ..by(3) }, false, now),
            Ask::Nothing,
            "workers came: counted anew"
        );
        assert_eq!(comparison.saw(subject(), Difference { membership: 1, ..by(3) }, false, now), Ask::All);
    }

    #[test]
    fn after_a_loss_a_difference_that_changes_is_asked_for_too() {
        let (mut comparison, now) = (Comparison::default(), Instant::now());
        assert_eq!(comparison.saw(subject(), by(1), true, now), Ask::Since);
        assert_eq!(comparison.saw(subject(), by(2), false, now), Ask::All);
        comparison.asked_in_vain(&subject(), now);
        assert_eq!(comparison.saw(subject(), by(3), false, now), Ask::Nothing, "a pause lasts while it changes");
        let later = now + FIRST_PAUSE;
        assert_eq!(comparison.saw(subject(), by(4), false, later), Ask::All);
        assert_eq!(comparison.saw(subject(), by(0), false, later), Ask::Nothing);
        assert_eq!(comparison.saw(subject(), by(1), false, later), Ask::Nothing, "equal in between: no loss any more");
        assert_eq!(comparison.saw(subject(), by(2), false, later), Ask::Nothing);
    }

    #[test]
    fn losses_without_end_are_asked_for_four_times_a_second() {
        let (mut comparison, mut now) = (Comparison::default(), Instant::now());
        let mut asked = 0;
        for step in 0..1_000 {
            now += Duration::from_millis(1);
            // Ever asked in vain, as of a peer that tells anything.
            comparison.asked_in_vain(&subject(), now);
            asked += u32::from(comparison.saw(subject(), by(step + 1), true, now) != Ask::Nothing);
        }
        assert!(asked <= 5, "{asked}");
    }

    #[test]
    fn what_is_not_told_of_any_more_is_forgotten() {
        let (mut comparison, now) = (Comparison::default(), Instant::now());
        comparison.saw(subject(), by(1), false, now);
        comparison.saw(subject(), by(1), false, now);
        comparison.forget_old(now + FORGET / 2);
        assert_eq!(comparison.diverged(), [subject().0]);
        comparison.forget_old(now + FORGET);
        assert_eq!(comparison.diverged(), []);
    }
}
