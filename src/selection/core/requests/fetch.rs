//! Where a chosen rank can fetch a longer prefix from (spec http 11).

use std::sync::Arc;

use crate::selection::{
    hints::{KvFetch, KvHint, KvHintAction},
    identity::WorkerWithDpRank,
    index::{Lane, Matches, PrefixIndex},
    load::{LoadTracker, Slot},
    partition::PartitionIndex,
};

/// Where the chosen rank can fetch from, before the names are looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FetchSource {
    lane: Lane,
    blocks: u32,
    control_endpoint: String,
}

/// The best source for the rank in slot `chosen`: the longest root-aligned prefix on device and in host memory, longer
/// than the rank's own, on a rank of the same hint type that is a source and has a control endpoint; ties go to the
/// smallest rank. Only confirmed blocks can be fetched, so an index that holds own decisions gives no hints.
pub(super) fn fetch_source(
    index: &PartitionIndex,
    matches: &Matches,
    load: &LoadTracker,
    chosen: Slot,
) -> Option<FetchSource> {
    let PartitionIndex::Events { confirmed, predicted: None } = index else { return None };
    let facts = load.facts(chosen).filter(|facts| !facts.hint_worker_type.is_empty())?;
    let mut bar = 0;
    let mut best: Option<(u32, WorkerWithDpRank, Lane, &String)> = None;
    for class in &matches.classes {
        let prefix = class.blocks.device.saturating_add(class.blocks.host);
        class.lanes.for_each(|lane| {
            let Some(slot) = confirmed.slot_of(lane) else { return };
            if slot == chosen {
                bar = prefix;
            }
            if slot == chosen || prefix == 0 || best.is_some_and(|(longest, ..)| prefix < longest) {
                return;
            }
            let (Some(rank), Some(source)) = (load.rank(slot), load.facts(slot)) else { return };
            let endpoint = source.hint_control_endpoints.get(&rank.dp_rank).filter(|endpoint| !endpoint.is_empty());
            let Some(endpoint) = endpoint else { return };
            if source.hint_source
                && source.hint_worker_type == facts.hint_worker_type
                && best.is_none_or(|(longest, smallest, ..)| prefix > longest || rank < smallest)
            {
                best = Some((prefix, rank, lane, endpoint));
            }
        });
    }
    let (blocks, _, lane, endpoint) = best.filter(|(prefix, ..)| *prefix > bar)?;
    Some(FetchSource { lane, blocks, control_endpoint: endpoint.clone() })
}

impl FetchSource {
    /// The hint of selection `message_id`, with the names under which the source holds the prompt's blocks. `None` when
    /// it holds them no longer.
    pub(super) fn hint(
        self,
        index: &PrefixIndex,
        locals: &[u64],
        seqs: &[u64],
        message_id: Arc<str>,
    ) -> Option<KvHint> {
        let block_hashes = index.names_of(self.lane, locals, seqs, self.blocks as usize)?;
        let payload = KvFetch { block_hashes, source_control_endpoint: self.control_endpoint };
        let action = KvHintAction { action_id: "a1", action_type: "kv.fetch", action_version: "1.0", payload };
        Some(KvHint { protocol_version: "0.1", message_id, actions: vec![action] })
    }
}
