//! Two real vLLM engines as pods, which tell by themselves where they publish. `POINTSMAN_ENGINES` names the folder that
//! `tests/engines/install.sh` filled; without it the trial is ignored.

use std::{fs, net::IpAddr, path::PathBuf, time::Duration};

use libtest_mimic::Trial;
use serde_json::{Value, json};

use super::harness::{Answer, Fleet, Namespace, PodFacts, call, manifests, pool, trial, wait_until, within};

/// Tokens of a block, as `tests/engines/serve.sh` has it.
const BLOCK_SIZE: usize = 32;
/// Blocks of an engine: few, so that it evicts.
const BLOCKS: usize = 300;
/// Largest token of the tiny model.
const VOCABULARY: u32 = 31_000;
/// Requests that are predicted.
const REQUESTS: usize = 60;
/// An engine imports a lot before it serves, on two cores beside others.
const START: Duration = Duration::from_secs(400);

pub fn trials() -> Vec<Trial> {
    let installed = std::env::var_os("POINTSMAN_ENGINES").is_some();
    let real = trial("engines::are_asked_and_predicted", are_asked_and_predicted);
    let is_ignored = real.has_ignored_flag() || !installed;
    vec![real.with_ignored_flag(is_ignored)]
}

/// A Deployment of engines that run from the machine's folders.
fn engines(folder: &str) -> Value {
    let python = fs::canonicalize(format!("{folder}/bin/python3")).unwrap_or_else(|e| panic!("{folder}: {e}"));
    let python: PathBuf = python.ancestors().nth(2).expect("a program is in a folder").into();
    let sources = format!("{}/tests/engines", env!("CARGO_MANIFEST_DIR"));
    let blocks = BLOCKS.to_string();
    let command = [
        "bash",
        &format!("{sources}/serve.sh"),
        "8000",
        "5557",
        "5657",
        "--host",
        "0.0.0.0",
        "--num-gpu-blocks-override",
        &blocks,
    ];
    let mut folders = vec![folder, &sources];
    let python = python.to_string_lossy();
    if !python.starts_with("/usr") {
        folders.push(&python);
    }
    let mut template = manifests::host_template("vllm", &command, &folders, 8000);
    let container = &mut template["spec"]["containers"][0];
    container["env"].as_array_mut().expect("a list").push(json!({"name": "VLLM_ENV", "value": folder}));
    container["readinessProbe"] = json!({"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 2});
    // A Service called vllm would give it a VLLM_PORT that it cannot read.
    template["spec"]["enableServiceLinks"] = json!(false);
    // Its processes share memory.
    template["spec"]["volumes"]
        .as_array_mut()
        .expect("a list")
        .push(json!({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}));
    template["spec"]["containers"][0]["volumeMounts"]
        .as_array_mut()
        .expect("a list")
        .push(json!({"name": "shm", "mountPath": "/dev/shm"}));
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "vllm"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "vllm"}}, "template": template},
    })
}

fn are_asked_and_predicted(ns: &Namespace) {
    let folder = std::env::var("POINTSMAN_ENGINES").expect("the trial is ignored without");
    ns.apply(&engines(&folder).to_string());
    ns.apply(&manifests::service("vllm", &json!({"app": "vllm"}), &[("http", 8000)], false).to_string());
    let _operator = ns.install_operator(&[]);
    let fleet = Fleet::managed(ns, "fleet", 2);
    // Nothing is said but where the engines are.
    let mut object = pool("tiny", "fleet", &json!({"service": {"name": "vllm"}}), &json!({"modelName": "tiny"}));
    let spec = object["spec"].as_object_mut().expect("a pool has a spec");
    spec.remove("blockSize");
    spec.insert("kvEvents".into(), json!({"source": "Engine"}));
    ns.apply(&object.to_string());

    let workers = within(START, "two Ready engines", || {
        let pods = ns.try_pods("app=vllm")?;
        if pods.len() == 2 && pods.iter().all(|p| p.ready) { Ok(pods) } else { Err(format!("{pods:?}")) }
    });
    fleet.wait_for_pods(&workers);
    let status = ns.wait_for_counts("tiny", 2, 2, 0);
    let mut sources: Vec<[&str; 3]> = status["sources"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|s| ["field", "value", "source"].map(|key| s[key].as_str().unwrap_or_default()))
        .collect();
    sources.sort_unstable();
    let expected = [
        ["blockSize", "32", "GET /metrics"],
        ["dataParallel.size", "1", "GET /kv_event_sources"],
        ["kvEvents.port", "5557", "GET /kv_event_sources"],
        ["kvEvents.replayPort", "5657", "GET /kv_event_sources"],
    ];
    assert_eq!(sources, expected, "{status}");

    let selectors = fleet.selectors();
    let service = ns.service_ip("fleet");
    wait_until("an answer of the Service", || call(service, 8092, "GET", "/readyz", None).map(drop));
    let mut sessions: Vec<Vec<u32>> = (0..12).map(|n| shared(n % 3)).collect();
    let (mut cached, mut tokens, mut wrong) = (0, 0, Vec::new());
    for number in 0..REQUESTS {
        let session = fastrand::usize(..sessions.len());
        let prompt = sessions[session].clone();
        let (found, predicted, output) = one(service, &selectors, number, &prompt);
        if found != predicted {
            wrong.push(format!("request {number}: {predicted} of {} predicted, {found} found", prompt.len()));
        }
        cached += found;
        tokens += prompt.len();
        let grown = &mut sessions[session];
        grown.extend(output);
        grown.extend(random(fastrand::usize(16..160)));
        if grown.len() > 2_400 {
            *grown = shared(session as u32 % 3);
        }
    }
    println!("{REQUESTS} requests, {tokens} tokens, {cached} of them found cached, {} predictions wrong", wrong.len());
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(cached * 4 > tokens, "the prompts have much in common: {cached} of {tokens} tokens were cached");
}

/// Tokens that nobody has sent before.
fn random(count: usize) -> Vec<u32> {
    (0..count).map(|_| fastrand::u32(10..VOCABULARY)).collect()
}

/// The beginning of a session: one of few system prompts, and something of its own.
fn shared(system: u32) -> Vec<u32> {
    let common = (0..300).map(|n| 10 + (system * 7_919 + n * 31) % (VOCABULARY - 10));
    common.chain(random(64)).collect()
}

fn good(answer: Result<Answer, String>) -> Answer {
    let answer = answer.unwrap_or_else(|e| panic!("{e}"));
    assert!(answer.is_success(), "{} {}", answer.status, answer.text());
    answer
}

/// Books through the Service, lets the engine that was chosen complete the prompt, and waits until every selector knows of
/// it. Tokens that the engine found cached, as many as were predicted, and the output.
fn one(service: IpAddr, selectors: &[PodFacts], number: usize, prompt: &[u32]) -> (usize, usize, Vec<u32>) {
    let booking = format!("real-{number}");
    let body = json!({"model_name": "tiny", "selection_id": booking, "token_ids": prompt});
    let chosen = good(call(service, 8092, "POST", "/select_and_reserve", Some(&body))).json();
    // An engine computes at least the last token, so it never counts that token's block.
    let overlap = chosen["overlap"]["gpu"].as_u64().unwrap_or_else(|| panic!("no overlap in {chosen}")) as usize;
    let predicted = overlap.min((prompt.len() - 1) / BLOCK_SIZE * BLOCK_SIZE);
    let worker = chosen["worker_id"].clone();
    let url = chosen["endpoint"].as_str().and_then(|url| url.strip_prefix("http://"));
    let (host, port) = url.and_then(|url| url.rsplit_once(':')).unwrap_or_else(|| panic!("no endpoint in {chosen}"));
    let completion = json!({
        "model": "tiny", "prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": true,
        "detokenize": false, "return_token_ids": true,
    });
    let (host, port): (IpAddr, u16) = (host.parse().expect("an address"), port.parse().expect("a port"));
    let answer = good(call(host, port, "POST", "/v1/completions", Some(&completion))).json();
    let found = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or_default() as usize;
    let output = answer["choices"][0]["token_ids"].as_array().into_iter().flatten();
    let output = output.filter_map(Value::as_u64).map(|token| token as u32).collect();

    let scores = json!({"model_name": "tiny", "token_ids": prompt});
    wait_until("the events of a request", || {
        for selector in selectors {
            let answer = call(selector.ip(), 8092, "POST", "/overlap_scores", Some(&scores))?.json();
            let rows = answer["workers"].as_array().into_iter().flatten();
            let blocks = rows.filter(|row| row["worker_id"] == worker).find_map(|row| row["device_blocks"].as_u64());
            if blocks < Some((prompt.len() / BLOCK_SIZE) as u64) {
                return Err(answer.to_string());
            }
        }
        Ok(())
    });
    settle(selectors);
    let path = format!("/reservations/{booking}");
    wait_until("the end of a booking", || match call(service, 8092, "DELETE", &path, None)? {
        // The replica that was asked hears of the booking later than the client.
        answer if answer.is_success() || answer.status == 404 => Ok(()),
        answer => Err(format!("{} {}", answer.status, answer.text())),
    });
    (found, predicted, output)
}

/// Waits until no more events come: an engine tells of what it evicted for a request after it told of what it stored.
fn settle(selectors: &[PodFacts]) {
    let positions = || -> Result<Vec<String>, String> {
        let of = |pod: &PodFacts| -> Result<String, String> {
            let rows = call(pod.ip(), 8092, "GET", "/listeners", None)?.json();
            let positions = rows.as_array().into_iter().flatten().map(|row| row["position"].to_string());
            Ok(positions.collect::<Vec<_>>().join(" "))
        };
        selectors.iter().map(of).collect()
    };
    let mut before = Vec::new();
    wait_until("no more events", || {
        let now = positions()?;
        let all = now == before && now.iter().all(|one| *one == now[0]);
        before = now;
        if all { Ok(()) } else { Err(before.join("; ")) }
    });
}
