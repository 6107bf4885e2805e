//! The fields of events: how each is read and checked, and what is gathered until the event is complete.
//!
//! A field of the wrong type marks its event and is stepped over, so the events behind it are still found.

use super::{
    Batch, MAX_HASHES, MAX_TOKENS,
    cursor::{Cursor, Fault, Kind, Miss, Text},
    event::{Attention, Medium, Origin, Span},
    extras::{SALT_MARK, read_metadata, utf8},
};
use crate::selection::Tier;

/// What an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tag {
    Stored,
    Removed,
    Cleared,
    Ignored,
    Unknown,
}

impl Tag {
    pub fn of(text: &[u8]) -> Self {
        match text {
            b"BlockStored" => Self::Stored,
            b"BlockRemoved" => Self::Removed,
            b"AllBlocksCleared" => Self::Cleared,
            b"Ignored" => Self::Ignored,
            _ => Self::Unknown,
        }
    }
}

/// A field of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    BlockHashes,
    ParentBlockHash,
    TokenIds,
    BlockSize,
    LoraId,
    Medium,
    LoraName,
    ExtraKeys,
    GroupIdx,
    SpecKind,
    Locality,
    Ownership,
    CacheSalt,
    Metadata,
    MmInfos,
}

impl Field {
    /// The field of a map key. `lora_id` is no key on purpose: only arrays have it checked.
    pub fn of_key(key: &[u8]) -> Option<Self> {
        // By length first: comparisons of a fixed length are a load or two.
        Some(match (key.len(), key) {
            (6, b"medium") => Self::Medium,
            (8, b"locality") => Self::Locality,
            (8, b"metadata") => Self::Metadata,
            (9, b"token_ids") => Self::TokenIds,
            (9, b"lora_name") => Self::LoraName,
            (9, b"group_idx") => Self::GroupIdx,
            (9, b"ownership") => Self::Ownership,
            (10, b"block_size") => Self::BlockSize,
            (10, b"extra_keys") => Self::ExtraKeys,
            (10, b"cache_salt") => Self::CacheSalt,
            (12, b"block_hashes") => Self::BlockHashes,
            (14, b"block_mm_infos") => Self::MmInfos,
            (17, b"parent_block_hash") => Self::ParentBlockHash,
            (18, b"kv_cache_spec_kind") => Self::SpecKind,
            _ => return None,
        })
    }
}

/// What was read of an event so far.
#[derive(Debug)]
pub(super) struct Fields {
    pub hashes: Option<Span>,
    pub parent: Option<u64>,
    pub tokens: Option<Span>,
    pub eagle: bool,
    pub text_tokens: bool,
    pub too_many: bool,
    pub block_size: Option<u64>,
    pub lora: Option<Text>,
    pub mm: Option<Span>,
    pub extra_mm: Span,
    pub owned: bool,
    medium: Medium,
    group: Option<u32>,
    attention: Option<Attention>,
    local: bool,
    cache_salt: Option<Text>,
    metadata_salt: Option<Text>,
    /// The first two marked extra keys of the first block.
    pub marked: [Option<Text>; 2],
    wrong: u16,
}

impl Default for Fields {
    fn default() -> Self {
        Self {
            hashes: None,
            parent: None,
            tokens: None,
            eagle: false,
            text_tokens: false,
            too_many: false,
            block_size: None,
            lora: None,
            mm: None,
            extra_mm: Span::default(),
            owned: false,
            medium: Medium::Tier(Tier::Device),
            group: None,
            attention: None,
            local: true,
            cache_salt: None,
            metadata_salt: None,
            marked: [None; 2],
            wrong: 0,
        }
    }
}

impl Fields {
    pub fn wrong(&self, field: Field) -> bool {
        self.wrong & 1 << field as u16 != 0
    }

    pub fn any_wrong(&self) -> bool {
        self.wrong != 0
    }

    pub fn origin(&self) -> Origin {
        Origin {
            medium: self.medium,
            group: self.group,
            attention: self.attention,
            local: self.local,
            owned: self.owned,
        }
    }

    /// The salt: its own key, SGLang's metadata, then the first marked extra key that is not the adapter's own name.
    pub fn salt(&self, cursor: &Cursor<'_>) -> Option<Text> {
        let own_name = |text: Text| self.lora.is_some_and(|lora| cursor.bytes(lora) == cursor.bytes(text));
        let marked = || {
            let text = match self.marked {
                [Some(first), second] if own_name(first) => second,
                [first, _] => first,
            }?;
            let mark = SALT_MARK.len() as u32;
            Some(Text { at: text.at + mark, len: text.len - mark })
        };
        self.cache_salt.or(self.metadata_salt).or_else(marked).filter(|salt| salt.len > 0)
    }
}

impl Batch {
    /// Reads one field; a wrong type is noted and stepped over.
    pub(super) fn read_field(
        &mut self,
        cursor: &mut Cursor<'_>,
        field: Field,
        fields: &mut Fields,
    ) -> Result<(), Fault> {
        let start = cursor.position();
        match self.try_field(cursor, field, fields) {
            Ok(()) => Ok(()),
            Err(Miss::Fault(fault)) => Err(fault),
            Err(Miss::Type) => {
                fields.wrong |= 1 << field as u16;
                cursor.rewind(start);
                cursor.skip(1)
            }
        }
    }

    fn try_field(&mut self, cursor: &mut Cursor<'_>, field: Field, fields: &mut Fields) -> Result<(), Miss> {
        match field {
            Field::BlockHashes => {
                let start = self.hashes.len();
                let len = cursor.array()?;
                if start + len > MAX_HASHES {
                    fields.too_many = true;
                    return Err(Miss::Type);
                }
                cursor.hashes(len, &mut self.hashes)?;
                fields.hashes = Some(Span::new(start, self.hashes.len()));
            }
            Field::TokenIds => self.read_tokens(cursor, fields)?,
            Field::BlockSize => fields.block_size = Some(cursor.unsigned()?),
            Field::ExtraKeys => {
                if !cursor.nil()? {
                    self.read_extra_keys(cursor, fields)?;
                }
            }
            Field::MmInfos => {
                if !cursor.nil()? {
                    fields.mm = Some(self.read_mm_infos(cursor)?);
                }
            }
            _ if cursor.nil()? => {}
            Field::ParentBlockHash => fields.parent = Some(cursor.hash()?),
            Field::LoraId => {
                cursor.unsigned()?;
            }
            Field::Medium => {
                let text = cursor.text()?;
                fields.medium = medium(cursor.bytes(text));
            }
            Field::LoraName if cursor.kind()? == Kind::Map => fields.metadata_salt = read_metadata(cursor)?,
            Field::LoraName => fields.lora = utf8(cursor)?.filter(|name| name.len > 0),
            Field::CacheSalt => fields.cache_salt = utf8(cursor)?.filter(|salt| salt.len > 0),
            Field::Metadata => {
                if cursor.kind()? == Kind::Map {
                    fields.metadata_salt = read_metadata(cursor)?;
                } else {
                    cursor.skip(1)?;
                }
            }
            Field::GroupIdx => fields.group = Some(cursor.unsigned32()?),
            Field::SpecKind => {
                let text = cursor.text()?;
                fields.attention = Some(attention(cursor.bytes(text)));
            }
            Field::Locality => {
                let text = cursor.text()?;
                fields.local = cursor.bytes(text) == b"LOCAL";
            }
            Field::Ownership => {
                cursor.text()?;
                fields.owned = true;
            }
        }
        Ok(())
    }

    /// Integers, or pairs of them: then the first elements and the last second one, in windows of a block and one.
    fn read_tokens(&mut self, cursor: &mut Cursor<'_>, fields: &mut Fields) -> Result<(), Miss> {
        let start = self.tokens.len();
        let len = cursor.array()?;
        if start + len > MAX_TOKENS {
            fields.too_many = true;
            return Err(Miss::Type);
        }
        let first = if len > 0 { cursor.kind()? } else { Kind::Int };
        match first {
            Kind::Array => {
                let mut look_ahead = 0;
                self.tokens.reserve(len + 1);
                for _ in 0..len {
                    if cursor.array()? != 2 {
                        return Err(Miss::Type);
                    }
                    self.tokens.push(cursor.unsigned32()?);
                    look_ahead = cursor.unsigned32()?;
                }
                self.tokens.push(look_ahead);
                fields.eagle = true;
            }
            Kind::Text => {
                fields.text_tokens = true;
                return Err(Miss::Type);
            }
            _ => {
                if let Err(miss) = cursor.tokens(len, &mut self.tokens) {
                    fields.text_tokens = miss == Miss::Type && cursor.kind()? == Kind::Text;
                    return Err(miss);
                }
            }
        }
        fields.tokens = Some(Span::new(start, self.tokens.len()));
        Ok(())
    }

    /// The trailing positions of an array event. With four or more of the right types they are group, kind, window,
    /// locality and ownership; otherwise the reading of old vLLM, which appended only what it had: the first unsigned
    /// number is the group, the first text the kind, a multimodal list is one. Returns how many values were read.
    pub(super) fn read_tail(
        &mut self,
        cursor: &mut Cursor<'_>,
        len: usize,
        fields: &mut Fields,
    ) -> Result<usize, Fault> {
        let mut tail = [Trailing::Nil; 5];
        for slot in &mut tail[..len] {
            *slot = self.read_trailing(cursor, fields)?;
        }
        let fixed = len >= 4
            && matches!(tail[0], Trailing::Nil | Trailing::Number(_))
            && matches!(tail[1], Trailing::Nil | Trailing::Text(_))
            && matches!(tail[2], Trailing::Nil | Trailing::Number(_))
            && matches!(tail[3], Trailing::Nil | Trailing::Text(_))
            && matches!(tail[4], Trailing::Nil | Trailing::Text(_));
        let number = |slot: &Trailing| if let Trailing::Number(value) = slot { Some(*value) } else { None };
        let text = |slot: &Trailing| if let Trailing::Text(text) = slot { Some(cursor.bytes(*text)) } else { None };
        if fixed {
            fields.group = number(&tail[0]);
            fields.attention = text(&tail[1]).map(attention);
            fields.local = text(&tail[3]).is_none_or(|word| word == b"LOCAL");
            fields.owned = text(&tail[4]).is_some();
        } else {
            fields.group = tail.iter().find_map(number);
            fields.attention = tail.iter().find_map(text).map(attention);
        }
        Ok(len)
    }

    fn read_trailing(&mut self, cursor: &mut Cursor<'_>, fields: &mut Fields) -> Result<Trailing, Fault> {
        let start = cursor.position();
        let marks = self.mm.len();
        let read = match cursor.kind()? {
            Kind::Nil => {
                cursor.skip(1)?;
                Ok(Trailing::Nil)
            }
            Kind::Int => cursor.unsigned32().map(Trailing::Number),
            Kind::Text => cursor.text().map(Trailing::Text),
            Kind::Array => self.read_mm_infos(cursor).map(|span| {
                fields.mm = Some(span);
                Trailing::Other
            }),
            _ => Err(Miss::Type),
        };
        match read {
            Ok(value) => Ok(value),
            Err(Miss::Fault(fault)) => Err(fault),
            Err(Miss::Type) => {
                self.mm.truncate(marks);
                cursor.rewind(start);
                cursor.skip(1)?;
                Ok(Trailing::Other)
            }
        }
    }
}

/// A value in the trailing positions.
#[derive(Clone, Copy, Debug)]
enum Trailing {
    Nil,
    Number(u32),
    Text(Text),
    Other,
}

fn medium(word: &[u8]) -> Medium {
    Medium::Tier(match word {
        b"" | b"GPU" | b"DEVICE" => Tier::Device,
        b"CPU" | b"CPU_PINNED" | b"CPU_TIER1" => Tier::HostPinned,
        b"CPU_TIER2" | b"DISK" | b"NVME" | b"STORAGE" => Tier::Disk,
        b"EXTERNAL" | b"NETWORK" | b"REMOTE" | b"SHARED" => Tier::External,
        _ => return Medium::Unknown,
    })
}

fn attention(word: &[u8]) -> Attention {
    match word {
        b"full_attention" | b"mla_attention" | b"sink_full_attention" => Attention::Main,
        _ => Attention::Other,
    }
}
