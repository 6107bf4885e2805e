//! The workers file: any text is an error or a set of workers that holds what the format promises.
#![no_main]

use std::collections::HashSet;

use libfuzzer_sys::fuzz_target;
use pointsman::{
    discovery::{Snapshot, file::parse},
    selection::{
        catalog::{CatalogSnapshot, SnapshotVersion},
        worker::MAX_DATA_PARALLEL_SIZE,
    },
};

fuzz_target!(|text: &str| {
    let workers = match parse(text, "w") {
        Ok(workers) => workers,
        Err(error) => {
            assert!(error.to_string().contains('w') && !error.reason().is_empty());
            return;
        }
    };
    let mut ids = HashSet::new();
    for worker in &workers {
        let fields = &worker.request.fields;
        assert!(ids.insert(worker.request.worker_id), "an id is there twice");
        let (start, size) = (fields.data_parallel_start_rank.unwrap_or(0), fields.data_parallel_size.unwrap_or(1));
        assert!(size <= MAX_DATA_PARALLEL_SIZE && start.checked_add(size).is_some());
    }
    // The same text gives the same set, and what is sent arrives as it is.
    assert_eq!(parse(text, "w").as_ref(), Ok(&workers));
    let snapshot = Snapshot::new(SnapshotVersion::default(), workers).expect("ids are unique");
    let sent = serde_json::to_vec(&snapshot.to_catalog()).expect("records are JSON");
    let received: CatalogSnapshot = serde_json::from_slice(&sent).expect("a record that was sent can be read");
    let again = Snapshot::new(received.version, received.workers).expect("ids are unique");
    assert_eq!(again.digest(), snapshot.digest());
});
