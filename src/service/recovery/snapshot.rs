//! A partition from a selector of ours. The next chunk is on its way while one is stored; a chunk that did not come is
//! asked for again, and the row goes on.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use super::{RecoveryError, client::Client, plan::Job};
use crate::{
    events::takeover::{Seed, StreamKey},
    selection::{
        WorkerWithDpRank,
        snapshot::{Chunk, Memory, PartitionHeader, RankHeader, RecoveringPartition, SnapshotError},
    },
};

/// Longest chunk, compressed and not: many times what is written.
const MAX_CHUNK: usize = 128 << 20;
/// How often one chunk is asked for again.
const TRIES: u64 = 6;
/// Pause before the second try; doubles.
const PAUSE: Duration = Duration::from_millis(50);
/// Largest window of a compressed chunk, as a power of two: 8 MiB.
const WINDOW_LOG: u32 = 23;

/// What came of a snapshot.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) blocks: u64,
    /// Chunks that took another try.
    pub(super) resumed: u64,
    /// Ranks whose stream began anew meanwhile: to be forgotten.
    pub(super) void: Vec<WorkerWithDpRank>,
    pub(super) seeds: Vec<(StreamKey, Seed)>,
}

/// Where the ranks of a snapshot go, by their place in its table; `None` for those that others bring.
type Table = Vec<Option<WorkerWithDpRank>>;

/// What the first chunk told.
#[derive(Debug)]
struct Begun {
    export: String,
    ranks: Vec<RankHeader>,
    memories: Vec<Memory>,
    table: Table,
}

/// Takes the ranks of `job` into `place`.
pub(super) async fn take(client: &Client, job: &Job, place: &RecoveringPartition) -> Result<Taken, RecoveryError> {
    let partition = [("model_name", &*job.key.model_name), ("routing_group", &*job.key.routing_group)];
    let (first, mut resumed) = fetch(client, &partition).await?;
    let begun = off_thread({
        let job = job.clone();
        move || begin(&first, &job)
    })
    .await?;
    let table = Arc::new(begun.table);
    let mut blocks = 0;
    let mut number = 1;
    let mut coming = next(client, &begun.export, number);
    let void = loop {
        let (content, again) = coming.await.map_err(|_| RecoveryError::Reader)??;
        resumed += again;
        // While this one is stored. The last one has no successor, which is known only when it is read.
        coming = next(client, &begun.export, number + 1);
        let (table, place, export) = (Arc::clone(&table), place.clone(), begun.export.clone());
        let stored = off_thread(move || store(&content, &export, number, &table, &place)).await?;
        blocks += stored.blocks;
        if stored.last {
            break stored.void;
        }
        number += 1;
    };
    let void: Vec<_> = void.into_iter().filter_map(|at| table.get(at as usize).copied().flatten()).collect();
    let mut memories: Vec<Option<Vec<u8>>> = vec![None; table.len()];
    for memory in begun.memories {
        if let Some(place) = memories.get_mut(memory.rank as usize) {
            *place = Some(memory.bytes);
        }
    }
    let seeds = begun.ranks.into_iter().zip(memories).zip(table.iter()).filter_map(|((header, memory), rank)| {
        let rank = (*rank)?;
        if void.contains(&rank) {
            return None;
        }
        let position = header.position.zip(header.mark);
        let seed =
            Seed { endpoint: header.endpoint, position, memory: memory.unwrap_or_default(), trust: header.trust };
        Some(((rank.worker_id, rank.dp_rank), seed))
    });
    let seeds = seeds.collect();
    Ok(Taken { blocks, resumed, void, seeds })
}

/// Forgets what was stored for `ranks`.
pub(super) async fn forget(place: RecoveringPartition, ranks: Vec<WorkerWithDpRank>) {
    if tokio::task::spawn_blocking(move || place.abandon(&ranks)).await.is_err() {
        tracing::error!("an incomplete snapshot could not be forgotten");
    }
}

/// A chunk, and how often it was asked for again.
type Fetched = Result<(Vec<u8>, u64), RecoveryError>;

/// Asks for chunk `number`; dropping the handle ends the request.
fn next(client: &Client, export: &str, number: u64) -> AbortOnDropHandle<Fetched> {
    let (client, export, number) = (client.clone(), export.to_owned(), number.to_string());
    AbortOnDropHandle::new(tokio::spawn(
        async move { fetch(&client, &[("export", &export), ("chunk", &number)]).await },
    ))
}

/// One chunk, tried again when the connection breaks or the peer is busy.
async fn fetch(client: &Client, query: &[(&str, &str)]) -> Fetched {
    let mut pause = PAUSE;
    let mut again = 0;
    loop {
        match client.get_whole("/replica_sync/index/chunk", query, MAX_CHUNK as u64).await {
            Err(error @ (RecoveryError::Request(_) | RecoveryError::Status(500..))) if again < TRIES => {
                tracing::debug!(%error, "asking for a chunk again");
                again += 1;
                sleep(pause).await;
                pause *= 2;
            }
            other => return other.map(|content| (content, again)),
        }
    }
}

async fn off_thread<R: Send + 'static>(
    work: impl FnOnce() -> Result<R, RecoveryError> + Send + 'static,
) -> Result<R, RecoveryError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| RecoveryError::Reader)?
}

fn decompress(content: &[u8]) -> Result<Vec<u8>, RecoveryError> {
    use std::io::Read;
    let mut decoder = zstd::stream::read::Decoder::new(content).map_err(|_| RecoveryError::Compression)?;
    decoder.window_log_max(WINDOW_LOG).map_err(|_| RecoveryError::Compression)?;
    let mut out = Vec::new();
    decoder.take(MAX_CHUNK as u64 + 1).read_to_end(&mut out).map_err(|_| RecoveryError::Compression)?;
    if out.len() > MAX_CHUNK {
        return Err(RecoveryError::TooLarge(MAX_CHUNK as u64));
    }
    Ok(out)
}

fn begin(content: &[u8], job: &Job) -> Result<Begun, RecoveryError> {
    let content = decompress(content)?;
    let chunk = Chunk::read(&content)?;
    let memories = chunk.memories()?;
    let header = chunk.header;
    let expected = PartitionHeader { key: job.key.clone(), block_size: job.block_size };
    if header.chunk != 0 || header.partition.as_ref() != Some(&expected) {
        return Err(SnapshotError::Malformed("it is of another partition").into());
    }
    let table = header.ranks.iter().map(|rank| job.ranks.get(&(rank.worker_id, rank.dp_rank)).copied()).collect();
    Ok(Begun { export: header.export, ranks: header.ranks, memories, table })
}

/// What a chunk brought.
#[derive(Debug)]
struct Stored {
    blocks: u64,
    last: bool,
    void: Vec<u32>,
}

fn store(
    content: &[u8],
    export: &str,
    number: u64,
    table: &[Option<WorkerWithDpRank>],
    place: &RecoveringPartition,
) -> Result<Stored, RecoveryError> {
    let content = decompress(content)?;
    let chunk = Chunk::read(&content)?;
    if chunk.header.export != export || chunk.header.chunk != number {
        return Err(SnapshotError::Malformed("it is another chunk than asked for").into());
    }
    let blocks = chunk.store(table, place)?;
    Ok(Stored { blocks, last: chunk.header.last, void: chunk.header.void })
}
