//! The kinds of cases that are no scenarios: captured frames, tracking hashes, command lines.

use std::{collections::BTreeMap, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::{
    document::{Capture, CaptureStep, Outcome, ServerSpec, StartupCase, Vector},
    message,
    stage::Stage,
};

/// Plays the calls of a capture; the frames published must be the recorded ones, byte for byte but for the ids of the
/// process and the clock.
pub fn capture(capture: &Capture) -> Result<(), String> {
    let mut stage = Stage::single(&capture.server, 1, &BTreeMap::new());
    stage.start("A")?;
    stage.play_steps(&capture.setup, &[])?;
    let own = stage.variables["router_id_A"].as_u64().ok_or("no router id")?;
    for (index, step) in capture.steps.iter().enumerate() {
        capture_step(&stage, step, own, capture.unordered_topics).map_err(|e| format!("call {}: {e}", index + 1))?;
    }
    Ok(())
}

fn capture_step(stage: &Stage, step: &CaptureStep, own: u64, unordered: bool) -> Result<(), String> {
    let node = &stage.nodes["A"];
    let (status, body) = node.call(&step.http, None)?;
    if status != step.response.status {
        return Err(format!("status {status}, wanted {}: {body}", step.response.status));
    }
    let mut got = node.frames(Duration::from_millis(if step.frames.is_empty() { 250 } else { 350 }));
    let mut want = step.frames.clone();
    if got.len() != want.len() {
        return Err(format!("{} frames, wanted {}", got.len(), want.len()));
    }
    if unordered {
        got.sort_by(|a, b| a[0].cmp(&b[0]));
        want.sort_by(|a, b| a.topic.cmp(&b.topic));
    }
    for (got, want) in got.iter().zip(&want) {
        let [topic, payload] = got.as_slice() else { return Err(format!("{} frames in a message", got.len())) };
        if topic != want.topic.as_bytes() {
            return Err(format!("topic {:?}, wanted {}", String::from_utf8_lossy(topic), want.topic));
        }
        let published = message::decode(payload)?;
        let mut recorded = message::decode(&STANDARD.decode(&want.payload_b64).unwrap())?;
        adopt(&mut recorded, &published, own)?;
        if message::encode(&recorded) != *payload {
            let seen = if recorded == published { "the same in other bytes".to_owned() } else { published.to_string() };
            return Err(format!("published {seen}, wanted {recorded}"));
        }
    }
    Ok(())
}

/// Takes over what differs in every run: the ids of the process, which must be `own`, and the sequence of a binding.
fn adopt(recorded: &mut rmpv::Value, published: &rmpv::Value, own: u64) -> Result<(), String> {
    let nested = recorded["event"].is_map();
    for key in ["router_id", "writer_id", "sequence"] {
        let actual = if nested { &published["event"][key] } else { &published[key] };
        if key != "sequence" && !actual.is_nil() && actual.as_u64() != Some(own) {
            return Err(format!("{key} {actual} is not this process's {own}"));
        }
        let event = if nested { member(recorded, "event") } else { Some(&mut *recorded) };
        if let Some(place) = event.and_then(|e| member(e, key)) {
            *place = actual.clone();
        }
    }
    Ok(())
}

fn member<'a>(map: &'a mut rmpv::Value, key: &str) -> Option<&'a mut rmpv::Value> {
    let rmpv::Value::Map(members) = map else { return None };
    members.iter_mut().find(|(k, _)| k.as_str() == Some(key)).map(|(_, v)| v)
}

/// Books a prompt; the hashes that come back must be the vector's.
pub fn vector(vector: &Vector) -> Result<(), String> {
    let mut spec = ServerSpec { replica_sync: false, ..ServerSpec::default() };
    let mut files = BTreeMap::new();
    if let (Some(key), Some(id)) = (&vector.key_hex, &vector.key_id) {
        let bytes: Vec<u8> =
            (0..key.len()).step_by(2).map(|i| u8::from_str_radix(&key[i..i + 2], 16).unwrap()).collect();
        files.insert("key".to_owned(), STANDARD.encode(bytes));
        for (flag, value) in [
            ("--router-tracking-hash", vector.algorithm.as_str()),
            ("--router-tracking-key-file", "${tmp:key}"),
            ("--router-tracking-key-id", id),
        ] {
            spec.args.extend([flag.to_owned(), value.to_owned()]);
        }
    }
    let mut stage = Stage::single(&spec, 0, &files);
    stage.start("A")?;
    let mut worker = json!({"worker_id": 1, "model_name": vector.model_name, "routing_group": vector.routing_group,
        "endpoint": "http://127.0.0.1:1", "block_size": vector.block_size, "max_num_batched_tokens": 1 << 20});
    if vector.worker_is_eagle {
        worker["is_eagle"] = true.into();
    }
    let (status, record) = stage.nodes["A"].post("/workers", worker)?;
    if status != 201 || record["lifecycle"] != "schedulable" {
        return Err(format!("worker: {status} {record}"));
    }
    let mut request = stage.value(&vector.prompt);
    request["selection_id"] = "v".into();
    request["model_name"] = vector.model_name.clone().into();
    request["routing_group"] = vector.routing_group.clone().into();
    let (status, body) = stage.nodes["A"].post("/select_and_reserve", request)?;
    let hashes: Option<Vec<u64>> =
        body["sequence_hashes"].as_array().map(|h| h.iter().filter_map(Value::as_i64).map(|h| h as u64).collect());
    match hashes {
        Some(hashes) if status == 200 && hashes == vector.sequence_hashes => Ok(()),
        _ => Err(format!("{status} {body}, wanted {:?}", vector.sequence_hashes)),
    }
}

/// Starts with a command line that must be accepted, or refused with its text.
pub fn startup(case: &StartupCase) -> Result<(), String> {
    let mut stage = Stage::single(&case.server, 1, &case.files);
    if case.outcome == Outcome::Accepted {
        return stage.start("A");
    }
    stage.spawn("A");
    let (code, output) = stage.nodes.get_mut("A").unwrap().await_exit()?;
    if code == 0 {
        return Err("exit code 0".into());
    }
    if let Some(text) = &case.stderr_contains
        && !output.contains(text.as_str())
    {
        return Err(format!("the output does not contain {text:?}: {output}"));
    }
    if let Some(secret) = &case.must_not_print {
        let secret = stage.text(secret);
        if output.contains(&secret) {
            return Err(format!("the output shows {secret:?}"));
        }
    }
    Ok(())
}
