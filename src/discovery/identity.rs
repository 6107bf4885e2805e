//! Worker ids derived from names (design: the same whoever derives them, exact in every JSON client).

use std::collections::HashSet;

use xxhash_rust::xxh3::xxh3_64;

/// Ids derived from names fit in 53 bits, the integers a double holds exactly.
pub const DERIVED_ID_BITS: u32 = 53;
const MASK: u64 = (1 << DERIVED_ID_BITS) - 1;

/// Gives each identity its id: the low 53 bits of XXH3-64 over its parts joined by NUL; 0 and an id that is taken add 1.
/// Identities are served in sorted order, so that a collision is resolved alike everywhere. `taken` holds ids given by
/// hand, and afterwards all.
pub fn derive_ids<'a, T: Ord + AsRef<[&'a str]>>(identities: &mut [(T, &mut u64)], taken: &mut HashSet<u64>) {
    identities.sort_by(|a, b| a.0.cmp(&b.0));
    for (identity, id) in identities {
        let mut candidate = xxh3_64(identity.as_ref().join("\0").as_bytes()) & MASK;
        while candidate == 0 || !taken.insert(candidate) {
            candidate = (candidate + 1) & MASK;
        }
        **id = candidate;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn derive(names: &[&str], taken: &[u64]) -> Vec<u64> {
        let mut ids = vec![0; names.len()];
        let mut identities: Vec<_> = names.iter().map(|n| ["m", "g", *n]).zip(ids.iter_mut()).collect();
        derive_ids(&mut identities, &mut taken.iter().copied().collect());
        ids
    }

    #[test]
    fn ids_are_the_low_53_bits_of_the_hash() {
        let expected = xxh3_64(b"m\0g\0gpu-0") & ((1 << 53) - 1);
        assert_eq!(derive(&["gpu-0"], &[]), [expected]);
        assert!(expected < 1 << 53);
    }

    #[test]
    fn an_id_that_is_taken_adds_one() {
        let free = derive(&["gpu-0"], &[])[0];
        assert_eq!(derive(&["gpu-0"], &[free, free + 1]), [free + 2]);
    }

    #[test]
    fn order_of_names_does_not_matter() {
        let ids = derive(&["a", "b", "c"], &[]);
        let reversed = derive(&["c", "b", "a"], &[]);
        assert_eq!(ids, reversed.into_iter().rev().collect::<Vec<_>>());
    }

    #[test]
    fn ten_thousand_names_give_as_many_ids() {
        let names: Vec<String> = (0..10_000).map(|i| format!("pod-{i}")).collect();
        let ids = derive(&names.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
        assert_eq!(ids.iter().collect::<HashSet<_>>().len(), 10_000);
        assert!(ids.iter().all(|id| (1..1 << 53).contains(id)));
    }
}
