//! The least that a server of this API can do: takes the requests of a cycle and answers constants of the usual length.
//!
//! `pointsman-floor PORT HASHES [parse]`: an answer to a booking holds HASHES hashes; with `parse`, `serde_json` reads its
//! body into numbers first.

use axum::{
    Router,
    body::Bytes,
    http::{StatusCode, header::CONTENT_TYPE},
    response::IntoResponse,
    routing::{delete, get, post},
};

/// A prompt, in either form.
#[derive(serde::Deserialize)]
struct Prompt {
    token_ids: Option<Vec<u32>>,
    block_hashes: Option<Vec<i64>>,
    sequence_hashes: Option<Vec<i64>>,
}

impl Prompt {
    fn integers(&self) -> usize {
        let hashes = |list: &Option<Vec<i64>>| list.as_ref().map_or(0, Vec::len);
        self.token_ids.as_ref().map_or(0, Vec::len) + hashes(&self.block_hashes) + hashes(&self.sequence_hashes)
    }
}

fn json(body: Bytes) -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], body)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut number = || arguments.next().ok_or("usage: pointsman-floor PORT HASHES [parse]");
    let (port, hashes): (u16, usize) = (number()?.parse()?, number()?.parse()?);
    let parse = arguments.next().is_some_and(|word| word == "parse");

    let hashes = vec!["-1234567890123456789"; hashes].join(",");
    let booked = Bytes::from(format!(
        r#"{{"selection_id":"r","sequence_hashes":[{hashes}],"worker_id":1,"dp_rank":0,"endpoint":"http://worker"}}"#
    ));
    let book = move |body: Bytes| async move {
        if parse {
            let prompt: Prompt = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
            std::hint::black_box(prompt.integers());
        }
        Ok::<_, String>(json(booked))
    };
    let ok = || async { json(Bytes::from_static(b"{\"status\":\"ok\"}")) };
    let routes = Router::new()
        .route("/health", get(ok))
        .route(
            "/workers",
            post(|| async { (StatusCode::CREATED, json(Bytes::from_static(b"{\"lifecycle\":\"schedulable\"}"))) }),
        )
        .route("/select", post(book.clone()))
        .route("/select_and_reserve", post(book))
        .route("/workers/{id}", delete(ok))
        .route("/reservations/{id}", delete(ok))
        .route("/reservations/{id}/prefill_complete", post(ok));

    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let listener =
            axum::serve::ListenerExt::tap_io(tokio::net::TcpListener::bind(("127.0.0.1", port)).await?, |socket| {
                drop(socket.set_nodelay(true))
            });
        Ok(axum::serve(listener, routes).await?)
    })
}
