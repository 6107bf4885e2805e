//! From an engine's name of a block to the block's handle; the writer's own.
//!
//! A multimap of 4-byte handles without keys: a fixed number of segments picked by the top bits of the mixed name, each
//! an array of 64-byte buckets of ten 16-bit tags and ten handles. The tag alone gives the bucket, so a resize never
//! reads a key, and one cache line answers most probes. Whoever asks proves a candidate by the block itself.
#![allow(unsafe_code)]

use std::marker::PhantomData;

use super::{
    heads::{mix, prefetch},
    sync::seed,
};

/// Segments, as a power of two: a resize moves a 4,096th of the table.
#[cfg(not(model_check))]
const SEGMENT_BITS: u32 = 12;
/// Segments, as a power of two.
#[cfg(model_check)]
const SEGMENT_BITS: u32 = 2;
/// Entries a bucket.
const ENTRIES: usize = 10;
/// An `away` that cannot count further; probes go on to the end.
const SATURATED: u8 = u8::MAX;

/// Finds the places of a tag among ten.
pub(super) trait FindTag: Copy + Default + std::fmt::Debug {
    /// A bit for each of `tags` that equals `tag`.
    fn find(tags: &[u16; ENTRIES], tag: u16) -> u32;
}

/// One tag after the other.
#[cfg(any(test, not(target_arch = "x86_64")))]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Portable;

#[cfg(any(test, not(target_arch = "x86_64")))]
impl FindTag for Portable {
    #[inline]
    fn find(tags: &[u16; ENTRIES], tag: u16) -> u32 {
        tags.iter().enumerate().fold(0, |found, (k, &t)| found | u32::from(t == tag) << k)
    }
}

/// Eight tags at once.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sse2;

#[cfg(target_arch = "x86_64")]
impl FindTag for Sse2 {
    #[inline]
    fn find(tags: &[u16; ENTRIES], tag: u16) -> u32 {
        use std::arch::x86_64::{_mm_cmpeq_epi16, _mm_loadu_si128, _mm_movemask_epi8, _mm_packs_epi16, _mm_set1_epi16};
        // SAFETY: SSE2 is part of x86-64; the load reads the first 16 of the 20 bytes of `tags`, unaligned.
        let first = unsafe {
            let same = _mm_cmpeq_epi16(_mm_loadu_si128(tags.as_ptr().cast()), _mm_set1_epi16(tag as i16));
            _mm_movemask_epi8(_mm_packs_epi16(same, same)) as u32 & 0xff
        };
        first | u32::from(tags[8] == tag) << 8 | u32::from(tags[9] == tag) << 9
    }
}

#[cfg(target_arch = "x86_64")]
type Best = Sse2;
#[cfg(not(target_arch = "x86_64"))]
type Best = Portable;

/// One cache line.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
struct Bucket {
    tags: [u16; ENTRIES],
    /// Entries in use; they come first.
    used: u8,
    /// Entries whose home this is and that lie further on.
    away: u8,
    handles: [u32; ENTRIES],
}

impl Bucket {
    const EMPTY: Self = Self { tags: [0; ENTRIES], used: 0, away: 0, handles: [0; ENTRIES] };

    #[inline]
    fn find<F: FindTag>(&self, tag: u16) -> u32 {
        F::find(&self.tags, tag) & ((1 << self.used) - 1)
    }
}

#[derive(Debug, Default)]
struct Segment {
    buckets: Box<[Bucket]>,
    entries: u32,
}

impl Segment {
    #[inline]
    fn home(&self, tag: u16) -> usize {
        (tag as usize * self.buckets.len()) >> 16
    }

    #[inline]
    fn put(&mut self, tag: u16, handle: u32) {
        let home = self.home(tag);
        let mut at = home;
        while self.buckets[at].used as usize == ENTRIES {
            at = if at + 1 == self.buckets.len() { 0 } else { at + 1 };
        }
        let bucket = &mut self.buckets[at];
        bucket.tags[bucket.used as usize] = tag;
        bucket.handles[bucket.used as usize] = handle;
        bucket.used += 1;
        if at != home {
            self.buckets[home].away = self.buckets[home].away.saturating_add(1);
        }
    }

    /// Bucket and place of the first entry of `tag` whose handle passes.
    #[inline]
    fn locate<F: FindTag>(&self, tag: u16, mut pass: impl FnMut(u32) -> bool) -> Option<(usize, usize)> {
        if self.buckets.is_empty() {
            return None;
        }
        let home = self.home(tag);
        let mut at = home;
        let mut away = self.buckets[home].away;
        loop {
            let bucket = &self.buckets[at];
            let mut found = bucket.find::<F>(tag);
            while found != 0 {
                let k = found.trailing_zeros() as usize;
                if pass(bucket.handles[k]) {
                    return Some((at, k));
                }
                found &= found - 1;
            }
            if at != home && away != SATURATED {
                let strays = bucket.tags[..bucket.used as usize].iter().filter(|&&t| self.home(t) == home).count();
                away -= (strays as u8).min(away);
            }
            if away == 0 {
                return None;
            }
            at = if at + 1 == self.buckets.len() { 0 } else { at + 1 };
            if at == home {
                return None;
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn resize(&mut self, buckets: usize) {
        let old = std::mem::replace(&mut self.buckets, vec![Bucket::EMPTY; buckets].into());
        for bucket in &old {
            for k in 0..bucket.used as usize {
                self.put(bucket.tags[k], bucket.handles[k]);
            }
        }
    }
}

/// The table.
#[derive(Debug)]
pub(super) struct Names<F: FindTag = Best> {
    /// Allocated with the first entry.
    segments: Box<[Segment]>,
    entries: usize,
    buckets: usize,
    seed: u64,
    finder: PhantomData<F>,
}

impl<F: FindTag> Names<F> {
    /// No entries.
    pub(super) fn new() -> Self {
        Self { segments: Box::default(), entries: 0, buckets: 0, seed: seed(), finder: PhantomData }
    }

    /// Entries.
    pub(super) fn len(&self) -> usize {
        self.entries
    }

    /// Estimated bytes of heap.
    pub(super) fn bytes(&self) -> usize {
        self.buckets * 64 + self.segments.len() * std::mem::size_of::<Segment>()
    }

    #[inline]
    fn place(&self, name: u64) -> (usize, u16) {
        let x = mix(name, self.seed);
        ((x >> (64 - SEGMENT_BITS)) as usize, (x >> (48 - SEGMENT_BITS)) as u16)
    }

    /// Fetches the cache line a probe for `name` begins with.
    #[inline]
    pub(super) fn prefetch(&self, name: u64) {
        let (segment, tag) = self.place(name);
        if let Some(segment) = self.segments.get(segment)
            && let Some(bucket) = segment.buckets.get(segment.home(tag))
        {
            prefetch(bucket);
        }
    }

    /// The first handle that may go by `name` and passes.
    #[inline]
    pub(super) fn find(&self, name: u64, pass: impl FnMut(u32) -> bool) -> Option<u32> {
        let (segment, tag) = self.place(name);
        let segment = self.segments.get(segment)?;
        segment.locate::<F>(tag, pass).map(|(at, k)| segment.buckets[at].handles[k])
    }

    /// Adds an entry.
    #[inline]
    pub(super) fn insert(&mut self, name: u64, handle: u32) {
        if self.segments.is_empty() {
            self.segments = (0..1 << SEGMENT_BITS).map(|_| Segment::default()).collect();
        }
        let (at, tag) = self.place(name);
        let segment = &mut self.segments[at];
        let buckets = segment.buckets.len();
        // Grown at 87 %, by 1.16 to 1.31: the jitter keeps segments from growing in the same moment.
        if (segment.entries as usize + 1) * 100 > buckets * ENTRIES * 87 {
            let jitter = mix((at as u64) << 32 | buckets as u64, self.seed) as usize & 0xff;
            let part = 40 + jitter * 40 / 256;
            let more = (buckets + buckets * part / 256).max(buckets + 1);
            segment.resize(more);
            self.buckets += more - buckets;
        }
        segment.put(tag, handle);
        segment.entries += 1;
        self.entries += 1;
    }

    /// Takes an entry out; `false` when it is not there.
    #[inline]
    pub(super) fn remove(&mut self, name: u64, handle: u32) -> bool {
        let (at, tag) = self.place(name);
        let Some(segment) = self.segments.get_mut(at) else { return false };
        let Some((at, k)) = segment.locate::<F>(tag, |h| h == handle) else { return false };
        let home = segment.home(tag);
        if at != home && segment.buckets[home].away != SATURATED {
            segment.buckets[home].away -= 1;
        }
        let bucket = &mut segment.buckets[at];
        let last = bucket.used as usize - 1;
        bucket.tags[k] = bucket.tags[last];
        bucket.handles[k] = bucket.handles[last];
        bucket.used -= 1;
        segment.entries -= 1;
        self.entries -= 1;
        let (entries, buckets) = (segment.entries as usize, segment.buckets.len());
        let fewer = match entries {
            0 => 0,
            _ if buckets > 4 && entries < buckets * ENTRIES / 2 => (entries + entries / 3) / ENTRIES + 1,
            _ => buckets,
        };
        if fewer != buckets {
            segment.resize(fewer);
            self.buckets -= buckets - fewer;
        }
        true
    }

    /// Gives an entry another handle.
    pub(super) fn replace(&mut self, name: u64, old: u32, new: u32) {
        let (segment, tag) = self.place(name);
        if let Some(segment) = self.segments.get_mut(segment)
            && let Some((at, k)) = segment.locate::<F>(tag, |h| h == old)
        {
            segment.buckets[at].handles[k] = new;
        }
    }

    /// Gives back what an empty table does not need.
    pub(super) fn shrink(&mut self) {
        if self.entries == 0 {
            self.segments = Box::default();
        }
    }
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use super::*;

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn both_ways_to_find_a_tag_agree() {
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..10_000 {
            let tags = std::array::from_fn(|_| if rng.bool() { rng.u16(..4) } else { rng.u16(..) });
            for tag in tags.into_iter().chain([0, 1, 0x7fff, 0x8000, 0xffff]) {
                assert_eq!(Sse2::find(&tags, tag), Portable::find(&tags, tag), "{tags:?} {tag}");
            }
        }
    }

    fn agrees_with_a_list<F: FindTag>() {
        let mut rng = fastrand::Rng::with_seed(2);
        let mut names = Names::<F>::new();
        let mut there: Vec<(u64, u32)> = Vec::new();
        for round in 0..6 {
            // Grows in even rounds, shrinks in odd ones.
            for k in 0..20_000 {
                if round % 2 == 0 {
                    let handle = round << 20 | k;
                    let name = if rng.u8(..4) == 0 { rng.u64(..8) } else { rng.u64(..) };
                    names.insert(name, handle);
                    there.push((name, handle));
                } else {
                    let (name, handle) = there.swap_remove(rng.usize(..there.len()));
                    assert!(names.remove(name, handle));
                    assert!(!names.remove(name, handle));
                }
            }
            assert_eq!(names.len(), there.len());
            for &(name, handle) in there.iter().take(2_000) {
                assert_eq!(names.find(name, |h| h == handle), Some(handle));
                assert_eq!(names.find(name ^ 1 << 63, |h| h == handle), None);
            }
            if round == 3 {
                there.drain(..).for_each(|(name, handle)| assert!(names.remove(name, handle)));
                assert_eq!((names.len(), names.buckets), (0, 0));
            }
        }
    }

    #[test]
    fn the_best_table_agrees_with_a_list() {
        agrees_with_a_list::<Best>();
    }

    #[test]
    fn the_portable_table_agrees_with_a_list() {
        agrees_with_a_list::<Portable>();
    }

    #[test]
    fn a_replaced_handle_is_found_in_place_of_the_old_one() {
        let mut names = Names::<Best>::new();
        names.insert(7, 1);
        names.replace(7, 1, 2);
        assert_eq!((names.find(7, |h| h == 1), names.find(7, |_| true)), (None, Some(2)));
    }
}
