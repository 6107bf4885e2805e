//! Dumps and their import.

use super::*;
use crate::selection::dump::{DumpError, DumpImport, ImportReport};

fn import(f: &Fixture, text: &str, piece: usize) -> Result<ImportReport, DumpError> {
    let mut import = DumpImport::default();
    for bytes in text.as_bytes().chunks(piece) {
        import.push(bytes)?;
    }
    import.finish(&f.core)
}

fn stored(worker_id: u64, tier: &str, parent: Option<u64>, names: &[u64]) -> Value {
    let blocks: Vec<_> = names
        .iter()
        .map(|name| json!({"block_hash": name, "tokens_hash": name % 1000, "mm_extra_info": null}))
        .collect();
    json!({"worker_id": worker_id, "storage_tier": tier, "residency_domain": "worker", "event": {
        "event_id": 0, "dp_rank": 0,
        "data": {"stored": {"parent_hash": parent, "start_position": null, "blocks": blocks}}}})
}

#[test]
fn a_dump_has_the_shape_of_the_reference() {
    let f = Fixture::new();
    f.upsert(worker(1, 1));
    store(&f.sources.sink(1, 0), 0, &[1, 2]);
    let mut out = Vec::new();
    f.core.write_dump(&mut out).unwrap();
    assert_eq!(
        String::from_utf8(out).unwrap(),
        concat!(
            r#"{"m:default":{"block_size":4,"events":[{"worker_id":1,"storage_tier":"device","#,
            r#""residency_domain":"worker","event":{"event_id":0,"data":{"stored":{"parent_hash":null,"#,
            r#""start_position":null,"blocks":[{"block_hash":1001,"tokens_hash":1,"mm_extra_info":null},"#,
            r#"{"block_hash":1002,"tokens_hash":2,"mm_extra_info":null}]}},"dp_rank":0}}]}}"#
        )
    );
}

#[test]
fn a_dump_fills_a_late_core_before_and_after_its_workers_come() {
    let from = Fixture::new();
    from.upsert(worker(1, 1));
    from.upsert(worker(u64::MAX, 2));
    store(&from.sources.sink(1, 0), 0, &[1, 2, 3]);
    store(&from.sources.sink(u64::MAX, 1), 1, &[1]);
    let host = [StoredBlock { name: 1004, local: 4 }];
    from.sources.sink(1, 0).store(0, Tier::HostPinned, Some(1003), &host);
    let text = from.dump().to_string();
    for piece in [1, 7, text.len()] {
        let to = Fixture::new();
        let report = import(&to, &text, piece).unwrap();
        assert_eq!((report.partitions, report.blocks, report.skipped_events), (1, 5, 0));
        assert_eq!(sorted(to.dump()), sorted(from.dump()), "in pieces of {piece}");
        assert_eq!(to.core.schedulable_workers(), 0);
        to.upsert(worker(1, 1));
        to.upsert(worker(u64::MAX, 2));
        assert_eq!(to.cached("m", (1, 0), &[1, 2, 3, 4]), Some(3));
        assert_eq!(to.cached("m", (u64::MAX, 1), &[1, 2]), Some(1));
    }
    // Into a partition that exists already.
    let to = Fixture::new();
    to.upsert(worker(1, 1));
    import(&to, &text, 64).unwrap();
    assert_eq!(to.cached("m", (1, 0), &[1, 2, 3]), Some(3));
    let once = sorted(to.dump());
    import(&to, &text, 64).unwrap();
    assert_eq!(sorted(to.dump()), once, "a dump taken twice is a dump taken once");
    // Workers of the dump that nobody registers are shown, and never selected.
    assert_eq!(to.cached("m", (u64::MAX, 1), &[1]), Some(1));
    assert_eq!(to.loads("m"), [(1, 0, 0)]);
}

fn sorted(mut dump: Value) -> Value {
    for partition in dump.as_object_mut().unwrap().values_mut() {
        partition["events"].as_array_mut().unwrap().sort_by_key(Value::to_string);
    }
    dump
}

#[test]
fn old_and_odd_dumps_are_read_as_far_as_they_go() {
    let f = Fixture::new();
    let text = json!({
        "m:default": {"events": [
            stored(1, "device", None, &[1001, 1002, 1003]),
            // Defaults of older versions, and fields nobody knows.
            {"worker_id": 2, "future": {"x": [1, "}"]}, "event": {"event_id": 0, "dp_rank": 0, "data":
                {"stored": {"parent_hash": null, "blocks": [{"block_hash": 1001, "tokens_hash": 1}]}}}},
            {"worker_id": 1, "event": {"data": {"removed": {"block_hashes": [1003, 77]}}}},
            stored(3, "device", None, &[1001]),
            {"worker_id": 3, "event": {"data": "cleared"}},
            // Skipped: another domain, an unknown tier, a malformed event, no event at all.
            {"worker_id": 1, "residency_domain": "cache_owner", "event": {"data": "cleared"}},
            stored(1, "tape", None, &[1009]),
            {"worker_id": -1, "event": {"data": "cleared"}},
            17,
        ], "block_size": 4, "later": null},
        "bad:one": {"error": "index is busy"},
        "no-colon": {"block_size": 4, "events": []},
        "bad:two": {"block_size": 0, "events": []},
        "bad:three": {"block_size": 4, "events": {"a": 1}},
        "bad:four": [],
        "empty:default": {"block_size": 8, "events": []},
    })
    .to_string();
    let report = import(&f, &text, 5).unwrap();
    assert_eq!((report.partitions, report.events, report.blocks, report.skipped_events), (2, 5, 5, 4));
    let mut skipped = report.skipped_partitions;
    skipped.sort();
    let skipped: Vec<_> = skipped.iter().map(|(key, reason)| (key.as_str(), reason.as_str())).collect();
    assert_eq!(
        skipped,
        [
            ("bad:four", "it is not an object"),
            ("bad:one", "index is busy"),
            ("bad:three", "its events are not a list"),
            ("bad:two", "block_size is missing"),
            ("no-colon", "its key names no routing group"),
        ]
    );
    for id in 1..=3 {
        f.upsert(worker(id, 1));
    }
    let cached: Vec<_> = (1..=3).map(|id| f.cached("m", (id, 0), &[1, 2, 3]).unwrap()).collect();
    assert_eq!(cached, [2, 1, 0]);
}

// r09 of the corpus, with its wording.
#[test]
fn a_dump_fixes_the_block_size_until_its_partition_goes() {
    let f = Fixture::new();
    import(&f, r#"{"m:default": {"block_size": 8, "events": []}}"#, 100).unwrap();
    assert_eq!(f.dump(), json!({"m:default": {"block_size": 8, "events": []}}));
    let record = f.upsert(worker(1, 1));
    assert_eq!(
        record.not_schedulable_reasons,
        ["reconciliation failed: block_size mismatch for model=m routing_group=default: existing=8, requested=4"]
    );
    // The first worker that fits also fixes the rest.
    let record = f.upsert(with(worker(2, 1), json!({"block_size": 8, "is_eagle": true})));
    assert_eq!(record.lifecycle, Lifecycle::Schedulable);
    assert!(f.core.partition("m", "default").unwrap().is_eagle());
    let report = import(&f, r#"{"m:default": {"block_size": 4, "events": []}}"#, 100).unwrap();
    assert_eq!(report.partitions, 0);
    assert_eq!(report.skipped_partitions[0].1, "block_size is 4, the partition's is 8");
    f.core.delete_worker(2).unwrap();
    assert_eq!(f.core.worker(1).unwrap().lifecycle, Lifecycle::Schedulable, "its turn came");
}

#[test]
fn a_dump_that_breaks_off_changes_nothing() {
    let whole = json!({"m:default": {"block_size": 4, "events": [stored(1, "device", None, &[1001])]},
                       "n:default": {"block_size": 4, "events": []}})
    .to_string();
    for cut in 0..whole.len() {
        let f = Fixture::new();
        assert!(import(&f, &whole[..cut], 9).is_err(), "cut at {cut}");
        assert_eq!(f.dump(), json!({}));
    }
    for text in [
        "",
        "[]",
        "{]",
        r#"{"a:b" {}}"#,
        r#"{"a:b": {"block_size" 4}}"#,
        r#"{"a:b": tru}"#,
        r#"{"a:b": {"x": nul}}"#,
        r#"{"a:b": {"events": [1 2]}}"#,
        r#"{1: {}}"#,
        r#"{"a:b": {}} x"#,
        r#"{"a:b": {},}"#,
        "\u{feff}{}",
    ] {
        let f = Fixture::new();
        assert!(import(&f, text, 3).is_err(), "{text}");
    }
}

#[test]
fn damaged_dumps_are_refused_or_read_in_part() {
    let from = Fixture::new();
    from.upsert(with(worker(1, 1), json!({"model_name": "a:b"})));
    from.upsert(worker(2, 1));
    store(&from.sources.sink(1, 0), 0, &[1, 2, 3]);
    store(&from.sources.sink(2, 0), 0, &[1, 4]);
    let whole = from.dump().to_string().into_bytes();
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    for _ in 0..2_000 {
        let mut text = whole.clone();
        for _ in 0..rng.usize(1..4) {
            let at = rng.usize(..text.len());
            match rng.u8(..4) {
                0 => text[at] = rng.u8(..),
                1 => text[at] = *rng.choice(br#"{}[]",:0\ "#).unwrap(),
                2 => drop(text.remove(at)),
                _ => text.insert(at, text[rng.usize(..text.len())]),
            }
        }
        let to = Fixture::new();
        let mut import = DumpImport::default();
        let pushed = text.chunks(rng.usize(1..64)).try_for_each(|bytes| import.push(bytes));
        if pushed.and_then(|()| import.finish(&to.core)).is_err() {
            assert_eq!(to.dump(), json!({}), "{}", String::from_utf8_lossy(&text));
        }
    }
}

// Deviation 6.
#[test]
fn names_with_colons_come_back_as_they_were() {
    let from = Fixture::new();
    for (id, model, group) in [(1, "a:b", "c"), (2, "a", "b:c"), (3, "", ""), (4, "a", "b\"c")] {
        from.upsert(with(worker(id, 1), json!({"model_name": model, "routing_group": group})));
        store(&from.sources.sink(id, 0), 0, &[id]);
    }
    let mut text = Vec::new();
    from.core.write_dump(&mut text).unwrap();
    let to = Fixture::new();
    let report = import(&to, std::str::from_utf8(&text).unwrap(), 11).unwrap();
    assert_eq!(report.partitions, 4);
    let mut again = Vec::new();
    to.core.write_dump(&mut again).unwrap();
    assert_eq!(String::from_utf8(again).unwrap(), String::from_utf8(text).unwrap());
    assert!(to.core.partition("a:b", "c").is_some() && to.core.partition("a", "b:c").is_some());
}

#[test]
fn recovered_decisions_expire_like_own_ones() {
    let config =
        || SelectionConfig { use_kv_events: false, ttl: Duration::from_secs(10), ..SelectionConfig::default() };
    let from = Fixture::with(config());
    from.upsert(worker(1, 1));
    from.reserve("m", "a", &[1, 2, 3]).unwrap();
    from.reserve("m", "b", &[1, 2, 7, 8]).unwrap();
    let to = Fixture::with(config());
    to.clock.advance(Duration::from_secs(5));
    import(&to, &from.dump().to_string(), 100).unwrap();
    to.upsert(worker(1, 1));
    let cached = || (to.cached("m", (1, 0), &[1, 2, 3]), to.cached("m", (1, 0), &[1, 2, 7, 8]));
    assert_eq!(cached(), (Some(3), Some(4)));
    to.clock.advance(Duration::from_secs(11));
    to.core.tick();
    assert_eq!(cached(), (Some(0), Some(0)));
}

#[test]
fn recovered_decisions_expire_whatever_the_dump_calls_their_blocks() {
    let from = Fixture::new();
    from.upsert(worker(1, 1));
    store(&from.sources.sink(1, 0), 0, &[1, 2, 3]);
    let to = Fixture::approximate();
    import(&to, &from.dump().to_string(), 100).unwrap();
    to.upsert(worker(1, 1));
    assert_eq!(to.cached("m", (1, 0), &[1, 2, 3]), Some(3));
    to.clock.advance(Duration::from_secs(121));
    to.core.tick();
    assert_eq!(to.cached("m", (1, 0), &[1, 2, 3]), Some(0));
}

#[test]
fn a_writer_that_fails_ends_the_dump() {
    struct Full(usize);
    impl std::io::Write for Full {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or(std::io::ErrorKind::StorageFull)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let f = Fixture::new();
    f.upsert(worker(1, 1));
    store(&f.sources.sink(1, 0), 0, &[1, 2]);
    for room in [0, 1, 20, 60, 150] {
        assert!(f.core.write_dump(&mut Full(room)).is_err());
    }
}

#[test]
fn a_dump_leaves_alone_what_a_better_source_has_filled() {
    let from = Fixture::new();
    from.upsert(worker(1, 1));
    from.upsert(worker(2, 1));
    store(&from.sources.sink(1, 0), 0, &[1, 2, 3]);
    store(&from.sources.sink(2, 0), 0, &[1, 2]);
    let to = Fixture::new();
    to.upsert(worker(1, 1));
    store(&to.sources.sink(1, 0), 0, &[1]);
    let [filled, more] =
        [1, 2].map(|id| (crate::selection::identity::PartitionKey::new("m", "default"), WorkerWithDpRank::new(id, 0)));
    let mut held = [filled.clone()].into();
    let mut import = DumpImport::default();
    import.push(from.dump().to_string().as_bytes()).unwrap();
    import.finish_beside(&to.core, &mut held).unwrap();
    assert_eq!((to.cached("m", (1, 0), &[1, 2, 3]), to.cached("m", (2, 0), &[1, 2, 3])), (Some(1), Some(2)));
    assert_eq!(held, [filled, more].into());
    // Nobody registered worker 2.
    to.core.forget_strangers(&held);
    assert_eq!((to.cached("m", (1, 0), &[1]), to.cached("m", (2, 0), &[1])), (Some(1), None));
}
