//! What a case plays on: its servers, its peers, its variables, and the steps.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::{
    super::server::Program,
    AFFINITY, BARRIER_WORKER, DEADLINE, SLOT,
    document::{Barrier, Inject, PairSync, Scenario, ServerSpec, Step},
    matching::{at, fits},
    message,
    peer::Peer,
    program::{Node, sorted_rows},
};

/// Waits until `attempt` succeeds; its last error when it does not in time.
fn until<T>(deadline: Duration, mut attempt: impl FnMut() -> Result<T, String>) -> Result<T, String> {
    let end = Instant::now() + deadline;
    loop {
        match attempt() {
            Err(error) if Instant::now() >= end => return Err(error),
            Err(_) => std::thread::park_timeout(Duration::from_millis(10)),
            done => return done,
        }
    }
}

/// What the servers `A` and `B` run.
pub type Programs = [Program; 2];

pub struct Stage {
    context: zmq::Context,
    pub nodes: BTreeMap<String, Node>,
    peers: BTreeMap<usize, Peer>,
    pub variables: BTreeMap<String, Value>,
    barriers: BTreeMap<(String, String), u64>,
    pub dir: tempfile::TempDir,
}

impl Stage {
    /// Peers bound, servers known but not started, files written.
    pub fn new(
        servers: &BTreeMap<String, ServerSpec>,
        programs: Programs,
        runner_peers: usize,
        files: &BTreeMap<String, String>,
    ) -> Self {
        let context = zmq::Context::new();
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            std::fs::write(dir.path().join(name), STANDARD.decode(content).unwrap()).unwrap();
        }
        let peers = (0..runner_peers).map(|n| (n, Peer::bind(&context))).collect();
        let nodes = servers
            .iter()
            .map(|(name, spec)| (name.clone(), Node::new(programs[usize::from(name == "B")], spec)))
            .collect();
        Self { context, nodes, peers, variables: BTreeMap::new(), barriers: BTreeMap::new(), dir }
    }

    /// One server called `A`.
    pub fn single(server: &ServerSpec, runner_peers: usize, files: &BTreeMap<String, String>) -> Self {
        Self::new(&BTreeMap::from([("A".to_owned(), server.clone())]), [Program::First; 2], runner_peers, files)
    }

    /// Starts everything and plays the steps, but for those `left_out`.
    pub fn play(scenario: &Scenario, programs: Programs, left_out: &[usize]) -> Result<(), String> {
        let mut stage = if scenario.servers.is_empty() {
            Self::single(&scenario.server, scenario.runner_peers, &scenario.files)
        } else {
            Self::new(&scenario.servers, programs, scenario.runner_peers, &scenario.files)
        };
        for name in stage.nodes.keys().cloned().collect::<Vec<_>>() {
            stage.start(&name)?;
        }
        stage.play_steps(&scenario.steps, left_out)
    }

    /// Plays steps, numbered from 1, but for those `left_out`.
    pub fn play_steps(&mut self, steps: &[Step], left_out: &[usize]) -> Result<(), String> {
        for (index, step) in steps.iter().enumerate().filter(|(i, _)| !left_out.contains(&(i + 1))) {
            let label = step.http.as_ref().map_or(String::new(), |h| format!(" {} {}", h.method, h.path));
            self.step(step).map_err(|e| format!("step {}{label}: {e}", index + 1))?;
        }
        Ok(())
    }

    /// Starts the process of a server.
    pub fn spawn(&mut self, name: &str) {
        let spec = self.nodes[name].spec.clone();
        let peers: Vec<String> = spec
            .peers
            .iter()
            .map(|peer| match peer.split_once(':') {
                Some(("runner", n)) => self.peer(n.parse().unwrap()).endpoint.clone(),
                Some(("server", other)) => self.nodes[other].sync_endpoint.clone(),
                _ => peer.clone(),
            })
            .collect();
        let args = spec.args.iter().map(|a| self.text(a)).collect();
        let env = spec.env.iter().map(|(k, v)| (k.clone(), self.text(v))).collect();
        let dir = self.dir.path().to_owned();
        self.nodes.get_mut(name).unwrap().spawn(&peers, args, env, &dir);
    }

    /// Starts a server and waits until it answers and has subscribed to the runner's peers.
    pub fn start(&mut self, name: &str) -> Result<(), String> {
        self.spawn(name);
        let node = self.nodes.get_mut(name).unwrap();
        node.await_start(&self.context)?;
        let spec = node.spec.clone();
        let mut topics = vec![SLOT.to_owned()];
        if spec.args.iter().any(|a| a.contains("affinity-ttl")) {
            topics.push(AFFINITY.to_owned());
        }
        for peer in spec.peers.iter().filter_map(|p| p.strip_prefix("runner:")) {
            self.peer(peer.parse().unwrap()).await_topics(&topics, true)?;
        }
        Ok(())
    }

    fn peer(&mut self, n: usize) -> &mut Peer {
        let context = &self.context;
        self.peers.entry(n).or_insert_with(|| Peer::bind(context))
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        let on = step.on.clone().unwrap_or_else(|| "A".to_owned());
        if step.http.is_some() {
            return self.call(&on, step);
        }
        if let Some(inject) = step.inject.as_ref().or(step.flood.as_ref()) {
            return self.inject(inject);
        }
        if let Some(barrier) = &step.barrier {
            return self.barrier(&on, barrier);
        }
        if let Some(loads) = &step.loads {
            let want = self.value(loads);
            let node = &self.nodes[&on];
            let deadline = step.timeout_ms.map_or(DEADLINE, Duration::from_millis);
            return until(deadline, || {
                let got = node.loads()?;
                fits(&want, &got).map_err(|e| format!("{e}; got {got}"))
            });
        }
        if let Some(request) = &step.potential_loads {
            let request = self.value(request);
            let (status, body) = self.nodes[&on].post("/potential_loads", request)?;
            if status != 200 {
                return Err(format!("status {status}: {body}"));
            }
            let got = Value::from(sorted_rows(&body));
            let rows = self.value(step.rows.as_ref().ok_or("no rows are expected")?);
            return fits(&rows, &got).map_err(|e| format!("{e}; got {got}"));
        }
        if let Some(frames) = &step.expect_frames {
            return self.expect_frames(&on, frames, step);
        }
        if let Some(ms) = step.drain_frames {
            self.nodes[&on].frames(Duration::from_millis(ms));
            return Ok(());
        }
        if let Some(partition) = &step.sync_outbound {
            return self.sync_outbound(&on, &partition.model);
        }
        if let Some(pair) = &step.pair_sync {
            return self.pair_sync(pair);
        }
        if let Some(ms) = step.sleep_ms {
            let end = Instant::now() + Duration::from_millis(ms);
            while Instant::now() < end {
                std::thread::park_timeout(end.saturating_duration_since(Instant::now()));
            }
            return Ok(());
        }
        if let Some(subscriptions) = &step.subscriptions {
            let peer = self.peer(subscriptions.peer);
            peer.await_topics(&subscriptions.expect, true)?;
            return peer.await_topics(&subscriptions.absent, false);
        }
        if let Some(name) = &step.start {
            return self.start(name);
        }
        if let Some(name) = &step.stop {
            self.nodes.get_mut(name).unwrap().stop(step.hard);
            return Ok(());
        }
        Err("unknown step".into())
    }

    fn call(&mut self, on: &str, step: &Step) -> Result<(), String> {
        let mut http = step.http.clone().unwrap();
        http.path = self.text(&http.path);
        http.body = http.body.as_ref().map(|b| self.value(b));
        let raw = http.raw_b64.as_ref().map(|r| STANDARD.decode(r).unwrap());
        let (status, body) = self.nodes[on].call(&http, raw)?;
        if let Some(want) = step.status
            && want != status
        {
            return Err(format!("status {status}, wanted {want}: {body}"));
        }
        if let Some(expect) = &step.expect {
            fits(&self.value(expect), &body)?;
        }
        if let Some(text) = &step.error_contains
            && !body.to_string().contains(text.as_str())
        {
            return Err(format!("{body} does not contain {text:?}"));
        }
        self.save(step, &body)
    }

    fn save(&mut self, step: &Step, document: &Value) -> Result<(), String> {
        for (variable, path) in &step.save {
            let value = at(document, path).ok_or_else(|| format!("no {path} in {document}"))?;
            self.variables.insert(variable.clone(), value.clone());
        }
        Ok(())
    }

    fn inject(&mut self, inject: &Inject) -> Result<(), String> {
        let topic = inject.topic.as_deref().unwrap_or(SLOT);
        for i in 0..inject.count {
            let frames = match &inject.frames {
                Some(frames) => frames.iter().map(|f| STANDARD.decode(f).unwrap()).collect(),
                None => {
                    self.variables.insert("i".into(), i.into());
                    let body = message::fill(inject.msg.as_ref().ok_or("nothing to send")?, &self.variables)?;
                    vec![topic.as_bytes().to_vec(), message::encode(&body)]
                }
            };
            self.peer(inject.peer).send(frames);
        }
        Ok(())
    }

    fn barrier(&mut self, on: &str, barrier: &Barrier) -> Result<(), String> {
        let node = &self.nodes[on];
        let key = (on.to_owned(), barrier.model.clone());
        let count = match self.barriers.get(&key) {
            Some(count) => *count,
            // A partition learns of a new worker shortly after it was registered.
            None => until(DEADLINE, || node.barrier_count(&barrier.model)?.ok_or("no barrier worker".to_owned()))?,
        };
        let booking = json!({
            "model_name": barrier.model, "routing_group": "default", "block_size": barrier.block_size,
            "event": {
                "request_id": format!("barrier-{}-{count}", barrier.model),
                "worker": {"worker_id": BARRIER_WORKER, "dp_rank": 0},
                "data": {"AddRequest": {"token_sequence": null, "track_prefill_tokens": false,
                    "expected_output_tokens": null, "prefill_load_hint": null}},
                "router_id": 77, "lora_name": null,
            },
        });
        let body = message::encode(&message::from_json(&booking));
        self.peer(barrier.peer).send(vec![SLOT.as_bytes().to_vec(), body]);
        let node = &self.nodes[on];
        until(DEADLINE, || match node.barrier_count(&barrier.model)? {
            Some(seen) if seen == count + 1 => Ok(()),
            seen => Err(format!("the barrier was not applied: {seen:?} after {count}")),
        })?;
        self.barriers.insert(key, count + 1);
        Ok(())
    }

    /// Makes sure that the runner's subscriber sees what a server publishes; learns the server's id.
    fn sync_outbound(&mut self, on: &str, model: &str) -> Result<(), String> {
        let node = &self.nodes[on];
        for attempt in 0..200 {
            let id = format!("warm-{attempt}");
            let (status, body) = node.reserve_barrier(&id, model)?;
            if status != 201 {
                return Err(format!("warm-up reservation: {status} {body}"));
            }
            let seen = node.frames(Duration::from_millis(60));
            node.delete(&format!("/reservations/{id}"))?;
            if let Some(frames) = seen.last() {
                let message = message::to_json(&message::decode(&frames[1])?)?;
                node.frames(Duration::from_millis(250));
                self.variables.insert(format!("router_id_{on}"), message["event"]["router_id"].clone());
                return Ok(());
            }
        }
        Err("no frame was published".into())
    }

    fn pair_sync(&self, pair: &PairSync) -> Result<(), String> {
        let (from, to) = (&self.nodes[&pair.from], &self.nodes[&pair.to]);
        let count = || to.barrier_count(&pair.model).map(Option::unwrap_or_default);
        let base = count()?;
        for attempt in 0..200 {
            let id = format!("pair-{}-{}-{attempt}", pair.from, pair.to);
            from.reserve_barrier(&id, &pair.model)?;
            let arrived =
                until(Duration::from_millis(100), || if count()? > base { Ok(()) } else { Err(String::new()) });
            from.delete(&format!("/reservations/{id}"))?;
            if arrived.is_ok() {
                return until(DEADLINE, || {
                    if count()? <= base { Ok(()) } else { Err("the warm-up booking was not freed".into()) }
                });
            }
        }
        Err(format!("{} never reached {}", pair.from, pair.to))
    }

    fn expect_frames(&mut self, on: &str, want: &[Value], step: &Step) -> Result<(), String> {
        let mut want: Vec<Value> = want.iter().map(|w| self.value(w)).collect();
        let mut got = Vec::new();
        for frames in self.nodes[on].frames(Duration::from_millis(step.within_ms.unwrap_or(600))) {
            let [topic, payload] = frames.as_slice() else {
                return Err(format!("a published message has {} frames", frames.len()));
            };
            let decoded = message::to_json(&message::decode(payload)?)?;
            got.push(json!({"topic": String::from_utf8_lossy(topic), "msg": decoded}));
        }
        if step.unordered {
            let topic = |v: &Value| v["topic"].to_string();
            want.sort_by_key(topic);
            got.sort_by_key(topic);
        }
        let got = Value::from(got);
        fits(&want.into(), &got)?;
        self.save(step, &got)
    }

    /// Replaces `${name}` in a text.
    pub fn text(&mut self, text: &str) -> String {
        let mut out = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("${") {
            let (key, tail) = after.split_once('}').unwrap();
            out.push_str(before);
            match key.split_once(':') {
                Some(("peer", n)) => out.push_str(&self.peer(n.parse().unwrap()).endpoint),
                Some(("sync", name)) => out.push_str(&self.nodes[name].sync_endpoint),
                Some(("tmp", name)) => out.push_str(&self.dir.path().join(name).display().to_string()),
                _ => match &self.variables[key] {
                    Value::String(value) => out.push_str(value),
                    value => out.push_str(&value.to_string()),
                },
            }
            rest = tail;
        }
        out + rest
    }

    /// Replaces variables and macros in a value.
    pub fn value(&mut self, value: &Value) -> Value {
        match value {
            Value::String(text) => self.text(text).into(),
            Value::Array(items) => items.iter().map(|v| self.value(v)).collect(),
            Value::Object(members) => {
                if let Some(value) = message::macro_of(value, &self.variables) {
                    return value;
                }
                members.iter().map(|(k, v)| (k.clone(), self.value(v))).collect()
            }
            other => other.clone(),
        }
    }
}
