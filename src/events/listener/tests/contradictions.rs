//! Replay sockets that tell of another stream than the publisher's: the live stream is what counts.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_number_beyond_the_live_stream_does_not_hide_it() {
    let mut batches = history(100, 3);
    batches.push((1_000_000, link(900, 900, 2)));
    let publisher = Publisher::bind();
    let replay = Replay::bind(Ring { batches, ..Ring::default() });
    let rig = Rig::new(&publisher.endpoint, Some(&replay.endpoint));
    publisher.subscribed().await;
    rig.position(1_000_000).await;
    until("the answers have ended", || rig.status().state == ListenerState::Live).await;
    replay.ring.lock().batches = history(100, 4);
    publisher.send(3, &history(100, 4)[3].1);
    rig.position(3).await;
    publisher.send(4, &link(104, 100, 100));
    rig.position(4).await;
    let status = rig.status();
    assert_eq!((rig.depth(100, 5), rig.depth(900, 1)), (5, 0), "rebuilt by replay, now that it agrees");
    assert_eq!((status.contradicted_replays, status.publisher_restarts, status.trust), (1, 0, Trust::Complete));
    assert_eq!(replay.ring.lock().starts(), [0, 3, 0], "the live batch is asked for first, as proof");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_replay_socket_of_another_engine_is_believed_no_longer_than_the_stream_is_silent() {
    let publisher = Publisher::bind();
    let replay = Replay::bind(Ring { batches: history(900, 50), ..Ring::default() });
    let rig = Rig::new(&publisher.endpoint, Some(&replay.endpoint));
    publisher.subscribed().await;
    rig.position(49).await;
    until("the answers have ended", || rig.status().state == ListenerState::Live).await;
    for seq in 5..60 {
        publisher.send(seq, &link(100 + seq as u32, 105, 1));
    }
    rig.position(59).await;
    let status = rig.status();
    assert_eq!((rig.depth(900, 1), rig.depth(105, 55)), (0, 55));
    assert_eq!((status.contradicted_replays, status.trust), (1, Trust::Partial));
    assert_eq!(rig.target.said.lock().trust, Trust::Partial);
    assert_eq!(replay.ring.lock().starts(), [0, 5], "it is not asked to fill what it cannot know");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_reconnect_too_a_replay_that_runs_ahead_is_found_out() {
    let publisher = Publisher::bind();
    let replay = Replay::bind(Ring { batches: history(100, 3), ..Ring::default() });
    let rig = Rig::new(&publisher.endpoint, Some(&replay.endpoint));
    rig.position(2).await;
    // It knows the newest batch, and others that were never published.
    replay.ring.lock().batches.extend((3..40).map(|seq| (seq, link(900 + seq as u32, 903, 2))));
    let publisher = Publisher::bind_at(&publisher.kill());
    publisher.subscribed().await;
    rig.position(39).await;
    until("the answers have ended", || rig.status().state == ListenerState::Live).await;
    publisher.send(3, &link(103, 103, 100));
    publisher.send(4, &link(104, 103, 100));
    rig.position(4).await;
    let status = rig.status();
    assert_eq!((rig.depth(903, 1), rig.depth(103, 2)), (0, 2));
    assert_eq!((status.contradicted_replays, status.trust), (1, Trust::Partial));
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_that_came_both_ways_are_no_contradiction() {
    let batches = history(100, 20);
    let publisher = Publisher::bind();
    let replay = Replay::bind(Ring { batches: batches.clone(), ..Ring::default() });
    let rig = Rig::new(&publisher.endpoint, Some(&replay.endpoint));
    publisher.subscribed().await;
    rig.position(19).await;
    until("the answers have ended", || rig.status().state == ListenerState::Live).await;
    for (seq, payload) in &batches[15..] {
        publisher.send(*seq, payload);
    }
    publisher.send(20, &link(120, 100, 100));
    rig.position(20).await;
    let status = rig.status();
    assert_eq!((rig.depth(100, 21), status.dropped["duplicate"]), (21, 5));
    assert_eq!((status.contradicted_replays, status.trust), (0, Trust::Complete));
    assert_eq!(rig.target.said.lock().resets, 0);
}
