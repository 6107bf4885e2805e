//! Maps from rank to text whose keys may come as numbers (YAML) or as decimal texts (JSON, also behind a flattened
//! struct, where serde no longer converts keys).

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{Error, Unexpected, Visitor},
};

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Rank(u32);

impl<'de> Deserialize<'de> for Rank {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RankVisitor)
    }
}

struct RankVisitor;

impl Visitor<'_> for RankVisitor {
    type Value = Rank;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a rank, an integer from 0 to 4294967295")
    }

    fn visit_u64<E: Error>(self, rank: u64) -> Result<Rank, E> {
        u32::try_from(rank).map(Rank).map_err(|_| E::invalid_value(Unexpected::Unsigned(rank), &self))
    }

    fn visit_i64<E: Error>(self, rank: i64) -> Result<Rank, E> {
        u32::try_from(rank).map(Rank).map_err(|_| E::invalid_value(Unexpected::Signed(rank), &self))
    }

    fn visit_str<E: Error>(self, rank: &str) -> Result<Rank, E> {
        // `parse` alone takes a plus sign too.
        let digits = rank.bytes().all(|byte| byte.is_ascii_digit());
        let parsed = rank.parse().ok().filter(|_| digits);
        parsed.map(Rank).ok_or_else(|| E::invalid_value(Unexpected::Str(rank), &self))
    }
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<u32, String>, D::Error> {
    let map = BTreeMap::<Rank, String>::deserialize(deserializer)?;
    Ok(map.into_iter().map(|(rank, text)| (rank.0, text)).collect())
}
