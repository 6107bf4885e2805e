//! One event: what it says, and how it is read from its two encodings, a tagged array or a tagged map.

use super::{
    Batch, Reject,
    cursor::{Cursor, Fault, Kind, Miss, Text, text_bytes},
    fields::{Field, Fields, Tag},
};
use crate::selection::Tier;

/// A stretch of one of the batch's buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    start: u32,
    len: u32,
}

impl Span {
    /// The stretch from `start` up to `end`.
    pub(super) fn new(start: usize, end: usize) -> Self {
        // Each element took a byte of a payload of less than 4 GiB.
        Self { start: start as u32, len: (end - start) as u32 }
    }

    /// Number of elements.
    pub fn len(self) -> usize {
        self.len as usize
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    pub(super) fn range(self) -> std::ops::Range<usize> {
        self.start as usize..self.start as usize + self.len as usize
    }
}

/// A multimodal object in a block of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MmHash {
    /// Number of the block within the event.
    pub block: u32,
    /// The object's hash.
    pub hash: u64,
}

/// Where an event's blocks lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// A tier the index knows.
    Tier(Tier),
    /// A word that is not in the list; such events are dropped, never filed as device.
    Unknown,
}

/// The attention kind of an event's cache group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attention {
    /// Holds every token of a prefix: full, MLA and sink attention.
    Main,
    /// Windows, state spaces, cross attention, and kinds this version does not know.
    Other,
}

/// What stores and removals have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Tier.
    pub medium: Medium,
    /// Cache group of a hybrid model.
    pub group: Option<u32>,
    /// Its kind, where the event says so.
    pub attention: Option<Attention>,
    /// The blocks are the engine's own (`LOCAL` or unsaid).
    pub local: bool,
    /// Somebody else owns the blocks.
    pub owned: bool,
}

/// Blocks were stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Where.
    pub origin: Origin,
    /// The engine's hashes, consecutive blocks: [`Batch::hashes`].
    pub hashes: Span,
    /// The block before the first one; `None` = the first one starts a prompt.
    pub parent: Option<u64>,
    /// Tokens of all blocks: [`Batch::tokens`].
    pub tokens: Span,
    /// Blocks have one look-ahead token (the event carried pairs).
    pub eagle: bool,
    /// Tokens a block.
    pub block_size: u64,
    /// LoRA adapter, not empty.
    lora: Option<Text>,
    /// Cache salt, not empty.
    salt: Option<Text>,
    /// Multimodal objects: [`Batch::mm`].
    pub mm: Span,
}

impl Stored {
    /// The LoRA adapter's name; `payload` is what the batch was decoded from.
    pub fn lora<'a>(&self, payload: &'a [u8]) -> Option<&'a str> {
        text_str(payload, self.lora)
    }

    /// The cache salt, by whichever of its ways it was sent.
    pub fn salt<'a>(&self, payload: &'a [u8]) -> Option<&'a str> {
        text_str(payload, self.salt)
    }
}

/// Texts that events keep were checked to be UTF-8.
fn text_str(payload: &[u8], text: Option<Text>) -> Option<&str> {
    text.and_then(|text| std::str::from_utf8(text_bytes(payload, text)).ok())
}

/// Blocks were removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removed {
    /// Where.
    pub origin: Origin,
    /// The engine's hashes: [`Batch::hashes`].
    pub hashes: Span,
}

/// The rank's cache was cleared, in every tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cleared {
    /// Somebody else owns the blocks.
    pub owned: bool,
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// `BlockStored`.
    Stored(Stored),
    /// `BlockRemoved`.
    Removed(Removed),
    /// `AllBlocksCleared`.
    Cleared(Cleared),
    /// `Ignored`.
    Ignored,
}

impl Batch {
    /// Reads one event and leaves the cursor behind it, usable or not.
    pub(super) fn read_event(&mut self, cursor: &mut Cursor<'_>) -> Result<Result<Event, Reject>, Fault> {
        let (tag, fields) = match cursor.kind()? {
            Kind::Array => self.read_array(cursor)?,
            Kind::Map => self.read_map_event(cursor)?,
            _ => {
                cursor.skip(1)?;
                return Ok(Err(Reject::NotAnEvent));
            }
        };
        if fields.too_many {
            return Ok(Err(Reject::TooMany));
        }
        Ok(match tag {
            None => Err(Reject::NotAnEvent),
            Some(Tag::Unknown) => Err(Reject::UnknownType),
            Some(Tag::Ignored) => Ok(Event::Ignored),
            Some(Tag::Stored) => self.stored(cursor, &fields).map(Event::Stored),
            Some(Tag::Removed) => removed(&fields).map(Event::Removed),
            Some(Tag::Cleared) if fields.wrong(Field::Ownership) => Err(Reject::BadField),
            Some(Tag::Cleared) => Ok(Event::Cleared(Cleared { owned: fields.owned })),
        })
    }

    /// `[tag, ...]`. Everything after the required positions may be absent, and positions beyond the known are ignored.
    fn read_array(&mut self, cursor: &mut Cursor<'_>) -> Result<(Option<Tag>, Fields), Fault> {
        let mut fields = Fields::default();
        let mut left = match cursor.array() {
            Ok(len) => len,
            Err(Miss::Fault(fault)) => return Err(fault),
            Err(Miss::Type) => 0,
        };
        if left == 0 {
            return Ok((None, fields));
        }
        let tag = match cursor.text() {
            Ok(tag) => Tag::of(cursor.bytes(tag)),
            Err(Miss::Fault(fault)) => return Err(fault),
            Err(Miss::Type) => {
                cursor.skip(left)?;
                return Ok((None, fields));
            }
        };
        left -= 1;
        let order: &[Field] = match tag {
            Tag::Stored => &[
                Field::BlockHashes,
                Field::ParentBlockHash,
                Field::TokenIds,
                Field::BlockSize,
                Field::LoraId,
                Field::Medium,
                Field::LoraName,
                Field::ExtraKeys,
            ],
            Tag::Removed => &[Field::BlockHashes, Field::Medium],
            Tag::Cleared => &[Field::Ownership],
            Tag::Ignored | Tag::Unknown => &[],
        };
        for &field in order.iter().take(left) {
            self.read_field(cursor, field, &mut fields)?;
            left -= 1;
        }
        if matches!(tag, Tag::Stored | Tag::Removed) {
            left -= self.read_tail(cursor, left.min(5), &mut fields)?;
        }
        cursor.skip(left)?;
        Ok((Some(tag), fields))
    }

    /// `{"type": tag, ...}`, keys in any order.
    fn read_map_event(&mut self, cursor: &mut Cursor<'_>) -> Result<(Option<Tag>, Fields), Fault> {
        let mut fields = Fields::default();
        let mut tag = None;
        let entries = match cursor.map() {
            Ok(len) => len,
            Err(Miss::Fault(fault)) => return Err(fault),
            Err(Miss::Type) => 0,
        };
        for _ in 0..entries {
            let key = match cursor.text() {
                Ok(key) => cursor.bytes(key),
                Err(Miss::Fault(fault)) => return Err(fault),
                Err(Miss::Type) => {
                    cursor.skip(2)?;
                    continue;
                }
            };
            if key == b"type" {
                match cursor.text() {
                    Ok(text) => tag = Some(Tag::of(cursor.bytes(text))),
                    Err(Miss::Fault(fault)) => return Err(fault),
                    Err(Miss::Type) => cursor.skip(1)?,
                }
                continue;
            }
            match Field::of_key(key) {
                Some(field) => self.read_field(cursor, field, &mut fields)?,
                None => cursor.skip(1)?,
            }
        }
        Ok((tag, fields))
    }

    fn stored(&self, cursor: &Cursor<'_>, fields: &Fields) -> Result<Stored, Reject> {
        if fields.text_tokens {
            return Err(Reject::TextTokens);
        }
        if fields.any_wrong() {
            return Err(Reject::BadField);
        }
        let (Some(hashes), Some(tokens), Some(block_size)) = (fields.hashes, fields.tokens, fields.block_size) else {
            return Err(Reject::MissingField);
        };
        Ok(Stored {
            origin: fields.origin(),
            hashes,
            parent: fields.parent,
            tokens,
            eagle: fields.eagle,
            block_size,
            lora: fields.lora,
            salt: fields.salt(cursor),
            mm: fields.mm.unwrap_or(fields.extra_mm),
        })
    }
}

fn removed(fields: &Fields) -> Result<Removed, Reject> {
    const USED: [Field; 6] =
        [Field::BlockHashes, Field::Medium, Field::GroupIdx, Field::SpecKind, Field::Locality, Field::Ownership];
    if USED.iter().any(|&field| fields.wrong(field)) {
        return Err(Reject::BadField);
    }
    let hashes = fields.hashes.ok_or(Reject::MissingField)?;
    Ok(Removed { origin: fields.origin(), hashes })
}
