//! Which peer brings which rank: the one with the best coverage, and the others where they know better.

use std::collections::{BTreeMap, HashMap};

use super::super::exports::IndexSummary;
use crate::{
    events::takeover::StreamKey,
    selection::{PartitionKey, WorkerWithDpRank, core::HeldRanks, ingest::Trust, snapshot::RankHeader},
};

/// Ranks of one partition to take from one peer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Job {
    /// Place of the peer.
    pub(super) peer: usize,
    pub(super) key: PartitionKey,
    pub(super) block_size: u32,
    pub(super) ranks: BTreeMap<StreamKey, WorkerWithDpRank>,
}

/// How well a rank is known; less is better.
fn doubt(rank: &RankHeader) -> u8 {
    match (rank.position, rank.trust) {
        (Some(_), Trust::Complete | Trust::Replayed) => 0,
        (Some(_), _) => 1,
        (None, _) => 2,
    }
}

pub(super) fn rank_of(rank: &RankHeader) -> WorkerWithDpRank {
    WorkerWithDpRank::new(rank.worker_id, rank.dp_rank)
}

/// What to take, the best peer's partitions first. Ranks in `held` are there already.
pub(super) fn jobs(summaries: &BTreeMap<usize, IndexSummary>, held: &HeldRanks) -> Vec<Job> {
    let mut order: Vec<usize> = summaries.keys().copied().collect();
    let coverage = |peer: &usize| {
        let ranks = summaries[peer].partitions.iter().flat_map(|partition| &partition.ranks);
        ranks.map(|rank| u128::from(rank.blocks)).sum::<u128>()
    };
    order.sort_by_key(|peer| std::cmp::Reverse(coverage(peer)));
    // Of equals the peer with the better coverage stays.
    let mut best: HashMap<(&PartitionKey, WorkerWithDpRank), (u8, usize)> = HashMap::new();
    for &peer in &order {
        for partition in &summaries[&peer].partitions {
            for rank in &partition.ranks {
                let name = (&partition.partition.key, rank_of(rank));
                let known = best.get(&name).map_or(u8::MAX, |&(doubt, _)| doubt);
                if doubt(rank) < known {
                    best.insert(name, (doubt(rank), peer));
                }
            }
        }
    }
    let mut jobs = Vec::new();
    for peer in order {
        for partition in &summaries[&peer].partitions {
            let key = &partition.partition.key;
            let ranks: BTreeMap<StreamKey, WorkerWithDpRank> = partition
                .ranks
                .iter()
                .map(rank_of)
                .filter(|&rank| best.get(&(key, rank)).is_some_and(|&(_, from)| from == peer))
                .filter(|&rank| !held.contains(&(key.clone(), rank)))
                .map(|rank| ((rank.worker_id, rank.dp_rank), rank))
                .collect();
            if !ranks.is_empty() {
                jobs.push(Job { peer, key: key.clone(), block_size: partition.partition.block_size, ranks });
            }
        }
    }
    jobs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        selection::snapshot::{PartitionHeader, VERSION},
        service::exports::PartitionSummary,
    };

    fn rank(worker_id: u64, blocks: u64, position: Option<u64>, trust: Trust) -> RankHeader {
        RankHeader { worker_id, dp_rank: 0, blocks, endpoint: None, position, mark: position, trust }
    }

    fn summary(ranks: Vec<RankHeader>) -> IndexSummary {
        let partition = PartitionHeader { key: PartitionKey::new("m", "default"), block_size: 4 };
        let partitions = vec![PartitionSummary { partition, ranks }];
        IndexSummary { version: VERSION, instance_id: "x".to_owned(), ready: true, partitions }
    }

    fn taken(jobs: &[Job]) -> Vec<(usize, Vec<u64>)> {
        jobs.iter().map(|job| (job.peer, job.ranks.keys().map(|&(worker, _)| worker).collect())).collect()
    }

    #[test]
    fn the_best_by_coverage_brings_all_but_what_others_know_better() {
        let small = summary(vec![
            rank(1, 10, Some(5), Trust::Complete),
            rank(2, 10, Some(5), Trust::Replayed),
            rank(4, 1, None, Trust::Unknown),
        ]);
        let large = summary(vec![
            rank(1, 100, Some(4), Trust::Replayed),
            rank(2, 100, Some(9), Trust::Partial),
            rank(3, 100, None, Trust::Unknown),
        ]);
        let summaries = BTreeMap::from([(0, small), (1, large)]);
        let mut held = HeldRanks::default();
        assert_eq!(taken(&jobs(&summaries, &held)), [(1, vec![1, 3]), (0, vec![2, 4])]);
        held.insert((PartitionKey::new("m", "default"), WorkerWithDpRank::new(2, 0)));
        held.insert((PartitionKey::new("m", "default"), WorkerWithDpRank::new(4, 0)));
        assert_eq!(taken(&jobs(&summaries, &held)), [(1, vec![1, 3])]);
        assert_eq!(jobs(&BTreeMap::new(), &held), []);
    }
}
