//! Player of `golden/index`: hashing vectors and event scenarios, a fresh server each.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::{
    client::{Request, Response, send},
    compare::{contract, expand, short},
    ports,
    server::{FakePeer, Program, Server, TIMEOUT},
    sockets::{Publisher, Replay},
};

const DEADLINE: Duration = Duration::from_secs(20);
const FENCE_TOKEN: u64 = 4_000_000_000;

struct Stage {
    names: BTreeMap<String, String>,
    publishers: BTreeMap<String, Publisher>,
    replays: BTreeMap<String, Replay>,
    server: Server,
    fence_hashes: BTreeSet<u64>,
}

/// Plays one scenario, but for the steps `left_out`.
pub fn play(scenario: &Value, left_out: &[usize]) -> Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    let context = zmq::Context::new();
    let mut names = BTreeMap::new();
    let mut publishers = BTreeMap::new();
    for name in scenario["pubs"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        let publisher = Publisher::bind(&context, ports::free());
        names.insert(format!("pub.{name}"), publisher.endpoint.clone());
        publishers.insert(name.to_owned(), publisher);
    }
    let mut replays = BTreeMap::new();
    for (name, spec) in scenario["replays"].as_object().into_iter().flatten() {
        let replay = Replay::bind(&context, ports::free(), spec);
        names.insert(format!("replay.{name}"), replay.endpoint.clone());
        replays.insert(name.clone(), replay);
    }
    let mut peers = Vec::new();
    for (name, documents) in scenario["peers"].as_object().into_iter().flatten() {
        let documents = documents.as_object().unwrap().iter().map(|(k, v)| (k.clone(), v.clone())).collect();
        let peer = FakePeer::start(documents);
        names.insert(format!("peer.{name}"), format!("http://127.0.0.1:{}", peer.port));
        peers.push(peer);
    }
    for (name, content) in scenario["files"].as_object().into_iter().flatten() {
        let path = dir.path().join(name);
        std::fs::write(&path, STANDARD.decode(content.as_str().unwrap()).unwrap()).unwrap();
        names.insert(format!("file.{name}"), path.display().to_string());
    }
    let spec = &scenario["server"];
    let text = |v: &Value| {
        let v = expand(v, &names);
        v.as_str().map_or_else(|| v.to_string(), str::to_owned)
    };
    let args: Vec<String> = spec["args"].as_array().into_iter().flatten().map(text).collect();
    let env = spec["env"].as_object().into_iter().flatten().map(|(k, v)| (k.clone(), text(v))).collect();
    let program = if scenario["service"] == "indexer" { Program::Indexer } else { Program::First };
    let mut server = Server::start_program(program, ports::free(), &args, &env, dir.path());
    server.wait_healthy()?;
    let fence_hashes = scenario["fence_hashes"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
    let mut stage = Stage { names, publishers, replays, server, fence_hashes };
    for (index, step) in scenario["steps"].as_array().unwrap().iter().enumerate().filter(|(i, _)| !left_out.contains(i))
    {
        stage.step(step).map_err(|e| {
            format!("step {index} {} {}: {e}", step["op"].as_str().unwrap(), step["title"].as_str().unwrap_or(""))
        })?;
    }
    Ok(())
}

impl Stage {
    fn step(&mut self, step: &Value) -> Result<(), String> {
        let publisher = step["pub"].as_str();
        match step["op"].as_str().unwrap() {
            "await_sub" => {
                let count = step["count"].as_u64().unwrap_or(1);
                self.publishers[publisher.unwrap()].await_subscriptions(count, true, DEADLINE)
            }
            "await_unsub" => self.publishers[publisher.unwrap()].await_subscriptions(1, false, DEADLINE),
            "burst" => {
                let get = |k: &str| step[k].as_u64().unwrap();
                let (hash, size) = (get("first_hash"), get("block_size"));
                for i in 0..get("count") {
                    let parent = (i > 0).then(|| hash + i - 1);
                    let event = json!([
                        "BlockStored",
                        [hash + i],
                        parent,
                        vec![get("token_base") + i; size as usize],
                        size,
                        null,
                        "GPU"
                    ]);
                    let payload = msgpack(&json!([0.0, [event], 0]));
                    let seq = (get("start_seq") + i).to_be_bytes().to_vec();
                    self.publishers[publisher.unwrap()].send(vec![Vec::new(), seq, payload]);
                }
                Ok(())
            }
            "pub" => {
                let decode = |v: &Value| STANDARD.decode(v.as_str().unwrap_or_default()).unwrap();
                let seq = step["seq"].as_u64().unwrap().to_be_bytes().to_vec();
                self.publishers[publisher.unwrap()].send(vec![
                    decode(&step["topic_b64"]),
                    seq,
                    decode(&step["payload_b64"]),
                ]);
                Ok(())
            }
            "pub_raw" => {
                let frames = step["frames_b64"].as_array().unwrap();
                let frames = frames.iter().map(|f| STANDARD.decode(f.as_str().unwrap()).unwrap()).collect();
                self.publishers[publisher.unwrap()].send(frames);
                Ok(())
            }
            "pub_restart" => {
                self.publishers.get_mut(publisher.unwrap()).unwrap().restart();
                Ok(())
            }
            "sleep" => {
                std::thread::park_timeout(Duration::from_millis(step["ms"].as_u64().unwrap()));
                Ok(())
            }
            "await" => self.await_until(step),
            "replay_requests" => {
                let got = self.replays[step["replay"].as_str().unwrap()].requests();
                accept(step, &got, |e, g| if e == g { Ok(()) } else { Err(format!("requests {g}, expected {e}")) })
            }
            "dump" => {
                let partition = step["partition"].as_str().unwrap();
                let dump = self.http("GET", "/dump", None)?.json().ok_or("dump is not JSON")?;
                let got = contract(&canonical_dump(&dump, partition, &self.fence_hashes), &self.names);
                accept(step, &got, |e, g| {
                    if e == g { Ok(()) } else { Err(format!("dump {}, expected {}", short(g), short(e))) }
                })
            }
            "http" | "overlap" | "select" => self.request(step),
            other => Err(format!("unknown op {other}")),
        }
    }

    fn http(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Response, String> {
        self.server.http(method, path, body).map_err(|e| e.to_string())
    }

    fn await_until(&self, step: &Value) -> Result<(), String> {
        let end = Instant::now() + DEADLINE;
        let body = expand(&step["body"], &self.names);
        let until = &step["until"];
        let field = until["field"].as_str().unwrap();
        let instance = until["instance"].as_u64().map(|id| id.to_string());
        let path = if instance.is_some() { "/query" } else { "/overlap_scores" };
        loop {
            let response = self.http("POST", path, Some(&body))?;
            let answer = response.json().unwrap_or_default();
            let row = match &instance {
                Some(id) => answer["instances"].get(id),
                None => answer["workers"].as_array().and_then(|rows| {
                    rows.iter().find(|r| r["worker_id"] == until["worker_id"] && r["dp_rank"] == until["dp_rank"])
                }),
            };
            let row = row.map(|r| r[field].as_u64().unwrap_or(0));
            let holds = match (row, until["min"].as_u64(), until["max"].as_u64()) {
                (Some(value), Some(min), _) => value >= min,
                (Some(value), None, Some(max)) => value <= max,
                (None, None, Some(_)) => true,
                _ => false,
            };
            if response.status == 200 && holds {
                return Ok(());
            }
            if Instant::now() > end {
                return Err(format!("not reached: {until}; last answer {} {}", response.status, short(&answer)));
            }
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    fn request(&self, step: &Value) -> Result<(), String> {
        let method = step["method"].as_str().unwrap_or("POST");
        let path = step["path"].as_str().unwrap_or(match step["op"].as_str() {
            Some("select") => "/select",
            _ => "/overlap_scores",
        });
        let path = expand(&Value::from(path), &self.names);
        let request = Request {
            method: method.into(),
            path: path.as_str().unwrap().into(),
            body: match step["raw"].as_str() {
                Some(raw) => Some(raw.as_bytes().to_vec()),
                None => step.get("body").map(|b| serde_json::to_vec(&expand(b, &self.names)).unwrap()),
            },
            ..Request::default()
        };
        let end = Instant::now() + if step["retry"].as_bool() == Some(true) { DEADLINE } else { Duration::ZERO };
        loop {
            let response = send(self.server.port, &request, TIMEOUT).map_err(|e| e.to_string())?;
            let mut body = contract(&response.json().unwrap_or_default(), &self.names);
            if let Some(keep) = step["keep"].as_array() {
                body =
                    keep.iter().map(|k| (k.as_str().unwrap().to_owned(), body[k.as_str().unwrap()].clone())).collect();
            }
            if let (Some(key), Some(list)) = (step["sort_by"].as_str(), body.as_array_mut()) {
                list.sort_by_key(|row| row[key].as_u64());
            }
            let got = if step["status_only"].as_bool() == Some(true) {
                json!({"status": response.status})
            } else {
                json!({"status": response.status, "body": body})
            };
            let subset = step["compare"] == "subset";
            let outcome = accept(step, &got, |e, g| {
                if e == g || (subset && contains(e, g)) {
                    Ok(())
                } else {
                    Err(format!("got {}, expected {}", short(g), short(e)))
                }
            });
            if outcome.is_ok() || Instant::now() >= end {
                return outcome;
            }
            std::thread::park_timeout(Duration::from_millis(10));
        }
    }
}

fn contains(expected: &Value, got: &Value) -> bool {
    match (expected, got) {
        (Value::Object(e), Value::Object(g)) => e.iter().all(|(k, v)| g.get(k).is_some_and(|x| contains(v, x))),
        (Value::Array(e), Value::Array(g)) => e.len() == g.len() && e.iter().zip(g).all(|(x, y)| contains(x, y)),
        _ => expected == got,
    }
}

fn accept(step: &Value, got: &Value, compare: impl Fn(&Value, &Value) -> Result<(), String>) -> Result<(), String> {
    let first = compare(&step["expect"], got);
    if first.is_err() && step["also_accept"].as_array().into_iter().flatten().any(|e| compare(e, got).is_ok()) {
        return Ok(());
    }
    first
}

/// A partition of a dump as its block size and sorted edges, whatever way events were cut.
fn canonical_dump(dump: &Value, partition: &str, ignore: &BTreeSet<u64>) -> Value {
    let part = &dump[partition];
    let Some(events) = part["events"].as_array() else { return part.clone() };
    let mut edges: Vec<Value> = Vec::new();
    for event in events {
        let stored = &event["event"]["data"]["stored"];
        let mut parent = stored["parent_hash"].clone();
        for block in stored["blocks"].as_array().into_iter().flatten() {
            let hash = block["block_hash"].clone();
            if !ignore.contains(&hash.as_u64().unwrap_or(0)) {
                let tier = event["storage_tier"].as_str().unwrap_or("device");
                let rank = event["event"]["dp_rank"].as_u64().unwrap_or(0);
                edges.push(json!([event["worker_id"], rank, tier, parent, hash, block["tokens_hash"]]));
            }
            parent = hash;
        }
    }
    // The corpus was sorted by the text of each row with a blank after every comma.
    edges.sort_by_key(|row| row.to_string().replace(',', ", "));
    edges.dedup();
    json!({"block_size": part["block_size"], "edges": edges})
}

/// MessagePack of a JSON value, shortest forms.
pub fn msgpack(value: &Value) -> Vec<u8> {
    fn write(value: &Value, out: &mut Vec<u8>) {
        match value {
            Value::Null => rmp::encode::write_nil(out).unwrap(),
            Value::Bool(b) => rmp::encode::write_bool(out, *b).unwrap(),
            Value::Number(n) if n.is_u64() => drop(rmp::encode::write_uint(out, n.as_u64().unwrap()).unwrap()),
            Value::Number(n) if n.is_i64() => drop(rmp::encode::write_sint(out, n.as_i64().unwrap()).unwrap()),
            Value::Number(n) => rmp::encode::write_f64(out, n.as_f64().unwrap()).unwrap(),
            Value::String(s) => rmp::encode::write_str(out, s).unwrap(),
            Value::Array(items) => {
                rmp::encode::write_array_len(out, items.len() as u32).unwrap();
                items.iter().for_each(|v| write(v, out));
            }
            Value::Object(map) => {
                rmp::encode::write_map_len(out, map.len() as u32).unwrap();
                for (k, v) in map {
                    rmp::encode::write_str(out, k).unwrap();
                    write(v, out);
                }
            }
        }
    }
    let mut out = Vec::new();
    write(value, &mut out);
    out
}

/// Plays one hashing vector: event side, token query, hash query and tracking hashes must agree with it.
pub fn play_vector(vector: &Value) -> Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    let context = zmq::Context::new();
    let publisher = Publisher::bind(&context, ports::free());
    let mut server = Server::start(ports::free(), &[], &BTreeMap::new(), dir.path());
    server.wait_healthy()?;
    let http =
        |method: &str, path: &str, body: Option<&Value>| server.http(method, path, body).map_err(|e| e.to_string());
    let expect = &vector["expect"];
    let size = vector["block_size"].as_u64().unwrap() as usize;
    let eagle = vector["is_eagle"].as_bool().unwrap_or(false);
    let tokens: Vec<u64> = vector["tokens"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap()).collect();
    let blocks = expect["block_hashes"].as_array().unwrap().len();
    let worker = json!({"worker_id": 1, "model_name": "hv", "endpoint": "http://w:1", "block_size": size,
        "is_eagle": eagle, "kv_events_endpoint": publisher.endpoint});
    let record = http("POST", "/workers", Some(&worker))?.json().unwrap_or_default();
    if record["lifecycle"] != "schedulable" {
        return Err(format!("worker rejected: {record}"));
    }
    publisher.await_subscriptions(1, true, DEADLINE)?;
    let pairs = |t: &[u64]| t.windows(2).map(|w| json!([w[0], w[1]])).collect::<Vec<_>>();
    let event = |hashes: Vec<u64>, tokens: Value| {
        json!({"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": null, "token_ids": tokens,
            "block_size": size, "lora_id": null, "medium": null, "lora_name": null})
    };
    if blocks > 0 {
        let used = &tokens[..blocks * size + usize::from(eagle)];
        let mut stored = event((1..=blocks as u64).collect(), if eagle { pairs(used).into() } else { json!(used) });
        for key in ["lora_name", "cache_salt", "block_mm_infos"] {
            if !vector[key].is_null() {
                stored[key] = vector[key].clone();
            }
        }
        publisher.send(vec![Vec::new(), 0u64.to_be_bytes().to_vec(), msgpack(&json!([0.0, [stored], 0]))]);
    } else {
        publisher.send(vec![Vec::new(), 0u64.to_be_bytes().to_vec(), msgpack(&json!([0.0, [], 0]))]);
    }
    let mut fence = vec![FENCE_TOKEN; size];
    let fence_tokens = if eagle { vec![json!([FENCE_TOKEN, FENCE_TOKEN]); size].into() } else { json!(fence) };
    let fence_event = event(vec![999_999], fence_tokens);
    publisher.send(vec![Vec::new(), 1u64.to_be_bytes().to_vec(), msgpack(&json!([0.0, [fence_event], 0]))]);
    if eagle {
        fence.push(FENCE_TOKEN);
    }
    let end = Instant::now() + DEADLINE;
    loop {
        let answer = http("POST", "/overlap_scores", Some(&json!({"model_name": "hv", "token_ids": fence})))?;
        let seen = answer.json().unwrap_or_default()["workers"][0]["device_blocks"].as_u64().unwrap_or(0) >= 1;
        if seen {
            break;
        }
        if Instant::now() > end {
            return Err("fence never became visible".into());
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
    let dump = http("GET", "/dump", None)?.json().ok_or("dump is not JSON")?;
    let canonical = canonical_dump(&dump, "hv:default", &[999_999].into());
    let by_name: BTreeMap<u64, Value> =
        canonical["edges"].as_array().into_iter().flatten().map(|e| (e[4].as_u64().unwrap(), e[5].clone())).collect();
    let got: Vec<Value> = (1..=blocks as u64).map(|n| by_name.get(&n).cloned().unwrap_or_default()).collect();
    if Value::from(got.clone()) != expect["block_hashes"] {
        return Err(format!("event-side hashes {got:?}, expected {}", expect["block_hashes"]));
    }
    let mut request = json!({"model_name": "hv", "token_ids": tokens});
    for key in ["lora_name", "cache_salt", "block_mm_infos", "is_eagle"] {
        if !vector[key].is_null() {
            request[key] = vector[key].clone();
        }
    }
    let check = |what: &str, body: &Value| -> Result<(), String> {
        let answer = http("POST", "/overlap_scores", Some(body))?.json().unwrap_or_default();
        if answer["num_blocks"] != json!(blocks) || answer["workers"][0]["device_blocks"] != json!(blocks) {
            return Err(format!("{what}: {}, expected {blocks} blocks", short(&answer)));
        }
        Ok(())
    };
    check("token query", &request)?;
    let signed = |key: &str| -> Vec<i64> {
        expect[key].as_array().unwrap().iter().map(|h| h.as_u64().unwrap() as i64).collect()
    };
    if blocks > 0 {
        check(
            "hash query",
            &json!({"model_name": "hv", "block_hashes": signed("block_hashes"),
                "sequence_hashes": signed("sequence_hashes"), "isl_tokens": tokens.len()}),
        )?;
    }
    if !tokens.is_empty() {
        let answer = http("POST", "/select_and_reserve", Some(&request))?.json().unwrap_or_default();
        if answer["sequence_hashes"] != json!(signed("sequence_hashes")) {
            return Err(format!(
                "sequence hashes {}, expected {}",
                answer["sequence_hashes"], expect["sequence_hashes"]
            ));
        }
    }
    Ok(())
}
