//! Where a stream stands, and what a number means against it (spec index 4.2, design 9.5). Pure: no socket, no clock.
//!
//! Invariants: a number is applied at most once; numbers that came by replay never make a live one look like a restart
//! on the same connection, nor hide one that the replay did not show; a publisher that restarted is recognised by what
//! it sends first.

use std::collections::VecDeque;

use super::replay::Found;

/// Replayed batches remembered until the live stream has shown them too. It trails a replay by the batches published
/// in a round trip or two; one that trails by more is filled anew from where it is.
const MAX_UNCONFIRMED: usize = 256;

/// Position of one stream. Numbers count batches, from 0 in each publisher process.
#[derive(Debug, Default)]
pub struct Position {
    at: Option<u64>,
    /// Fingerprint of the payload at `at`: tells whether a publisher that has a batch of that number is the same one.
    mark: u64,
    /// The batch at `at` could not be decoded; a repeat of it may still be.
    undecoded: bool,
    last_live: Option<u64>,
    /// The position when the former connection ended: a publisher that goes on is above it.
    floor: Option<u64>,
    /// The position is a peer's: numbers up to it may still be on their way here.
    resumed: bool,
    /// What came by replay and not live so far.
    unconfirmed: Option<Unconfirmed>,
}

/// Batches that a replay socket alone vouches for.
#[derive(Debug)]
struct Unconfirmed {
    /// All numbers from here up to the position.
    first: u64,
    /// Number and fingerprint of the newest of them, oldest first.
    marks: VecDeque<(u64, u64)>,
}

impl Unconfirmed {
    /// Whether the live batch `seq` is what the replay told.
    fn agrees(&self, seq: u64, mark: u64) -> bool {
        self.marks.binary_search(&(seq, mark)).is_ok()
    }
}

/// What to do with a live batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the next one.
    Apply,
    /// It was applied already.
    Duplicate,
    /// The publisher counts from 0 again: forget everything, then judge again.
    Restart,
    /// The replay socket told another batch of that number, or passed over it: what it told is of another stream.
    Contradiction,
    /// Batches from here up to it are missing.
    Gap {
        /// The first missing number.
        from: u64,
    },
}

impl Position {
    /// Number of the newest batch taken; `None` before the first.
    pub fn at(&self) -> Option<u64> {
        self.at
    }

    /// Number of the newest live batch.
    pub fn last_live(&self) -> Option<u64> {
        self.last_live
    }

    /// What a replay is asked for to find out whether a publisher that came back is the same one.
    pub fn anchor(&self) -> Option<(u64, u64)> {
        self.at.map(|at| (at, self.mark))
    }

    /// The number after the position.
    pub fn next(&self) -> u64 {
        self.at.map_or(0, |at| at.saturating_add(1))
    }

    /// Judges a live batch; changes nothing.
    pub fn judge(&self, seq: u64, mark: u64) -> Verdict {
        let below_live = self.last_live.is_some_and(|last| seq < last);
        let below_floor = self
            .floor
            .is_some_and(|floor| seq < floor || (seq == floor && self.at == Some(floor) && mark != self.mark));
        let another = self.resumed && self.at == Some(seq) && mark != self.mark;
        if below_live || below_floor || another {
            return Verdict::Restart;
        }
        match self.at {
            Some(at) if seq == at && self.undecoded => Verdict::Apply,
            Some(at) if seq <= at && self.contradicts(seq, mark) => Verdict::Contradiction,
            Some(at) if seq <= at => Verdict::Duplicate,
            _ if seq == self.next() => Verdict::Apply,
            _ => Verdict::Gap { from: self.next() },
        }
    }

    fn contradicts(&self, seq: u64, mark: u64) -> bool {
        self.unconfirmed.as_ref().is_some_and(|replayed| seq >= replayed.first && !replayed.agrees(seq, mark))
    }

    /// A live batch was judged and dealt with.
    pub fn saw_live(&mut self, seq: u64) {
        self.last_live = Some(seq);
        match &mut self.unconfirmed {
            Some(replayed) if self.at.is_some_and(|at| seq < at) => {
                replayed.first = replayed.first.max(seq + 1);
                let known = replayed.marks.partition_point(|&(at, _)| at <= seq);
                replayed.marks.drain(..known);
            }
            _ => self.unconfirmed = None,
        }
    }

    /// Goes on from a peer's position: that batch, whose payload has fingerprint `mark`, and all before it are in the
    /// index. Lower numbers are passed over, as long as they rise, until [`Self::settle`].
    pub fn resume(&mut self, at: u64, mark: u64) {
        *self = Self { at: Some(at), mark, resumed: true, ..Self::default() };
    }

    /// Whatever was on its way when a peer's position was taken over has come: a lower number is a restart from now on.
    pub fn settle(&mut self) {
        if std::mem::take(&mut self.resumed) {
            self.floor = self.at;
        }
    }

    /// The batch `seq` is about to be applied: the live one seen last, or one that came by replay.
    pub fn advance(&mut self, seq: u64, mark: u64) {
        if self.last_live != Some(seq) {
            let first = self.next();
            let replayed = self.unconfirmed.get_or_insert_with(|| Unconfirmed { first, marks: VecDeque::new() });
            if replayed.marks.len() == MAX_UNCONFIRMED {
                replayed.marks.pop_front();
            }
            replayed.marks.push_back((seq, mark));
        }
        self.resumed = false;
        self.at = Some(seq);
        self.mark = mark;
        self.undecoded = false;
    }

    /// The batch at the position could not be decoded.
    pub fn set_undecoded(&mut self) {
        self.undecoded = true;
    }

    /// The connection ended.
    pub fn disconnected(&mut self) {
        self.floor = self.at.filter(|_| !self.resumed);
        self.last_live = None;
    }

    /// The publisher restarted.
    pub fn restart(&mut self) {
        *self = Self::default();
    }
}

/// One replay's way through the missing numbers.
#[derive(Debug)]
pub struct Refill {
    /// First number asked for.
    from: u64,
    /// Fingerprint that the batch `from` must have; it was applied already.
    anchor: Option<u64>,
    /// First number that the live stream has itself.
    until: Option<u64>,
    /// Nothing but the anchor is wanted.
    only_proof: bool,
}

/// What to do with a replayed batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is the next one.
    Apply,
    /// It was applied already, or was not asked for.
    Skip,
    /// It is the known batch: same publisher.
    Verified,
    /// The publisher has another batch of that number: it restarted.
    Restarted,
    /// Batches before it are lost for good; it is the first of what is left.
    Hole,
}

impl Refill {
    /// Asks for everything after the position.
    pub fn missing(position: &Position) -> Self {
        Self { from: position.next(), anchor: None, until: None, only_proof: false }
    }

    /// Asks from the newest known batch on, that one included, after a reconnect: a publisher that restarted has
    /// another one of that number or none.
    pub fn verify(position: &Position) -> Self {
        match position.anchor() {
            Some((at, mark)) => Self { from: at, anchor: Some(mark), until: None, only_proof: false },
            None => Self::missing(position),
        }
    }

    /// Asks for the live batch `seq`, whose payload has fingerprint `mark`, to find out whether the replay socket is of
    /// the stream that brought it.
    pub fn proof(seq: u64, mark: u64) -> Self {
        Self { from: seq, anchor: Some(mark), until: None, only_proof: true }
    }

    /// The number to ask for.
    pub fn from(&self) -> u64 {
        self.from
    }

    /// Whether the first answer must still prove that the publisher is the same.
    pub fn unproven(&self) -> bool {
        self.anchor.is_some()
    }

    /// The live stream goes on at `seq`.
    pub fn live_at(&mut self, seq: u64) {
        self.until.get_or_insert(seq);
    }

    /// First number that the live stream has itself.
    pub fn until(&self) -> Option<u64> {
        self.until
    }

    /// Whether nothing is missing any more.
    pub fn done(&self, position: &Position) -> bool {
        self.anchor.is_none() && (self.only_proof || self.until.is_some_and(|until| position.next() >= until))
    }

    /// Judges a replayed batch.
    pub fn judge(&mut self, found: &Found, position: &Position) -> Step {
        let seq = found.seq;
        if seq < self.from {
            return Step::Skip;
        }
        if let Some(mark) = self.anchor {
            self.anchor = None;
            if seq == self.from {
                return if found.mark == mark { Step::Verified } else { Step::Restarted };
            }
            // The known batch is gone from the ring, so nothing proves that this publisher is the one it came from.
            return if self.only_proof { Step::Restarted } else { Step::Hole };
        }
        if self.until.is_some_and(|until| seq >= until) || seq < position.next() {
            return Step::Skip;
        }
        if seq == position.next() { Step::Apply } else { Step::Hole }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A position that a replay brought to where `numbers` end; each batch has its number as fingerprint.
    fn replayed(numbers: impl IntoIterator<Item = u64>) -> Position {
        let mut position = Position::default();
        for number in numbers {
            position.advance(number, number);
        }
        position
    }

    #[test]
    fn live_batches_up_to_the_position_are_held_against_what_replay_told() {
        let mut position = replayed([0, 1, 5]);
        assert_eq!(position.judge(1, 1), Verdict::Duplicate);
        assert_eq!(position.judge(1, 7), Verdict::Contradiction, "another batch of that number");
        assert_eq!(position.judge(3, 3), Verdict::Contradiction, "passed over by the replay");
        assert_eq!(position.judge(6, 6), Verdict::Apply);
        position.saw_live(1);
        assert_eq!(position.judge(1, 7), Verdict::Duplicate, "repeated on the same connection");
        assert_eq!(position.judge(2, 2), Verdict::Contradiction);
        assert_eq!(position.judge(5, 5), Verdict::Duplicate);
        position.saw_live(5);
        assert!(position.unconfirmed.is_none());
    }

    #[test]
    fn the_memory_of_a_replay_is_bounded_and_forgets_the_oldest() {
        let position = replayed(0..10_000);
        let marks = &position.unconfirmed.as_ref().unwrap().marks;
        assert_eq!((marks.len(), marks.front()), (MAX_UNCONFIRMED, Some(&(9744, 9744))));
        assert_eq!(position.judge(9_999, 9_999), Verdict::Duplicate);
        assert_eq!(position.judge(9_000, 9_000), Verdict::Contradiction, "nothing vouches for it any more");
    }

    #[test]
    fn what_came_live_or_from_a_peer_is_no_matter_of_replay() {
        let mut position = Position::default();
        position.resume(9, 9);
        position.advance(10, 10);
        assert_eq!(position.judge(7, 1), Verdict::Duplicate);
        assert_eq!(position.judge(10, 1), Verdict::Contradiction);
        let mut position = Position::default();
        position.saw_live(3);
        position.advance(3, 3);
        assert_eq!(position.judge(3, 4), Verdict::Duplicate);
    }
}
