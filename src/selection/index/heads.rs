//! From the seq of a chunk's first block to the chunk; readers probe it without a lock.
//!
//! A fixed number of segments picked by the top bits of the mixed seq; each is an array of buckets of one cache line:
//! seven entries and a word for those that found no room at home. An entry is one word, so a reader sees it whole.
//! Invariants: an entry never moves while its segment lives; a chunk is filled before its entry appears and emptied
//! after its entry went; what is found is a candidate, proven by the chunk's own head seq.
#![allow(unsafe_code)]

use crossbeam_epoch::Guard;

use super::sync::{AtomicPtr, AtomicU64, Ordering, defer, seed};

/// Segments, as a power of two.
#[cfg(not(model_check))]
const SEGMENT_BITS: u32 = 8;
/// Segments, as a power of two.
#[cfg(model_check)]
const SEGMENT_BITS: u32 = 1;
/// Entries a bucket.
const ENTRIES: usize = 7;
/// Marks a word that is an entry.
const PRESENT: u64 = 1 << 31;

/// Spreads the bits of a hash from outside, which may be anything, over the word. The seed differs between tables, so
/// that nobody outside can choose hashes that meet in one place.
#[inline]
pub(super) fn mix(key: u64, seed: u64) -> u64 {
    let product = u128::from(key ^ seed) * 0x9E37_79B9_7F4A_7C15;
    (product >> 64) as u64 ^ product as u64
}

/// Where a key lives.
#[derive(Clone, Copy)]
struct Place {
    segment: usize,
    tag: u32,
}

/// Seven entries, `tag << 32 | PRESENT | chunk` each, and `count << 32 | distance`: how many entries whose home this is
/// lie further on, and how far at most since there was none.
#[repr(C, align(64))]
struct Bucket([AtomicU64; ENTRIES + 1]);

impl Bucket {
    fn new() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    fn away(&self) -> &AtomicU64 {
        &self.0[ENTRIES]
    }
}

/// One segment's buckets.
struct Segment(Box<[Bucket]>);

impl Segment {
    fn new(buckets: usize) -> Self {
        Self((0..buckets).map(|_| Bucket::new()).collect())
    }

    /// The tag alone gives the place, so that a resize reads no key.
    #[inline]
    fn home(&self, tag: u32) -> usize {
        ((u64::from(tag) * self.0.len() as u64) >> 32) as usize
    }

    /// Puts an entry into the first free place from its home on.
    fn put(&self, entry: u64) {
        let len = self.0.len();
        let home = self.home((entry >> 32) as u32);
        for distance in 0..len {
            let bucket = &self.0[(home + distance) % len];
            let Some(free) = bucket.0[..ENTRIES].iter().find(|word| word.load(Ordering::Relaxed) == 0) else {
                continue;
            };
            if distance > 0 {
                // Before the entry appears: a reader that sees the old word was there before the entry.
                let away = self.0[home].away();
                let old = away.load(Ordering::Relaxed);
                let new = ((old >> 32) + 1) << 32 | (old & 0xffff_ffff).max(distance as u64);
                away.store(new, Ordering::Release);
            }
            free.store(entry, Ordering::Release);
            return;
        }
        unreachable!("a segment is grown before it is full");
    }

    /// The word of an entry the writer knows is there, and how far from home it is.
    fn locate(&self, tag: u32, chunk: u32) -> Option<(&AtomicU64, usize)> {
        let (entry, len, home) = (word_of(tag, chunk), self.0.len(), self.home(tag));
        let distance = (self.0[home].away().load(Ordering::Relaxed) & 0xffff_ffff) as usize;
        (0..=distance).find_map(|distance| {
            let bucket = &self.0[(home + distance) % len];
            bucket.0[..ENTRIES].iter().find(|word| word.load(Ordering::Relaxed) == entry).map(|word| (word, distance))
        })
    }
}

fn word_of(tag: u32, chunk: u32) -> u64 {
    u64::from(tag) << 32 | PRESENT | u64::from(chunk)
}

/// The part that readers see.
#[derive(Debug)]
pub(super) struct Heads {
    segments: Box<[AtomicPtr<Segment>]>,
    seed: u64,
}

impl Heads {
    /// No entries.
    pub(super) fn new() -> Self {
        Self { segments: (0..1 << SEGMENT_BITS).map(|_| AtomicPtr::new(std::ptr::null_mut())).collect(), seed: seed() }
    }

    #[inline]
    fn place(&self, seq: u64) -> Place {
        let x = mix(seq, self.seed);
        Place { segment: (x >> (64 - SEGMENT_BITS)) as usize, tag: (x >> (32 - SEGMENT_BITS)) as u32 }
    }

    #[inline]
    fn segment<'g>(&'g self, segment: usize, _guard: &'g Guard) -> Option<&'g Segment> {
        let segment = self.segments[segment].load(Ordering::Acquire);
        // SAFETY: a non-null pointer came from a box and was released after its buckets were filled. A replaced
        // segment is freed only after every guard of that time, ours included, is gone.
        unsafe { segment.as_ref() }
    }

    /// Offers the chunks that may begin with `seq` to `visit` until it takes one. What `visit` refuses is looked up
    /// again when its entry changed meanwhile, so a chunk that is there all the time is found.
    #[inline]
    pub(super) fn find<R>(&self, seq: u64, guard: &Guard, mut visit: impl FnMut(u32) -> Option<R>) -> Option<R> {
        let place = self.place(seq);
        'again: loop {
            let segment = self.segment(place.segment, guard)?;
            let (len, home) = (segment.0.len(), segment.home(place.tag));
            let mut distance = 0;
            let mut furthest = 0;
            loop {
                let at = home + distance;
                let bucket = &segment.0[if at < len { at } else { at % len }];
                for word in &bucket.0[..ENTRIES] {
                    let entry = word.load(Ordering::Acquire);
                    if (entry >> 32) as u32 != place.tag || entry & PRESENT == 0 {
                        continue;
                    }
                    if let Some(found) = visit((entry & (PRESENT - 1)) as u32) {
                        return Some(found);
                    }
                    if word.load(Ordering::Acquire) != entry {
                        continue 'again;
                    }
                }
                if distance == 0 {
                    furthest = (bucket.away().load(Ordering::Acquire) & 0xffff_ffff) as usize;
                }
                if distance >= furthest {
                    break;
                }
                distance += 1;
            }
            if std::ptr::eq(segment, self.segments[place.segment].load(Ordering::Acquire)) {
                return None;
            }
        }
    }

    /// Fetches the cache line a probe for `seq` begins with.
    #[inline]
    pub(super) fn prefetch(&self, seq: u64, guard: &Guard) {
        let place = self.place(seq);
        if let Some(segment) = self.segment(place.segment, guard) {
            prefetch(&segment.0[segment.home(place.tag)]);
        }
    }
}

impl Drop for Heads {
    fn drop(&mut self) {
        for segment in &self.segments {
            let segment = segment.load(Ordering::Relaxed);
            if !segment.is_null() {
                // SAFETY: `&mut self`: nobody else reaches it; replaced segments are not in the table any more.
                drop(unsafe { Box::from_raw(segment) });
            }
        }
    }
}

/// Fetches the cache line of `at`.
#[inline]
pub(super) fn prefetch<T>(at: &T) {
    #[cfg(all(target_arch = "x86_64", not(model_check)))]
    // SAFETY: SSE is part of x86-64; a prefetch has no effect but on caches.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(at).cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(model_check))))]
    let _ = at;
}

/// The writer's account: entries by segment.
#[derive(Debug)]
pub(super) struct HeadCounts {
    entries: Box<[u32]>,
    buckets: usize,
}

impl HeadCounts {
    /// No entries.
    pub(super) fn new() -> Self {
        Self { entries: vec![0; 1 << SEGMENT_BITS].into(), buckets: 0 }
    }

    /// Estimated bytes of heap.
    pub(super) fn bytes(&self) -> usize {
        self.buckets * 64 + (1 << SEGMENT_BITS) * 12
    }

    /// Adds an entry for a chunk that is filled already.
    pub(super) fn insert(&mut self, seq: u64, chunk: u32, heads: &Heads, guard: &Guard) {
        let place = heads.place(seq);
        let entries = self.entries[place.segment] as usize + 1;
        let buckets = heads.segment(place.segment, guard).map_or(0, |segment| segment.0.len());
        // Grown at 3/4, by a factor that differs between segments, so that they do not all grow at once.
        if entries * 4 > buckets * ENTRIES * 3 {
            let factor = 320 + mix((place.segment as u64) << 32 | buckets as u64, heads.seed) % 128;
            self.resize(place.segment, (buckets * factor as usize / 256).max(buckets + 1), heads, guard);
        }
        if let Some(segment) = heads.segment(place.segment, guard) {
            segment.put(word_of(place.tag, chunk));
        }
        self.entries[place.segment] = entries as u32;
    }

    /// Takes an entry out; the chunk is emptied afterwards.
    pub(super) fn remove(&mut self, seq: u64, chunk: u32, heads: &Heads, guard: &Guard) {
        let place = heads.place(seq);
        let Some(segment) = heads.segment(place.segment, guard) else { return };
        let Some((word, distance)) = segment.locate(place.tag, chunk) else { return };
        word.store(0, Ordering::Release);
        if distance > 0 {
            let away = segment.0[segment.home(place.tag)].away();
            let old = away.load(Ordering::Relaxed);
            let count = (old >> 32) - 1;
            away.store(if count == 0 { 0 } else { count << 32 | old & 0xffff_ffff }, Ordering::Release);
        }
        self.entries[place.segment] -= 1;
        let (entries, buckets) = (self.entries[place.segment] as usize, segment.0.len());
        if entries == 0 {
            self.resize(place.segment, 0, heads, guard);
        } else if buckets > 4 && entries * 8 < buckets * ENTRIES * 3 {
            self.resize(place.segment, entries * 7 / 5 / ENTRIES + 1, heads, guard);
        }
    }

    #[cold]
    fn resize(&mut self, at: usize, buckets: usize, heads: &Heads, guard: &Guard) {
        let old = heads.segment(at, guard);
        let new = if buckets == 0 {
            std::ptr::null_mut()
        } else {
            let new = Segment::new(buckets);
            for bucket in old.iter().flat_map(|old| old.0.iter()) {
                for word in &bucket.0[..ENTRIES] {
                    let entry = word.load(Ordering::Relaxed);
                    if entry != 0 {
                        new.put(entry);
                    }
                }
            }
            Box::into_raw(Box::new(new))
        };
        self.buckets = self.buckets + buckets - old.map_or(0, |old| old.0.len());
        let old = heads.segments[at].swap(new, Ordering::AcqRel);
        if !old.is_null() {
            // SAFETY: from `Box::into_raw`; taken out of the table by the swap, so freed once; readers of this time
            // hold guards.
            unsafe { defer(guard, move || drop(Box::from_raw(old))) };
        }
    }
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_until_they_are_removed() {
        let (heads, mut counts, guard) = (Heads::new(), HeadCounts::new(), crossbeam_epoch::pin());
        let mut rng = fastrand::Rng::with_seed(3);
        let mut there: Vec<(u64, u32)> = Vec::new();
        for round in 0..4 {
            for _ in 0..30_000 {
                if round % 2 == 0 || there.is_empty() {
                    let entry = (rng.u64(..), rng.u32(..1 << 25));
                    counts.insert(entry.0, entry.1, &heads, &guard);
                    there.push(entry);
                } else {
                    let (seq, chunk) = there.swap_remove(rng.usize(..there.len()));
                    counts.remove(seq, chunk, &heads, &guard);
                    assert_eq!(heads.find(seq, &guard, |c| (c == chunk).then_some(c)), None);
                }
            }
            for &(seq, chunk) in &there {
                assert_eq!(heads.find(seq, &guard, |c| (c == chunk).then_some(c)), Some(chunk));
            }
        }
        there.iter().for_each(|&(seq, chunk)| counts.remove(seq, chunk, &heads, &guard));
        assert_eq!(counts.buckets, 0, "an empty table keeps no bucket");
    }

    #[test]
    fn many_entries_of_one_seq_are_all_offered() {
        let (heads, mut counts, guard) = (Heads::new(), HeadCounts::new(), crossbeam_epoch::pin());
        (0..100).for_each(|chunk| counts.insert(5, chunk, &heads, &guard));
        let mut offered = Vec::new();
        let none: Option<()> = heads.find(5, &guard, |chunk| {
            offered.push(chunk);
            None
        });
        offered.sort_unstable();
        assert_eq!((none, offered), (None, (0..100).collect()));
    }
}
