//! The first connection, and connections that come back.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_late_listener_learns_what_an_idle_engine_holds() {
    let publisher = Publisher::bind();
    let replay = Replay::bind(Ring { batches: history(100, 20), ..Ring::default() });
    let rig = Rig::new(&publisher.endpoint, Some(&replay.endpoint));
    rig.position(19).await;
    assert_eq!(rig.depth(100, 20), 20);
    assert_eq!(replay.ring.lock().starts(), [0]);
    publisher.subscribed().await;
    publisher.send(20, &link(120, 100, 100));
    rig.position(20).await;
    assert_eq!(rig.depth(100, 21), 21);
    let status = rig.status();
    assert_eq!((status.gaps, status.replays, status.replayed_batches), (0, 1, 20));
    assert_eq!((status.trust, status.state), (Trust::Complete, ListenerState::Live));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_listener_without_replay_takes_what_comes() {
    let publisher = Publisher::bind();
    let rig = Rig::new(&publisher.endpoint, None);
    publisher.subscribed().await;
    publisher.send(41, &link(100, 100, 1));
    rig.position(41).await;
    assert_eq!(rig.depth(100, 1), 1);
    assert_eq!((rig.status().trust, rig.status().unfilled_gaps), (Trust::Partial, 1));
    // Whatever was missed before a clear no longer matters.
    publisher.send(42, &pack(&json!([1.5, [["AllBlocksCleared"]], null])));
    rig.position(42).await;
    assert_eq!((rig.depth(100, 1), rig.status().trust), (0, Trust::Complete));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_may_start_long_after_its_listener() {
    let endpoint = Publisher::bind().kill();
    let rig = Rig::new(&endpoint, None);
    until("a refused connection is told", || rig.status().last_error.is_some()).await;
    assert_eq!(rig.status().state, ListenerState::Connecting);
    let publisher = Publisher::bind_at(&endpoint);
    publisher.subscribed().await;
    publisher.send(0, &link(100, 100, 1));
    rig.position(0).await;
    assert_eq!((rig.depth(100, 1), rig.status().trust), (1, Trust::Complete));
}

#[tokio::test(flavor = "multi_thread")]
async fn both_framings_of_answers_are_read() {
    let lines = include_str!("../../../../tests/fixtures/kv-replay.jsonl").lines();
    let mut seen = 0;
    for case in lines.map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        let id = case["id"].as_str().unwrap();
        // What the rank holds of the chain's four blocks once batch 3 has come live.
        let (depth, requests) = match id {
            "replay-old" | "replay-topic" | "replay-overlap" | "replay-no-end" => (4, 1..=2),
            "replay-partial" | "replay-empty" | "replay-silent" | "replay-garbage" => (0, 1..=2),
            other => panic!("{other}"),
        };
        seen += 1;
        let bytes = |hex: &Value| -> Vec<u8> {
            let hex = hex.as_str().unwrap();
            (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
        };
        let replies = case["replies_hex"].as_array().unwrap();
        // An engine answers with the very bytes it published.
        let third = replies.iter().map(|reply| reply.as_array().unwrap()).find_map(|reply| {
            let at = reply.iter().position(|frame| *frame == "0000000000000003")?;
            Some(bytes(&reply[at + 1]))
        });
        let fixed = replies.iter().map(|reply| reply.as_array().unwrap().iter().map(bytes).collect()).collect();
        let publisher = Publisher::bind();
        let replay = Replay::bind(Ring { fixed: Some(fixed), ..Ring::default() });
        let rig = Rig::new(&publisher.endpoint, Some(&replay.endpoint));
        publisher.subscribed().await;
        let event = json!(["BlockStored", [2003], 2002, [1012, 1013, 1014, 1015], 4]);
        publisher.send(3, &third.unwrap_or_else(|| pack(&json!([1.5, [event], 0]))));
        for seq in 4..104 {
            publisher.send(seq, &pack(&json!([1.5, [], 0])));
        }
        rig.position(103).await;
        let tokens: Vec<u32> = (1000..1016).collect();
        let held = rig.target.device(&tokens);
        if id == "replay-garbage" {
            // Batch 0, then a broken one, then 2, whose parent is missing.
            assert!(held <= 1, "{id}: {held}");
        } else {
            assert_eq!(held, depth, "{id}");
        }
        let starts = replay.ring.lock().starts();
        assert!(requests.contains(&starts.len()) && starts[0] == 0, "{id}: {starts:?}");
    }
    assert_eq!(seen, 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_returning_publisher_goes_on_where_it_was() {
    let publisher = Publisher::bind();
    let rig = Rig::new(&publisher.endpoint, None);
    publisher.subscribed().await;
    publisher.send(0, &link(100, 100, 1));
    rig.position(0).await;
    let endpoint = publisher.kill();
    let publisher = Publisher::bind_at(&endpoint);
    publisher.subscribed().await;
    publisher.send(1, &link(101, 100, 1));
    rig.position(1).await;
    assert_eq!(rig.depth(100, 2), 2);
    assert_eq!((rig.status().publisher_restarts, rig.status().connects), (0, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_published_while_away_come_by_replay() {
    let mut batches = history(100, 10);
    let publisher = Publisher::bind();
    let replay = Replay::bind(Ring { batches: batches[..4].to_vec(), ..Ring::default() });
    let rig = Rig::new(&publisher.endpoint, Some(&replay.endpoint));
    rig.position(3).await;
    let endpoint = publisher.kill();
    replay.ring.lock().batches = std::mem::take(&mut batches);
    let publisher = Publisher::bind_at(&endpoint);
    rig.position(9).await;
    assert_eq!(rig.depth(100, 10), 10);
    let status = rig.status();
    assert_eq!((status.publisher_restarts, status.gaps, status.trust), (0, 0, Trust::Complete));
    assert_eq!(replay.ring.lock().starts(), [0, 3], "the newest known batch is asked for again, as proof");
    drop(publisher);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_socket_that_comes_late_is_asked_again() {
    let publisher = Publisher::bind();
    let endpoint = { Replay::bind(Ring::default()).endpoint.clone() };
    let rig = Rig::new(&publisher.endpoint, Some(&endpoint));
    until("the first request failed", || rig.status().failed_replays > 0).await;
    let replay = Replay::bind_at(&endpoint, Ring { batches: history(100, 3), ..Ring::default() });
    rig.position(2).await;
    assert_eq!(rig.depth(100, 3), 3);
    drop(replay);
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_reconnects_lose_no_later_batch() {
    let mut publisher = Publisher::bind();
    let rig = Rig::new(&publisher.endpoint, None);
    for round in 0..10u32 {
        publisher.subscribed().await;
        for number in [2 * round, 2 * round + 1] {
            publisher.send(u64::from(number), &link(100 + number, 100, 1));
        }
        rig.position(u64::from(2 * round + 1)).await;
        publisher = Publisher::bind_at(&publisher.kill());
    }
    assert_eq!((rig.depth(100, 20), rig.status().publisher_restarts, rig.status().gaps), (20, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_fell_between_answer_and_subscription_is_found() {
    let publisher = Publisher::bind();
    // Batch 3 is published after the answer and never seen by the subscriber.
    let mut batches = history(100, 4);
    let later = batches.split_off(3);
    let replay = Replay::bind(Ring { batches, later, ..Ring::default() });
    let rig = Rig::with(
        &publisher.endpoint,
        Some(&replay.endpoint),
        ListenerConfig { second_look: Duration::from_millis(50), ..config() },
    );
    rig.position(3).await;
    assert_eq!(rig.depth(100, 4), 4);
    assert_eq!(replay.ring.lock().starts(), [0, 2]);
}
