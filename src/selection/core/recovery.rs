//! Verbs of recovery: everything cached, written for a peer, and what a peer sent put in place.

use std::{collections::HashSet, io};

use super::{PartitionFilter, SelectionCore};
use crate::selection::{
    dump::{self, DumpImport, ImportReport, StagedPartition},
    identity::{PartitionKey, WorkerWithDpRank},
    index::PrefixIndex,
    partition::{PartitionIndex, PartitionRef},
    snapshot::RecoveringPartition,
};

/// Ranks that a peer has filled.
pub type HeldRanks = HashSet<(PartitionKey, WorkerWithDpRank)>;

impl SelectionCore {
    /// Writes the dump of all partitions (`GET /dump`), run by run. Blocks the calling thread as long as `out` does,
    /// and no selection: call it off the async threads, with a writer that hands pieces to the response.
    ///
    /// # Errors
    /// The first error of `out`; the rest is left out.
    pub fn write_dump(&self, out: &mut dyn io::Write) -> io::Result<()> {
        dump::write(&self.partitions(&PartitionFilter::default()), out)
    }

    /// The partition that a peer's snapshot fills, made with `block_size` if there is none.
    ///
    /// # Errors
    /// Why it cannot be filled.
    pub fn recovering_partition(
        &self,
        key: &PartitionKey,
        block_size: u32,
    ) -> Result<RecoveringPartition, &'static str> {
        if block_size == 0 {
            return Err("its block size is 0");
        }
        let _catalog = self.catalog.lock();
        let existing = self.partition(&key.model_name, &key.routing_group);
        if existing.as_ref().is_some_and(|partition| partition.block_size != block_size) {
            return Err("the partition here has another block size");
        }
        let partition = existing.unwrap_or_else(|| self.create_partition(key.clone(), block_size, None));
        RecoveringPartition::new(partition).ok_or("this selector predicts caches from its own decisions")
    }

    /// Forgets what was recovered for ranks that no registered worker has, and partitions that nobody joined.
    pub fn forget_strangers(&self, recovered: &HeldRanks) {
        for (key, rank) in recovered {
            let _catalog = self.catalog.lock();
            let Some(partition) = self.partition(&key.model_name, &key.routing_group) else { continue };
            if !partition.has_rank(*rank) {
                partition.health().contain(|| partition.index.remove_rank(*rank));
                self.drop_if_empty(&partition);
            }
        }
    }

    /// Puts a complete dump in place. See [`DumpImport::finish`].
    pub(in crate::selection) fn import(
        &self,
        staged: Vec<StagedPartition>,
        report: &mut ImportReport,
        held: &mut HeldRanks,
    ) {
        for StagedPartition { name, key, block_size, index } in staged {
            let ranks: Vec<_> = index.ranks().into_iter().map(|(rank, _)| (key.clone(), rank)).collect();
            for (_, rank) in ranks.iter().filter(|rank| held.contains(*rank)) {
                index.remove_rank(*rank);
            }
            held.extend(ranks);
            // One partition at a time: worker verbs go on in between.
            let _catalog = self.catalog.lock();
            match self.partition(&key.model_name, &key.routing_group) {
                None if self.config.use_kv_events => {
                    self.create_partition(key, block_size, Some(index));
                }
                None => fill(&self.create_partition(key, block_size, None), &index, self),
                Some(partition) if partition.block_size == block_size => fill(&partition, &index, self),
                Some(partition) => {
                    let existing = partition.block_size;
                    let reason = format!("block_size is {block_size}, the partition's is {existing}");
                    report.skipped_partitions.push((name, reason));
                    continue;
                }
            }
            report.partitions += 1;
        }
    }
}

/// Copies what `staged` holds into a partition's primary index.
fn fill(partition: &PartitionRef, staged: &PrefixIndex, core: &SelectionCore) {
    partition.admit_strangers();
    partition.health().contain(|| match &partition.index {
        PartitionIndex::Events { confirmed, .. } => staged.export(&mut |run| {
            confirmed.store(run.rank, run.tier, run.parent, &run.blocks);
        }),
        // Recovered decisions expire like those made now.
        PartitionIndex::Approximate(approximate) => {
            dump::for_each_chain(staged, |rank, locals, seqs| {
                approximate.record(rank, locals, seqs, core.clock.now());
            });
        }
    });
}

impl DumpImport {
    /// The document is complete: puts what was read into `core`. Partitions that do not exist are created with the
    /// dump's block size; an existing one with another block size is skipped.
    ///
    /// # Errors
    /// The document is not complete.
    pub fn finish(self, core: &SelectionCore) -> Result<ImportReport, dump::DumpError> {
        self.finish_beside(core, &mut HeldRanks::default())
    }

    /// As [`Self::finish`], but for ranks in `held`, which a better source has filled; those that it fills are added.
    ///
    /// # Errors
    /// The document is not complete.
    pub fn finish_beside(self, core: &SelectionCore, held: &mut HeldRanks) -> Result<ImportReport, dump::DumpError> {
        let (staged, mut report) = self.into_staged()?;
        core.import(staged, &mut report, held);
        Ok(report)
    }
}
