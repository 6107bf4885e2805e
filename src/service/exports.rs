//! Index snapshots for peers: what is offered, and the exports under way.
//!
//! A peer takes an export chunk by chunk and may ask for the newest one again, so a fetch that broke goes on where it
//! was. Invariants: positions are read before any block; there are few exports at a time, each holds one chunk, and one
//! that nobody asks for is forgotten.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::SelectionService;
use crate::selection::{
    PartitionKey, WorkerWithDpRank,
    core::PartitionFilter,
    ingest::Trust,
    partition::{PartitionIndex, PartitionRef},
    snapshot::{IndexExport, Memory, PartitionHeader, RankHeader, VERSION},
};

/// Exports at a time.
const MAX_EXPORTS: usize = 16;
/// An export whose next chunk nobody asked for so long is forgotten; asking for the newest one again is no progress.
const IDLE: Duration = Duration::from_secs(60);
/// Blocks of a chunk, about: 2 MiB before compression.
const CHUNK_BLOCKS: usize = 1 << 17;
/// What streams have taught, over all ranks of a partition; beyond it ranks are offered without a position.
const MAX_MEMORY: usize = 32 << 20;
/// Fast: names and hashes hardly compress, equal blocks of many ranks do.
const LEVEL: i32 = 1;

/// What a selector has to offer (`GET /replica_sync/index`).
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct IndexSummary {
    /// Version of the snapshots.
    pub version: u32,
    /// Changes on every start of the process.
    pub instance_id: String,
    /// Its own start-up recovery is over; nothing is offered before.
    pub ready: bool,
    /// Sorted by name.
    #[serde(default)]
    pub partitions: Vec<PartitionSummary>,
}

/// What it has of one partition.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PartitionSummary {
    /// Which one.
    #[serde(flatten)]
    pub partition: PartitionHeader,
    /// Ranks with blocks or a position, sorted.
    #[serde(default)]
    pub ranks: Vec<RankHeader>,
}

/// Why there is no chunk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    /// No such partition, or one without streams.
    #[error("no index to export for {0}")]
    NoPartition(PartitionKey),
    /// Too many peers take snapshots.
    #[error("{MAX_EXPORTS} index exports are under way: ask again later")]
    Busy,
    /// The export is over or forgotten, or is elsewhere in the row.
    #[error("export is not at this chunk any more: begin again")]
    Gone,
    /// The index failed.
    #[error("the index failed")]
    Failed,
}

impl ExportError {
    /// A stable word for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoPartition(_) => "no_partition",
            Self::Busy => "export_busy",
            Self::Gone => "export_gone",
            Self::Failed => "internal",
        }
    }
}

/// The exports under way, by id.
#[derive(Debug, Default)]
pub(super) struct Exports {
    sessions: Mutex<HashMap<String, Arc<Session>>>,
    /// Forgotten before their end.
    forgotten: AtomicU64,
}

#[derive(Debug)]
struct Session {
    /// When its newest chunk was made.
    moved: Mutex<Instant>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    export: IndexExport,
    /// Incarnation of each rank's stream when its position was read, in the order of the table.
    incarnations: Vec<(WorkerWithDpRank, Option<u64>)>,
    /// The newest chunk.
    newest: (u64, Bytes),
    finished: bool,
}

impl Exports {
    fn add(&self, id: String, session: Session) -> Result<(), ExportError> {
        self.forget_idle();
        let mut sessions = self.sessions.lock();
        if sessions.len() >= MAX_EXPORTS {
            return Err(ExportError::Busy);
        }
        sessions.insert(id, Arc::new(session));
        Ok(())
    }

    fn get(&self, id: &str) -> Option<Arc<Session>> {
        self.sessions.lock().get(id).cloned()
    }

    /// Forgets exports that nobody goes on with.
    pub(super) fn forget_idle(&self) {
        self.sessions.lock().retain(|_, session| {
            let is_live = session.moved.lock().elapsed() < IDLE;
            if !is_live && session.state.try_lock().is_none_or(|state| !state.finished) {
                self.forgotten.fetch_add(1, Ordering::Relaxed);
            }
            is_live
        });
    }

    /// Exports forgotten before their end.
    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten.load(Ordering::Relaxed)
    }
}

/// The ranks of a partition, where their streams stood before anything else was looked at.
struct Table {
    ranks: Vec<RankHeader>,
    memories: Vec<Memory>,
    incarnations: Vec<(WorkerWithDpRank, Option<u64>)>,
}

impl SelectionService {
    /// What there is to take. Cheap: nothing is read but sizes and positions.
    pub fn index_summary(&self) -> IndexSummary {
        let core = &self.shared.core;
        let ready = self.is_recovered();
        let partitions = if ready { core.partitions(&PartitionFilter::default()) } else { Vec::new() };
        let partitions =
            partitions.iter().filter(|partition| has_streams(partition)).map(|partition| PartitionSummary {
                partition: PartitionHeader { key: partition.key.clone(), block_size: partition.block_size },
                ranks: self.table(partition).ranks,
            });
        let instance_id = core.instance_id().to_owned();
        IndexSummary { version: VERSION, instance_id, ready, partitions: partitions.collect() }
    }

    /// Begins an export; its first chunk, compressed.
    ///
    /// # Errors
    /// [`ExportError`].
    pub fn begin_index_export(&self, key: &PartitionKey) -> Result<Bytes, ExportError> {
        let filter = PartitionFilter {
            model_name: Some(key.model_name.to_string()),
            routing_group: Some(key.routing_group.to_string()),
        };
        let partition = self.shared.core.partitions(&filter).into_iter().next();
        let partition = partition.filter(has_streams).ok_or_else(|| ExportError::NoPartition(key.clone()))?;
        let Table { ranks, memories, incarnations } = self.table(&partition);
        let id = uuid::Uuid::new_v4().to_string();
        let mut export = IndexExport::new(id.clone(), partition, &ranks);
        let first = compress(&export.first(ranks, &memories))?;
        let state = State { export, incarnations, newest: (0, first.clone()), finished: false };
        self.shared.exports.add(id, Session { moved: Mutex::new(Instant::now()), state: Mutex::new(state) })?;
        Ok(first)
    }

    /// Chunk `chunk` of an export, compressed: the next one, or the newest again. Takes some milliseconds.
    ///
    /// # Errors
    /// [`ExportError`].
    pub fn index_export_chunk(&self, export: &str, chunk: u64) -> Result<Bytes, ExportError> {
        let session = self.shared.exports.get(export).ok_or(ExportError::Gone)?;
        let mut state = session.state.lock();
        if state.newest.0 == chunk {
            return Ok(state.newest.1.clone());
        }
        if state.finished || state.export.next() != chunk {
            return Err(ExportError::Gone);
        }
        let content = if state.export.is_done() {
            let now = self.shared.sources.incarnations();
            let changed = |(rank, then): &(WorkerWithDpRank, Option<u64>)| {
                then.is_some() && now.get(&(rank.worker_id, rank.dp_rank)).copied() != *then
            };
            let void = state.incarnations.iter().zip(0..).filter(|(stream, _)| changed(stream)).map(|(_, at)| at);
            let void = void.collect();
            state.finished = true;
            state.export.last(void)
        } else {
            state.export.runs(CHUNK_BLOCKS).map_err(|_| ExportError::Failed)?
        };
        let content = compress(&content)?;
        state.newest = (chunk, content.clone());
        *session.moved.lock() = Instant::now();
        Ok(content)
    }

    fn table(&self, partition: &PartitionRef) -> Table {
        // Positions first: a block that is read later may be newer than its position, never older.
        let mut cuts = self.shared.sources.cuts();
        let mut blocks: HashMap<_, _> = partition.index.primary().ranks().into_iter().collect();
        cuts.retain(|&(worker_id, dp_rank), _| partition.has_rank(WorkerWithDpRank::new(worker_id, dp_rank)));
        for &(worker_id, dp_rank) in cuts.keys() {
            blocks.entry(WorkerWithDpRank::new(worker_id, dp_rank)).or_default();
        }
        let mut ranks: Vec<_> = blocks.into_iter().collect();
        ranks.sort_unstable();
        let mut table = Table { ranks: Vec::new(), memories: Vec::new(), incarnations: Vec::new() };
        let mut room = MAX_MEMORY;
        for ((rank, blocks), at) in ranks.into_iter().zip(0..) {
            let cut = cuts.remove(&(rank.worker_id, rank.dp_rank));
            table.incarnations.push((rank, cut.as_ref().map(|cut| cut.incarnation)));
            let mut header = RankHeader {
                worker_id: rank.worker_id,
                dp_rank: rank.dp_rank,
                blocks,
                endpoint: None,
                position: None,
                mark: None,
                trust: Trust::Unknown,
            };
            if let Some(cut) = cut {
                let memory = cut.memory.unwrap_or_default();
                header.endpoint = Some(cut.endpoint);
                header.trust = cut.trust;
                if memory.len() <= room {
                    room -= memory.len();
                    (header.position, header.mark) = cut.position.unzip();
                    if !memory.is_empty() {
                        table.memories.push(Memory { rank: at, bytes: memory });
                    }
                }
            }
            table.ranks.push(header);
        }
        table
    }
}

fn has_streams(partition: &PartitionRef) -> bool {
    matches!(partition.index, PartitionIndex::Events { .. })
}

fn compress(content: &[u8]) -> Result<Bytes, ExportError> {
    zstd::bulk::compress(content, LEVEL).map(Bytes::from).map_err(|_| ExportError::Failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        selection::SelectionConfig,
        service::{SelectionServiceBuilder, ServiceConfig},
    };

    #[tokio::test(flavor = "multi_thread")]
    async fn an_export_that_is_asked_for_without_progress_gives_its_place_back() {
        let config = ServiceConfig { selection: SelectionConfig::default(), ..ServiceConfig::default() };
        let service = SelectionServiceBuilder::new(config).build().expect("valid");
        service.recovered().await;
        let worker = serde_json::json!({"worker_id": 1, "model_name": "m", "endpoint": "http://w", "block_size": 16,
            "kv_events_endpoint": "tcp://127.0.0.1:1"});
        service.upsert_worker(serde_json::from_value(worker).expect("a worker")).expect("valid");
        let key = PartitionKey::new("m", "default");
        service.begin_index_export(&key).expect("a chunk");
        let exports = &service.shared.exports;
        let id = exports.sessions.lock().keys().next().expect("one").clone();
        let age = |by: Duration| {
            let session = exports.get(&id).expect("still there");
            let mut moved = session.moved.lock();
            *moved = moved.checked_sub(by).expect("not so long ago");
        };
        age(IDLE / 2);
        service.index_export_chunk(&id, 0).expect("the newest again");
        age(IDLE / 2);
        exports.forget_idle();
        assert_eq!((exports.get(&id).is_none(), exports.forgotten()), (true, 1));
        assert_eq!(service.index_export_chunk(&id, 0), Err(ExportError::Gone));
    }
}
