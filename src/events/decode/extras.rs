//! What events carry beside their tokens: extra keys, multimodal objects, metadata. Of these the hashes of multimodal
//! inputs and the marks of a salt are taken; all else is stepped over.

use super::{
    Batch,
    cursor::{Cursor, Kind, Miss, Text},
    event::{MmHash, Span},
    fields::Fields,
};

/// Prefix by which Dynamo's workers mark a salt among the extra keys.
pub(super) const SALT_MARK: &[u8] = b"dynamo-cache-salt:";

impl Batch {
    /// A list by block of nil or a list of items: texts, `[text, offset]`, or anything else, which means nothing here.
    pub(super) fn read_extra_keys(&mut self, cursor: &mut Cursor<'_>, fields: &mut Fields) -> Result<(), Miss> {
        let start = self.mm.len();
        for block in 0..cursor.array()? {
            if cursor.nil()? {
                continue;
            }
            for _ in 0..cursor.array()? {
                let text = match cursor.kind()? {
                    Kind::Text => cursor.text()?,
                    Kind::Array => match read_text_offset(cursor)? {
                        Some(text) => text,
                        None => continue,
                    },
                    _ => {
                        cursor.skip(1)?;
                        continue;
                    }
                };
                let bytes = cursor.bytes(text);
                if let Some(hash) = mm_marker(bytes) {
                    self.mm.push(MmHash { block: block as u32, hash });
                } else if block == 0 && bytes.starts_with(SALT_MARK) {
                    if std::str::from_utf8(bytes).is_err() {
                        return Err(Miss::Type);
                    }
                    if let Some(free) = fields.marked.iter_mut().find(|slot| slot.is_none()) {
                        *free = Some(text);
                    }
                }
            }
        }
        fields.extra_mm = Span::new(start, self.mm.len());
        Ok(())
    }

    /// A list by block of nil or `{"mm_objects": [{"mm_hash": u64, "offsets": [...]}]}`.
    pub(super) fn read_mm_infos(&mut self, cursor: &mut Cursor<'_>) -> Result<Span, Miss> {
        let start = self.mm.len();
        for block in 0..cursor.array()? {
            if cursor.nil()? {
                continue;
            }
            let mut objects = false;
            for _ in 0..cursor.map()? {
                if !key_is(cursor, b"mm_objects")? {
                    continue;
                }
                objects = true;
                for _ in 0..cursor.array()? {
                    let hash = read_mm_object(cursor)?;
                    self.mm.push(MmHash { block: block as u32, hash });
                }
            }
            if !objects {
                return Err(Miss::Type);
            }
        }
        Ok(Span::new(start, self.mm.len()))
    }
}

/// SGLang's metadata: `{"cache_salt": text, ...}`, also without a salt.
pub(super) fn read_metadata(cursor: &mut Cursor<'_>) -> Result<Option<Text>, Miss> {
    let mut salt = None;
    for _ in 0..cursor.map()? {
        if key_is(cursor, b"cache_salt")? && !cursor.nil()? {
            salt = utf8(cursor)?.filter(|salt| salt.len > 0);
        }
    }
    Ok(salt)
}

/// Reads a key; `false` after stepping over key and value when it is another.
fn key_is(cursor: &mut Cursor<'_>, wanted: &[u8]) -> Result<bool, Miss> {
    let found = match cursor.text() {
        Ok(key) => cursor.bytes(key) == wanted,
        Err(Miss::Type) => {
            cursor.skip(1)?;
            false
        }
        Err(fault) => return Err(fault),
    };
    if !found {
        cursor.skip(1)?;
    }
    Ok(found)
}

fn read_mm_object(cursor: &mut Cursor<'_>) -> Result<u64, Miss> {
    let (mut hash, mut offsets) = (None, false);
    for _ in 0..cursor.map()? {
        let key = cursor.text()?;
        match cursor.bytes(key) {
            b"mm_hash" => hash = Some(cursor.unsigned()?),
            b"offsets" => {
                offsets = true;
                let len = cursor.array()?;
                cursor.skip(len)?;
            }
            _ => cursor.skip(1)?,
        }
    }
    hash.filter(|_| offsets).ok_or(Miss::Type)
}

/// `[text, offset]`; `None` after stepping over any other array.
fn read_text_offset(cursor: &mut Cursor<'_>) -> Result<Option<Text>, Miss> {
    let len = cursor.array()?;
    if len != 2 || cursor.kind()? != Kind::Text {
        cursor.skip(len)?;
        return Ok(None);
    }
    let text = cursor.text()?;
    cursor.skip(1)?;
    Ok(Some(text))
}

/// A text that is UTF-8; anything else is of the wrong type.
pub(super) fn utf8(cursor: &mut Cursor<'_>) -> Result<Option<Text>, Miss> {
    let text = cursor.text()?;
    std::str::from_utf8(cursor.bytes(text)).map(|_| Some(text)).map_err(|_| Miss::Type)
}

/// The hash in a marker of 16 hex digits and 48 zeros (spec index 2.7); native digests of 64 digits are no marker.
fn mm_marker(text: &[u8]) -> Option<u64> {
    let (digits, zeros) = text.split_at_checked(16)?;
    if zeros.len() != 48 || zeros.iter().any(|&byte| byte != b'0') {
        return None;
    }
    digits.iter().try_fold(0, |value, &byte| Some(value << 4 | u64::from((byte as char).to_digit(16)?)))
}
