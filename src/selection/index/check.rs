//! Checks every invariant of an index, for tests.

use std::collections::{HashMap, HashSet};

use super::{
    PrefixIndex,
    chunk::TIERS,
    residency::{mask, offsets},
    sets::EMPTY,
    shared::Context,
    writer::Writer,
};

impl PrefixIndex {
    /// Panics where an invariant does not hold.
    pub(super) fn check(&self) {
        self.write(|writer, cx| writer.check(cx));
    }
}

impl Writer {
    fn check(&self, cx: Context<'_>) {
        let mut seqs = HashSet::new();
        let mut blocks: HashMap<u16, [u64; TIERS]> = HashMap::new();
        let mut uses: HashMap<u32, u32> = HashMap::new();
        let (mut live_slots, mut chunks, mut data_bytes) = (0, 0, 0);
        for id in (0..self.chunks.end()).filter(|&id| self.chunks.has_page(id)) {
            let chunk = cx.chunk(id);
            let len = chunk.len();
            if len == 0 {
                continue;
            }
            chunks += 1;
            let data = chunk.blocks(cx.guard).expect("a chunk with blocks has data");
            data_bytes += 8 + 16 * data.capacity();
            assert!(len <= data.capacity() && len <= 64);
            assert_eq!(self.head(chunk.head_seq(), cx), Some(id), "its head leads to a chunk");
            let mut seq = chunk.head_seq();
            for o in 0..len {
                if o > 0 {
                    seq = super::chain(seq, data.local(o));
                }
                assert!(seqs.insert(seq), "a seq occurs once");
            }
            assert_eq!(seq, chunk.last_seq());
            let alive = self.holders.alive(chunk, cx);
            assert_eq!(chunk.dead(), len - alive.count_ones() as usize, "dead blocks are counted");
            assert!(alive >> (len - 1) & 1 == 1, "the last block is alive");
            assert!(chunk.dead() * 2 <= len, "at most half of the blocks are dead");
            for tier in 0..TIERS {
                self.holders.count_uses(chunk.residency(tier), cx, &mut uses);
                let sets = self.holders.expand(chunk.residency(tier), len, cx);
                for &set in &sets[..len] {
                    self.holders.members(set, cx).for_each(|lane| blocks.entry(lane).or_default()[tier] += 1);
                }
            }
            for slot in self.columns.slots(id, cx) {
                let live = self.columns.live(id, slot, &self.holders, cx);
                assert_eq!(live & !mask(0, len), 0);
                live_slots += live.count_ones() as usize;
                for o in offsets(live) {
                    assert!(self.columns.is_listed(id, slot, o, cx), "a live slot has an entry");
                }
            }
            self.columns.check_chunk(id, &self.holders, cx, &mut uses);
        }
        assert_eq!(chunks, self.chunks.used());
        assert_eq!(data_bytes, self.data_bytes);
        assert_eq!(live_slots, self.columns.len(), "every entry is a live slot");
        for (lane, state) in self.lanes.states.iter().enumerate() {
            let held = blocks.get(&(lane as u16)).copied().unwrap_or_default();
            assert_eq!(state.blocks, held, "lane {lane}");
        }
        assert!(self.lanes.knows_unbound());
        uses.remove(&EMPTY);
        self.holders.sets.check(&uses);
    }
}
