//! The stand-in engine over its real sockets: events, replay, completions, restarts.

#![allow(clippy::unwrap_used)]

use std::{future::Future, time::Duration};

use bytes::Bytes;
use pointsman::{
    engine::{CompletionRequest, Encoding, EngineConfig, EngineError, MockEngine, ReplayForm},
    events::{
        decode::{Batch, Event},
        transport::{Dealer, Message, Subscriber, SubscriberEvent, TransportConfig},
    },
};
use serde_json::{Value, json};
use tokio::time::timeout;

const DEADLINE: Duration = Duration::from_secs(60);

async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(DEADLINE, future).await.unwrap_or_else(|_| panic!("waited too long for {what}"))
}

/// An engine whose steps take no time.
fn instant() -> EngineConfig {
    EngineConfig {
        block_size: 4,
        num_blocks: 64,
        prefill_rate: f64::INFINITY,
        decode_rate: f64::INFINITY,
        ..EngineConfig::default()
    }
}

fn request(prompt: impl IntoIterator<Item = u32>) -> CompletionRequest {
    CompletionRequest { prompt: prompt.into_iter().collect(), max_tokens: 1, ..CompletionRequest::default() }
}

/// Runs one request to its end; its cached tokens.
async fn run(engine: &MockEngine, request: CompletionRequest) -> usize {
    within("a completion", engine.complete(request).unwrap().finish()).await.unwrap().cached_tokens
}

/// Subscribes to `rank` and waits until the engine knows.
async fn subscribe(engine: &MockEngine, rank: u32) -> Subscriber {
    let endpoint = engine.kv_events_endpoint(rank).unwrap();
    let subscriber = Subscriber::connect(&endpoint, &[b""], TransportConfig::default()).unwrap();
    subscribed(engine, rank).await;
    subscriber
}

async fn subscribed(engine: &MockEngine, rank: u32) {
    within("the subscription", async {
        while engine.stats().get(rank as usize).is_none_or(|stats| stats.subscribers == 0) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// The next event message: its number and payload.
async fn next_batch(subscriber: &mut Subscriber) -> (u64, Bytes) {
    within("an event batch", async {
        loop {
            if let SubscriberEvent::Message(frames) = subscriber.recv().await {
                assert_eq!(frames.len(), 3);
                return (u64::from_be_bytes(frames[1][..].try_into().unwrap()), frames[2].clone());
            }
        }
    })
    .await
}

/// What the events of a payload store.
fn stored_tokens(payload: &[u8]) -> Vec<u32> {
    let mut batch = Batch::default();
    batch.decode(payload).unwrap();
    let stored = batch.events().iter().filter_map(|event| match event {
        Event::Stored(stored) => Some(batch.tokens(stored.tokens).to_vec()),
        _ => None,
    });
    stored.flatten().collect()
}

/// All replies to a replay request.
async fn replay(engine: &MockEngine, rank: u32, start: u64) -> Vec<Message> {
    let endpoint = engine.replay_endpoint(rank).unwrap();
    let mut dealer = within("the dealer", Dealer::connect(&endpoint, TransportConfig::default())).await.unwrap();
    dealer.send(vec![Bytes::new(), Bytes::copy_from_slice(&start.to_be_bytes())]).await.unwrap();
    let mut replies = Vec::new();
    loop {
        let reply = within("a reply", dealer.recv()).await.unwrap();
        let end = reply.last().unwrap().is_empty();
        replies.push(reply);
        if end {
            return replies;
        }
    }
}

#[tokio::test]
async fn events_tell_what_the_cache_holds_in_numbered_batches() {
    for encoding in [Encoding::VllmMap, Encoding::VllmArray, Encoding::Sglang, Encoding::Trtllm] {
        let engine = MockEngine::start(EngineConfig { encoding, topic: "kv".into(), ..instant() }).await.unwrap();
        let mut subscriber = subscribe(&engine, 0).await;
        assert_eq!(run(&engine, request(0..18)).await, 0);
        assert_eq!(run(&engine, request(0..22)).await, 16);
        let (first, payload) = next_batch(&mut subscriber).await;
        assert_eq!((first, stored_tokens(&payload)), (0, (0..16).collect()));
        let (second, payload) = next_batch(&mut subscriber).await;
        assert_eq!((second, stored_tokens(&payload)), (1, (16..20).collect()), "{encoding:?}");
    }
}

#[tokio::test]
async fn replay_gives_the_ring_in_the_form_asked_for() {
    for (replay_form, frames) in [(ReplayForm::WithTopic, 4), (ReplayForm::WithoutTopic, 3)] {
        let config = EngineConfig { replay_form, replay_batches: 3, topic: "kv".into(), ..instant() };
        let engine = MockEngine::start(config).await.unwrap();
        for index in 0..5u32 {
            run(&engine, request(index * 100..index * 100 + 5)).await;
        }
        let replies = replay(&engine, 0, 1).await;
        assert!(replies.iter().all(|reply| reply.len() == frames && reply[0].is_empty()));
        let numbers: Vec<u64> =
            replies.iter().map(|reply| u64::from_be_bytes(reply[frames - 2][..].try_into().unwrap())).collect();
        assert_eq!(numbers, [2, 3, 4, u64::MAX], "number 1 is lost, and the end is marked");
        assert_eq!(stored_tokens(&replies[1][frames - 1]), [300, 301, 302, 303]);
        assert_eq!(replay(&engine, 0, 5).await.len(), 1);
    }
}

#[tokio::test]
async fn a_libzmq_dealer_is_answered_and_wrong_requests_are_not() {
    let engine = MockEngine::start(instant()).await.unwrap();
    run(&engine, request(0..5)).await;
    let endpoint = engine.replay_endpoint(0).unwrap();
    let replies = tokio::task::spawn_blocking(move || {
        let context = zmq::Context::new();
        let dealer = context.socket(zmq::DEALER).unwrap();
        dealer.set_linger(0).unwrap();
        dealer.set_rcvtimeo(DEADLINE.as_millis() as i32).unwrap();
        dealer.connect(&endpoint).unwrap();
        let zero = 0u64.to_be_bytes();
        // Without the delimiter, with a short number, with a frame too many: no answer, as engines do.
        dealer.send_multipart([&zero[..]], 0).unwrap();
        dealer.send_multipart([&b""[..], b"5"], 0).unwrap();
        dealer.send_multipart([&b""[..], &zero, b""], 0).unwrap();
        dealer.send_multipart([&b""[..], &zero], 0).unwrap();
        [dealer.recv_multipart(0).unwrap(), dealer.recv_multipart(0).unwrap()]
    })
    .await
    .unwrap();
    assert_eq!((replies[0].len(), &replies[0][2][..]), (4, &0u64.to_be_bytes()[..]));
    assert_eq!(replies[1], [&b""[..], b"", &[0xff; 8], b""]);
}

#[tokio::test]
async fn a_lost_batch_leaves_a_gap_that_replay_fills() {
    let engine = MockEngine::start(instant()).await.unwrap();
    let mut subscriber = subscribe(&engine, 0).await;
    run(&engine, request(0..5)).await;
    engine.lose(1);
    run(&engine, request(100..105)).await;
    run(&engine, request(200..205)).await;
    assert_eq!(next_batch(&mut subscriber).await.0, 0);
    assert_eq!(next_batch(&mut subscriber).await.0, 2);
    let replies = replay(&engine, 0, 1).await;
    assert_eq!(stored_tokens(&replies[0][3]), [100, 101, 102, 103]);
}

#[tokio::test]
async fn a_restart_comes_back_at_the_same_addresses_empty_and_at_number_0() {
    let engine = MockEngine::start(instant()).await.unwrap();
    let (events, replays) = (engine.kv_events_endpoint(0), engine.replay_endpoint(0));
    let mut subscriber = subscribe(&engine, 0).await;
    for index in 0..3u32 {
        run(&engine, request(index * 100..index * 100 + 9)).await;
    }
    for expected in 0..3 {
        assert_eq!(next_batch(&mut subscriber).await.0, expected);
    }
    within("the restart", engine.restart()).await.unwrap();
    assert_eq!((engine.kv_events_endpoint(0), engine.replay_endpoint(0)), (events, replays));
    assert_eq!(replay(&engine, 0, 0).await.len(), 1, "nothing to replay");
    subscribed(&engine, 0).await;
    assert_eq!(run(&engine, request(0..9)).await, 0, "nothing cached");
    assert_eq!(next_batch(&mut subscriber).await.0, 0);
}

#[tokio::test]
async fn a_restart_ends_the_requests_under_way() {
    let engine = MockEngine::start(EngineConfig { decode_rate: 0.001, ..instant() }).await.unwrap();
    let mut completion = engine.complete(CompletionRequest { max_tokens: 9, ..request(0..5) }).unwrap();
    within("the first token", completion.next()).await.unwrap();
    engine.restart().await.unwrap();
    let error = within("the end", completion.finish()).await.unwrap_err();
    assert!(matches!(error, EngineError::Restarted), "{error}");
    assert_eq!(engine.stats()[0].running, 0);
}

#[tokio::test]
async fn a_dropped_completion_gives_its_blocks_back() {
    let engine = MockEngine::start(EngineConfig { decode_rate: 200.0, ..instant() }).await.unwrap();
    let mut completion = engine.complete(CompletionRequest { max_tokens: 100, ..request(0..50) }).unwrap();
    within("the first token", completion.next()).await.unwrap();
    assert!(engine.stats()[0].blocks_in_use >= 12);
    drop(completion);
    within("the blocks", async {
        while engine.stats()[0].blocks_in_use > 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn ranks_have_caches_and_streams_of_their_own() {
    let engine = MockEngine::start(EngineConfig { ranks: 2, ..instant() }).await.unwrap();
    assert_ne!(engine.kv_events_endpoint(0), engine.kv_events_endpoint(1));
    let mut subscriber = subscribe(&engine, 1).await;
    assert_eq!(run(&engine, CompletionRequest { rank: Some(0), ..request(0..9) }).await, 0);
    assert_eq!(run(&engine, CompletionRequest { rank: Some(1), ..request(0..9) }).await, 0);
    assert_eq!(run(&engine, CompletionRequest { rank: Some(1), ..request(0..9) }).await, 8);
    let (number, payload) = next_batch(&mut subscriber).await;
    let mut batch = Batch::default();
    batch.decode(&payload).unwrap();
    assert_eq!((number, batch.rank()), (0, Some(1)));
    let error = engine.complete(CompletionRequest { rank: Some(2), ..request(0..9) }).unwrap_err();
    assert_eq!(error.to_string(), "data-parallel rank 2 is not below 2");
}

#[tokio::test]
async fn completions_over_http_report_what_was_cached() {
    let engine = MockEngine::start(EngineConfig { ranks: 2, ..instant() }).await.unwrap();
    let client = reqwest::Client::new();
    let url = format!("{}/v1/completions", engine.url());
    let post = async |body: &Value| -> (u16, Value) {
        let response = within("an answer", client.post(&url).json(body).send()).await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap())
    };
    let prompt: Vec<u32> = (0..10).collect();
    let body = json!({"model": "mock-model", "prompt": prompt, "max_tokens": 3, "temperature": 0,
        "return_token_ids": true, "data_parallel_rank": 1});
    let (status, first) = post(&body).await;
    assert_eq!(status, 200, "{first}");
    assert_eq!(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    assert_eq!(first["usage"]["total_tokens"], 13);
    assert_eq!(first["choices"][0]["token_ids"].as_array().unwrap().len(), 3);
    let (_, second) = post(&body).await;
    assert_eq!(second["usage"]["prompt_tokens_details"]["cached_tokens"], 8);
    assert_eq!(second["choices"][0]["token_ids"], first["choices"][0]["token_ids"]);

    let other_rank = client.post(&url).header("X-data-parallel-rank", "0");
    let body = json!({"prompt": prompt, "max_tokens": 1});
    let answer: Value = within("an answer", other_rank.json(&body).send()).await.unwrap().json().await.unwrap();
    assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    // Another model name is an adapter, with a cache of its own.
    let (_, adapter) = post(&json!({"model": "lora", "prompt": prompt, "data_parallel_rank": 1})).await;
    assert_eq!(adapter["usage"]["prompt_tokens_details"]["cached_tokens"], 0);

    for (bad, status, text) in [
        (json!({"prompt": prompt, "data_parallel_rank": 2}), 400, "rank 2"),
        (json!({"prompt": []}), 400, "empty"),
        (json!({"prompt": vec![1; 1000]}), 400, "blocks are needed"),
        (json!({"max_tokens": 1}), 422, "prompt"),
    ] {
        let (code, answer) = post(&bad).await;
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(code == status && message.contains(text), "{code} {message}");
    }
}

#[tokio::test]
async fn a_stream_sends_each_token_and_ends_with_usage() {
    let engine = MockEngine::start(instant()).await.unwrap();
    let body = json!({"prompt": "a text prompt", "max_tokens": 3, "stream": true,
        "stream_options": {"include_usage": true}, "return_token_ids": true});
    let sent = reqwest::Client::new().post(format!("{}/v1/completions", engine.url())).json(&body).send();
    let text = within("the stream", async { sent.await.unwrap().text().await.unwrap() }).await;
    let chunks: Vec<&str> = text.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect();
    assert_eq!(chunks.len(), 5, "{text}");
    assert_eq!(chunks[4], "[DONE]");
    let chunk = |index: usize| serde_json::from_str::<Value>(chunks[index]).unwrap();
    assert_eq!(chunk(0)["choices"][0]["finish_reason"], Value::Null);
    assert_eq!(chunk(2)["choices"][0]["finish_reason"], "length");
    assert_eq!(chunk(3)["usage"]["prompt_tokens"], 13);
}

#[tokio::test]
async fn operators_find_the_ports_and_switches_work() {
    let engine = MockEngine::start(EngineConfig { ranks: 2, topic: "kv".into(), ..instant() }).await.unwrap();
    let client = reqwest::Client::new();
    let get = async |path: &str| -> Value {
        let sent = client.get(format!("{}{path}", engine.url())).send();
        within(path, async { sent.await.unwrap().error_for_status().unwrap().json().await.unwrap() }).await
    };
    let post = async |path: &str| {
        let sent = client.post(format!("{}{path}", engine.url())).send();
        within(path, async { sent.await.unwrap().error_for_status().unwrap() }).await;
    };
    let sources = get("/kv_event_sources").await;
    assert_eq!(sources["1"]["endpoint"].as_str(), engine.kv_events_endpoint(1).as_deref());
    assert_eq!(sources["0"]["replay_endpoint"].as_str(), engine.replay_endpoint(0).as_deref());
    assert_eq!((&sources["0"]["topic"], &sources["0"]["buffer_steps"]), (&json!("kv"), &json!(10_000)));
    let info = get("/server_info").await;
    let port = engine.kv_events_endpoint(0).unwrap().rsplit(':').next().unwrap().parse::<u16>().unwrap();
    assert_eq!(info["kv_events"]["endpoint_port_base"], port);
    assert_eq!((&info["kv_events"]["dp_size"], &info["kv_events"]["block_size"]), (&json!(2), &json!(4)));

    for rank in 0..2 {
        run(&engine, CompletionRequest { rank: Some(rank), ..request(0..9) }).await;
    }
    assert_eq!(get("/admin/stats").await[1]["blocks_cached"], 2);
    let mut subscriber = subscribe(&engine, 1).await;
    post("/admin/clear").await;
    let (number, payload) = next_batch(&mut subscriber).await;
    let mut batch = Batch::default();
    batch.decode(&payload).unwrap();
    assert_eq!(number, 1);
    assert!(matches!(batch.events(), [Event::Cleared(_)]));
    assert_eq!(engine.stats()[1].blocks_cached, 0);
    post("/admin/restart").await;
    assert_eq!(engine.stats()[1].next_sequence, 0);
    assert_eq!(client.get(format!("{}/health", engine.url())).send().await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_port_in_use_is_named_at_once() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let error = within("the refusal", MockEngine::start(EngineConfig { port, ..instant() })).await.unwrap_err();
    assert_eq!(error.to_string(), format!("could not bind the HTTP port 127.0.0.1:{port}"));
    let config = EngineConfig { kv_events_port: port, ..instant() };
    let error = within("the refusal", MockEngine::start(config)).await.unwrap_err();
    assert_eq!(error.reason(), "socket");
}
