//! A peer without our snapshots: its `/dump`, as a stream of JSON.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc;

use super::{RecoveryError, client::Client};
use crate::selection::{
    SelectionCore,
    core::HeldRanks,
    dump::{DumpError, DumpImport, ImportReport},
};

/// Pieces of a dump between the socket and the parser.
const PIECES_IN_FLIGHT: usize = 32;

/// Takes a peer's dump, but for the ranks in `held`. A document that breaks off changes nothing.
pub(super) async fn fetch(
    core: &Arc<SelectionCore>,
    client: &Client,
    held: &mut HeldRanks,
) -> Result<ImportReport, RecoveryError> {
    let mut answer = client.get("/dump", &[]).await?;
    let (pieces, received) = mpsc::channel(PIECES_IN_FLIGHT);
    let reader = tokio::task::spawn_blocking(move || read(received));
    while let Some(piece) = answer.next().await? {
        if pieces.send(piece).await.is_err() {
            break;
        }
    }
    drop(pieces);
    let import = reader.await.map_err(|_| RecoveryError::Reader)??;
    let core = Arc::clone(core);
    let mut taken = held.clone();
    let imported = tokio::task::spawn_blocking(move || {
        let report = import.finish_beside(&core, &mut taken);
        (report, taken)
    });
    let (report, taken) = imported.await.map_err(|_| RecoveryError::Reader)?;
    *held = taken;
    Ok(report?)
}

/// Feeds what is received to the parser, off the async threads.
fn read(mut received: mpsc::Receiver<Bytes>) -> Result<DumpImport, DumpError> {
    let mut import = DumpImport::default();
    while let Some(piece) = received.blocking_recv() {
        import.push(&piece)?;
    }
    Ok(import)
}
