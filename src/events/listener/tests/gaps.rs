//! Missing batches, with and without a replay socket that can fill them.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_gap_is_filled_before_the_message_that_showed_it() {
    let batches = history(100, 9);
    let publisher = Publisher::bind();
    let replay = Replay::bind(Ring::default());
    let rig = Rig::new(&publisher.endpoint, Some(&replay.endpoint));
    publisher.subscribed().await;
    until("the first request is answered", || rig.status().state == ListenerState::Live).await;
    publisher.send(0, &batches[0].1);
    rig.position(0).await;
    // The ring has newer batches as well, and those come live a moment later.
    replay.ring.lock().batches = batches.clone();
    for seq in [5, 6, 7, 8] {
        publisher.send(seq, &batches[seq as usize].1);
    }
    rig.position(8).await;
    assert_eq!(rig.depth(100, 9), 9);
    let status = rig.status();
    assert_eq!((status.gaps, status.unfilled_gaps, status.batches), (1, 0, 9));
    assert_eq!(replay.ring.lock().starts(), [0, 1]);
    publisher.send(8, &batches[8].1);
    publisher.send(9, &pack(&json!([1.5, [], 0])));
    rig.position(9).await;
    assert_eq!(rig.status().dropped["duplicate"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gap_without_replay_leaves_the_blocks_and_lowers_trust() {
    let publisher = Publisher::bind();
    let rig = Rig::new(&publisher.endpoint, None);
    publisher.subscribed().await;
    publisher.send(0, &link(100, 100, 1));
    publisher.send(4, &link(101, 100, 1));
    rig.position(4).await;
    assert_eq!(rig.depth(100, 2), 2);
    assert_eq!((rig.status().trust, rig.target.said.lock().trust), (Trust::Partial, Trust::Partial));
    assert_eq!((rig.status().gaps, rig.status().unfilled_gaps), (1, 1));
    // A lower number that comes on the same connection is a restart, whatever was lost.
    publisher.send(0, &link(500, 500, 2));
    rig.position(0).await;
    assert_eq!((rig.depth(100, 1), rig.depth(500, 1), rig.status().trust), (0, 1, Trust::Complete));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gap_that_a_ring_cannot_fill_is_rebuilt_from_what_it_gives() {
    let publisher = Publisher::bind();
    let replay = Replay::bind(Ring::default());
    let rig = Rig::new(&publisher.endpoint, Some(&replay.endpoint));
    publisher.subscribed().await;
    until("the first request is answered", || rig.status().state == ListenerState::Live).await;
    publisher.send(0, &link(100, 100, 1));
    publisher.send(1, &link(101, 100, 1));
    rig.position(1).await;
    // Batches 2 and 3 left the ring; 4 starts a chain that 5 and 6 go on with.
    replay.ring.lock().batches = (4..=6).map(|seq| (seq, link(500 + seq as u32, 504, 1))).collect();
    publisher.send(6, &link(506, 504, 1));
    publisher.send(7, &link(507, 504, 1));
    rig.position(7).await;
    assert_eq!((rig.depth(100, 2), rig.depth(504, 4)), (0, 4));
    assert_eq!((rig.status().unfilled_gaps, rig.status().trust), (1, Trust::Replayed));
    assert_eq!(rig.target.said.lock().resets, 1);
    for seq in 8..108 {
        publisher.send(seq, &pack(&json!([1.5, [], 0])));
    }
    rig.position(107).await;
    assert_eq!(replay.ring.lock().starts(), [0, 2], "one request a gap");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ring_that_has_nothing_of_a_gap_forgets_what_was_before() {
    let publisher = Publisher::bind();
    let replay = Replay::bind(Ring::default());
    let rig = Rig::new(&publisher.endpoint, Some(&replay.endpoint));
    publisher.subscribed().await;
    until("the first request is answered", || rig.status().state == ListenerState::Live).await;
    publisher.send(0, &link(100, 100, 1));
    publisher.send(4, &link(500, 500, 1));
    rig.position(4).await;
    assert_eq!((rig.depth(100, 1), rig.depth(500, 1)), (0, 1));
    assert_eq!(replay.ring.lock().starts(), [0, 1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_replay_socket_does_not_stop_the_stream() {
    let publisher = Publisher::bind();
    let replay = Replay::bind(Ring { silent: true, ..Ring::default() });
    let rig = Rig::new(&publisher.endpoint, Some(&replay.endpoint));
    publisher.subscribed().await;
    // Nothing is missing before batch 0, so the first request is given up at once.
    publisher.send(0, &link(100, 100, 1));
    rig.position(0).await;
    publisher.send(4, &link(101, 100, 1));
    for seq in 5..105 {
        publisher.send(seq, &pack(&json!([1.5, [], 0])));
    }
    rig.position(104).await;
    assert_eq!(rig.depth(100, 2), 2, "the blocks stay: nobody answered");
    assert_eq!((rig.status().trust, rig.status().failed_replays), (Trust::Partial, 1));
    assert_eq!(replay.ring.lock().starts(), [0, 1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn left_over_answers_are_not_read_as_the_next() {
    let publisher = Publisher::bind();
    let batches = history(100, 9);
    // Every answer brings everything, twice, with the end in the middle.
    let message = |seq: &u64, payload: &Vec<u8>| vec![Vec::new(), seq.to_be_bytes().to_vec(), payload.clone()];
    let all: Vec<_> = batches.iter().map(|(seq, payload)| message(seq, payload)).collect();
    let end = vec![Vec::new(), vec![0xff; 8], Vec::new()];
    let some =
        |upto: usize| [&all[..upto], std::slice::from_ref(&end), &all[..upto], std::slice::from_ref(&end)].concat();
    let replay = Replay::bind(Ring { fixed: Some(some(3)), ..Ring::default() });
    let rig = Rig::new(&publisher.endpoint, Some(&replay.endpoint));
    publisher.subscribed().await;
    rig.position(2).await;
    replay.ring.lock().fixed = Some(some(9));
    publisher.send(5, &batches[5].1);
    rig.position(5).await;
    publisher.send(8, &batches[8].1);
    rig.position(8).await;
    assert_eq!((rig.depth(100, 9), rig.status().batches), (9, 9));
    assert_eq!(replay.ring.lock().starts(), [0, 3, 6]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_undecodable_batch_is_no_gap_and_may_be_repeated() {
    let publisher = Publisher::bind();
    let replay = Replay::bind(Ring::default());
    let rig = Rig::new(&publisher.endpoint, Some(&replay.endpoint));
    publisher.subscribed().await;
    publisher.send(0, &link(100, 100, 1));
    publisher.send(1, b"\xc1");
    rig.position(1).await;
    publisher.send(2, &link(101, 100, 1));
    rig.position(2).await;
    publisher.send(3, b"\x93\x01");
    publisher.send(3, &link(102, 100, 1));
    publisher.send(3, &link(999, 999, 1));
    publisher.send(4, &pack(&json!([1.5, [], 0])));
    rig.position(4).await;
    assert_eq!((rig.depth(100, 3), rig.depth(999, 1)), (3, 0));
    let status = rig.status();
    assert_eq!((status.gaps, status.trust), (0, Trust::Partial));
    assert_eq!((status.dropped["undecodable_batch"], status.dropped["duplicate"]), (2, 1));
    assert!(replay.ring.lock().requests.len() <= 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_with_bad_events_or_none_are_no_gaps() {
    let publisher = Publisher::bind();
    let replay = Replay::bind(Ring::default());
    let rig = Rig::new(&publisher.endpoint, Some(&replay.endpoint));
    publisher.subscribed().await;
    until("the first request is answered", || rig.status().state == ListenerState::Live).await;
    let lines = include_str!("../../../../tests/fixtures/kv-events.jsonl").lines();
    let mut seq = 0;
    for case in lines.map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        let hex = case["frames_hex"][2].as_str().unwrap();
        let payload = (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap());
        publisher.send(seq, &payload.collect::<Vec<u8>>());
        rig.position(seq).await;
        seq += 1;
    }
    publisher.send(seq, &link(900, 900, 1));
    rig.position(seq).await;
    let status = rig.status();
    assert_eq!((rig.depth(900, 1), status.gaps, status.batches, status.trust), (1, 0, seq + 1, Trust::Complete));
    assert!(status.dropped.values().sum::<u64>() >= 6, "{status:?}");
    assert_eq!(replay.ring.lock().starts(), [0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_broken_answer_the_next_gap_is_filled() {
    let batches = history(100, 9);
    let publisher = Publisher::bind();
    let replay = Replay::bind(Ring::default());
    let rig = Rig::new(&publisher.endpoint, Some(&replay.endpoint));
    publisher.subscribed().await;
    until("the first request is answered", || rig.status().state == ListenerState::Live).await;
    publisher.send(0, &batches[0].1);
    rig.position(0).await;
    let message = |(seq, payload): &(u64, Vec<u8>)| vec![Vec::new(), seq.to_be_bytes().to_vec(), payload.clone()];
    let broken = vec![Vec::new(), 2_u64.to_be_bytes().to_vec(), vec![0xc1]];
    let end = vec![Vec::new(), vec![0xff; 8], Vec::new()];
    replay.ring.lock().fixed = Some(vec![message(&batches[1]), broken, message(&batches[3]), end]);
    publisher.send(4, &batches[4].1);
    rig.position(4).await;
    assert_eq!(rig.status().dropped["undecodable_batch"], 1);
    {
        let mut ring = replay.ring.lock();
        ring.fixed = None;
        // As engines do that were given time: everything, the batch that was broken before included.
        ring.batches = batches.clone();
    }
    publisher.send(7, &batches[7].1);
    rig.position(7).await;
    publisher.send(8, &batches[8].1);
    rig.position(8).await;
    let starts = replay.ring.lock().starts();
    assert_eq!(starts.last(), Some(&5), "{starts:?}");
    let status = rig.status();
    assert_eq!((status.gaps, status.failed_replays, status.replayed_batches), (2, 0, 5), "{status:?}");
    // What the broken batch would have brought is missing, and nothing else went.
    assert_eq!((status.unfilled_gaps, status.trust, rig.depth(100, 9)), (0, Trust::Partial, 2), "{status:?}");
    assert_eq!(status.dropped.values().sum::<u64>(), 1, "{status:?}");
    assert_eq!(starts.len(), 3, "one request a gap: {starts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_another_shape_do_not_touch_the_stream() {
    let publisher = Publisher::bind();
    let rig = Rig::new(&publisher.endpoint, None);
    publisher.subscribed().await;
    publisher.send(0, &link(100, 100, 1));
    let (payload, seq) = (link(101, 100, 1), 1u64.to_be_bytes());
    publisher.frames(&[&seq, &payload]);
    publisher.frames(&[b"kv", &seq, &payload, b"x"]);
    publisher.frames(&[b"kv", &seq[4..], &payload]);
    publisher.frames(&[b"kv", b"", &payload]);
    publisher.frames(&[b"kv", &[0xff; 8], &payload]);
    publisher.frames(&[b"", &seq, &pack(&json!([1.5, [], 0]))]);
    rig.position(1).await;
    assert_eq!((rig.depth(100, 2), rig.status().dropped["framing"]), (1, 5));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_name_any_number() {
    let publisher = Publisher::bind();
    let replay = Replay::bind(Ring::default());
    let rig = Rig::new(&publisher.endpoint, Some(&replay.endpoint));
    publisher.subscribed().await;
    until("the first request is answered", || rig.status().state == ListenerState::Live).await;
    for seq in [4, 1 << 40, u64::MAX - 1] {
        publisher.send(seq, &pack(&json!([1.5, [], 0])));
        rig.position(seq).await;
    }
    assert_eq!(replay.ring.lock().starts(), [0, 0, 5, (1 << 40) + 1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_our_own_queue_lost_comes_by_replay() {
    const LEN: u32 = 5000;
    let publisher = Publisher::bind();
    let replay = Replay::bind(Ring { batches: history(100, LEN), ..Ring::default() });
    let mut config = config();
    config.transport.queue_messages = 4;
    let supervisor = ListenerSupervisor::held(Handle::current(), config);
    let target = Arc::new(TestTarget::new(4));
    supervisor.start(source(&publisher.endpoint, Some(&replay.endpoint)), Arc::clone(&target));
    let rig = Rig { supervisor, target };
    publisher.subscribed().await;
    for (seq, payload) in history(100, LEN) {
        publisher.send(seq, &payload);
    }
    until("the queue is full", || rig.status().lag >= 4).await;
    rig.supervisor.open();
    // No live batch follows that could show the gap.
    rig.position(u64::from(LEN) - 1).await;
    assert_eq!(rig.depth(100, LEN), LEN);
    let status = rig.status();
    assert!(status.dropped["overflow"] > 0, "{status:?}");
    assert_eq!((status.unfilled_gaps, status.trust), (0, Trust::Complete));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_replay_that_did_not_help_is_not_repeated_for_the_first_batch() {
    let publisher = Publisher::bind();
    let replay = Replay::bind(Ring { silent: true, ..Ring::default() });
    let mut config = config();
    config.replay.answer_timeout = Duration::from_secs(3);
    let rig = Rig::with(&publisher.endpoint, Some(&replay.endpoint), config);
    publisher.subscribed().await;
    until("the request is there", || replay.ring.lock().requests.len() == 1).await;
    publisher.send(3, &link(100, 100, 1));
    rig.position(3).await;
    assert_eq!(replay.ring.lock().starts(), [0]);
    assert_eq!((rig.depth(100, 1), rig.status().gaps, rig.status().trust), (1, 1, Trust::Partial));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_lost_connection_leaves_open_is_filled_by_the_next() {
    // With a gap after batch 0, and while the first request was unanswered.
    for followed in [true, false] {
        let batches = history(100, 7);
        let publisher = Publisher::bind();
        let replay = Replay::bind(Ring { silent: true, ..Ring::default() });
        let mut config = config();
        config.replay.answer_timeout = Duration::from_secs(20);
        let rig = Rig::with(&publisher.endpoint, Some(&replay.endpoint), config);
        publisher.subscribed().await;
        if followed {
            publisher.send(0, &batches[0].1);
            rig.position(0).await;
        }
        publisher.send(5, &batches[5].1);
        let start = u64::from(followed);
        until("it is asked for", || replay.ring.lock().starts().last() == Some(&start)).await;
        until("the live batch waits", || rig.status().lag == u64::from(!followed)).await;
        let endpoint = publisher.kill();
        until("the connection is gone", || rig.status().state == ListenerState::Connecting).await;
        {
            let mut ring = replay.ring.lock();
            ring.silent = false;
            ring.batches = batches;
        }
        let publisher = Publisher::bind_at(&endpoint);
        rig.position(6).await;
        let status = rig.status();
        assert_eq!((rig.depth(100, 7), status.unfilled_gaps, status.trust), (7, 0, Trust::Complete), "{followed}");
        drop(publisher);
    }
}
