//! Writing a dump.

use std::io::{self, Write};

use super::event::WrittenEvent;
use crate::selection::{
    index::ExportedRun,
    partition::{Partition, PartitionRef},
};

/// Longest run written as one event.
const MAX_BLOCKS_AN_EVENT: usize = 1024;

/// Writes all partitions as one JSON document.
pub(in crate::selection) fn write(partitions: &[PartitionRef], out: &mut dyn Write) -> io::Result<()> {
    out.write_all(b"{")?;
    for (count, partition) in partitions.iter().enumerate() {
        if count > 0 {
            out.write_all(b",")?;
        }
        write_partition(partition, out)?;
    }
    out.write_all(b"}")
}

fn write_partition(partition: &Partition, out: &mut dyn Write) -> io::Result<()> {
    let key = &partition.key;
    serde_json::to_writer(&mut *out, &format_args!("{}:{}", key.model_name, key.routing_group))?;
    write!(out, ":{{\"block_size\":{}", partition.block_size)?;
    if key.model_name.contains(':') || key.routing_group.contains(':') {
        out.write_all(b",\"model_name\":")?;
        serde_json::to_writer(&mut *out, &*key.model_name)?;
        out.write_all(b",\"routing_group\":")?;
        serde_json::to_writer(&mut *out, &*key.routing_group)?;
    }
    out.write_all(b",\"events\":[")?;
    let mut events = EventWriter { out, next_id: 0, pending: None, result: Ok(()) };
    let exported = partition.health().contain(|| partition.index.primary().export(&mut |run| events.take(run)));
    events.finish()?;
    out.write_all(b"]")?;
    if exported.is_none() {
        // A reader of ours skips the partition then.
        out.write_all(b",\"error\":\"index failed\"")?;
    }
    out.write_all(b"}")
}

/// Joins runs that continue each other into one event, as long as it stays small.
struct EventWriter<'a> {
    out: &'a mut dyn Write,
    next_id: u64,
    pending: Option<ExportedRun>,
    result: io::Result<()>,
}

impl EventWriter<'_> {
    fn take(&mut self, mut run: ExportedRun) {
        if self.result.is_err() || run.blocks.is_empty() {
            return;
        }
        if let Some(pending) = &mut self.pending
            && (pending.rank, pending.tier) == (run.rank, run.tier)
            && pending.blocks.last().map(|block| block.name) == run.parent
            && pending.blocks.len() + run.blocks.len() <= MAX_BLOCKS_AN_EVENT
        {
            pending.blocks.append(&mut run.blocks);
            return;
        }
        self.result = self.write_pending();
        self.pending = Some(run);
    }

    fn write_pending(&mut self) -> io::Result<()> {
        let Some(run) = self.pending.take() else { return Ok(()) };
        if self.next_id > 0 {
            self.out.write_all(b",")?;
        }
        serde_json::to_writer(&mut *self.out, &WrittenEvent::new(self.next_id, &run))?;
        self.next_id += 1;
        Ok(())
    }

    fn finish(mut self) -> io::Result<()> {
        std::mem::replace(&mut self.result, Ok(()))?;
        self.write_pending()
    }
}
