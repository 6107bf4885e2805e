//! One session opened at two replicas at once.

use std::{sync::Barrier, thread, time::Instant};

use serde_json::json;

use super::{
    fake::{register, wait_for_peer},
    hostile::{endpoint_of, selector_with},
    program::{Selector, reference::ports, wait_for},
};

/// Sessions that are opened before the replicas know each other, and as many at one moment while they do.
const SESSIONS: usize = 10;
const TURNS: usize = 100;

/// A turn of the session as a booking, which is over at once: its worker, or none where the session is bound elsewhere.
fn turn(selector: &Selector, session: &str, id: &str, allowed: Option<u64>) -> Option<u64> {
    let mut request = json!({"model_name": "m", "selection_id": id, "session_id": session, "token_ids": vec![7; 32]});
    if let Some(worker) = allowed {
        request["allowed_worker_ids"] = json!([worker]);
    }
    let (status, answer) = selector.call("POST", "/select_and_reserve", Some(&request));
    if status == 400 {
        assert!(answer.to_string().contains("is bound to worker"), "{answer}");
        return None;
    }
    assert_eq!(status, 200, "{answer}");
    let (status, freed) = selector.call("DELETE", &format!("/reservations/{id}"), None);
    assert_eq!(status, 200, "{freed}");
    answer["worker_id"].as_u64()
}

/// Where the selector would send the session, which binds nothing.
fn bound(selector: &Selector, session: &str) -> Option<u64> {
    let request = json!({"model_name": "m", "session_id": session, "token_ids": vec![7; 32]});
    selector.call("POST", "/select", Some(&request)).1["worker_id"].as_u64()
}

/// Opens the session at both at once, at each for another worker; whether both did.
fn open(pair: &[Selector; 2], session: &str) -> bool {
    let together = Barrier::new(2);
    let open = |at: usize| {
        together.wait();
        turn(&pair[at], session, &format!("{session}-first-{at}"), Some(at as u64 + 1))
    };
    thread::scope(|scope| {
        let second = scope.spawn(|| open(1));
        let first = open(0);
        first.is_some() && second.join().unwrap().is_some()
    })
}

#[test]
fn a_session_bound_at_two_replicas_at_once_has_one_worker_and_keeps_it() {
    let directory = tempfile::tempdir().unwrap();
    let pair = [(), ()].map(|()| {
        let selector = selector_with(0, directory.path(), &["--replica-sync-port", &ports::free().to_string()]);
        let second = json!({"worker_id": 2, "model_name": "m", "endpoint": "http://w2", "block_size": 16});
        assert_eq!(selector.call("POST", "/workers", Some(&second)).0, 201);
        selector
    });
    let names: Vec<String> = (0..2 * SESSIONS).map(|session| format!("s{session}")).collect();
    let (before, beside) = names.split_at(SESSIONS);
    assert!(before.iter().all(|name| open(&pair, name)), "nobody knows of the other");
    for (at, selector) in pair.iter().enumerate() {
        let other = endpoint_of(&pair[1 - at]);
        register(selector, &other);
        wait_for_peer(selector, &other, "a beacon", |peer| peer["router_id"].is_u64());
    }
    let raced = beside.iter().filter(|name| open(&pair, name)).count();
    let begun = Instant::now();
    let agreed: Vec<u64> = names
        .iter()
        .map(|name| {
            wait_for(&format!("one worker of {name}"), || {
                let [a, b] = [&pair[0], &pair[1]].map(|selector| bound(selector, name));
                a.filter(|_| a == b)
            })
        })
        .collect();
    println!("{SESSIONS} + {raced} sessions bound at both were one after {:?}", begun.elapsed());
    for at in 0..TURNS {
        let session = at % names.len();
        for (side, selector) in pair.iter().enumerate() {
            let worker = turn(selector, &names[session], &format!("{at}-{side}"), None);
            assert_eq!(worker, Some(agreed[session]), "turn {at} of {}", names[session]);
        }
    }
    for (name, agreed) in names.iter().zip(agreed) {
        assert_eq!([&pair[0], &pair[1]].map(|selector| bound(selector, name)), [Some(agreed); 2], "{name}");
    }
}
