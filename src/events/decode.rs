//! Decoding of event batches: everything vLLM, SGLang, TensorRT-LLM and the reference's bridge send, old and new (spec
//! index 3, clients 5c and 5d).
//!
//! Invariants: what is not understood is skipped and counted; an event that cannot be used costs itself alone; a batch
//! is given out whole or not at all; memory is bounded by a small multiple of the payload, whatever it claims.

mod cursor;
mod event;
mod extras;
mod fields;
#[cfg(test)]
mod tests;

use cursor::{Cursor, Fault, Kind, Miss};
pub use event::{Attention, Cleared, Event, Medium, MmHash, Origin, Removed, Span, Stored};

/// Most events taken from one batch, far above what one engine step makes; the rest is counted.
pub const MAX_EVENTS: usize = 1 << 16;

/// Most block hashes taken from one batch.
pub const MAX_HASHES: usize = 1 << 21;

/// Most tokens taken from one batch.
pub const MAX_TOKENS: usize = 1 << 24;

/// Elements that buffers keep between batches; larger ones are given back.
const KEEP_ELEMENTS: usize = 1 << 18;

/// Why a whole batch cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The payload ends inside a value.
    #[error("the payload is cut short")]
    Truncated,
    /// The payload is not msgpack.
    #[error("the payload is not msgpack")]
    NotMsgpack,
    /// Neither an array of two or more nor a map with `events`.
    #[error("the payload is not an event batch")]
    NotABatch,
    /// `events` is not an array.
    #[error("the batch's events are not an array")]
    NoEvents,
    /// The rank is neither nil nor a 32-bit integer.
    #[error("the batch's rank is not a 32-bit integer")]
    BadRank,
    /// Offsets are 32 bits wide.
    #[error("the payload exceeds 4 GiB")]
    TooLarge,
}

impl DecodeError {
    /// A stable word for metrics.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Truncated => "truncated",
            Self::NotMsgpack => "not_msgpack",
            Self::NotABatch => "not_a_batch",
            Self::NoEvents => "no_events",
            Self::BadRank => "bad_rank",
            Self::TooLarge => "too_large",
        }
    }
}

impl From<Fault> for DecodeError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Truncated => Self::Truncated,
            Fault::Reserved => Self::NotMsgpack,
        }
    }
}

/// Why one event of a batch was skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reject {
    /// Neither a tagged array nor a tagged map.
    NotAnEvent,
    /// A tag this version does not know.
    UnknownType,
    /// A required field is missing.
    MissingField,
    /// A field has another type than specified.
    BadField,
    /// Tokens are texts (TensorRT-LLM, multimodal): nothing to hash.
    TextTokens,
    /// Beyond [`MAX_EVENTS`], [`MAX_HASHES`] or [`MAX_TOKENS`].
    TooMany,
}

impl Reject {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 6] =
        [Self::NotAnEvent, Self::UnknownType, Self::MissingField, Self::BadField, Self::TextTokens, Self::TooMany];
}

/// A decoded batch. Reusable: decoding into it again keeps its buffers.
#[derive(Debug, Default)]
pub struct Batch {
    rank: Option<u32>,
    events: Vec<Event>,
    hashes: Vec<u64>,
    tokens: Vec<u32>,
    mm: Vec<MmHash>,
    rejected: [u32; Reject::ALL.len()],
}

impl Batch {
    /// Decodes `payload`. Bytes after the batch are ignored.
    ///
    /// # Errors
    /// The batch as a whole is unusable; it is then empty.
    pub fn decode(&mut self, payload: &[u8]) -> Result<(), DecodeError> {
        self.reset();
        let result = self.read(payload);
        if result.is_err() {
            self.reset();
        }
        result
    }

    /// The rank the batch names; `None` = the rank its listener was registered for. Negative numbers were taken as
    /// unsigned, as the reference does.
    pub fn rank(&self) -> Option<u32> {
        self.rank
    }

    /// The usable events, in order.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Block hashes of an event.
    pub fn hashes(&self, span: Span) -> &[u64] {
        &self.hashes[span.range()]
    }

    /// Tokens of an event, pairs already unfolded.
    pub fn tokens(&self, span: Span) -> &[u32] {
        &self.tokens[span.range()]
    }

    /// Multimodal hashes of an event, ascending by block.
    pub fn mm(&self, span: Span) -> &[MmHash] {
        &self.mm[span.range()]
    }

    /// Events skipped for `reject`.
    pub fn rejected(&self, reject: Reject) -> u32 {
        self.rejected[reject as usize]
    }

    fn reset(&mut self) {
        self.rank = None;
        self.events.clear();
        self.hashes.clear();
        self.tokens.clear();
        self.mm.clear();
        self.rejected = [0; Reject::ALL.len()];
        self.events.shrink_to(KEEP_ELEMENTS / 16);
        self.hashes.shrink_to(KEEP_ELEMENTS);
        self.tokens.shrink_to(KEEP_ELEMENTS);
        self.mm.shrink_to(KEEP_ELEMENTS / 16);
    }

    fn read(&mut self, payload: &[u8]) -> Result<(), DecodeError> {
        if u32::try_from(payload.len()).is_err() {
            return Err(DecodeError::TooLarge);
        }
        let mut cursor = Cursor::new(payload);
        match cursor.kind()? {
            Kind::Array => {
                let len = structural(cursor.array())?;
                if len < 2 {
                    return Err(DecodeError::NotABatch);
                }
                cursor.skip(1)?;
                self.read_events(&mut cursor)?;
                if len > 2 {
                    self.rank = read_rank(&mut cursor)?;
                    cursor.skip(len - 3)?;
                }
                Ok(())
            }
            Kind::Map => self.read_map(&mut cursor),
            _ => Err(DecodeError::NotABatch),
        }
    }

    fn read_map(&mut self, cursor: &mut Cursor<'_>) -> Result<(), DecodeError> {
        let mut found = false;
        for _ in 0..structural(cursor.map())? {
            let key = match cursor.text() {
                Ok(key) => cursor.bytes(key),
                Err(Miss::Type) => {
                    cursor.skip(2)?;
                    continue;
                }
                Err(Miss::Fault(fault)) => return Err(fault.into()),
            };
            match key {
                b"events" if !found => {
                    self.read_events(cursor)?;
                    found = true;
                }
                b"data_parallel_rank" | b"attn_dp_rank" => self.rank = read_rank(cursor)?.or(self.rank),
                _ => cursor.skip(1)?,
            }
        }
        if found { Ok(()) } else { Err(DecodeError::NotABatch) }
    }

    fn read_events(&mut self, cursor: &mut Cursor<'_>) -> Result<(), DecodeError> {
        let len = match cursor.array() {
            Ok(len) => len,
            Err(Miss::Type) => return Err(DecodeError::NoEvents),
            Err(Miss::Fault(fault)) => return Err(fault.into()),
        };
        for _ in 0..len {
            if self.events.len() == MAX_EVENTS {
                cursor.skip(1)?;
                self.reject(Reject::TooMany);
                continue;
            }
            let marks = (self.hashes.len(), self.tokens.len(), self.mm.len());
            match self.read_event(cursor)? {
                Ok(event) => self.events.push(event),
                Err(reject) => {
                    self.hashes.truncate(marks.0);
                    self.tokens.truncate(marks.1);
                    self.mm.truncate(marks.2);
                    self.reject(reject);
                }
            }
        }
        Ok(())
    }

    fn reject(&mut self, reject: Reject) {
        self.rejected[reject as usize] += 1;
    }
}

/// The result of a read whose kind was looked at before: only broken msgpack can fail it.
fn structural<T>(read: Result<T, Miss>) -> Result<T, DecodeError> {
    read.map_err(|miss| match miss {
        Miss::Fault(fault) => fault.into(),
        Miss::Type => DecodeError::NotABatch,
    })
}

/// Nil, or an i32 whose bits are the rank.
fn read_rank(cursor: &mut Cursor<'_>) -> Result<Option<u32>, DecodeError> {
    if cursor.nil()? {
        return Ok(None);
    }
    let (bits, _) = match cursor.int() {
        Ok(value) => value,
        Err(Miss::Type) => return Err(DecodeError::BadRank),
        Err(Miss::Fault(fault)) => return Err(fault.into()),
    };
    i32::try_from(bits as i64).map(|rank| Some(rank as u32)).map_err(|_| DecodeError::BadRank)
}
