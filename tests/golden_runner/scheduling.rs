//! Player of `golden/scheduling`: request sequences with KV events, and choice frequencies under temperature.

use std::{
    collections::BTreeMap,
    net::TcpStream,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{
    client::{self, Request},
    compare::{contract, expand, short},
    index::msgpack,
    ports,
    server::{Server, TIMEOUT},
    sockets::Publisher,
};

struct Stage {
    server: Server,
    context: zmq::Context,
    publishers: BTreeMap<String, (Publisher, u64, bool)>,
    names: BTreeMap<String, String>,
    started: BTreeMap<String, (TcpStream, String)>,
}

/// Plays one document, but for the steps `left_out`.
pub fn play(document: &Value, left_out: &[usize]) -> Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    let spec = &document["server"];
    let text = |v: &Value| v.as_str().map_or_else(|| v.to_string(), str::to_owned);
    let mut env: BTreeMap<String, String> =
        spec["env"].as_object().into_iter().flatten().map(|(k, v)| (k.clone(), text(v))).collect();
    if let Some(yaml) = spec["policy_yaml"].as_str() {
        let path = dir.path().join("policy.yaml");
        std::fs::write(&path, yaml).unwrap();
        env.insert("DYN_ROUTER_POLICY_CONFIG".into(), path.display().to_string());
    }
    let args: Vec<String> = spec["args"].as_array().into_iter().flatten().map(text).collect();
    let mut server = Server::start(ports::free(), &args, &env, dir.path());
    server.wait_healthy()?;
    let mut stage = Stage {
        server,
        context: zmq::Context::new(),
        publishers: BTreeMap::new(),
        names: BTreeMap::new(),
        started: BTreeMap::new(),
    };
    let mut failures = Vec::new();
    for (index, step) in document["steps"].as_array().unwrap().iter().enumerate() {
        if !left_out.contains(&index)
            && let Err(problem) = stage.step(step)
        {
            failures.push(format!("step {index} {}: {problem}", step["path"].as_str().unwrap_or("")));
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n    ")) }
}

impl Stage {
    /// Binds a publisher for each `${kv:W:R}` seen for the first time, then replaces them.
    fn fill(&mut self, value: &Value) -> Value {
        let text = value.to_string();
        for part in text.split("${kv:").skip(1) {
            let name = format!("kv:{}", part.split('}').next().unwrap());
            if !self.names.contains_key(&name) {
                let publisher = Publisher::bind(&self.context, ports::free());
                self.names.insert(name.clone(), publisher.endpoint.clone());
                self.publishers.insert(format!("${{{name}}}"), (publisher, 0, false));
            }
        }
        expand(value, &self.names)
    }

    fn request(&mut self, step: &Value) -> Request {
        let body = step.get("body").map(|b| self.fill(b));
        let mut request =
            Request::json(step["method"].as_str().unwrap(), step["path"].as_str().unwrap(), body.as_ref());
        request.headers = step["headers"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(k, v)| (k.clone(), v.as_str().map(str::to_owned)))
            .collect();
        request
    }

    fn step(&mut self, step: &Value) -> Result<(), String> {
        match step["op"].as_str().unwrap() {
            "http" => {
                let request = self.request(step);
                let response = client::send(self.server.port, &request, TIMEOUT).map_err(|e| e.to_string())?;
                let outcome = self.check(&step["observed"], response.status, &response.json().unwrap_or_default());
                if request.path.starts_with("/workers") && response.status == 201 {
                    for (publisher, _, subscribed) in self.publishers.values_mut().filter(|p| !p.2) {
                        publisher.await_subscriptions(1, true, Duration::from_secs(20))?;
                        *subscribed = true;
                    }
                }
                outcome
            }
            "kv_events" => {
                let (publisher, seq, _) = self.publishers.get_mut(step["endpoint"].as_str().unwrap()).unwrap();
                let mut batch = step["batch"].clone();
                batch[0] = json!(1.5); // recorded as a placeholder for the time
                let payload = msgpack(&batch);
                publisher.send(vec![Vec::new(), seq.to_be_bytes().to_vec(), payload]);
                *seq += 1;
                Ok(())
            }
            "poll_until_equal" => {
                let end = Instant::now() + Duration::from_secs(20);
                loop {
                    let request = self.request(step);
                    let response = client::send(self.server.port, &request, TIMEOUT).map_err(|e| e.to_string())?;
                    let outcome = self.check(&step["observed"], response.status, &response.json().unwrap_or_default());
                    if outcome.is_ok() || Instant::now() > end {
                        return outcome;
                    }
                    std::thread::park_timeout(Duration::from_millis(10));
                }
            }
            "sleep_ms" => {
                std::thread::park_timeout(Duration::from_millis(step["ms"].as_u64().unwrap()));
                Ok(())
            }
            "http_start" => {
                let request = self.request(step);
                let stream = client::start(self.server.port, &request, TIMEOUT).map_err(|e| e.to_string())?;
                self.started.insert(step["key"].as_str().unwrap().to_owned(), (stream, request.method));
                // Arrival order is under test: give the server time to take this one before the next.
                std::thread::park_timeout(Duration::from_millis(30));
                Ok(())
            }
            "client_disconnect" => {
                self.started.remove(step["key"].as_str().unwrap());
                Ok(())
            }
            "assert_pending" => {
                std::thread::park_timeout(Duration::from_millis(150));
                let mut byte = [0u8; 1];
                let pending: Vec<&String> = self
                    .started
                    .iter()
                    .filter(|(_, (stream, _))| {
                        stream.set_nonblocking(true).unwrap();
                        let waits = stream.peek(&mut byte).is_err();
                        stream.set_nonblocking(false).unwrap();
                        waits
                    })
                    .map(|(key, _)| key)
                    .collect();
                if json!(pending) == step["keys"] {
                    Ok(())
                } else {
                    Err(format!("pending {pending:?}, expected {}", step["keys"]))
                }
            }
            "http_join" => {
                let (stream, method) = self.started.remove(step["key"].as_str().unwrap()).ok_or("nothing to join")?;
                stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                let response = client::finish(stream, &method).map_err(|e| e.to_string())?;
                self.check(&step["observed"], response.status, &response.json().unwrap_or_default())
            }
            other => Err(format!("unknown op {other}")),
        }
    }

    fn check(&self, observed: &Value, status: u16, body: &Value) -> Result<(), String> {
        if observed["status"] != json!(status) {
            return Err(format!("status {status}, expected {}; body {}", observed["status"], short(body)));
        }
        let got = contract(&sorted(body), &self.names);
        let mut out = Vec::new();
        differences(&sorted(&observed["body"]), &got, "$", &mut out);
        if out.is_empty() { Ok(()) } else { Err(out.join("; ")) }
    }
}

fn sorted(value: &Value) -> Value {
    match value {
        Value::Array(items) => {
            let mut items: Vec<Value> = items.iter().map(sorted).collect();
            if !items.is_empty() && items.iter().all(|v| v.get("worker_id").is_some()) {
                items.sort_by_key(|v| (v["worker_id"].as_u64(), v["dp_rank"].as_u64()));
            }
            items.into()
        }
        Value::Object(map) => Value::Object(
            map.iter()
                .map(|(k, v)| {
                    let mut v = sorted(v);
                    if k == "taints"
                        && let Some(list) = v.as_array_mut()
                    {
                        list.sort_by_key(Value::to_string);
                    }
                    (k.clone(), v)
                })
                .collect(),
        ),
        other => other.clone(),
    }
}

fn differences(expected: &Value, got: &Value, path: &str, out: &mut Vec<String>) {
    match (expected, got) {
        (Value::String(text), _) if text.starts_with('<') => {}
        // Line and column depend on how the client wrote the body; the rest of the text does not.
        (Value::String(e), Value::String(g))
            if path == "$.error" && e.split(" at line ").next() == g.split(" at line ").next() => {}
        (Value::Object(e), Value::Object(g)) => {
            for key in e.keys().chain(g.keys().filter(|k| !e.contains_key(*k))) {
                match (e.get(key), g.get(key)) {
                    (Some(x), Some(y)) => differences(x, y, &format!("{path}.{key}"), out),
                    (Some(_), None) => out.push(format!("{path}.{key} missing")),
                    _ => out.push(format!("{path}.{key} unexpected")),
                }
            }
        }
        (Value::Array(e), Value::Array(g)) if e.len() == g.len() => {
            for (i, (x, y)) in e.iter().zip(g).enumerate() {
                differences(x, y, &format!("{path}[{i}]"), out);
            }
        }
        (Value::Number(e), Value::Number(g)) if (e.as_f64().unwrap() - g.as_f64().unwrap()).abs() < 1e-9 => {}
        _ if expected == got => {}
        _ => out.push(format!("{path}: expected {}, got {}", short(expected), short(got))),
    }
}

/// Chooses `n` times among the workers of `cost_02_tiers` under one temperature and compares the frequencies with the
/// model within four standard deviations.
pub fn play_temperature(stage_document: &Value, temperature: &str, expected: &Value) -> Result<(), String> {
    let mut document = stage_document.clone();
    document["server"]["env"]["DYN_ROUTER_TEMPERATURE"] = json!(temperature);
    let steps = document["steps"].as_array_mut().unwrap();
    let last = steps.iter().position(|s| s["path"] == "/select").unwrap_or(steps.len());
    let body = steps[last]["body"].clone();
    steps.truncate(last);
    let dir = tempfile::tempdir().unwrap();
    let env = document["server"]["env"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(k, v)| (k.clone(), v.as_str().map_or_else(|| v.to_string(), str::to_owned)))
        .collect();
    let mut server = Server::start(ports::free(), &[], &env, dir.path());
    server.wait_healthy()?;
    let mut stage = Stage {
        server,
        context: zmq::Context::new(),
        publishers: BTreeMap::new(),
        names: BTreeMap::new(),
        started: BTreeMap::new(),
    };
    for step in document["steps"].as_array().unwrap() {
        stage.step(step)?;
    }
    let n = 2000u32;
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for _ in 0..n {
        let answer = stage.server.http("POST", "/select", Some(&body)).map_err(|e| e.to_string())?;
        let worker = answer.json().unwrap_or_default()["worker_id"].to_string();
        *counts.entry(worker).or_default() += 1;
    }
    for (worker, p) in expected.as_object().unwrap() {
        let p = p.as_f64().unwrap();
        let share = f64::from(counts.get(worker).copied().unwrap_or(0)) / f64::from(n);
        let tolerance = 4.0 * (p * (1.0 - p) / f64::from(n)).sqrt() + 1e-9;
        if (share - p).abs() > tolerance {
            return Err(format!("worker {worker}: share {share}, expected {p} within {tolerance}; {counts:?}"));
        }
    }
    Ok(())
}
