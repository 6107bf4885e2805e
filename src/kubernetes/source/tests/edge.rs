//! The edge before an apiserver that fails in every way it can. Time is the runtime's own and jumps, so minutes pass at
//! once and requests in them can be counted.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::{sync::watch, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{
    super::{
        ClusterSource, Given, SetKey, Sets, SourceOptions,
        testing::{NAMESPACE, POOL, model_pool, pod, slice},
    },
    apiserver::{Apiserver, Fault, cluster},
};
use crate::kubernetes::api::SelectorSet;

/// Longest wait for what must come, in the runtime's time.
const PATIENCE: Duration = Duration::from_secs(300);

struct Running {
    source: ClusterSource,
    sets: watch::Receiver<Arc<Sets>>,
}

fn start(server: &Apiserver, options: SourceOptions) -> Running {
    let source = ClusterSource::start(server.client(), options, &CancellationToken::new());
    let sets = source.sets();
    Running { source, sets }
}

fn options() -> SourceOptions {
    SourceOptions { page: 2, ..SourceOptions::new(Some(NAMESPACE.to_owned()), false) }
}

fn count(sets: &Sets) -> Option<usize> {
    let state = sets.get(&SetKey::new(NAMESPACE, "fleet"))?;
    Some(state.snapshot.as_ref()?.workers().len())
}

impl Running {
    /// Waits for that many workers. No other number than `before` is seen on the way.
    async fn workers(&mut self, wanted: usize, before: Option<usize>) {
        let waiting = async {
            loop {
                let seen = count(&self.sets.borrow_and_update());
                if seen == Some(wanted) {
                    return;
                }
                assert_eq!(seen, before, "never a part of the workers");
                self.sets.changed().await.expect("the source lives");
            }
        };
        timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("{wanted} workers are seen in the end"));
    }

    fn errors(&self, of: &str) -> u64 {
        self.source.counters().errors().filter(|(kind, ..)| *kind == of).map(|(.., count)| count).sum()
    }
}

/// A sixth worker.
fn one_more(server: &Apiserver) {
    server.put("pods", pod("w-5", "w-5", "10.0.0.5"));
    server.put("endpointslices", slice("s-3", &[("w-5", "w-5", "10.0.0.5", true)]));
}

#[tokio::test(start_paused = true)]
async fn what_was_there_before_the_start_is_found_without_a_change() {
    let server = cluster();
    let mut running = start(&server, options());
    running.workers(5, None).await;
    // Both label terms would be one selector; there is one, and everything is in one namespace.
    let slices = server.requests("endpointslices");
    assert!(slices.iter().all(|r| r.contains("labelSelector=kubernetes.io%2Fservice-name")), "{slices:?}");
    assert!(server.requests("/").iter().all(|r| r.contains("/namespaces/demo/")));
    one_more(&server);
    running.workers(6, Some(5)).await;
    server.delete("endpointslices", slice("s-3", &[]));
    running.workers(5, Some(6)).await;
    running.source.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_list_that_fails_half_way_is_no_list() {
    for plural in ["selectorsets", "modelpools", "endpointslices", "pods"] {
        for code in [403, 410, 429, 500] {
            let server = cluster();
            server.fault(plural, Fault::List(code));
            if matches!(plural, "endpointslices" | "pods") {
                server.fault(plural, Fault::SecondPage(code));
            }
            let mut running = start(&server, options());
            running.workers(5, None).await;
            assert!(running.errors(plural) >= 1, "{plural} {code}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_whose_connection_is_reset_is_read_again() {
    for plural in ["selectorsets", "modelpools", "endpointslices", "pods"] {
        let server = cluster();
        (0..3).for_each(|_| server.fault(plural, Fault::Reset));
        let mut running = start(&server, options());
        running.workers(5, None).await;
        assert_eq!(running.errors(plural), 3, "{plural}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_fails_is_healed_and_the_catalog_stays_meanwhile() {
    let expired = json!({"type": "ERROR", "object": {"kind": "Status", "apiVersion": "v1", "status": "Failure",
        "code": 410, "reason": "Expired", "message": "too old resource version", "metadata": {}}});
    let faults = [
        Fault::Watch(410),
        Fault::Watch(403),
        Fault::Watch(404),
        Fault::Watch(429),
        Fault::Watch(500),
        Fault::Line(expired.to_string()),
        Fault::Line(r#"{"type":"MODIFIED","object":{"metadata":{"na"#.to_owned()),
        Fault::Line("no JSON at all".to_owned()),
        Fault::End,
        Fault::Silence,
        Fault::Reset,
        Fault::ResetIn(r#"{"type":"MODIFIED","object":{"metadata":{"na"#.to_owned()),
    ];
    for (at, fault) in faults.into_iter().enumerate() {
        let server = cluster();
        let mut running = start(&server, options());
        running.workers(5, None).await;
        for plural in ["endpointslices", "pods"] {
            (0..3).for_each(|_| server.fault(plural, fault.clone()));
            server.cut(plural);
        }
        // What changes meanwhile is told to nobody: a list must find it.
        one_more(&server);
        running.workers(6, Some(5)).await;
        // And what goes meanwhile goes.
        server.cut("endpointslices");
        server.delete("endpointslices", slice("s-3", &[]));
        running.workers(5, Some(6)).await;
        assert!(count(&running.sets.borrow()) == Some(5), "fault {at}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_apiserver_that_fails_for_long_is_asked_seldom() {
    const MINUTES: usize = 10;
    let lists = |server: &Apiserver| (0..1000).for_each(|_| server.fault("pods", Fault::List(500)));
    let watches = |server: &Apiserver| (0..1000).for_each(|_| server.fault("pods", Fault::Watch(500)));
    let gone = |server: &Apiserver| (0..1000).for_each(|_| server.fault("pods", Fault::Watch(410)));
    let closed = |server: &Apiserver| server.0.lock().closed = Some("pods");
    type Break<'a> = &'a dyn Fn(&Apiserver);
    let faults: [(&str, Break<'_>); 4] = [
        ("lists", &|s| {
            gone_once(s);
            lists(s)
        }),
        ("watches", &watches),
        ("gone", &gone),
        ("closed", &closed),
    ];
    for (name, fault) in faults {
        let server = cluster();
        let mut running = start(&server, options());
        running.workers(5, None).await;
        fault(&server);
        let before = server.requests("/pods").len();
        server.cut("pods");
        tokio::time::sleep(Duration::from_secs(60 * MINUTES as u64)).await;
        let asked = server.requests("/pods").len() - before;
        // A list of five pods is three pages.
        assert!(asked > MINUTES && asked <= 35 * MINUTES, "{name}: {asked} requests in {MINUTES} minutes");
        assert_eq!(count(&running.sets.borrow_and_update()), Some(5), "{name}: the catalog is kept");
        server.heal();
        one_more(&server);
        running.workers(6, Some(5)).await;
    }
}

fn gone_once(server: &Apiserver) {
    server.fault("pods", Fault::Watch(410));
}

#[tokio::test(start_paused = true)]
async fn without_the_right_to_pods_slices_alone_serve_where_that_may_be() {
    let server = cluster();
    server.fault("pods", Fault::List(403));
    let mut set = SelectorSet::new("fleet", serde_json::from_value(json!({})).unwrap());
    set.metadata.namespace = Some(NAMESPACE.to_owned());
    let given = Given { set, pools: vec![model_pool("llama", 0, POOL)], services: vec!["llm-workers".to_owned()] };
    let mut running = start(&server, SourceOptions { pods_are_optional: true, given: Some(given), ..options() });
    running.workers(5, None).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(server.requests("/pods").len(), 1, "a right that comes later is used after a restart");
    assert!(server.requests("modelpools").is_empty() && server.requests("selectorsets").is_empty());
    let slices = server.requests("endpointslices");
    assert!(slices[0].contains("labelSelector=kubernetes.io%2Fservice-name+in+%28llm-workers%29"), "{slices:?}");
}

#[tokio::test(start_paused = true)]
async fn one_object_that_cannot_be_read_stops_no_other() {
    let server = cluster();
    server.put(
        "modelpools",
        json!({"apiVersion": "pointsman.dev/v1alpha1", "kind": "ModelPool",
        "metadata": {"name": "bad", "namespace": NAMESPACE, "uid": "bad"},
        "spec": {"selectorRef": {"name": "fleet"}, "modelName": 7}}),
    );
    server.put(
        "selectorsets",
        json!({"apiVersion": "pointsman.dev/v1alpha1", "kind": "SelectorSet",
        "metadata": {"name": "bad", "namespace": NAMESPACE}, "spec": {"replicas": "many"}}),
    );
    // Slices without ports or endpoints, with null for either, of no Service.
    let odd = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/endpointslices/06-odd-shapes.yaml"));
    let odd: Vec<Value> = serde_saphyr::from_multiple(odd).unwrap();
    assert!(odd.iter().any(|slice| slice["endpoints"].is_null()) && odd.iter().any(|slice| slice["ports"].is_null()));
    let (listed, told) = odd.split_at(odd.len() / 2);
    listed.iter().for_each(|slice| server.put("endpointslices", slice.clone()));
    let mut running = start(&server, options());
    running.workers(5, None).await;
    told.iter().for_each(|slice| server.put("endpointslices", slice.clone()));
    one_more(&server);
    running.workers(6, Some(5)).await;
    assert_eq!(running.errors("endpointslices"), 0, "nothing that cannot be read");
    let sets = running.sets.borrow_and_update().clone();
    let fleet = &sets[&SetKey::new(NAMESPACE, "fleet")];
    assert_eq!(fleet.pools["bad"].accepted.as_ref().unwrap_err().0, "InvalidSpec");
    assert_eq!(fleet.pools["bad"].object.metadata.uid.as_deref(), Some("bad"));
    assert!(sets[&SetKey::new(NAMESPACE, "bad")].invalid.is_some());
    assert_eq!(running.source.counters().unreadable().map(|(_, count)| count).sum::<u64>(), 2);
}
