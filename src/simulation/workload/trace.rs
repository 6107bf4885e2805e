//! Traces in the Mooncake format: a JSON object a line with `timestamp` (milliseconds, never falling), `input_length`
//! and `output_length` (tokens), and `hash_ids` (one id for each block of 512 tokens of the prompt, equal where the whole
//! prompt up to there is). Other fields are passed over, and so are blank lines.
//!
//! The id of a last block that is not full stands for something no cache can hold and is dropped. A trace is read
//! twice: once whole when it is opened, which finds every fault and what the load is made from, and once for each list
//! of sessions. Neither holds more than a line, the requests of a jitter, and the set of block ids.
//!
//! The load is made by time: arrivals are stretched or compressed until the tokens that no cache could save need the
//! asked share of the fleet.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    path::{Path, PathBuf},
    sync::Arc,
};

use fastrand::Rng;
use serde::Deserialize;

use super::{
    BLOCK_SIZE, Demand, LEVELS, LineError, PREFILL_RATE, SPAN, SPAN_DAYS, Session, Sessions, Turn, WorkloadError,
    blocks::BlockSet, lines::Lines, random,
};
use crate::simulation::{MILLISECOND, Nanos, SECOND};

/// Different gaps between timestamps up to which they may still be rounded ones.
const GAPS: usize = 4096;

/// Depth beyond which a shared prefix means the same session.
const COMMON_BLOCKS: usize = 2;

/// A trace that was read once and has no faults.
#[derive(Debug)]
pub struct Trace {
    name: String,
    path: PathBuf,
    levels: [f64; LEVELS as usize],
    summary: TraceSummary,
}

/// What a trace is made of.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TraceSummary {
    /// Requests.
    pub requests: u64,
    /// Prompt tokens that an unbounded cache does not save; the last token of a prompt is always computed.
    pub uncached_tokens: u64,
    /// From the first timestamp to the last.
    pub span: Nanos,
    /// Step of the timestamps if they are rounded: most requests share theirs, and those that differ do so by
    /// multiples of this.
    pub quantum: Option<Nanos>,
}

impl Trace {
    /// Shares of the prefill rate at the levels of the conversation trace.
    pub const CONVERSATION_LEVELS: [f64; LEVELS as usize] = [0.28, 0.39, 0.47, 0.52];
    /// Shares of the prefill rate at the levels of the synthetic trace, whose tail is heavier.
    pub const SYNTHETIC_LEVELS: [f64; LEVELS as usize] = [0.19, 0.25, 0.30, 0.34];

    /// Reads a trace through. `name` is that of tables, `levels` the load of each level as a share of the prefill rate.
    ///
    /// # Errors
    /// It is no file that can be read again, or a line of it is no request.
    pub fn open(
        name: impl Into<String>,
        path: impl Into<PathBuf>,
        levels: [f64; LEVELS as usize],
    ) -> Result<Self, WorkloadError> {
        let path = path.into();
        if std::fs::metadata(&path).is_ok_and(|found| !found.is_file()) {
            return Err(WorkloadError::NoFile { path });
        }
        let mut seen = BlockSet::default();
        let mut rounding = Rounding::default();
        let (mut requests, mut uncached_tokens, mut span) = (0, 0, 0);
        for row in Rows::open(&path)? {
            let row = row?;
            let cached = (seen.extend(&row.blocks) * BLOCK_SIZE).min(row.prompt_tokens - 1);
            requests += 1;
            uncached_tokens += u64::from(row.prompt_tokens - cached);
            rounding.add(row.time - span);
            span = row.time;
        }
        if requests == 0 {
            return Err(WorkloadError::Empty { path });
        }
        let summary = TraceSummary { requests, uncached_tokens, span, quantum: rounding.quantum(requests) };
        Ok(Self { name: name.into(), path, levels, summary })
    }

    /// Name in tables.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it is made of.
    pub fn summary(&self) -> &TraceSummary {
        &self.summary
    }

    /// The jitter that a demand means: its own, or the step of the timestamps.
    pub fn jitter(&self, demand: &Demand) -> Nanos {
        demand.jitter.or(self.summary.quantum).unwrap_or(0)
    }

    /// Its requests at a load, as sessions of one turn.
    ///
    /// Requests that share more than two blocks have the same session id, others one of their own.
    pub fn sessions(&self, demand: &Demand) -> Result<Sessions, WorkloadError> {
        let TraceSummary { requests, uncached_tokens, span, quantum } = self.summary;
        let capacity = f64::from(demand.workers) * PREFILL_RATE;
        let tokens_per_request = uncached_tokens as f64 / requests as f64;
        let share = demand.share(self.levels, capacity / tokens_per_request)?;
        let seconds = uncached_tokens as f64 / (share * capacity);
        // A rounded timestamp stands for all of its step.
        let scale = seconds * SECOND as f64 / (span + quantum.unwrap_or(0)).max(1) as f64;
        let jitter = self.jitter(demand);
        if scale * (span as f64 + jitter as f64) > SPAN as f64 {
            return Err(WorkloadError::Span { days: SPAN_DAYS });
        }
        let rows = Rows::open(&self.path)?;
        let rng = random::stream(demand.seed, 0);
        let late = BinaryHeap::new();
        Ok(Box::new(Jittered { rows, expected: requests, next: None, ended: false, late, rng, jitter, scale }))
    }
}

/// Tells from the gaps between timestamps whether they are rounded.
#[derive(Default)]
struct Rounding {
    /// How often each gap is there, but for 0.
    gaps: BTreeMap<Nanos, u64>,
    many: bool,
}

impl Rounding {
    fn add(&mut self, gap: Nanos) {
        if gap == 0 || self.many {
            return;
        }
        *self.gaps.entry(gap).or_default() += 1;
        self.many = self.gaps.len() > GAPS;
    }

    fn quantum(&self, requests: u64) -> Option<Nanos> {
        let differ: u64 = self.gaps.values().sum();
        if self.many || differ == 0 || requests < 2 * (differ + 1) {
            return None;
        }
        let (&step, _) = self.gaps.iter().max_by_key(|&(gap, count)| (*count, Reverse(*gap)))?;
        // The clock that was rounded runs a little off, and so do the milliseconds of the file.
        let slack = step / 100 + 2 * MILLISECOND;
        let fits = |gap: Nanos| {
            let steps = (gap + step / 2) / step;
            steps > 0 && gap.abs_diff(steps * step) <= slack
        };
        let fit: u64 = self.gaps.iter().filter(|&(&gap, _)| fits(gap)).map(|(_, count)| count).sum();
        (fit * 20 >= differ * 19).then_some(step)
    }
}

/// A request of a trace.
struct Row {
    /// Since the first of the trace.
    time: Nanos,
    /// Counted from 0.
    place: u64,
    prompt_tokens: u32,
    output_tokens: u32,
    blocks: Arc<[u64]>,
}

/// A line, as it stands.
#[derive(Deserialize)]
struct Record {
    timestamp: f64,
    input_length: u32,
    output_length: u32,
    hash_ids: Vec<u64>,
}

/// The requests of a file, one line at a time.
struct Rows {
    lines: Lines,
    place: u64,
    first: Option<f64>,
    last: Nanos,
}

impl Rows {
    fn open(path: &Path) -> Result<Self, WorkloadError> {
        Ok(Self { lines: Lines::open(path)?, place: 0, first: None, last: 0 })
    }

    fn parse(&mut self) -> Result<Row, LineError> {
        let Record { timestamp, input_length, output_length, mut hash_ids } = self.lines.parse()?;
        let first = *self.first.get_or_insert(timestamp);
        // Rounded before it is compared, so that equal timestamps are equal.
        let time = ((timestamp - first) * MILLISECOND as f64).round();
        // Not written the other way round: a time that is no number is refused as well.
        let sound = timestamp >= 0.0 && time >= self.last as f64 && time <= SPAN as f64;
        if !sound {
            return Err(LineError::Timestamp { timestamp });
        }
        for (field, tokens) in [("input_length", input_length), ("output_length", output_length)] {
            if tokens == 0 {
                return Err(LineError::NoTokens { field });
            }
        }
        let blocks = input_length.div_ceil(BLOCK_SIZE);
        if hash_ids.len() != blocks as usize {
            let ids = hash_ids.len();
            return Err(LineError::Blocks { ids, input_length, blocks, block_size: BLOCK_SIZE });
        }
        hash_ids.truncate((input_length / BLOCK_SIZE) as usize);
        self.last = time as Nanos;
        self.place += 1;
        Ok(Row {
            time: self.last,
            place: self.place - 1,
            prompt_tokens: input_length,
            output_tokens: output_length,
            blocks: hash_ids.into(),
        })
    }
}

impl Rows {
    /// Whether as many requests were read as there were before.
    fn check_end(&self, expected: u64) -> Result<(), WorkloadError> {
        if self.place == expected {
            return Ok(());
        }
        let path = self.lines.path().to_owned();
        Err(WorkloadError::Changed { path, before: expected, now: self.place })
    }
}

impl Iterator for Rows {
    type Item = Result<Row, WorkloadError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.lines.advance() {
            Ok(false) => None,
            Ok(true) => Some(self.parse().map_err(|error| self.lines.fault(error))),
            Err(error) => Some(Err(error)),
        }
    }
}

/// The requests of a trace, each put off at random, in their new order and time.
struct Jittered {
    rows: Rows,
    /// Requests there were when the trace was opened.
    expected: u64,
    /// The first request that may not have been put off yet.
    next: Option<Row>,
    ended: bool,
    /// Requests that were put off, the earliest first.
    late: BinaryHeap<Reverse<Late>>,
    rng: Rng,
    jitter: Nanos,
    scale: f64,
}

struct Late {
    time: Nanos,
    row: Row,
}

impl Late {
    fn key(&self) -> (Nanos, u64) {
        (self.time, self.row.place)
    }
}

impl PartialEq for Late {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Late {}

impl PartialOrd for Late {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Late {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl Jittered {
    /// Puts off all requests that can come before the earliest of `late`.
    fn gather(&mut self) -> Result<(), WorkloadError> {
        loop {
            let row = match self.next.take() {
                Some(row) => row,
                None if self.ended => return Ok(()),
                None => match self.rows.next() {
                    Some(row) => row?,
                    None => {
                        self.ended = true;
                        return self.rows.check_end(self.expected);
                    }
                },
            };
            if self.late.peek().is_some_and(|Reverse(earliest)| earliest.time < row.time) {
                self.next = Some(row);
                return Ok(());
            }
            let time = row.time + if self.jitter == 0 { 0 } else { self.rng.u64(..self.jitter) };
            self.late.push(Reverse(Late { time, row }));
        }
    }
}

impl Iterator for Jittered {
    type Item = Result<Session, WorkloadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Err(error) = self.gather() {
            self.ended = true;
            self.late.clear();
            return Some(Err(error));
        }
        let Reverse(Late { time, row }) = self.late.pop()?;
        // Ids of blocks and places must not meet: a place has the highest bit.
        let id = row.blocks.get(COMMON_BLOCKS).map_or(row.place | 1 << 63, |&block| block & !(1 << 63));
        let turn =
            Turn { think: 0, prompt_tokens: row.prompt_tokens, output_tokens: row.output_tokens, blocks: row.blocks };
        Some(Ok(Session { id, start: (time as f64 * self.scale) as Nanos, turns: vec![turn] }))
    }
}
