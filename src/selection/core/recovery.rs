//! Verbs of dumps: everything cached, written for a peer, and a peer's dump put in place.

use std::io;

use super::{PartitionFilter, SelectionCore};
use crate::selection::{
    dump::{self, DumpImport, ImportReport, StagedPartition},
    index::PrefixIndex,
    partition::{PartitionIndex, PartitionRef},
};

impl SelectionCore {
    /// Writes the dump of all partitions (`GET /dump`), run by run. Blocks the calling thread as long as `out` does,
    /// and no selection: call it off the async threads, with a writer that hands pieces to the response.
    ///
    /// # Errors
    /// The first error of `out`; the rest is left out.
    pub fn write_dump(&self, out: &mut dyn io::Write) -> io::Result<()> {
        dump::write(&self.partitions(&PartitionFilter::default()), out)
    }

    /// Puts a complete dump in place. See [`DumpImport::finish`].
    pub(in crate::selection) fn import(&self, staged: Vec<StagedPartition>, report: &mut ImportReport) {
        for StagedPartition { name, key, block_size, index } in staged {
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
        let (staged, mut report) = self.into_staged()?;
        core.import(staged, &mut report);
        Ok(report)
    }
}
