//! A selector that follows a policy document: what a change replaces, what it keeps, and what a bad one does.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod program;

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use program::{Selector, replace, wait_for};
use serde_json::{Value, json};

/// A document in which aggregated workers have the instance `name`.
fn document(name: &str) -> String {
    format!(
        "worker_selection:\n  aggregated: {name}\n  instances:\n  - name: {name}\n    type: dynamo-default-cost-fn\n    \
         parameters: {{overlap_score_credit: 0.5}}\n"
    )
}

struct Followed {
    directory: tempfile::TempDir,
    path: PathBuf,
    selector: Selector,
}

impl Followed {
    fn start(text: &str, flags: &[&str]) -> Self {
        Self::at("policy.yaml", flags, |path| fs::write(path, text).unwrap())
    }

    /// Follows `name` below a new directory, after `prepare` has put it there.
    fn at(name: &str, flags: &[&str], prepare: impl FnOnce(&Path)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(name);
        prepare(&path);
        let mut words = vec!["--no-router-kv-events", "--router-policy-config", path.to_str().unwrap()];
        words.extend_from_slice(flags);
        let selector = Selector::start(directory.path(), &words, &[]);
        wait_for("readiness", || (selector.call("GET", "/readyz", None).0 == 200).then_some(()));
        for id in 1..=3 {
            let worker = json!({"worker_id": id, "endpoint": format!("http://w{id}"), "block_size": 4,
                "model_name": "m", "max_num_batched_tokens": 100});
            assert_eq!(selector.call("POST", "/workers", Some(&worker)).0, 201);
        }
        Self { directory, path, selector }
    }

    fn status(&self) -> Value {
        self.selector.get("/policy")
    }

    fn generation(&self) -> u64 {
        self.status()["generation"].as_u64().unwrap()
    }

    fn wait_for_generation(&self, generation: u64) {
        wait_for(&format!("generation {generation}"), || (self.generation() >= generation).then_some(()));
    }

    /// Waits until the document is refused with a text that contains `part`.
    fn wait_for_error(&self, part: &str) -> Value {
        wait_for(&format!("an error with {part:?}"), || {
            let error = self.status()["last_error"].clone();
            error["error"].as_str().is_some_and(|text| text.contains(part)).then_some(error)
        })
    }

    /// The policy that decides now.
    fn policy(&self) -> String {
        let request = json!({"model_name": "m", "token_ids": [1, 2, 3, 4]});
        let (status, answer) = self.selector.call("POST", "/select?explain=true", Some(&request));
        assert_eq!(status, 200, "{answer}");
        answer["explain"]["policy"].as_str().unwrap().to_owned()
    }

    fn metric(&self, line: &str) {
        let metrics = String::from_utf8(self.selector.send("GET", "/metrics", None).unwrap().body).unwrap();
        let parsed = |line: &str| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse::<f64>().ok()?))
        };
        let wanted = parsed(line).unwrap();
        assert!(metrics.lines().any(|known| parsed(known).as_ref() == Some(&wanted)), "no {line:?} in\n{metrics}");
    }
}

fn active_requests(selector: &Selector) -> u64 {
    let loads = selector.get("/loads");
    let rows = loads.as_array().unwrap().iter().flat_map(|partition| partition["loads"].as_array().unwrap());
    rows.map(|row| row["active_requests"].as_u64().unwrap()).sum()
}

#[test]
fn a_change_acts_at_once_and_keeps_bookings_and_sessions() {
    let followed = Followed::start(&document("first"), &["--session-affinity-ttl-secs", "600"]);
    let selector = &followed.selector;
    assert_eq!(followed.policy(), "first (dynamo-default-cost-fn)");
    let bound = json!({"model_name": "m", "selection_id": "kept", "token_ids": [1, 2, 3, 4], "session_id": "s"});
    let (status, booked) = selector.call("POST", "/select_and_reserve", Some(&bound));
    assert_eq!(status, 200, "{booked}");
    replace(&followed.path, &document("second"));
    followed.wait_for_generation(2);
    assert_eq!(followed.policy(), "second (dynamo-default-cost-fn)");
    assert_eq!(active_requests(selector), 1);
    for number in 0..5 {
        let again = json!({"model_name": "m", "selection_id": format!("n{number}"), "token_ids": [9, 9, 9, 9],
            "session_id": "s"});
        assert_eq!(selector.call("POST", "/select_and_reserve", Some(&again)).1["worker_id"], booked["worker_id"]);
    }
    assert_eq!(selector.call("DELETE", "/reservations/kept", None).0, 200);

    let status = followed.status();
    assert_eq!((&status["watched"], &status["last_error"]), (&json!(true), &Value::Null));
    assert_eq!(status["file"], followed.path.to_str().unwrap());
    let roles = status["effective"]["roles"].as_array().unwrap();
    let aggregated = roles.iter().find(|role| role["role"] == "aggregated").unwrap();
    assert_eq!(aggregated["instance"], "second");
    assert!(status["text"].as_str().unwrap().contains("aggregated: second (dynamo-default-cost-fn)"), "{status}");
    followed.metric("pointsman_policy_generation 2");
    followed.metric("pointsman_policy_reloads_total{outcome=\"applied\"} 1");
    followed.metric("pointsman_policy_last_reload_failed 0");
}

#[test]
fn a_bad_document_keeps_the_last_good_one_and_is_told_everywhere() {
    let followed = Followed::start(&document("good"), &[]);
    let bad = [
        (document("good")[..40].to_owned() + "[\n", "failed to parse router policy config", "syntax"),
        ("worker_selection: {}\n".to_owned(), "worker_selection must define an instance", "value"),
        (document("good").replace("dynamo-default-cost-fn", "nope"), "unknown worker-selection policy type", "policy"),
        (document("good").replace("0.5", "-1"), "overlap_score_credit must be", "policy"),
        (
            document("good") + "router: {use_kv_events: true}\n",
            "router.use_kv_events cannot change while the selector runs: false is in force, true needs a restart",
            "value",
        ),
        (document("good") + "request_classifier: {type: x}\n", "request_classifier cannot change", "value"),
        ("x".repeat(2 << 20) + "\n", "longer than 1048576 bytes", "too_large"),
    ];
    for (text, part, reason) in &bad {
        replace(&followed.path, text);
        let error = followed.wait_for_error(part);
        assert_eq!(error["reason"], *reason, "{error}");
        assert_eq!(followed.policy(), "good (dynamo-default-cost-fn)", "{part}");
        assert_eq!(followed.generation(), 1);
    }
    let error = {
        replace(&followed.path, &document("good").replace("0.5", "-1"));
        followed.wait_for_error("overlap_score_credit")
    };
    assert_eq!((&error["line"], &error["column"]), (&json!(6), &json!(40)), "{error}");
    assert_eq!(error["field"], "worker_selection.instances[0].parameters.overlap_score_credit");
    followed.metric("pointsman_policy_last_reload_failed 1");
    followed.metric("pointsman_plugin_failures_total{component=\"provider\",kind=\"error\"} 2");
    assert!(followed.selector.program.log().contains("policy document refused"));

    fs::remove_file(&followed.path).unwrap();
    followed.wait_for_error("failed to read router policy config");
    assert_eq!(followed.policy(), "good (dynamo-default-cost-fn)");
    fs::write(&followed.path, document("good")).unwrap();
    wait_for("no error", || followed.status()["last_error"].is_null().then_some(()));
    assert_eq!(followed.generation(), 1, "it says what was in force all along");
    followed.metric("pointsman_policy_last_reload_failed 0");
    replace(&followed.path, &document("better"));
    followed.wait_for_generation(2);
    assert_eq!(followed.policy(), "better (dynamo-default-cost-fn)");
}

#[test]
fn a_half_written_document_is_waited_for() {
    let followed = Followed::start(&document("one"), &[]);
    let text = document("two");
    // Without its end the document would be good too, with another credit.
    let cut = text.rfind(".5}").unwrap();
    fs::write(&followed.path, format!("{} ", &text[..cut])).unwrap();
    fs::write(&followed.path, &text).unwrap();
    followed.wait_for_generation(2);
    let status = followed.status();
    assert_eq!(status["generation"], 2);
    assert_eq!(status["reloads"]["applied"], 1, "{status}");
}

#[test]
fn a_config_map_is_swapped_by_its_link() {
    let put = |directory: &Path, stamp: &str, text: &str| {
        fs::create_dir(directory.join(stamp)).unwrap();
        fs::write(directory.join(stamp).join("policy.yaml"), text).unwrap();
        symlink(stamp, directory.join("..data_tmp")).unwrap();
        fs::rename(directory.join("..data_tmp"), directory.join("..data")).unwrap();
    };
    let followed = Followed::at("policy.yaml", &[], |path| {
        put(path.parent().unwrap(), "..2026_1", &document("one"));
        symlink("..data/policy.yaml", path).unwrap();
    });
    assert_eq!(followed.policy(), "one (dynamo-default-cost-fn)");
    put(followed.directory.path(), "..2026_2", &document("two"));
    fs::remove_dir_all(followed.directory.path().join("..2026_1")).unwrap();
    followed.wait_for_generation(2);
    assert_eq!(followed.policy(), "two (dynamo-default-cost-fn)");
}

#[test]
fn comments_change_nothing_and_a_file_that_is_not_watched_neither() {
    let followed = Followed::start(&document("one"), &[]);
    replace(&followed.path, &format!("# why\n{}", document("one")));
    wait_for("the reload", || (followed.status()["reloads"]["unchanged"] == 1).then_some(()));
    assert_eq!(followed.generation(), 1);

    let alone = Followed::start(&document("one"), &["--policy-watch=false"]);
    replace(&alone.path, &document("two"));
    replace(&followed.path, &document("two"));
    followed.wait_for_generation(2);
    assert_eq!(alone.status()["watched"], false);
    assert_eq!((alone.generation(), alone.policy().as_str()), (1, "one (dynamo-default-cost-fn)"));
}

#[test]
fn without_a_document_the_status_shows_the_built_in() {
    let directory = tempfile::tempdir().unwrap();
    let selector = Selector::start(directory.path(), &["--no-router-kv-events"], &[]);
    let status = wait_for("the status", || {
        let (code, status) = selector.call("GET", "/policy", None);
        (code == 200).then_some(status)
    });
    assert_eq!((&status["file"], &status["watched"], &status["digest"]), (&Value::Null, &json!(false), &Value::Null));
    assert!(status["effective"]["roles"].as_array().unwrap().iter().all(|role| role["instance"] == "default"));
}

#[test]
fn a_choice_that_cannot_be_made_fails_the_requests_of_its_role_alone() {
    let text = "worker_selection:\n  decode: x\n  instances: [{name: x, type: nope}]\n";
    let followed = Followed::start(text, &[]);
    let selector = &followed.selector;
    assert!(selector.program.log().contains("requests to decode workers will fail"), "{}", selector.program.log());
    let worker = json!({"worker_id": 9, "endpoint": "http://w9", "block_size": 4, "model_name": "d",
        "worker_role": "decode"});
    assert_eq!(selector.call("POST", "/workers", Some(&worker)).0, 201);
    let request = |model: &str| json!({"model_name": model, "token_ids": [1, 2, 3, 4]});
    let (status, answer) = selector.call("POST", "/select", Some(&request("d")));
    assert_eq!(status, 500, "{answer}");
    assert!(answer["error"].as_str().unwrap().contains("unknown worker-selection policy type \"nope\""), "{answer}");
    assert_eq!(selector.call("POST", "/select", Some(&request("m"))).0, 200);
    // Now that the role is served, a document must make it.
    replace(&followed.path, &text.replace("nope", "nada"));
    followed.wait_for_error("unknown worker-selection policy type \"nada\"");
    replace(&followed.path, &text.replace("nope", "dynamo-default-cost-fn"));
    followed.wait_for_generation(2);
    assert_eq!(selector.call("POST", "/select", Some(&request("d"))).0, 200);
}

#[test]
fn a_request_that_waits_goes_on_waiting_and_is_decided_by_the_new_policy() {
    let queued = |name: &str, quantum: u64| {
        format!(
            "{}default_policy_family: f\nuncached_isl_buckets: [{{min_tokens: 0, bucket: b}}]\npolicy_classes: [{{name: c, \
             policy_family: f, cache_bucket: b, quantum: {quantum}, prefill_busy_threshold: 10}}]\n",
            document(name)
        )
    };
    let followed = Followed::start(&queued("one", 1), &[]);
    let selector = &followed.selector;
    for id in 1..=3 {
        let fill = json!({"model_name": "m", "selection_id": format!("fill{id}"), "token_ids": vec![id; 24],
            "pinned_worker": {"worker_id": id, "dp_rank": 0}});
        assert_eq!(selector.call("POST", "/select_and_reserve", Some(&fill)).0, 200);
    }
    let waiting = || {
        let loads = selector.get("/loads");
        loads[0]["pending_count"].as_u64().unwrap()
    };
    std::thread::scope(|scope| {
        let answer = scope.spawn(|| {
            let request = json!({"model_name": "m", "selection_id": "waits", "token_ids": [7, 7, 7, 7]});
            selector.call("POST", "/select_and_reserve", Some(&request))
        });
        wait_for("the request to wait", || (waiting() == 1).then_some(()));
        replace(&followed.path, &queued("two", 9));
        followed.wait_for_generation(2);
        assert_eq!(waiting(), 1);
        assert_eq!(selector.call("POST", "/reservations/fill2/prefill_complete", None).0, 200);
        let (status, answer) = answer.join().unwrap();
        assert_eq!((status, &answer["worker_id"]), (200, &json!(2)), "{answer}");
    });
    assert_eq!(active_requests(selector), 4);
    assert_eq!(followed.status()["effective"]["profiles"][0]["classes"][0]["quantum"], 9);
}

#[test]
fn reloads_under_load_lose_nothing() {
    const RELOADS: u64 = 100;
    const REQUESTS: u64 = 10_000;
    const CLIENTS: u64 = 4;
    let followed = Followed::start(&document("p0"), &[]);
    let selector = &followed.selector;
    let (next, done) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                // Requests go on as long as documents change.
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= REQUESTS && done.load(Ordering::Relaxed) {
                        next.fetch_sub(1, Ordering::Relaxed);
                        return;
                    }
                    let tokens = [number as u32 % 7, 1, 2, 3, number as u32 % 5, 5, 6, 7];
                    let request = json!({"model_name": "m", "selection_id": format!("r{number}"), "token_ids": tokens});
                    let (status, answer) = selector.call("POST", "/select_and_reserve", Some(&request));
                    assert_eq!(status, 200, "request {number}: {answer}");
                }
            });
        }
        for number in 1..=RELOADS {
            replace(&followed.path, &document(&format!("p{number}")));
            followed.wait_for_generation(number + 1);
        }
        done.store(true, Ordering::Relaxed);
    });
    let made = next.load(Ordering::Relaxed);
    assert!(made >= REQUESTS);
    assert_eq!(active_requests(selector), made, "every booking is live");
    for number in (0..made).step_by(97) {
        assert_eq!(selector.call("DELETE", &format!("/reservations/r{number}"), None).0, 200, "booking {number}");
    }
    let status = followed.status();
    assert_eq!(status["reloads"]["applied"], RELOADS);
    assert_eq!(followed.policy(), format!("p{RELOADS} (dynamo-default-cost-fn)"));
}

#[test]
fn thunderagent_lets_whole_programs_wait_while_their_worker_is_full() {
    let text = "request_classifier: {type: thunderagent, parameters: {buffer_per_program: 0}}\n";
    let followed = Followed::start(text, &[]);
    let selector = &followed.selector;
    for id in 2..=3 {
        assert_eq!(selector.call("DELETE", &format!("/workers/{id}"), None).0, 200);
    }
    // Room for 40 tokens.
    assert_eq!(selector.call("PATCH", "/workers/1", Some(&json!({"total_kv_blocks": 10}))).0, 200);
    let turn = |id: &str, session: Option<&str>, deadline_ms: Option<u64>| {
        let mut request = json!({"model_name": "m", "selection_id": id, "token_ids": (0..24).collect::<Vec<u32>>()});
        if let Some(session) = session {
            request["session_context"] = json!({"session_id": session});
        }
        request["deadline_ms"] = json!(deadline_ms);
        selector.call("POST", "/select_and_reserve", Some(&request))
    };
    let (status, first) = turn("a1", Some("a"), None);
    assert_eq!((status, &first["worker_id"]), (200, &json!(1)), "{first}");
    let wait_for_metric = |line: &str| {
        wait_for(line, || {
            let metrics = String::from_utf8(selector.send("GET", "/metrics", None).unwrap().body).unwrap();
            metrics.contains(line).then_some(())
        });
    };
    // The classifier has heard where it went.
    wait_for_metric("pointsman_request_classifier_events_total{outcome=\"delivered\"} 1");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| turn("b1", Some("b"), None));
        wait_for_metric("pointsman_request_classifier_requests 2");
        let (status, answer) = turn("c1", Some("c"), Some(50));
        assert_eq!((status, &answer["error"]), (429, &json!("request deadline exceeded")));
        assert_eq!(turn("free", None, None).0, 200, "who belongs to no program passes");
        assert!(!waiting.is_finished());
        assert_eq!(active_requests(selector), 2);
        assert_eq!(selector.call("DELETE", "/reservations/a1", None).0, 200);
        let (status, answer) = waiting.join().unwrap();
        assert_eq!((status, &answer["worker_id"]), (200, &json!(1)), "{answer}");
    });
    assert_eq!(active_requests(selector), 2);
}
