//! What one side of the comparison has done so far.

use std::time::Duration;

use hdrhistogram::Histogram;
use parking_lot::Mutex;

/// Latencies are kept from 1 us to 10 minutes with two digits.
const LONGEST: Duration = Duration::from_secs(600);

/// Counts of one engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineTally {
    /// Requests under way.
    pub in_flight: u64,
    /// Requests finished.
    pub finished: u64,
    /// Their prompt tokens.
    pub prompt_tokens: u64,
    /// Those of them that were cached.
    pub cached_tokens: u64,
}

impl EngineTally {
    /// Share of the prompt tokens that were cached, from 0 to 1.
    pub fn cached_share(&self) -> f64 {
        if self.prompt_tokens == 0 { 0.0 } else { self.cached_tokens as f64 / self.prompt_tokens as f64 }
    }

    /// Prompt tokens that had to be computed.
    pub fn computed_tokens(&self) -> u64 {
        self.prompt_tokens.saturating_sub(self.cached_tokens)
    }
}

/// A finished request.
#[derive(Clone, Copy, Debug)]
pub struct Finished {
    /// The engine that served it.
    pub engine: usize,
    /// Its prompt tokens.
    pub prompt_tokens: u64,
    /// Those that the engine had cached.
    pub cached_tokens: u64,
    /// Those that the router expected to be cached, when it said so.
    pub expected_tokens: Option<u64>,
    /// From the decision to send it, the choice of the engine included.
    pub first_token: Duration,
    /// The choice alone.
    pub choice: Duration,
}

/// What is shown of one side.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// One a engine.
    pub engines: Vec<EngineTally>,
    /// Time to first token, in microseconds.
    pub first_token: Histogram<u64>,
    /// Time of the choice, in microseconds.
    pub choice: Histogram<u64>,
    /// Requests that failed.
    pub failed: u64,
    /// Why the first of them failed.
    pub failure: Option<String>,
    /// Requests whose cached tokens the router said.
    pub expected: u64,
    /// Those for which it was right to the token.
    pub expected_exactly: u64,
}

impl Snapshot {
    /// All engines together.
    pub fn total(&self) -> EngineTally {
        self.engines.iter().fold(EngineTally::default(), |sum, one| EngineTally {
            in_flight: sum.in_flight + one.in_flight,
            finished: sum.finished + one.finished,
            prompt_tokens: sum.prompt_tokens + one.prompt_tokens,
            cached_tokens: sum.cached_tokens + one.cached_tokens,
        })
    }

    /// Requests that ended, well or not.
    pub fn ended(&self) -> u64 {
        self.total().finished + self.failed
    }

    /// The time within which so many in a hundred first tokens came.
    pub fn first_token_at(&self, percent: f64) -> Duration {
        Duration::from_micros(self.first_token.value_at_percentile(percent))
    }
}

/// The counts of one side, shared by its requests.
#[derive(Debug)]
pub struct Tally {
    state: Mutex<Snapshot>,
}

impl Tally {
    /// Nothing yet.
    pub fn new(engines: usize) -> Self {
        let histogram = || {
            Histogram::new_with_bounds(1, LONGEST.as_micros() as u64, 2).expect("the bounds are constant and in order")
        };
        let state = Snapshot {
            engines: vec![EngineTally::default(); engines],
            first_token: histogram(),
            choice: histogram(),
            failed: 0,
            failure: None,
            expected: 0,
            expected_exactly: 0,
        };
        Self { state: Mutex::new(state) }
    }

    /// A request goes to `engine`.
    pub fn started(&self, engine: usize) {
        if let Some(tally) = self.state.lock().engines.get_mut(engine) {
            tally.in_flight += 1;
        }
    }

    /// A request that had started ended well.
    pub fn finished(&self, done: Finished) {
        let mut state = self.state.lock();
        if let Some(tally) = state.engines.get_mut(done.engine) {
            tally.in_flight = tally.in_flight.saturating_sub(1);
            tally.finished += 1;
            tally.prompt_tokens += done.prompt_tokens;
            tally.cached_tokens += done.cached_tokens;
        }
        state.first_token.saturating_record(done.first_token.as_micros() as u64);
        state.choice.saturating_record(done.choice.as_micros() as u64);
        if let Some(expected) = done.expected_tokens {
            state.expected += 1;
            state.expected_exactly += u64::from(expected == done.cached_tokens);
        }
    }

    /// A request failed, on `engine` if it got that far.
    pub fn failed(&self, engine: Option<usize>, why: String) {
        let mut state = self.state.lock();
        if let Some(tally) = engine.and_then(|engine| state.engines.get_mut(engine)) {
            tally.in_flight = tally.in_flight.saturating_sub(1);
        }
        state.failed += 1;
        state.failure.get_or_insert(why);
    }

    /// The counts now.
    pub fn snapshot(&self) -> Snapshot {
        self.state.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(engine: usize, cached_tokens: u64, expected_tokens: Option<u64>) -> Finished {
        let first_token = Duration::from_millis(10 * (engine as u64 + 1));
        Finished { engine, prompt_tokens: 100, cached_tokens, expected_tokens, first_token, choice: first_token / 10 }
    }

    #[test]
    fn requests_are_counted_where_they_ran() {
        let tally = Tally::new(2);
        tally.started(0);
        tally.started(1);
        tally.started(1);
        tally.finished(done(0, 80, Some(80)));
        tally.finished(done(1, 0, Some(16)));
        tally.failed(Some(1), "first".into());
        tally.failed(None, "second".into());
        let seen = tally.snapshot();
        assert_eq!(seen.engines[0], EngineTally { in_flight: 0, finished: 1, prompt_tokens: 100, cached_tokens: 80 });
        assert_eq!(seen.engines[1].in_flight, 0);
        assert_eq!((seen.total().cached_share(), seen.total().computed_tokens()), (0.4, 120));
        assert_eq!((seen.failed, seen.failure.as_deref(), seen.ended()), (2, Some("first"), 4));
        assert_eq!((seen.expected, seen.expected_exactly), (2, 1));
        let (fast, slow) = (seen.first_token_at(50.0), seen.first_token_at(99.0));
        assert!(fast.as_millis() == 10 && (20..21).contains(&slow.as_millis()), "{fast:?} {slow:?}");
    }

    #[test]
    fn nothing_yet_is_no_share() {
        assert_eq!(Tally::new(1).snapshot().total().cached_share(), 0.0);
    }
}
