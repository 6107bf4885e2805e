//! Player of `golden/http`: a fresh server a scenario, steps in order, every answer compared.

use std::{
    collections::BTreeMap,
    net::TcpStream,
    path::Path,
    time::{Duration, Instant},
};

use base64::Engine as _;
use serde_json::Value;

use super::{
    client::{self, Request, Response},
    compare::{contract, diff, expand, short},
    ports,
    server::{FakePeer, Server, TIMEOUT},
};

type Names = BTreeMap<String, String>;

/// Plays one scenario, but for the answers to the steps `left_out`.
pub fn play(scenario: &Value, left_out: &[usize]) -> Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in scenario["files"].as_object().into_iter().flatten() {
        std::fs::write(dir.path().join(name), text.as_str().unwrap()).unwrap();
    }
    let mut specs: BTreeMap<String, Value> = BTreeMap::new();
    specs.insert("a".into(), serde_json::json!({"env": scenario["env"], "args": scenario["args"]}));
    for (name, spec) in scenario["servers"].as_object().into_iter().flatten() {
        specs.insert(name.clone(), spec.clone());
    }
    let mut known: Names = [("dir".to_owned(), dir.path().display().to_string())].into();
    for name in specs.keys() {
        known.insert(format!("port:{name}"), ports::free().to_string());
        known.insert(format!("sync:{name}"), ports::free().to_string());
    }
    let _peer = scenario.get("peer_dump").map(|dump| {
        let peer = FakePeer::start([("/dump".to_owned(), dump.clone())].into());
        known.insert("peer".into(), peer.port.to_string());
        peer
    });
    let mut servers: BTreeMap<String, Server> = BTreeMap::new();
    for (name, spec) in &specs {
        servers.insert(name.clone(), start(name, spec, &known, dir.path()));
    }
    if scenario["expect_exit"].as_bool() == Some(true) {
        let code = servers.get_mut("a").unwrap().wait_exit()?;
        return if code == 0 { Err("server exited with code 0".into()) } else { Ok(()) };
    }
    for server in servers.values_mut() {
        server.wait_healthy()?;
    }
    let mut names: Names =
        known.iter().filter(|(k, _)| k.contains(':')).map(|(k, v)| (k.replace(':', "_"), v.clone())).collect();
    let mut background: BTreeMap<String, (TcpStream, String)> = BTreeMap::new();
    let mut failures = Vec::new();
    for (index, step) in scenario["steps"].as_array().unwrap().iter().enumerate() {
        let label =
            format!("step {index} {} {}", step["method"].as_str().unwrap_or(""), step["path"].as_str().unwrap_or(""));
        match run_step(step, &servers, &mut names, &mut background) {
            _ if left_out.contains(&index) => {}
            Ok(problems) => failures.extend(problems.into_iter().map(|p| format!("{label}: {p}"))),
            Err(problem) => failures.push(format!("{label}: {problem}")),
        }
    }
    failures.extend(background.keys().map(|id| format!("background {id} never joined")));
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n    ")) }
}

fn start(name: &str, spec: &Value, known: &Names, dir: &Path) -> Server {
    let mut local = known.clone();
    local.insert("port".into(), known[&format!("port:{name}")].clone());
    local.insert("sync".into(), known[&format!("sync:{name}")].clone());
    let fill = |text: &str| {
        let mut text = text.to_owned();
        for (key, value) in &local {
            text = text.replace(&format!("{{{key}}}"), value);
        }
        text
    };
    let args: Vec<String> = spec["args"].as_array().into_iter().flatten().map(|a| fill(a.as_str().unwrap())).collect();
    let env =
        spec["env"].as_object().into_iter().flatten().map(|(k, v)| (k.clone(), fill(v.as_str().unwrap()))).collect();
    Server::start(local["port"].parse().unwrap(), &args, &env, dir)
}

fn request_of(step: &Value, names: &Names) -> Request {
    let text = |v: &Value| expand(v, names);
    let body = if let Some(raw) = step["raw_b64"].as_str() {
        Some(base64::engine::general_purpose::STANDARD.decode(raw).unwrap())
    } else if step.get("raw").is_some() {
        Some(text(&step["raw"]).as_str().unwrap().as_bytes().to_vec())
    } else if let Some(spec) = step.get("gen") {
        let part = |k: &str| spec[k].as_str().unwrap_or_default();
        let count = spec["count"].as_u64().unwrap() as usize;
        Some(format!("{}{}{}", part("prefix"), part("repeat").repeat(count), part("suffix")).into_bytes())
    } else {
        step.get("body").map(|b| serde_json::to_vec(&text(b)).unwrap())
    };
    Request {
        method: step["method"].as_str().unwrap().into(),
        path: text(&step["path"]).as_str().unwrap().into(),
        headers: step["headers"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(k, v)| (k.clone(), text(v).as_str().map(str::to_owned)))
            .collect(),
        body,
        chunked: step["chunked"].as_bool().unwrap_or(false),
    }
}

fn run_step(
    step: &Value,
    servers: &BTreeMap<String, Server>,
    names: &mut Names,
    background: &mut BTreeMap<String, (TcpStream, String)>,
) -> Result<Vec<String>, String> {
    if let Some(ms) = step["sleep_ms"].as_u64() {
        std::thread::park_timeout(Duration::from_millis(ms));
        return Ok(Vec::new());
    }
    if let Some(id) = step["join"].as_str() {
        let (stream, method) = background.remove(id).ok_or("nothing to join")?;
        let response = client::finish(stream, &method).map_err(|e| e.to_string())?;
        return Ok(check(&step["expect"], &response, names));
    }
    if let Some(parallel) = step.get("parallel") {
        return run_parallel(parallel, &step["expect"], servers, names);
    }
    if let Some(ms) = step["wait_ms"].as_u64() {
        std::thread::park_timeout(Duration::from_millis(ms));
    }
    let server = &servers[step["server"].as_str().unwrap_or("a")];
    let request = request_of(step, names);
    if let Some(ms) = step["abort_ms"].as_u64() {
        let stream = client::start(server.port, &request, TIMEOUT).map_err(|e| e.to_string())?;
        std::thread::park_timeout(Duration::from_millis(ms));
        drop(stream);
        return Ok(Vec::new());
    }
    if let Some(id) = step["background"].as_str() {
        let stream = client::start(server.port, &request, TIMEOUT).map_err(|e| e.to_string())?;
        background.insert(id.to_owned(), (stream, request.method));
        return Ok(Vec::new());
    }
    let end = Instant::now() + Duration::from_millis(step["retry_ms"].as_u64().unwrap_or(0));
    let (problems, response) = loop {
        let (problems, response) = match client::send(server.port, &request, TIMEOUT) {
            Ok(response) => (check(&step["expect"], &response, names), Some(response)),
            Err(error) => (vec![format!("request failed: {error}")], None),
        };
        if problems.is_empty() || Instant::now() >= end {
            break (problems, response);
        }
        std::thread::park_timeout(Duration::from_millis(20));
    };
    for (variable, dotted) in step["capture"].as_object().into_iter().flatten() {
        let document = response.as_ref().and_then(Response::json).ok_or("nothing to capture from")?;
        let pointer = format!("/{}", dotted.as_str().unwrap().replace('.', "/"));
        let value = document.pointer(&pointer).ok_or_else(|| format!("cannot capture {dotted}"))?;
        names.insert(variable.clone(), value.as_str().map_or_else(|| value.to_string(), str::to_owned));
    }
    Ok(problems)
}

fn run_parallel(
    parallel: &Value,
    expect: &Value,
    servers: &BTreeMap<String, Server>,
    names: &Names,
) -> Result<Vec<String>, String> {
    let template = &parallel["request"];
    let port = servers[template["server"].as_str().unwrap_or("a")].port;
    let threads: Vec<_> = (0..parallel["count"].as_u64().unwrap())
        .map(|i| {
            let mut names = names.clone();
            names.insert("i".into(), i.to_string());
            let request = request_of(template, &names);
            std::thread::spawn(move || client::send(port, &request, TIMEOUT).map(|r| r.status))
        })
        .collect();
    let mut tally: BTreeMap<String, u64> = BTreeMap::new();
    for thread in threads {
        let outcome = thread.join().unwrap().map_or_else(|e| e.to_string(), |s| s.to_string());
        *tally.entry(outcome).or_default() += 1;
    }
    let counts = expect["counts"].as_object().unwrap();
    let others: Vec<String> = expect["others"].as_array().into_iter().flatten().map(Value::to_string).collect();
    let ok = counts.iter().all(|(code, n)| tally.get(code).copied().unwrap_or(0) == n.as_u64().unwrap())
        && tally.keys().all(|code| counts.contains_key(code) || others.contains(code));
    Ok(if ok { Vec::new() } else { vec![format!("expected {expect}, got {tally:?}")] })
}

fn check(expect: &Value, response: &Response, names: &Names) -> Vec<String> {
    let mut out = Vec::new();
    if expect["status"].as_u64() != Some(u64::from(response.status)) {
        let body = String::from_utf8_lossy(&response.body).chars().take(400).collect::<String>();
        out.push(format!("status: expected {}, got {}; body {body}", expect["status"], response.status));
    }
    for (name, value) in expect["headers"].as_object().into_iter().flatten() {
        let value = value.as_str().unwrap();
        let got = response.headers.get(&name.to_lowercase()).map(String::as_str);
        let words = |t: &str| t.split(',').map(|w| w.trim().to_owned()).collect::<std::collections::BTreeSet<_>>();
        let same =
            if name.eq_ignore_ascii_case("allow") { got.map(words) == Some(words(value)) } else { got == Some(value) };
        if !same {
            out.push(format!("header {name}: expected {value:?}, got {got:?}"));
        }
    }
    if let Some(body) = expect.get("body") {
        match response.json() {
            Some(got) => out.extend(diff(&expand(body, names), &got)),
            None => out.push(format!("body is not JSON: {:?}", String::from_utf8_lossy(&response.body))),
        }
    } else if let Some(text) = expect["text"].as_str() {
        let got = String::from_utf8_lossy(&response.body);
        if got != text {
            out.push(format!("text: expected {text:?}, got {}", short(&contract(&Value::from(&*got), names))));
        }
    }
    if let Some(length) = expect["body_len"].as_u64()
        && length != response.body.len() as u64
    {
        out.push(format!("body length: expected {length}, got {}", response.body.len()));
    }
    out
}
