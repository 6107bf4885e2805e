//! Publishers that speak in the name of another replica: what can be known to be wrong is dropped, or ended by what the
//! true maker says.

use std::{thread::park_timeout, time::Duration};

use serde_json::json;

use super::{
    fake::{Publisher, SESSION, live, peer, register, wait_for_live, wait_for_peer},
    hostile::{endpoint_of, reserve, selector},
    program::wait_for,
};

fn dropped(selector: &super::program::Selector, endpoint: &str, reason: &str) -> u64 {
    peer(selector, endpoint)["dropped"][reason].as_u64().unwrap_or(0)
}

#[test]
fn a_name_in_use_is_believed_where_its_beacons_come_alone() {
    let directory = tempfile::tempdir().unwrap();
    let selector = selector(directory.path());
    let maker = Publisher::new().followed_by(&selector);
    maker.book("true");
    wait_for_live(&selector, 1);
    let mut other = Publisher::new().followed_by(&selector);
    other.router_id = maker.router_id;
    wait_for("a drop", || {
        maker.beacon(json!({}));
        other.free("true");
        park_timeout(Duration::from_millis(20));
        (dropped(&selector, &other.endpoint, "second_endpoint") > 0).then_some(())
    });
    // A replica that moved, and is not heard any more where it was, goes on elsewhere.
    let mut at = 0;
    wait_for("a booking from the new place", || {
        at += 1;
        other.book(&format!("moved-{at}"));
        park_timeout(Duration::from_millis(20));
        let booked = peer(&selector, &other.endpoint)["applied"].as_u64() > Some(0);
        (booked && live(&selector) > 0).then_some(())
    });
}

#[test]
fn two_processes_of_one_name_are_told_and_one_of_them_counts() {
    let directory = tempfile::tempdir().unwrap();
    let selector = selector(directory.path());
    let one = Publisher::new().followed_by(&selector);
    let mut two = Publisher::new().followed_by(&selector);
    two.router_id = one.router_id;
    wait_for("a drop", || {
        one.beacon(json!({"instance_id": "one"}));
        two.beacon(json!({"instance_id": "two"}));
        park_timeout(Duration::from_millis(20));
        let drops = [&one, &two].map(|publisher| dropped(&selector, &publisher.endpoint, "contested"));
        drops.iter().any(|&count| count > 0).then_some(())
    });
}

#[test]
fn bookings_told_in_a_replicas_name_end_when_it_says_what_it_has() {
    // It has the partition and other bookings, or not even the partition.
    for has_partition in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let (selector, maker) = (selector(directory.path()), selector(directory.path()));
        let router_id = maker.get("/replica_sync/status")["router_id"].as_u64().unwrap();
        let mut other = Publisher::new().followed_by(&selector);
        other.router_id = router_id;
        (0..3).for_each(|at| other.book(&format!("false-{at}")));
        wait_for_live(&selector, 3);
        if has_partition {
            reserve(&maker, "true");
        } else {
            assert_eq!(maker.call("DELETE", "/workers/1", None).0, 200);
        }
        let endpoint = endpoint_of(&maker);
        register(&selector, &endpoint);
        wait_for_live(&selector, u64::from(has_partition));
        wait_for_peer(&selector, &endpoint, "agreement", |peer| peer["diverged"] == json!([]));
        other.book("false-again");
        wait_for("a drop", || (dropped(&selector, &other.endpoint, "second_endpoint") > 0).then_some(()));
        assert_eq!(live(&selector), u64::from(has_partition));
    }
}

#[test]
fn another_process_of_this_replicas_name_is_told_apart_from_it() {
    let directory = tempfile::tempdir().unwrap();
    let selector = selector(directory.path());
    let mut other = Publisher::new().followed_by(&selector);
    other.router_id = selector.get("/replica_sync/status")["router_id"].as_u64().unwrap();
    other.beacon(json!({"instance_id": "another"}));
    wait_for("a drop", || (dropped(&selector, &other.endpoint, "contested") > 0).then_some(()));
    assert_eq!(peer(&selector, &other.endpoint)["is_self"], false);
    assert!(selector.program.log().contains("goes by the router id of another process"));
}

#[test]
fn a_replica_speaks_for_nobody_else() {
    let directory = tempfile::tempdir().unwrap();
    let selector = selector(directory.path());
    // One that says who it is, and one that sends no beacons, as the reference's selectors.
    let mut speaker = Publisher::new().followed_by(&selector);
    let silent = Publisher::new().followed_by(&selector);
    speaker.beacon(json!({}));
    speaker.book("its-own");
    silent.book("told-by-its-maker");
    wait_for_live(&selector, 2);
    speaker.router_id = silent.router_id;
    speaker.book("in-anothers-name");
    speaker.free("told-by-its-maker");
    let session = json!({"model_name": "m", "routing_group": "default", "session_id": "s", "worker_id": 1, "dp_rank": 0,
                         "sequence": 1, "writer_id": speaker.router_id});
    speaker.pack(SESSION, &session);
    wait_for("three drops", || (dropped(&selector, &speaker.endpoint, "contested") == 3).then_some(()));
    assert_eq!(live(&selector), 2);
}
