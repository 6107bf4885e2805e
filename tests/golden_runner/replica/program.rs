//! One server of a case: its process, its ports, and a libzmq subscriber on what it publishes.

use std::{collections::BTreeMap, path::Path, time::Duration};

use serde_json::{Value, json};

use super::{
    super::{
        client::{self, Request},
        ports,
        server::{Program, Server, TIMEOUT},
    },
    AFFINITY, BARRIER_WORKER, SLOT,
    document::{Http, ServerSpec},
};

/// A server, running or not.
pub struct Node {
    program: Program,
    pub spec: ServerSpec,
    port: u16,
    pub sync_endpoint: String,
    sync_port: u16,
    process: Option<Server>,
    subscriber: Option<zmq::Socket>,
}

impl Node {
    /// A server that is not started yet.
    pub fn new(program: Program, spec: &ServerSpec) -> Self {
        let sync_port = ports::free();
        let sync_endpoint = format!("tcp://127.0.0.1:{sync_port}");
        Self {
            program,
            spec: spec.clone(),
            port: ports::free(),
            sync_endpoint,
            sync_port,
            process: None,
            subscriber: None,
        }
    }

    /// Starts the process; `peers`, `args` and `env` are ready to use.
    pub fn spawn(&mut self, peers: &[String], args: Vec<String>, env: BTreeMap<String, String>, dir: &Path) {
        let mut flags = Vec::new();
        if self.spec.replica_sync {
            flags.extend(["--replica-sync-port".to_owned(), self.sync_port.to_string()]);
            if !peers.is_empty() {
                flags.extend(["--replica-sync-peers".to_owned(), peers.join(",")]);
            }
        }
        flags.extend(args);
        let mut all = BTreeMap::from([("DYN_ROUTER_USE_KV_EVENTS".to_owned(), "false".to_owned())]);
        all.extend(env);
        self.process = Some(Server::start_program(self.program, self.port, &flags, &all, dir));
    }

    /// Waits until the server answers, and subscribes to what it publishes.
    pub fn await_start(&mut self, context: &zmq::Context) -> Result<(), String> {
        self.process.as_mut().unwrap().wait_healthy()?;
        if self.spec.replica_sync {
            let subscriber = context.socket(zmq::SUB).unwrap();
            subscriber.set_linger(0).unwrap();
            subscriber.set_rcvhwm(0).unwrap();
            // A server may publish more; other topics are its own.
            for topic in [SLOT, AFFINITY] {
                subscriber.set_subscribe(topic.as_bytes()).unwrap();
            }
            subscriber.connect(&self.sync_endpoint).unwrap();
            self.subscriber = Some(subscriber);
        }
        Ok(())
    }

    /// Waits for the process to exit by itself: its exit code and all it printed.
    pub fn await_exit(&mut self) -> Result<(i32, String), String> {
        let process = self.process.as_mut().unwrap();
        Ok((process.wait_exit()?, process.output()))
    }

    /// Ends the process, by SIGKILL if `hard`.
    pub fn stop(&mut self, hard: bool) {
        self.subscriber = None;
        if let Some(process) = self.process.take()
            && !hard
        {
            process.interrupt();
        }
    }

    /// Status and body; a body that is no JSON comes as a string.
    pub fn call(&self, http: &Http, raw: Option<Vec<u8>>) -> Result<(u16, Value), String> {
        let mut request = Request::json(&http.method, &http.path, http.body.as_ref());
        if raw.is_some() {
            request.body = raw;
        }
        let label = || format!("{} {}", http.method, http.path);
        let response = client::send(self.port, &request, TIMEOUT).map_err(|e| format!("{}: {e}", label()))?;
        let body = response.json().unwrap_or_else(|| String::from_utf8_lossy(&response.body).into());
        Ok((response.status, body))
    }

    pub fn get(&self, path: &str) -> Result<(u16, Value), String> {
        self.call(&Http { method: "GET".into(), path: path.into(), body: None, raw_b64: None }, None)
    }

    pub fn post(&self, path: &str, body: Value) -> Result<(u16, Value), String> {
        self.call(&Http { method: "POST".into(), path: path.into(), body: Some(body), raw_b64: None }, None)
    }

    pub fn delete(&self, path: &str) -> Result<(u16, Value), String> {
        self.call(&Http { method: "DELETE".into(), path: path.into(), body: None, raw_b64: None }, None)
    }

    /// `GET /loads` without the barrier worker, sorted.
    pub fn loads(&self) -> Result<Value, String> {
        let (status, body) = self.get("/loads")?;
        if status != 200 {
            return Err(format!("GET /loads answered {status}: {body}"));
        }
        let mut parts: Vec<Value> = body
            .as_array()
            .into_iter()
            .flatten()
            .map(|part| {
                let rows = sorted_rows(&part["loads"]);
                json!({"model_name": part["model_name"], "routing_group": part["routing_group"], "loads": rows})
            })
            .collect();
        parts.sort_by_key(|p| (p["model_name"].to_string(), p["routing_group"].to_string()));
        Ok(parts.into())
    }

    /// Live bookings of the barrier worker in a partition; `None` while the partition does not know it.
    pub fn barrier_count(&self, model: &str) -> Result<Option<u64>, String> {
        let (_, body) = self.get("/loads")?;
        Ok(body
            .as_array()
            .into_iter()
            .flatten()
            .filter(|part| part["model_name"] == model && part["routing_group"] == "default")
            .flat_map(|part| part["loads"].as_array().into_iter().flatten())
            .find(|row| row["worker_id"] == BARRIER_WORKER)
            .and_then(|row| row["active_requests"].as_u64()))
    }

    /// Books the barrier worker.
    pub fn reserve_barrier(&self, id: &str, model: &str) -> Result<(u16, Value), String> {
        self.post(
            "/reservations",
            json!({"selection_id": id, "model_name": model, "routing_group": "default",
                "worker_id": BARRIER_WORKER, "dp_rank": 0, "sequence_hashes": [], "isl_tokens": 1}),
        )
    }

    /// The frames published until nothing came for a while.
    pub fn frames(&self, wait: Duration) -> Vec<Vec<Vec<u8>>> {
        let subscriber = self.subscriber.as_ref().unwrap();
        let mut wait = wait.as_millis() as i64;
        let mut frames = Vec::new();
        while subscriber.poll(zmq::POLLIN, wait).unwrap() > 0 {
            frames.push(subscriber.recv_multipart(0).unwrap());
            wait = wait.min(120);
        }
        frames
    }
}

/// Load rows by worker and rank, the barrier worker left out.
pub fn sorted_rows(rows: &Value) -> Vec<Value> {
    let mut rows: Vec<Value> =
        rows.as_array().into_iter().flatten().filter(|r| r["worker_id"] != BARRIER_WORKER).cloned().collect();
    rows.sort_by_key(|r| (r["worker_id"].as_u64(), r["dp_rank"].as_u64()));
    rows
}
