//! Routes, errors and bodies (spec http 2).

use serde_json::{Value, json};

use super::server::{TestServer, answer};

fn error(text: &str) -> Value {
    json!({"error": text})
}

fn prompt() -> Value {
    json!({"model_name": "m", "block_hashes": [1], "sequence_hashes": [1], "isl_tokens": 4})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_booking_lives_from_selection_to_release() {
    let server = TestServer::start().await;
    server.add_worker(u64::MAX).await;
    let mut request = prompt();
    request["selection_id"] = json!("a/b");
    let (status, booked) = server.call("POST", "/select_and_reserve", request.clone()).await;
    assert_eq!(status, 200, "{booked}");
    assert_eq!(booked["worker_id"], json!(u64::MAX));
    assert_eq!(booked["sequence_hashes"], json!([1]));
    let again = server.call("POST", "/select_and_reserve", request).await;
    assert_eq!(again.0, 409, "{}", again.1);
    for path in ["prefill_complete", "prefill_complete"] {
        assert_eq!(server.call("POST", &format!("/reservations/a%2Fb/{path}"), Value::Null).await.0, 200);
    }
    let block = json!({"decay_fraction": 0.5});
    assert_eq!(server.call("POST", "/reservations/a%2Fb/output_block", block).await.0, 200);
    assert_eq!(server.call("DELETE", "/reservations/a%2Fb", Value::Null).await, (200, json!({"status": "ok"})));
    assert_eq!(
        server.call("DELETE", "/reservations/a%2Fb", Value::Null).await,
        (404, error("reservation a/b not found"))
    );
    let (_, loads) = server.get("/loads").await;
    assert_eq!(loads[0]["loads"][0]["active_requests"], json!(0));
}

/// Deviation 7: the reference answers these as plain text.
#[tokio::test(flavor = "multi_thread")]
async fn parameters_that_cannot_be_decoded_are_json_errors_before_anything_else() {
    let server = TestServer::start().await;
    for (method, path, text) in [
        ("DELETE", "/workers/abc", "Invalid URL: Cannot parse `abc` to a `u64`"),
        ("DELETE", "/workers/18446744073709551616", "Invalid URL: Cannot parse `18446744073709551616` to a `u64`"),
        ("PATCH", "/workers/-1", "Invalid URL: Cannot parse `-1` to a `u64`"),
        ("POST", "/reservations/%ff/prefill_complete", "Invalid URL: Invalid UTF-8 in `selection_id`"),
        ("POST", "/reservations/%ff/output_block", "Invalid URL: Invalid UTF-8 in `selection_id`"),
        (
            "GET",
            "/workers?model_name=a&model_name=b",
            "Failed to deserialize query string: duplicate field `model_name`",
        ),
        (
            "GET",
            "/loads?routing_group=&routing_group=",
            "Failed to deserialize query string: duplicate field `routing_group`",
        ),
    ] {
        assert_eq!(server.call(method, path, Value::Null).await, (400, error(text)), "{method} {path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_routes_and_methods_are_json_errors() {
    let server = TestServer::start().await;
    for path in ["/", "/nope", "/select/", "/workers/1/x", "/catalog/a/b", "/livez/"] {
        assert_eq!(server.get(path).await, (404, error("route not found")), "{path}");
    }
    for (method, path, allow) in [
        ("GET", "/select", "POST"),
        ("POST", "/catalog", "GET,HEAD"),
        ("POST", "/catalog/x", "PUT"),
        ("PUT", "/workers", "POST,GET,HEAD"),
        ("OPTIONS", "/livez", "GET,HEAD"),
    ] {
        let response = server.request(method, path).send().await.unwrap();
        assert_eq!(response.status(), 405, "{method} {path}");
        assert_eq!(response.headers()["allow"], allow, "{method} {path}");
        assert_eq!(response.json::<Value>().await.unwrap(), error("method not allowed"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn checks_come_in_order() {
    let server = TestServer::start().await;
    let post = |path: &str| server.request("POST", path);
    // Media type before size and syntax.
    for request in [post("/select").body("{"), post("/workers").header("content-type", "text/json").body("{}")] {
        assert_eq!(answer(request).await, (415, error("Expected request with `Content-Type: application/json`")));
    }
    // Syntax before shape: a prompt field of the wrong type is only seen when the whole body was read.
    let json_body = |path: &str, body: &str| {
        post(path).header("content-type", "Application/vnd.x+JSON; charset=x").body(body.to_owned())
    };
    let (status, body) = answer(json_body("/select", r#"{"token_ids":"x","#)).await;
    assert_eq!(status, 400);
    assert!(body["error"].as_str().unwrap().starts_with("Failed to parse the request body as JSON: "), "{body}");
    let (status, body) = answer(json_body("/select", r#"{"token_ids":"x"}"#)).await;
    assert_eq!(status, 422);
    let text = body["error"].as_str().unwrap();
    assert!(text.starts_with("Failed to deserialize the JSON body into the target type: "), "{text}");
    // Shape before the service's own checks.
    assert_eq!(server.call("POST", "/select", json!({})).await, (503, error("no schedulable workers are available")));
    // Bytes after the document do not count.
    assert_eq!(answer(json_body("/workers", r#"{"worker_id":1}}}garbage"#)).await.0, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_may_have_8_mib_and_not_one_byte_more() {
    let server = TestServer::start().await;
    let limit = 8 << 20;
    for (length, chunked) in [(limit, false), (limit + 1, false), (limit, true), (limit + 1, true), (3 * limit, true)] {
        let frame = r#"{"worker_id":1,"pad":""}"#.len();
        let body = format!(r#"{{"worker_id":1,"pad":"{}"}}"#, "x".repeat(length - frame));
        assert_eq!(body.len(), length);
        let body = if chunked {
            let pieces: Vec<_> = body.as_bytes().chunks(100_000).map(<[u8]>::to_vec).collect();
            reqwest::Body::wrap_stream(futures_util::stream::iter(pieces.into_iter().map(Ok::<_, std::io::Error>)))
        } else {
            body.into()
        };
        let request = server.request("POST", "/workers").header("content-type", "application/json").body(body);
        let (status, body) = answer(request).await;
        if length > limit {
            let text = "Failed to buffer the request body: length limit exceeded";
            assert_eq!((status, body), (413, error(text)), "{length} chunked={chunked}");
        } else {
            assert_eq!(status, 201, "{length} chunked={chunked}: {body}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_numbers_and_nesting_are_refused_or_bounded_and_the_partition_goes_on() {
    let server = TestServer::start().await;
    server.add_worker(1).await;
    let huge = json!({"model_name": "m", "block_hashes": [1], "sequence_hashes": [1], "isl_tokens": u64::MAX});
    for round in 0..4 {
        let mut request = huge.clone();
        request["selection_id"] = json!(format!("huge-{round}"));
        let (status, body) = server.call("POST", "/select_and_reserve", request).await;
        assert!(status == 200 || status == 400, "{status} {body}");
    }
    let nested = format!(r#"{{"token_ids":[1],"z":{}{}}}"#, "[".repeat(10_000), "]".repeat(10_000));
    for body in [
        nested,
        r#"{"token_ids":[1e3]}"#.to_owned(),
        r#"{"token_ids":[99999999999999999999999]}"#.to_owned(),
        r#"{"routing_constraints":{"preferred_taints":{"a":1e999}}}"#.to_owned(),
        r#"{"worker_id":-1}"#.to_owned(),
        "[[[[[[".repeat(100_000),
        "\u{feff}{}".to_owned(),
    ] {
        for path in ["/select", "/select_and_reserve", "/reservations", "/potential_loads", "/overlap_scores"] {
            let request = server.request("POST", path).header("content-type", "application/json").body(body.clone());
            let (status, answer) = answer(request).await;
            assert!((400..500).contains(&status) || status == 503, "{path}: {status} {answer}");
        }
    }
    let constraints = json!({"preferred_taints": {"a": 1e39, "b": -1e39}});
    let mut request = prompt();
    request["routing_constraints"] = constraints;
    assert_eq!(server.call("POST", "/select", request).await.0, 200);
    assert_eq!(server.call("POST", "/select", prompt()).await.0, 200);
    assert_eq!(server.get("/livez").await, (200, json!({"live": true})));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_is_a_whole_number_of_milliseconds() {
    let server = TestServer::start().await;
    server.add_worker(1).await;
    for value in ["soon", "-1", "1.5", ""] {
        let request = server.request("POST", "/select").header("x-pointsman-deadline-ms", value).json(&prompt());
        let text = "x-pointsman-deadline-ms must be a whole number of milliseconds";
        assert_eq!(answer(request).await, (400, error(text)), "{value:?}");
    }
    let request = server.request("POST", "/select").header("x-pointsman-deadline-ms", " 5000 ").json(&prompt());
    assert_eq!(answer(request).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_selection_can_be_explained() {
    let server = TestServer::start().await;
    server.add_worker(1).await;
    server.add_worker(2).await;
    let (status, plain) = server.call("POST", "/select", prompt()).await;
    assert_eq!(status, 200);
    assert!(plain.get("explain").is_none(), "{plain}");
    let (status, explained) = server.call("POST", "/select?explain=true", prompt()).await;
    assert_eq!(status, 200);
    let candidates = explained["explain"]["candidates"].as_array().unwrap();
    let workers: Vec<_> = candidates.iter().map(|candidate| candidate["worker_id"].clone()).collect();
    assert_eq!(workers, [json!(1), json!(2)], "{explained}");
    assert_eq!(server.call("POST", "/select?explain=perhaps", prompt()).await.0, 400);
}
