//! Bookings under concurrency and in odd orders, over HTTP. The load must end where it began.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use pointsman::http::HttpConfig;
use serde_json::{Value, json};

use super::server::TestServer;

fn prompt(model: &str, id: &str) -> Value {
    json!({"model_name": model, "selection_id": id, "token_ids": (0..16).collect::<Vec<u32>>()})
}

/// Live bookings over all partitions.
async fn booked(server: &TestServer) -> u64 {
    let (_, loads) = server.get("/loads").await;
    let rows = loads.as_array().unwrap().iter().flat_map(|partition| partition["loads"].as_array().unwrap());
    rows.map(|row| row["active_requests"].as_u64().unwrap()).sum()
}

async fn free(server: &TestServer, id: &str) -> u16 {
    server.call("DELETE", &format!("/reservations/{id}"), Value::Null).await.0
}

async fn add_worker_of(server: &TestServer, id: u64, model: &str) {
    let worker = json!({"worker_id": id, "model_name": model, "endpoint": format!("w{id}"), "block_size": 4});
    assert_eq!(server.call("POST", "/workers", worker).await.0, 201);
}

/// Whatever fails after the booking takes it back.
#[tokio::test(flavor = "multi_thread")]
async fn bookings_beside_a_worker_that_comes_and_goes_leave_no_load() {
    let server = Arc::new(TestServer::start().await);
    let done = Arc::new(AtomicBool::new(false));
    let flapping = tokio::spawn({
        let (server, done) = (server.clone(), done.clone());
        async move {
            while !done.load(Ordering::Acquire) {
                server.add_worker(1).await;
                server.call("DELETE", "/workers/1", Value::Null).await;
            }
        }
    });
    let mut clients = Vec::new();
    for _ in 0..8 {
        let server = server.clone();
        clients.push(tokio::spawn(async move {
            let mut ids = Vec::new();
            for _ in 0..40 {
                let request = json!({"model_name": "m", "token_ids": [1, 2, 3, 4]});
                let (status, body) = server.call("POST", "/select_and_reserve", request).await;
                match status {
                    200 => ids.push(body["selection_id"].as_str().unwrap().to_owned()),
                    500 | 503 => {}
                    _ => panic!("{status} {body}"),
                }
            }
            ids
        }));
    }
    let mut ids = Vec::new();
    for client in clients {
        ids.extend(client.await.unwrap());
    }
    done.store(true, Ordering::Release);
    flapping.await.unwrap();
    server.add_worker(1).await;
    for id in ids {
        let status = free(&server, &id).await;
        assert!(status == 200 || status == 404, "{status}");
    }
    assert_eq!(booked(&server).await, 0);
}

/// A booking is found in whichever partition it is.
#[tokio::test(flavor = "multi_thread")]
async fn lifecycle_calls_find_every_partition() {
    let server = TestServer::start().await;
    let models = ["m1", "m2", "m3", "m4", "m5"];
    for (id, model) in models.iter().enumerate() {
        add_worker_of(&server, id as u64, model).await;
    }
    for order in [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 0, 4, 1, 3]] {
        for model in models {
            assert_eq!(server.call("POST", "/select_and_reserve", prompt(model, model)).await.0, 200);
        }
        assert_eq!(booked(&server).await, 5);
        for index in order {
            let path = format!("/reservations/{}/prefill_complete", models[index]);
            assert_eq!(server.call("POST", &path, Value::Null).await.0, 200);
            assert_eq!(free(&server, models[index]).await, 200);
        }
        assert_eq!(booked(&server).await, 0);
    }
}

/// Of many bookings of one id exactly one exists.
#[tokio::test(flavor = "multi_thread")]
async fn one_id_is_booked_once_however_many_try() {
    let server = Arc::new(TestServer::start().await);
    server.add_worker(1).await;
    server.add_worker(2).await;
    add_worker_of(&server, 3, "other").await;
    for round in 0..10 {
        let id = format!("x{round}");
        assert_eq!(server.call("POST", "/select", prompt("m", &id)).await.0, 200);
        let mut tries = Vec::new();
        for number in 0..24 {
            let (server, id) = (server.clone(), id.clone());
            tries.push(tokio::spawn(async move {
                let explicit = |worker: u64, model: &str| {
                    json!({"model_name": model, "selection_id": id, "worker_id": worker,
                           "sequence_hashes": [1], "isl_tokens": 4})
                };
                match number % 4 {
                    0 => server.call("POST", "/reservations", json!({"model_name": "m", "selection_id": id})).await.0,
                    1 => server.call("POST", "/reservations", explicit(1 + number % 2, "m")).await.0,
                    2 => server.call("POST", "/reservations", explicit(3, "other")).await.0,
                    _ => server.call("POST", "/select_and_reserve", prompt("m", &id)).await.0,
                }
            }));
        }
        let mut won = 0;
        for result in tries {
            match result.await.unwrap() {
                200 | 201 => won += 1,
                404 | 409 => {}
                status => panic!("{status}"),
            }
        }
        assert_eq!(won, 1);
        assert_eq!(booked(&server).await, 1);
        assert_eq!(free(&server, &id).await, 200);
        assert_eq!(free(&server, &id).await, 404);
        assert_eq!(booked(&server).await, 0);
    }
}

/// A replay that fails never removes a selection that was answered after it began.
#[tokio::test(flavor = "multi_thread")]
async fn a_newer_selection_outlives_the_replay_of_an_older_one() {
    let mut config = super::server::service_config();
    config.selection.session_affinity_ttl = Some(std::time::Duration::from_secs(3600));
    let server = Arc::new(TestServer::with(config, HttpConfig::default()).await);
    server.add_worker(1).await;
    server.add_worker(2).await;
    let replay = json!({"model_name": "m", "selection_id": "x"});
    let mut refused = 0;
    for round in 0..200 {
        let of_session = |id: &str, worker: u64| {
            let mut request = prompt("m", id);
            (request["session_id"], request["allowed_worker_ids"]) = (json!(format!("s{round}")), json!([worker]));
            request
        };
        assert_eq!(server.call("POST", "/select", of_session("x", 2)).await.0, 200);
        // The session is bound elsewhere, so that the replay must fail.
        assert_eq!(server.call("POST", "/select_and_reserve", of_session("y", 1)).await.0, 200);
        let racing = tokio::spawn({
            let (server, replay) = (server.clone(), replay.clone());
            async move { server.call("POST", "/reservations", replay).await.0 }
        });
        assert_eq!(server.call("POST", "/select", of_session("x", 1)).await.0, 200);
        let first = racing.await.unwrap();
        assert!(first == 201 || first == 400, "{first}");
        refused += u32::from(first == 400);
        free(&server, "x").await;
        // The answered selection is newer than what the first replay read, or was replayed by it.
        let second = server.call("POST", "/reservations", replay.clone()).await.0;
        assert!(second == 201 || second == 404 && first == 201, "{first} {second}");
        free(&server, "x").await;
        free(&server, "y").await;
    }
    assert!(refused > 0, "no replay came before the newer selection");
    assert_eq!(booked(&server).await, 0);
}

/// An explicit booking throws the cached selection of its id away, even one that fails.
#[tokio::test(flavor = "multi_thread")]
async fn an_explicit_booking_discards_the_cached_selection() {
    let server = TestServer::start().await;
    server.add_worker(1).await;
    for (worker, expected) in [(1, 201), (77, 404)] {
        assert_eq!(server.call("POST", "/select", prompt("m", "x")).await.0, 200);
        let explicit = json!({"model_name": "m", "selection_id": "x", "worker_id": worker, "sequence_hashes": [1], "isl_tokens": 4});
        assert_eq!(server.call("POST", "/reservations", explicit).await.0, expected);
        free(&server, "x").await;
        let replay = json!({"model_name": "m", "selection_id": "x"});
        assert_eq!(server.call("POST", "/reservations", replay).await.0, 404);
    }
    assert_eq!(booked(&server).await, 0);
}

/// The load comes back exactly.
#[tokio::test(flavor = "multi_thread")]
async fn output_blocks_come_and_go_and_bad_fractions_change_nothing() {
    let server = TestServer::start().await;
    server.add_worker(1).await;
    let before = server.get("/loads").await;
    assert_eq!(server.call("POST", "/select_and_reserve", prompt("m", "a")).await.0, 200);
    for number in 0..300 {
        let fraction = f64::from(number % 11) / 10.0;
        let (status, body) =
            server.call("POST", "/reservations/a/output_block", json!({"decay_fraction": fraction})).await;
        assert_eq!(status, 200, "{body}");
    }
    let (_, loaded) = server.get("/loads").await;
    for fraction in [json!(-0.1), json!(1.0001), json!(1e308)] {
        let body = json!({"decay_fraction": fraction});
        assert_eq!(server.call("POST", "/reservations/a/output_block", body).await.0, 400);
    }
    for text in [r#"{"decay_fraction":NaN}"#, r#"{"decay_fraction":1e999}"#, r#"{"decay_fraction":"1"}"#] {
        let request = server.request("POST", "/reservations/a/output_block");
        let (status, _) = super::server::answer(request.header("content-type", "application/json").body(text)).await;
        assert!(status == 400 || status == 422, "{text}: {status}");
    }
    assert_eq!(server.get("/loads").await.1, loaded);
    assert_eq!(free(&server, "a").await, 200);
    assert_eq!(server.get("/loads").await, before);
}

/// A client that closes its connection before the answer leaves nothing, or a booking under the id it named.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_while_it_is_served_leaves_at_most_what_it_can_free() {
    use tokio::io::AsyncWriteExt;

    let server = TestServer::start().await;
    server.add_worker(1).await;
    for round in 0..100 {
        let body = prompt("m", &format!("left-{round}")).to_string();
        let head = "POST /select_and_reserve HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
        let mut socket = server.connect().await;
        socket.write_all(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes()).await.unwrap();
    }
    super::server::eventually("every connection to end", || async {
        super::server::metric(&server, "pointsman_http_connections").await <= 1.0
    })
    .await;
    for round in 0..100 {
        free(&server, &format!("left-{round}")).await;
    }
    assert_eq!(booked(&server).await, 0);
}
