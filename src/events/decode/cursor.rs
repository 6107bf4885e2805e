//! A msgpack reader over one payload.
//!
//! Invariants: a claimed length never sizes an allocation or a loop beyond the bytes that are there, skipping keeps no
//! stack, and a read that fails leaves the position where it was, so the caller can skip the value instead.

/// Why the bytes are not msgpack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The payload ends inside a value.
    Truncated,
    /// The one marker that msgpack never uses.
    Reserved,
}

/// Why a value could not be read as wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Miss {
    /// Nothing further can be read.
    Fault(Fault),
    /// It is well-formed, and something else.
    Type,
}

impl From<Fault> for Miss {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// Where a text lies in the payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Text {
    /// Offset of its first byte.
    pub at: u32,
    /// Length in bytes.
    pub len: u32,
}

/// What the next value is, by its marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Nil,
    Bool,
    Int,
    Float,
    Text,
    Bytes,
    Array,
    Map,
    Ext,
}

/// The reader.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'a> {
    data: &'a [u8],
    pos: usize,
}

impl<'a> Cursor<'a> {
    /// A reader at the first byte of `data`, which is at most 4 GiB long.
    pub fn new(data: &'a [u8]) -> Self {
        Self { data, pos: 0 }
    }

    /// Where the reader stands, for [`Self::rewind`].
    pub fn position(&self) -> usize {
        self.pos
    }

    /// Back to an earlier position.
    pub fn rewind(&mut self, position: usize) {
        self.pos = position;
    }

    /// The bytes of a text that this reader found.
    pub fn bytes(&self, text: Text) -> &'a [u8] {
        text_bytes(self.data, text)
    }

    fn marker(&self) -> Result<u8, Fault> {
        self.data.get(self.pos).copied().ok_or(Fault::Truncated)
    }

    fn left(&self) -> usize {
        self.data.len() - self.pos
    }

    /// `N` bytes that follow `offset` bytes after the position.
    fn fixed<const N: usize>(&self, offset: usize) -> Result<[u8; N], Fault> {
        let bytes = self.data.get(self.pos + offset..self.pos + offset + N).ok_or(Fault::Truncated)?;
        Ok(bytes.try_into().expect("the slice has N bytes"))
    }

    /// The kind of the next value.
    pub fn kind(&self) -> Result<Kind, Fault> {
        Ok(match self.marker()? {
            0x00..=0x7f | 0xe0..=0xff | 0xcc..=0xd3 => Kind::Int,
            0x80..=0x8f | 0xde | 0xdf => Kind::Map,
            0x90..=0x9f | 0xdc | 0xdd => Kind::Array,
            0xa0..=0xbf | 0xd9..=0xdb => Kind::Text,
            0xc0 => Kind::Nil,
            0xc1 => return Err(Fault::Reserved),
            0xc2 | 0xc3 => Kind::Bool,
            0xc4..=0xc6 => Kind::Bytes,
            0xc7..=0xc9 | 0xd4..=0xd8 => Kind::Ext,
            0xca | 0xcb => Kind::Float,
        })
    }

    /// Takes a nil if one is next.
    pub fn nil(&mut self) -> Result<bool, Fault> {
        let nil = self.marker()? == 0xc0;
        self.pos += usize::from(nil);
        Ok(nil)
    }

    /// An integer: its 64 bits, and whether it is negative.
    #[inline]
    pub fn int(&mut self) -> Result<(u64, bool), Miss> {
        let signed = |value: i64| (value as u64, value < 0);
        let (value, size) = match self.marker()? {
            small @ 0x00..=0x7f => ((u64::from(small), false), 1),
            small @ 0xe0..=0xff => (signed(i64::from(small as i8)), 1),
            0xcc => ((u64::from(self.fixed::<1>(1)?[0]), false), 2),
            0xcd => ((u64::from(u16::from_be_bytes(self.fixed(1)?)), false), 3),
            0xce => ((u64::from(u32::from_be_bytes(self.fixed(1)?)), false), 5),
            0xcf => ((u64::from_be_bytes(self.fixed(1)?), false), 9),
            0xd0 => (signed(i64::from(i8::from_be_bytes(self.fixed(1)?))), 2),
            0xd1 => (signed(i64::from(i16::from_be_bytes(self.fixed(1)?))), 3),
            0xd2 => (signed(i64::from(i32::from_be_bytes(self.fixed(1)?))), 5),
            0xd3 => (signed(i64::from_be_bytes(self.fixed(1)?)), 9),
            _ => return Err(self.mismatch()),
        };
        self.pos += size;
        Ok(value)
    }

    /// An integer from 0 to `u64::MAX`.
    pub fn unsigned(&mut self) -> Result<u64, Miss> {
        let start = self.pos;
        match self.int()? {
            (value, false) => Ok(value),
            (_, true) => {
                self.pos = start;
                Err(Miss::Type)
            }
        }
    }

    /// An integer from 0 to `u32::MAX`.
    #[inline]
    pub fn unsigned32(&mut self) -> Result<u32, Miss> {
        let start = self.pos;
        let value = self.int()?;
        match (u32::try_from(value.0), value.1) {
            (Ok(value), false) => Ok(value),
            _ => {
                self.pos = start;
                Err(Miss::Type)
            }
        }
    }

    /// An engine's block hash: an integer reduced to its 64 bits, or a byte string, of which the last 8 bytes count, big
    /// endian. vLLM shortens its digests to integers the same way, so a block has one name in both modes.
    #[inline]
    pub fn hash(&mut self) -> Result<u64, Miss> {
        if !matches!(self.marker()?, 0xc4..=0xc6) {
            return self.int().map(|(bits, _)| bits);
        }
        let start = self.pos;
        let bytes = self.blob(Kind::Bytes)?;
        let bytes = self.bytes(bytes);
        if bytes.is_empty() {
            self.pos = start;
            return Err(Miss::Type);
        }
        let tail = &bytes[bytes.len().saturating_sub(8)..];
        Ok(tail.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    /// `len` hashes, appended to `out`. After an error the reader stands at the value that is none.
    pub fn hashes(&mut self, len: usize, out: &mut Vec<u64>) -> Result<(), Miss> {
        out.reserve(len);
        for _ in 0..len {
            match self.data.get(self.pos..) {
                Some(&[0xcf, a, b, c, d, e, f, g, h, ..]) => {
                    self.pos += 9;
                    out.push(u64::from_be_bytes([a, b, c, d, e, f, g, h]));
                }
                _ => out.push(self.hash()?),
            }
        }
        Ok(())
    }

    /// `len` tokens, appended to `out`. After an error the reader stands at the value that is none.
    pub fn tokens(&mut self, len: usize, out: &mut Vec<u32>) -> Result<(), Miss> {
        // Most of a batch is tokens, so their common forms are read here; the caller knows that `len` bytes are there.
        let start = out.len();
        out.resize(start + len, 0);
        for token in &mut out[start..] {
            let (value, size) = match self.data.get(self.pos..) {
                Some(&[0xcd, a, b, ..]) => (u32::from(u16::from_be_bytes([a, b])), 3),
                Some(&[0xce, a, b, c, d, ..]) => (u32::from_be_bytes([a, b, c, d]), 5),
                Some(&[small @ 0..=0x7f, ..]) => (u32::from(small), 1),
                _ => {
                    *token = self.unsigned32()?;
                    continue;
                }
            };
            *token = value;
            self.pos += size;
        }
        Ok(())
    }

    /// A text. Its UTF-8 is not checked here.
    pub fn text(&mut self) -> Result<Text, Miss> {
        self.blob(Kind::Text)
    }

    fn blob(&mut self, kind: Kind) -> Result<Text, Miss> {
        let (head, len) = match (self.marker()?, kind) {
            (short @ 0xa0..=0xbf, Kind::Text) => (1, usize::from(short & 0x1f)),
            (0xd9, Kind::Text) | (0xc4, Kind::Bytes) => (2, usize::from(self.fixed::<1>(1)?[0])),
            (0xda, Kind::Text) | (0xc5, Kind::Bytes) => (3, usize::from(u16::from_be_bytes(self.fixed(1)?))),
            (0xdb, Kind::Text) | (0xc6, Kind::Bytes) => (5, u32::from_be_bytes(self.fixed(1)?) as usize),
            _ => return Err(self.mismatch()),
        };
        if self.left() - head < len {
            return Err(Fault::Truncated.into());
        }
        let text = Text { at: (self.pos + head) as u32, len: len as u32 };
        self.pos += head + len;
        Ok(text)
    }

    /// The number of elements of an array. Each takes at least a byte, so one that claims more than there is left is
    /// refused here.
    pub fn array(&mut self) -> Result<usize, Miss> {
        let (head, len) = match self.marker()? {
            short @ 0x90..=0x9f => (1, usize::from(short & 0x0f)),
            0xdc => (3, usize::from(u16::from_be_bytes(self.fixed(1)?))),
            0xdd => (5, u32::from_be_bytes(self.fixed(1)?) as usize),
            _ => return Err(self.mismatch()),
        };
        self.claim(head, len, 1)
    }

    /// The number of entries of a map, checked as in [`Self::array`].
    pub fn map(&mut self) -> Result<usize, Miss> {
        let (head, len) = match self.marker()? {
            short @ 0x80..=0x8f => (1, usize::from(short & 0x0f)),
            0xde => (3, usize::from(u16::from_be_bytes(self.fixed(1)?))),
            0xdf => (5, u32::from_be_bytes(self.fixed(1)?) as usize),
            _ => return Err(self.mismatch()),
        };
        self.claim(head, len, 2)
    }

    fn claim(&mut self, head: usize, len: usize, values: usize) -> Result<usize, Miss> {
        if (self.left() - head) / values < len {
            return Err(Fault::Truncated.into());
        }
        self.pos += head;
        Ok(len)
    }

    fn mismatch(&self) -> Miss {
        // The reserved marker is broken msgpack whatever was wanted.
        self.kind().map_or_else(Miss::Fault, |_| Miss::Type)
    }

    /// Steps over `values` whole values, however deep.
    pub fn skip(&mut self, values: usize) -> Result<(), Fault> {
        // Every pending value needs a byte of its own, so the loop ends within the payload; 2^32 claims of 2^33 values
        // each still fit the counter.
        let mut pending = values as u64;
        while pending > 0 {
            pending -= 1;
            let (size, children) = match self.marker()? {
                0x00..=0x7f | 0xe0..=0xff | 0xc0 | 0xc2 | 0xc3 => (1, 0),
                0xc1 => return Err(Fault::Reserved),
                short @ 0x80..=0x8f => (1, 2 * u64::from(short & 0x0f)),
                short @ 0x90..=0x9f => (1, u64::from(short & 0x0f)),
                short @ 0xa0..=0xbf => (1 + usize::from(short & 0x1f), 0),
                0xcc | 0xd0 => (2, 0),
                0xcd | 0xd1 | 0xd4 => (3, 0),
                0xd5 => (4, 0),
                0xca | 0xce | 0xd2 => (5, 0),
                0xd6 => (6, 0),
                0xcb | 0xcf | 0xd3 => (9, 0),
                0xd7 => (10, 0),
                0xd8 => (18, 0),
                0xc4 | 0xd9 => (2 + usize::from(self.fixed::<1>(1)?[0]), 0),
                0xc5 | 0xda => (3 + usize::from(u16::from_be_bytes(self.fixed(1)?)), 0),
                0xc6 | 0xdb => (5 + u32::from_be_bytes(self.fixed(1)?) as usize, 0),
                0xc7 => (3 + usize::from(self.fixed::<1>(1)?[0]), 0),
                0xc8 => (4 + usize::from(u16::from_be_bytes(self.fixed(1)?)), 0),
                0xc9 => (6 + u32::from_be_bytes(self.fixed(1)?) as usize, 0),
                0xdc => (3, u64::from(u16::from_be_bytes(self.fixed(1)?))),
                0xdd => (5, u64::from(u32::from_be_bytes(self.fixed(1)?))),
                0xde => (3, 2 * u64::from(u16::from_be_bytes(self.fixed(1)?))),
                0xdf => (5, 2 * u64::from(u32::from_be_bytes(self.fixed(1)?))),
            };
            if self.left() < size {
                return Err(Fault::Truncated);
            }
            self.pos += size;
            pending += children;
        }
        Ok(())
    }
}

/// The bytes of `text` in the payload it was found in.
pub(super) fn text_bytes(data: &[u8], text: Text) -> &[u8] {
    let start = text.at as usize;
    data.get(start..start + text.len as usize).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claimed_length_beyond_the_payload_is_refused_at_once() {
        for bytes in [&[0xdd, 0xff, 0xff, 0xff, 0xff, 0x01][..], &[0xdc, 0xff, 0xff]] {
            assert_eq!(Cursor::new(bytes).array(), Err(Miss::Fault(Fault::Truncated)));
            assert_eq!(Cursor::new(bytes).skip(1), Err(Fault::Truncated));
        }
        assert_eq!(Cursor::new(&[0xdf, 0xff, 0xff, 0xff, 0xff]).map(), Err(Miss::Fault(Fault::Truncated)));
        assert_eq!(Cursor::new(&[0xdb, 0xff, 0xff, 0xff, 0xff]).text(), Err(Miss::Fault(Fault::Truncated)));
    }

    #[test]
    fn deep_nesting_is_skipped_without_a_stack() {
        let mut deep = vec![0x91; 4 << 20];
        assert_eq!(Cursor::new(&deep).skip(1), Err(Fault::Truncated));
        deep.push(0xc0);
        let mut cursor = Cursor::new(&deep);
        assert_eq!(cursor.skip(1), Ok(()));
        assert_eq!(cursor.position(), deep.len());
    }

    #[test]
    fn a_failed_read_leaves_the_value_in_place() {
        let mut cursor = Cursor::new(&[0xa1, b'x', 0xff, 0xcf, 0, 0, 0, 1, 0, 0, 0, 0]);
        assert_eq!(cursor.int(), Err(Miss::Type));
        assert_eq!(cursor.hash(), Err(Miss::Type));
        let text = cursor.text().unwrap();
        assert_eq!(cursor.bytes(text), b"x");
        assert_eq!(cursor.unsigned(), Err(Miss::Type));
        assert_eq!(cursor.int(), Ok((u64::MAX, true)));
        assert_eq!(cursor.unsigned32(), Err(Miss::Type));
        assert_eq!(cursor.unsigned(), Ok(1 << 32));
        assert_eq!(cursor.int(), Err(Miss::Fault(Fault::Truncated)));
    }

    #[test]
    fn byte_hashes_count_by_their_last_eight_bytes() {
        let mut digest = vec![0xc4, 32];
        digest.extend(1..=32);
        assert_eq!(Cursor::new(&digest).hash(), Ok(u64::from_be_bytes([25, 26, 27, 28, 29, 30, 31, 32])));
        assert_eq!(Cursor::new(&[0xc4, 2, 1, 2]).hash(), Ok(0x0102));
        assert_eq!(Cursor::new(&[0xc4, 0]).hash(), Err(Miss::Type));
        assert_eq!(Cursor::new(&[0xff]).hash(), Ok(u64::MAX));
    }
}
