//! Reading a dump.

use super::{
    event::{ReadData, ReadEvent},
    scanner::ValueScanner,
};
use crate::selection::{
    identity::PartitionKey,
    index::{PrefixIndex, StoreOutcome, StoredBlock},
};

/// Largest event accepted, in bytes of JSON.
const MAX_EVENT_BYTES: usize = 64 << 20;
/// Most partitions accepted, and most reported as skipped.
const MAX_PARTITIONS: usize = 65_536;

/// Why a dump cannot be read. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DumpError {
    /// Not the JSON of a dump, or it ends too early.
    #[error("dump is malformed at byte {offset}: {detail}")]
    Malformed {
        /// Bytes read before.
        offset: u64,
        /// What is wrong.
        detail: &'static str,
    },
    /// One event is larger than the limit.
    #[error("an event of the dump exceeds {0} bytes")]
    EventTooLarge(usize),
}

impl DumpError {
    /// A stable word for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Malformed { .. } => "malformed",
            Self::EventTooLarge(_) => "event_too_large",
        }
    }
}

/// What became of a dump.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ImportReport {
    /// Partitions that were filled or created.
    pub partitions: u64,
    /// Events applied.
    pub events: u64,
    /// Blocks they stored.
    pub blocks: u64,
    /// Events skipped: unknown tier, other residency domain, malformed, no parent, no room.
    pub skipped_events: u64,
    /// Partitions skipped, each with its key and the reason.
    pub skipped_partitions: Vec<(String, String)>,
}

/// A partition that was read, not yet in place.
#[derive(Debug)]
pub(in crate::selection) struct StagedPartition {
    /// Its key in the document.
    pub(in crate::selection) name: String,
    pub(in crate::selection) key: PartitionKey,
    pub(in crate::selection) block_size: u32,
    pub(in crate::selection) index: PrefixIndex,
}

/// A dump being read. Push its bytes, then [`Self::finish`]; dropped before that, it leaves nothing behind.
#[derive(Debug, Default)]
pub struct DumpImport {
    buffer: Vec<u8>,
    /// Bytes before the buffer.
    offset: u64,
    scanner: ValueScanner,
    expect: Expect,
    current: Current,
    staged: Vec<StagedPartition>,
    report: ImportReport,
}

/// What comes next in the document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Expect {
    #[default]
    Document,
    Key {
        first: bool,
    },
    KeyColon,
    Partition,
    Field {
        first: bool,
    },
    FieldColon,
    FieldValue,
    Event {
        first: bool,
    },
    AfterEvent,
    AfterField,
    AfterPartition,
    End,
}

/// The partition being read.
#[derive(Debug, Default)]
struct Current {
    name: String,
    field: String,
    block_size: Option<u32>,
    model_name: Option<String>,
    routing_group: Option<String>,
    error: Option<String>,
    index: PrefixIndex,
}

impl DumpImport {
    /// Takes the next piece of the document.
    ///
    /// # Errors
    /// Malformed input; give up on this dump then.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), DumpError> {
        self.buffer.extend_from_slice(bytes);
        let buffer = std::mem::take(&mut self.buffer);
        let mut at = 0;
        let result = self.read(&buffer, &mut at);
        self.offset += at as u64;
        self.buffer = buffer;
        self.buffer.drain(..at);
        result?;
        if self.buffer.len() > MAX_EVENT_BYTES {
            return Err(DumpError::EventTooLarge(MAX_EVENT_BYTES));
        }
        Ok(())
    }

    pub(in crate::selection) fn into_staged(self) -> Result<(Vec<StagedPartition>, ImportReport), DumpError> {
        if self.expect != Expect::End {
            return Err(self.malformed(0, "it ends too early"));
        }
        Ok((self.staged, self.report))
    }

    fn malformed(&self, at: usize, detail: &'static str) -> DumpError {
        DumpError::Malformed { offset: self.offset + at as u64, detail }
    }

    /// Reads from `buffer[*at..]` as far as it goes.
    fn read(&mut self, buffer: &[u8], at: &mut usize) -> Result<(), DumpError> {
        loop {
            // White space may only be skipped where no value is being scanned: a value never begins with it.
            while buffer.get(*at).is_some_and(u8::is_ascii_whitespace) {
                *at += 1;
            }
            let Some(&byte) = buffer.get(*at) else { return Ok(()) };
            let next = match (self.expect, byte) {
                (Expect::Document, b'{') => Some(Expect::Key { first: true }),
                (Expect::Key { first: true }, b'}') | (Expect::AfterPartition, b'}') => Some(Expect::End),
                (Expect::KeyColon, b':') => Some(Expect::Partition),
                (Expect::Partition, b'{') => Some(Expect::Field { first: true }),
                (Expect::Field { first: true }, b'}') | (Expect::AfterField, b'}') => {
                    self.end_partition();
                    Some(Expect::AfterPartition)
                }
                (Expect::FieldColon, b':') => Some(Expect::FieldValue),
                (Expect::FieldValue, b'[') if self.current.field == "events" => Some(Expect::Event { first: true }),
                (Expect::Event { first: true }, b']') | (Expect::AfterEvent, b']') => Some(Expect::AfterField),
                (Expect::AfterEvent, b',') => Some(Expect::Event { first: false }),
                (Expect::AfterField, b',') => Some(Expect::Field { first: false }),
                (Expect::AfterPartition, b',') => Some(Expect::Key { first: false }),
                _ => None,
            };
            if let Some(next) = next {
                self.expect = next;
                *at += 1;
                continue;
            }
            let takes_value = match self.expect {
                Expect::Key { .. } | Expect::Field { .. } => byte == b'"',
                Expect::Partition | Expect::FieldValue | Expect::Event { .. } => {
                    !matches!(byte, b',' | b'}' | b']' | b':')
                }
                _ => false,
            };
            if !takes_value {
                return Err(self.malformed(*at, "unexpected character"));
            }
            let Some(length) = self.scanner.end(&buffer[*at..]) else { return Ok(()) };
            let value = &buffer[*at..*at + length];
            self.take_value(value).map_err(|detail| self.malformed(*at, detail))?;
            *at += length;
        }
    }

    fn take_value(&mut self, value: &[u8]) -> Result<(), &'static str> {
        self.expect = match self.expect {
            Expect::Key { .. } => {
                if self.staged.len() + self.report.skipped_partitions.len() >= MAX_PARTITIONS {
                    return Err("too many partitions");
                }
                self.current = Current { name: text(value)?, ..Current::default() };
                Expect::KeyColon
            }
            Expect::Field { .. } => {
                self.current.field = text(value)?;
                Expect::FieldColon
            }
            Expect::Partition => {
                check(value)?;
                self.current.error = Some("it is not an object".to_owned());
                self.end_partition();
                Expect::AfterPartition
            }
            Expect::Event { .. } => {
                self.apply(value);
                Expect::AfterEvent
            }
            _ => {
                check(value)?;
                self.current.take_field(value);
                Expect::AfterField
            }
        };
        Ok(())
    }

    fn apply(&mut self, value: &[u8]) {
        let event = serde_json::from_slice::<ReadEvent>(value).ok().and_then(ReadEvent::into_parts);
        let index = &self.current.index;
        let applied = match event {
            None => false,
            Some((rank, tier, ReadData::Stored { parent_hash, blocks })) => {
                let blocks: Vec<StoredBlock> = blocks.iter().map(StoredBlock::from).collect();
                let outcome = index.store(rank, tier, parent_hash, &blocks);
                let stored = matches!(outcome, StoreOutcome::Applied | StoreOutcome::WaitsForParent);
                self.report.blocks += if stored { blocks.len() as u64 } else { 0 };
                stored
            }
            Some((rank, tier, ReadData::Removed { block_hashes })) => {
                index.remove(rank, tier, &block_hashes);
                true
            }
            Some((rank, _, ReadData::Cleared)) => {
                index.clear(rank);
                true
            }
        };
        self.report.events += u64::from(applied);
        self.report.skipped_events += u64::from(!applied);
    }

    /// One bad partition does not reject the others.
    fn end_partition(&mut self) {
        let Current { name, block_size, model_name, routing_group, error, index, .. } =
            std::mem::take(&mut self.current);
        let key = match (model_name, routing_group) {
            (Some(model_name), Some(routing_group)) => Some(PartitionKey::new(model_name, routing_group)),
            _ => name.split_once(':').map(|(model_name, routing_group)| PartitionKey::new(model_name, routing_group)),
        };
        let staged = match (error, key, block_size) {
            (Some(error), ..) => Err(error),
            (_, None, _) => Err("its key names no routing group".to_owned()),
            (.., None | Some(0)) => Err("block_size is missing".to_owned()),
            (None, Some(key), Some(block_size)) => Ok((key, block_size)),
        };
        match staged {
            Ok((key, block_size)) => self.staged.push(StagedPartition { name, key, block_size, index }),
            Err(reason) => self.report.skipped_partitions.push((name, reason)),
        }
    }
}

impl Current {
    fn take_field(&mut self, value: &[u8]) {
        match self.field.as_str() {
            "block_size" => self.block_size = serde_json::from_slice(value).ok(),
            "model_name" => self.model_name = text(value).ok(),
            "routing_group" => self.routing_group = text(value).ok(),
            "events" => self.error = Some("its events are not a list".to_owned()),
            "error" => self.error = Some(text(value).unwrap_or_else(|_| "the peer could not dump it".to_owned())),
            _ => {}
        }
    }
}

fn text(value: &[u8]) -> Result<String, &'static str> {
    serde_json::from_slice(value).map_err(|_| "a text is malformed")
}

fn check(value: &[u8]) -> Result<(), &'static str> {
    serde_json::from_slice::<serde::de::IgnoredAny>(value).map(|_| ()).map_err(|_| "a value is malformed")
}
