//! Prompt hashes as a sequence of bounded length: one byte of a message can be eight in memory.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{Error, SeqAccess, Visitor},
};

/// Most hashes of one booking: a larger prompt's message would not pass the mesh either.
pub(in crate::mesh) const MAX_HASHES: usize = 4 << 20;
/// Hashes room is made for before they are there.
const EXPECTED: usize = 4096;

struct Hashes;

impl<'de> Visitor<'de> for Hashes {
    type Value = Vec<u64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {MAX_HASHES} unsigned integers")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Vec<u64>, A::Error> {
        let mut hashes = Vec::with_capacity(sequence.size_hint().unwrap_or(0).min(EXPECTED));
        while let Some(hash) = sequence.next_element()? {
            if hashes.len() == MAX_HASHES {
                return Err(A::Error::invalid_length(MAX_HASHES + 1, &self));
            }
            hashes.push(hash);
        }
        Ok(hashes)
    }
}

struct Read(Vec<u64>);

impl<'de> Deserialize<'de> for Read {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Hashes).map(Self)
    }
}

pub(in crate::mesh) fn read<'de, 'a, D: Deserializer<'de>>(deserializer: D) -> Result<Cow<'a, [u64]>, D::Error> {
    Read::deserialize(deserializer).map(|hashes| Cow::Owned(hashes.0))
}

/// The same where nil stands for none.
pub(in crate::mesh) fn read_optional<'de, 'a, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Cow<'a, [u64]>>, D::Error> {
    Ok(Option::<Read>::deserialize(deserializer)?.map(|hashes| Cow::Owned(hashes.0)))
}
