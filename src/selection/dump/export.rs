//! Writing a dump.

use std::io::{self, Write};

use super::event::WrittenEvent;
use crate::selection::partition::{Partition, PartitionRef};

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
    let mut written = Ok(());
    let mut event_id = 0;
    let exported = partition.health().contain(|| {
        partition.index.primary().export(&mut |run| {
            if written.is_ok() {
                written = write_event(event_id, &run, out);
                event_id += 1;
            }
        });
    });
    written?;
    out.write_all(b"]")?;
    if exported.is_none() {
        // A reader of ours skips the partition then.
        out.write_all(b",\"error\":\"index failed\"")?;
    }
    out.write_all(b"}")
}

fn write_event(event_id: u64, run: &crate::selection::index::ExportedRun, out: &mut dyn Write) -> io::Result<()> {
    if event_id > 0 {
        out.write_all(b",")?;
    }
    Ok(serde_json::to_writer(out, &WrittenEvent::new(event_id, run))?)
}
