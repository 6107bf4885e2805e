//! A server for a test, and the clients that talk to it.

use std::{
    future::Future,
    net::SocketAddr,
    time::{Duration, Instant},
};

use pointsman::{
    http::{self, Drained, HttpConfig, Server},
    selection::SelectionConfig,
    service::{SelectionService, SelectionServiceBuilder, ServiceConfig},
};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_util::sync::CancellationToken;

/// Far beyond what anything here takes; a test that waits this long has failed.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A service behind a server on a free port. It goes away with the test's runtime.
pub struct TestServer {
    pub address: SocketAddr,
    pub service: SelectionService,
    pub shutdown: CancellationToken,
    server: Server,
    client: reqwest::Client,
}

/// Settings without KV events, so that workers need no event endpoints.
pub fn service_config() -> ServiceConfig {
    let selection = SelectionConfig { use_kv_events: false, ..SelectionConfig::default() };
    ServiceConfig { selection, ..ServiceConfig::default() }
}

impl TestServer {
    pub async fn start() -> Self {
        Self::with(service_config(), HttpConfig::default()).await
    }

    pub async fn with(service: ServiceConfig, http: HttpConfig) -> Self {
        let service = SelectionServiceBuilder::new(service).build().unwrap();
        let this = Self::over(service, http).await;
        this.service.recovered().await;
        this
    }

    /// Serves `service` without waiting for its recovery.
    pub async fn over(service: SelectionService, config: HttpConfig) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let shutdown = CancellationToken::new();
        let server = http::serve(service.clone(), config, listener, shutdown.clone()).unwrap();
        let client =
            reqwest::Client::builder().no_proxy().pool_max_idle_per_host(1).timeout(10 * PATIENCE).build().unwrap();
        Self { address: server.address(), service, shutdown, server, client }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn request(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        self.client.request(method.parse().unwrap(), self.url(path))
    }

    /// Sends a request; `Value::Null` is no body.
    pub async fn call(&self, method: &str, path: &str, body: Value) -> (u16, Value) {
        let request = self.request(method, path);
        let request = if body.is_null() { request } else { request.json(&body) };
        answer(request).await
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        self.call("GET", path, Value::Null).await
    }

    /// Registers worker `id` of model `m` with blocks of 4.
    pub async fn add_worker(&self, id: u64) {
        let endpoint = format!("http://w{id}:8000");
        let worker = serde_json::json!({"worker_id": id, "model_name": "m", "endpoint": endpoint, "block_size": 4});
        let (status, record) = self.call("POST", "/workers", worker).await;
        assert_eq!((status, &record["lifecycle"]), (201, &Value::from("schedulable")), "{record}");
    }

    pub async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends bytes on a connection of their own and returns what comes until the server closes it.
    pub async fn exchange(&self, bytes: &[u8]) -> String {
        let mut socket = self.connect().await;
        socket.write_all(bytes).await.unwrap();
        read_all(socket).await
    }

    /// Stops the server and waits.
    pub async fn stop(self) -> Drained {
        self.shutdown.cancel();
        within(self.server.finished()).await
    }
}

pub async fn answer(request: reqwest::RequestBuilder) -> (u16, Value) {
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

/// What comes until the connection ends, with or without an error.
pub async fn read_all(mut socket: TcpStream) -> String {
    let mut received = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(count) = within(socket.read(&mut buffer)).await {
        if count == 0 {
            break;
        }
        received.extend_from_slice(&buffer[..count]);
    }
    String::from_utf8_lossy(&received).into_owned()
}

/// Reads until `text` has come.
pub async fn read_until(socket: &mut TcpStream, text: &str) -> String {
    let mut received = String::new();
    let mut buffer = [0; 4096];
    while !received.contains(text) {
        let count = within(socket.read(&mut buffer)).await.unwrap();
        assert!(count > 0, "connection ended after {received:?}");
        received.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
    received
}

pub async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("it did not happen in time")
}

/// Waits until `condition` holds.
pub async fn eventually<F: Future<Output = bool>>(what: &str, condition: impl Fn() -> F) {
    let deadline = Instant::now() + PATIENCE;
    while !condition().await {
        assert!(Instant::now() < deadline, "{what} did not come true");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The value of a metric's line, by its name and labels as they are written.
pub async fn metric(server: &TestServer, series: &str) -> f64 {
    let text = server.request("GET", "/metrics").send().await.unwrap().text().await.unwrap();
    text.lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
        .unwrap_or_else(|| panic!("no {series} in\n{text}"))
}
