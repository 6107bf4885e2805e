//! A selector that follows a workers file: what reaches its catalog, and what it says about a file it cannot use.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod program;

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use program::{Selector, replace, wait_for};
use serde_json::json;

const OWNER: &str = "file.default";

/// Three workers with event endpoints nobody serves.
const THREE: &str = "version: 1
defaults: {model_name: model, block_size: 4}
workers:
- {worker_id: 1, endpoint: 'http://127.0.0.1:8001', kv_events_endpoints: {0: 'tcp://127.0.0.1:15551'}}
- {worker_id: 2, endpoint: 'http://127.0.0.1:8002', kv_events_endpoints: {0: 'tcp://127.0.0.1:15552'}}
- {worker_id: 3, endpoint: 'http://127.0.0.1:8003', kv_events_endpoints: {0: 'tcp://127.0.0.1:15553'}}
";

fn two() -> String {
    THREE.lines().filter(|l| !l.contains("worker_id: 3")).map(|l| format!("{l}\n")).collect()
}

struct Followed {
    directory: tempfile::TempDir,
    path: PathBuf,
    selector: Selector,
}

impl Followed {
    fn start(content: Option<&str>, variables: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("workers.yaml");
        if let Some(content) = content {
            fs::write(&path, content).unwrap();
        }
        let flags = ["--workers-file", path.to_str().unwrap()];
        let selector = Selector::start(directory.path(), &flags, variables);
        Self { directory, path, selector }
    }

    fn error(&self) -> Option<String> {
        self.selector.owner(OWNER)?["source_error"].as_str().map(str::to_owned)
    }

    fn wait_for_error(&self, part: &str) {
        wait_for(&format!("an error with {part:?}"), || self.error().filter(|e| e.contains(part)));
    }

    fn wait_for_no_error(&self) {
        wait_for("no error", || self.error().is_none().then_some(()));
    }
}

#[test]
fn an_edit_changes_the_catalog_and_nothing_else() {
    let followed = Followed::start(Some(THREE), &[]);
    let selector = &followed.selector;
    selector.wait_for_workers(&[1, 2, 3]);
    // A worker that somebody registers by hand belongs to him: no edit of the file touches it.
    let by_hand = json!({"worker_id": 99, "endpoint": "http://by-hand", "block_size": 4, "model_name": "other"});
    assert_eq!(selector.call("POST", "/workers", Some(&by_hand)).0, 201);
    replace(&followed.path, &two());
    selector.wait_for_workers(&[1, 2, 99]);
    let owner = selector.owner(OWNER).unwrap();
    assert_eq!((&owner["workers"], &owner["schedulable"], &owner["generation"]), (&json!(2), &json!(2), &json!(2)));
    // Somebody deletes one of the file's workers: it comes back without an edit.
    assert_eq!(selector.call("DELETE", "/workers/1", None).0, 200);
    selector.wait_for_workers(&[1, 2, 99]);
    replace(&followed.path, "version: 1\nworkers: []\n");
    selector.wait_for_workers(&[99]);
}

#[test]
fn a_booking_survives_an_edit_that_keeps_its_worker() {
    let followed = Followed::start(Some(THREE), &[("DYN_ROUTER_USE_KV_EVENTS", "false")]);
    let selector = &followed.selector;
    selector.wait_for_workers(&[1, 2, 3]);
    let reserve = json!({"model_name": "model", "selection_id": "kept", "token_ids": vec![7; 16],
        "pinned_worker": {"worker_id": 1, "dp_rank": 0}});
    assert_eq!(selector.call("POST", "/select_and_reserve", Some(&reserve)).0, 200);
    replace(&followed.path, &two());
    selector.wait_for_workers(&[1, 2]);
    assert_eq!(selector.call("DELETE", "/reservations/kept", None).0, 200);
}

#[test]
fn a_file_that_cannot_be_used_keeps_the_catalog_and_says_why_everywhere() {
    let followed = Followed::start(Some(THREE), &[]);
    let selector = &followed.selector;
    selector.wait_for_workers(&[1, 2, 3]);
    for (content, part) in [
        (String::new(), "empty"),
        (THREE[..200].to_owned(), ": "),
        (format!("{THREE}- {{worker_id: 1}}\n"), "worker_id 1 is already taken on line 4"),
        (THREE.replace("block_size: 4", "block_size: four"), "workers.yaml:2:43: defaults.block_size: invalid u32"),
        (
            format!("{THREE}- {{worker_id: 4, data_parallel_start_rank: 4294967290, data_parallel_size: 10}}\n"),
            "workers.yaml:7:3: workers[3].data_parallel_start_rank",
        ),
    ] {
        fs::write(&followed.path, &content).unwrap();
        followed.wait_for_error(part);
        assert_eq!(selector.workers().len(), 3, "{part}");
    }
    let metrics = String::from_utf8(selector.send("GET", "/metrics", None).unwrap().body).unwrap();
    assert!(metrics.contains("pointsman_source_failing 1"), "{metrics}");
    assert!(metrics.contains("pointsman_source_refusals_total{reason=\"duplicate\"} 1"), "{metrics}");
    assert!(selector.program.log().contains("workers file refused"));
    assert_eq!(selector.call("GET", "/readyz", None).0, 200, "what is in force still serves");
    replace(&followed.path, &two());
    selector.wait_for_workers(&[1, 2]);
    followed.wait_for_no_error();
}

#[test]
fn a_catalog_that_has_something_newer_says_why_the_file_is_not_in_force() {
    let followed = Followed::start(Some(THREE), &[]);
    followed.selector.wait_for_workers(&[1, 2, 3]);
    let last = i64::MAX;
    let emptied = json!({"epoch": last, "generation": last, "digest": "x", "workers": []});
    assert_eq!(followed.selector.call("PUT", "/catalog/file.default", Some(&emptied)).0, 200);
    followed.wait_for_error(&format!("another source is applying this owner with version ({last}, {last})"));
    // A file that cannot be used is the nearer reason; mended, the other is still there.
    replace(&followed.path, "");
    followed.wait_for_error("empty");
    replace(&followed.path, &two());
    followed.wait_for_error("another source");
}

#[test]
fn a_worker_that_is_incomplete_is_applied_and_reported_beside_the_others() {
    let followed = Followed::start(Some(&THREE.replace("worker_id: 2,", "worker_id: 2, block_size: 0,")), &[]);
    followed.selector.wait_for_workers(&[1, 2, 3]);
    let owner = followed.selector.owner(OWNER).unwrap();
    assert_eq!((&owner["workers"], &owner["schedulable"]), (&json!(3), &json!(2)));
    let second = followed.selector.get("/workers")[1].clone();
    assert_eq!(second["not_schedulable_reasons"], json!(["block_size must be greater than 0"]));
    wait_for("a line in the log", || {
        followed.selector.program.log().contains("worker takes no bookings").then_some(())
    });
}

#[test]
fn large_ids_are_exact() {
    let content = "{\"version\": 1, \"workers\": [{\"worker_id\": 9007199254740993}, {\"worker_id\": 9007199254740995}, \
                   {\"worker_id\": 18446744073709551615}]}";
    let followed = Followed::start(Some(content), &[]);
    followed.selector.wait_for_workers(&[9_007_199_254_740_993, 9_007_199_254_740_995, u64::MAX]);
}

#[test]
fn names_give_ids_that_every_selector_derives_alike() {
    let content = "version: 1\ndefaults: {model_name: model}\nworkers: [{name: gpu-0}, {name: gpu-1}]\n";
    let followed = [Followed::start(Some(content), &[]), Followed::start(Some(content), &[])];
    let ids = followed.each_ref().map(|f| {
        wait_for("two workers", || Some(f.selector.workers()).filter(|w| w.len() == 2)).into_keys().collect::<Vec<_>>()
    });
    assert_eq!(ids[0], ids[1]);
    assert!(ids[0].iter().all(|id| *id < 1 << 53), "{ids:?}");
}

#[test]
fn a_missing_file_is_waited_for_and_readiness_says_so() {
    let followed = Followed::start(None, &[]);
    followed.wait_for_error("No such file");
    let (status, body) = followed.selector.call("GET", "/readyz", None);
    assert_eq!((status, &body["missing"]), (503, &json!(["catalog"])));
    assert_eq!(followed.selector.call("GET", "/livez", None).0, 200);
    replace(&followed.path, "version: 1\nworkers: []\n");
    wait_for("readiness with an intended empty catalog", || {
        (followed.selector.call("GET", "/readyz", None).0 == 200).then_some(())
    });
    followed.wait_for_no_error();
    fs::remove_file(&followed.path).unwrap();
    followed.wait_for_error("No such file");
}

#[test]
fn a_config_map_is_followed_through_its_swaps() {
    let directory = tempfile::tempdir().unwrap();
    let swap = |stamp: &str, content: &str| {
        let data = directory.path().join(stamp);
        fs::create_dir(&data).unwrap();
        fs::write(data.join("workers.yaml"), content).unwrap();
        let link = directory.path().join("..data_tmp");
        std::os::unix::fs::symlink(stamp, &link).unwrap();
        fs::rename(link, directory.path().join("..data")).unwrap();
    };
    swap("..1", THREE);
    std::os::unix::fs::symlink("..data/workers.yaml", directory.path().join("workers.yaml")).unwrap();
    let logs = tempfile::tempdir().unwrap();
    let path = directory.path().join("workers.yaml");
    let selector = Selector::start(logs.path(), &["--workers-file", path.to_str().unwrap()], &[]);
    selector.wait_for_workers(&[1, 2, 3]);
    for round in 2..=6 {
        swap(&format!("..{round}"), if round % 2 == 0 { THREE } else { "version: 1\nworkers: [{worker_id: 9}]\n" });
        fs::remove_dir_all(directory.path().join(format!("..{}", round - 1))).unwrap();
        selector.wait_for_workers(if round % 2 == 0 { &[1, 2, 3] } else { &[9] });
    }
}

#[test]
fn a_hundred_thousand_workers_are_applied() {
    // Two models, because one partition holds 65,000 ranks.
    let rows: String = (1..=100_000)
        .map(|n| format!("- {{worker_id: {n}, model_name: many-{}, endpoint: 'http://10.0.0.{}'}}\n", n % 2, n % 250))
        .collect();
    let content = format!("version: 1\ndefaults: {{block_size: 16}}\nworkers:\n{rows}");
    let followed = Followed::start(None, &[("DYN_ROUTER_USE_KV_EVENTS", "false")]);
    let began = Instant::now();
    replace(&followed.path, &content);
    wait_for("all of them", || followed.selector.owner(OWNER).filter(|o| o["schedulable"] == 100_000));
    println!("applied after {:?}", began.elapsed());
    let select = json!({"model_name": "many-1", "token_ids": vec![1; 32]});
    assert_eq!(followed.selector.call("POST", "/select", Some(&select)).0, 200);
    // Removal is as large a change; the file's directory is the only thing left behind.
    replace(&followed.path, "version: 1\nworkers: []\n");
    wait_for("none", || followed.selector.workers().is_empty().then_some(()));
    assert!(followed.directory.path().is_dir());
}

#[test]
fn the_file_is_not_read_all_the_time() {
    let followed = Followed::start(Some(THREE), &[]);
    followed.selector.wait_for_workers(&[1, 2, 3]);
    let cpu = || cpu_ticks(followed.selector.program.pid());
    let before = cpu();
    let until = Instant::now() + Duration::from_secs(2);
    while Instant::now() < until {
        std::thread::park_timeout(Duration::from_millis(50));
    }
    // A loop of reading that feeds itself takes a whole processor: 200 ticks.
    assert!(cpu() - before < 60, "{} ticks in 2 s", cpu() - before);
}

fn cpu_ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}
