//! Writing statuses: only differences, and not every step of a change.
//!
//! A change of a set goes through many states: pods come, become ready, get their catalog, their peers. Its end is told at
//! once, what lies between only when it takes long, so that a change costs an object three writes or fewer.
//!
//! Invariants: a status that tells of nothing under way is written when it has been the same for [`SETTLE`]; any other when
//! it has differed for [`LONGEST`]; both grow with the writes of one change. One write an object at a time; one that fails
//! is tried again after a growing pause, with what is true by then.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
    core::{ApiResource, DynamicObject},
};
use serde_json::{Value, json};
use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};

use crate::kubernetes::api::{
    ModelPool, SelectorSet,
    constants::{FIELD_MANAGER, condition, reason},
};

/// How long a status stays the same before it is written, by the writes that its change has had.
pub const SETTLE: [Duration; 4] =
    [Duration::from_millis(400), Duration::from_millis(400), Duration::from_secs(2), Duration::from_secs(5)];
/// How long it may go on changing, likewise.
pub const LONGEST: [Duration; 4] =
    [Duration::from_secs(2), Duration::from_secs(10), Duration::from_secs(20), Duration::from_secs(30)];
/// A difference this long after the last write belongs to another change.
const CALM: Duration = Duration::from_secs(30);
/// Longest time for one write.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a written status may be missing from what is watched before it is written again.
const WATCH_LAG: Duration = Duration::from_secs(30);
/// Pause after a write that failed, doubled each time.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// Longest such pause.
const LAST_RETRY: Duration = Duration::from_secs(60);
/// Writes under way at once.
const MAX_WRITES: usize = 8;

/// Names an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Its kind.
    pub kind: &'static str,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// A status that was written, for events.
#[derive(Clone, Debug)]
pub struct Written {
    /// Whose.
    pub key: ObjectKey,
    /// UID of the object.
    pub uid: String,
    /// Conditions before it.
    pub before: Vec<Condition>,
    /// Conditions now.
    pub after: Vec<Condition>,
}

/// What is known of the status of one object.
#[derive(Debug)]
struct Entry {
    uid: String,
    /// What the apiserver has, as far as it is known here.
    known: Value,
    known_since: Instant,
    wanted: Value,
    wanted_since: Instant,
    differs_since: Option<Instant>,
    /// Writes that the present change has had.
    writes: usize,
    retry: Option<(Instant, Duration)>,
    in_flight: bool,
}

impl Entry {
    /// Takes note of whether there is something to be written.
    fn compare(&mut self, now: Instant) {
        if self.wanted == self.known {
            self.differs_since = None;
            return;
        }
        let is_new = self.differs_since.is_none() && now.duration_since(self.known_since) >= CALM;
        // Somebody changed the spec, and waits for an answer.
        if is_new || self.wanted.get("observedGeneration") != self.known.get("observedGeneration") {
            self.writes = 0;
        }
        self.differs_since.get_or_insert(now);
    }

    fn is_due(&self, now: Instant) -> bool {
        let Some(since) = self.differs_since else { return false };
        let nth = |pauses: &[Duration; 4]| pauses[self.writes.min(pauses.len() - 1)];
        let is_over = is_settled(&self.wanted) && now.duration_since(self.wanted_since) >= nth(&SETTLE);
        let is_late = now.duration_since(since) >= nth(&LONGEST);
        (is_over || is_late) && !self.in_flight && self.retry.is_none_or(|(at, _)| at <= now)
    }
}

/// `wanted` with the times of those conditions that are as in `known`: what changed and changed back in between was told
/// to nobody, and is no difference.
fn with_times_of(known: &Value, mut wanted: Value) -> Value {
    let before = known.get("conditions").and_then(Value::as_array);
    let same = |condition: &Value| {
        let before = before?.iter().find(|b| b.get("type") == condition.get("type"))?;
        (before.get("status") == condition.get("status")).then(|| before.get("lastTransitionTime")).flatten()
    };
    for condition in wanted.get_mut("conditions").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(time) = same(condition) {
            condition["lastTransitionTime"] = time.clone();
        }
    }
    wanted
}

/// Whether a status tells of nothing under way: what is there is what is wanted, and known everywhere.
fn is_settled(status: &Value) -> bool {
    let whole = |field: &str| match status.get(field).and_then(Value::as_str).and_then(|text| text.split_once('/')) {
        Some((part, all)) => part == all,
        None => true,
    };
    let conditions = conditions_of(status);
    let is = |kind: &str, wanted: &str| conditions.iter().all(|c| c.type_ != kind || c.status == wanted);
    let wired =
        conditions.iter().any(|c| c.type_ == condition::PEERS_WIRED && c.reason == reason::REPLICA_SYNC_DISABLED);
    let empty = conditions.iter().any(|c| c.type_ == condition::AVAILABLE && c.reason == reason::SCALED_TO_ZERO);
    whole("readyOfReplicas")
        && whole("schedulableOfDiscovered")
        && is(condition::PROGRESSING, "False")
        && (empty || is(condition::CATALOG_SYNCED, "True"))
        && (empty || wired || is(condition::PEERS_WIRED, "True"))
        && is(condition::SYNCED, "True")
}

/// Counts of writes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// That succeeded.
    pub written: u64,
    /// That failed.
    pub failed: u64,
}

/// The statuses of all objects of ours.
pub struct Writer {
    client: Client,
    entries: BTreeMap<ObjectKey, Entry>,
    writes: JoinSet<(ObjectKey, Value, Result<(), String>)>,
    counts: Counts,
}

impl Writer {
    /// Nothing is known yet.
    pub fn new(client: Client) -> Self {
        Self { client, entries: BTreeMap::new(), writes: JoinSet::new(), counts: Counts::default() }
    }

    /// What was counted so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The status that was last wanted of `key`, so that its times are kept.
    pub fn last(&self, key: &ObjectKey, uid: &str) -> Option<&Value> {
        self.entries.get(key).filter(|e| e.uid == uid).map(|e| &e.wanted)
    }

    /// `wanted` is to be the status of the object, which is watched with `live`.
    pub fn offer(&mut self, key: ObjectKey, uid: &str, live: Value, wanted: Value, now: Instant) {
        if self.entries.get(&key).is_some_and(|e| e.uid != uid) {
            self.entries.remove(&key);
        }
        let entry = self.entries.entry(key).or_insert_with(|| Entry {
            uid: uid.to_owned(),
            known: live.clone(),
            known_since: now,
            wanted: live.clone(),
            wanted_since: now,
            differs_since: None,
            writes: 0,
            retry: None,
            in_flight: false,
        });
        // Somebody else wrote it, or what is watched lags behind our own write.
        if entry.known != live && !entry.in_flight && now.duration_since(entry.known_since) >= WATCH_LAG {
            entry.known = live;
            entry.known_since = now;
        }
        let wanted = with_times_of(&entry.known, wanted);
        if entry.wanted != wanted {
            entry.wanted = wanted;
            entry.wanted_since = now;
        }
        entry.compare(now);
    }

    /// Forgets objects that `stays` does not hold.
    pub fn retain(&mut self, stays: impl Fn(&ObjectKey) -> bool) {
        self.entries.retain(|key, _| stays(key));
    }

    /// Whether something is to be written yet.
    pub fn is_open(&self) -> bool {
        self.entries.values().any(|e| e.differs_since.is_some() || e.in_flight)
    }

    /// Starts the writes that are due and takes the results of those that are done.
    pub fn advance(&mut self, now: Instant) -> Vec<Written> {
        let mut done = Vec::new();
        while let Some(Ok((key, value, outcome))) = self.writes.try_join_next() {
            done.extend(self.take(key, value, outcome, now));
        }
        let free = MAX_WRITES.saturating_sub(self.writes.len());
        for (key, entry) in self.entries.iter_mut().filter(|(_, e)| e.is_due(now)).take(free) {
            entry.in_flight = true;
            let (client, key, status) = (self.client.clone(), key.clone(), entry.wanted.clone());
            self.writes.spawn(async move {
                let outcome = write(client, &key, &status).await;
                (key, status, outcome)
            });
        }
        done
    }

    fn take(&mut self, key: ObjectKey, value: Value, outcome: Result<(), String>, now: Instant) -> Option<Written> {
        let entry = self.entries.get_mut(&key)?;
        entry.in_flight = false;
        match outcome {
            Ok(()) => {
                self.counts.written += 1;
                let before = conditions_of(&entry.known);
                entry.known = value;
                entry.known_since = now;
                entry.retry = None;
                entry.writes += 1;
                entry.differs_since = (entry.known != entry.wanted).then_some(now);
                let after = conditions_of(&entry.known);
                Some(Written { key, uid: entry.uid.clone(), before, after })
            }
            Err(error) => {
                self.counts.failed += 1;
                tracing::warn!(
                    kind = key.kind,
                    namespace = key.namespace,
                    name = key.name,
                    error,
                    "status not written"
                );
                let pause = entry.retry.map_or(FIRST_RETRY, |(_, pause)| (pause * 2).min(LAST_RETRY));
                entry.retry = Some((now + pause, pause));
                None
            }
        }
    }
}

fn conditions_of(status: &Value) -> Vec<Condition> {
    status.get("conditions").and_then(|c| serde_json::from_value(c.clone()).ok()).unwrap_or_default()
}

async fn write(client: Client, key: &ObjectKey, status: &Value) -> Result<(), String> {
    let resource = match key.kind {
        "SelectorSet" => ApiResource::erase::<SelectorSet>(&()),
        _ => ApiResource::erase::<ModelPool>(&()),
    };
    let api: Api<DynamicObject> = Api::namespaced_with(client, &key.namespace, &resource);
    let body = json!({
        "apiVersion": resource.api_version,
        "kind": key.kind,
        "metadata": { "name": key.name },
        "status": status,
    });
    let params = PatchParams::apply(FIELD_MANAGER).force();
    match timeout(CALL_TIMEOUT, api.patch_status(&key.name, &params, &Patch::Apply(&body))).await {
        Ok(Ok(_)) => Ok(()),
        // It was deleted meanwhile: nothing is left to be said.
        Ok(Err(kube::Error::Api(status))) if status.is_not_found() => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("no answer in time".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::{
            Arc,
            atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
        },
    };

    use axum::http::{Request, Response, StatusCode};
    use kube::client::Body as KubeBody;

    use super::*;

    fn status(ready: &str, progressing: &str) -> Value {
        let of = |kind: &str, status: &str| {
            let time = "2026-01-01T00:00:00Z";
            json!({"type": kind, "status": status, "reason": "R", "message": "", "lastTransitionTime": time})
        };
        let conditions = [of("Progressing", progressing), of("CatalogSynced", "True"), of("PeersWired", "True")];
        json!({"observedGeneration": 1, "readyOfReplicas": ready, "conditions": conditions})
    }

    fn entry(known: Value, now: Instant) -> Entry {
        Entry {
            uid: "u".to_owned(),
            wanted: known.clone(),
            known,
            known_since: now,
            wanted_since: now,
            differs_since: None,
            writes: 0,
            retry: None,
            in_flight: false,
        }
    }

    impl Entry {
        fn want(&mut self, wanted: Value, now: Instant) {
            self.wanted = wanted;
            self.wanted_since = now;
            self.compare(now);
        }

        fn written(&mut self, now: Instant) {
            self.known = self.wanted.clone();
            self.known_since = now;
            self.writes += 1;
            self.differs_since = None;
        }
    }

    /// Half-second steps; the times at which a write is due, which is then made.
    fn times(entry: &mut Entry, start: Instant, states: &[(u64, Value)], until: u64) -> Vec<u64> {
        let mut times = Vec::new();
        for step in 0..until * 2 {
            let now = start + Duration::from_millis(500 * step);
            if let Some((_, state)) = states.iter().find(|(at, _)| at * 2 == step) {
                entry.want(state.clone(), now);
            }
            entry.compare(now);
            if entry.is_due(now) {
                times.push(step / 2);
                entry.written(now);
            }
        }
        times
    }

    #[test]
    fn the_end_of_a_change_is_told_at_once_and_little_before_it() {
        let start = Instant::now();
        let mut quick = entry(status("2/2", "False"), start);
        let states = [(0, status("2/3", "True")), (1, status("2/3", "False")), (2, status("3/3", "False"))];
        assert_eq!(times(&mut quick, start, &states, 60), [2]);

        let mut slow = entry(status("2/2", "False"), start);
        let mut states: Vec<_> = (0..9).map(|n| (n, status(&format!("2/3 {n}"), "True"))).collect();
        states.push((9, status("3/3", "False")));
        assert_eq!(times(&mut slow, start, &states, 60), [2, 9]);
    }

    #[test]
    fn what_never_ends_is_told_ever_more_seldom() {
        let start = Instant::now();
        let mut flapping = entry(status("3/3", "False"), start);
        let states: Vec<_> = (0..120).map(|n| (n, status(&format!("{n}/999"), "True"))).collect();
        let told = times(&mut flapping, start, &states, 120);
        assert!((4..=6).contains(&told.len()), "{told:?}");
    }

    #[test]
    fn another_generation_is_another_change() {
        let start = Instant::now();
        let mut entry = entry(status("3/3", "False"), start);
        entry.writes = 3;
        let mut other = status("3/3", "True");
        other["observedGeneration"] = json!(2);
        entry.want(other, start);
        assert!(!entry.is_due(start + SETTLE[0]), "something is under way");
        assert!(entry.is_due(start + LONGEST[0]));
    }

    #[test]
    fn what_changed_back_before_it_was_told_is_no_difference() {
        let known = status("3/3", "False");
        let mut back = known.clone();
        back["conditions"][0]["lastTransitionTime"] = json!("2026-01-02T00:00:00Z");
        assert_eq!(with_times_of(&known, back.clone()), known);
        back["conditions"][0]["status"] = json!("True");
        assert_eq!(with_times_of(&known, back.clone()), back);
        assert_eq!(with_times_of(&Value::Null, back.clone()), back);
    }

    #[test]
    fn nothing_is_under_way_in_a_set_that_is_asleep_or_alone() {
        let with = |kind: &str, status: &str, reason: &str| {
            json!({"readyOfReplicas": "0/0", "conditions": [
                {"type": "PeersWired", "status": "False", "reason": "ReplicaSyncDisabled", "message": "",
                 "lastTransitionTime": "2026-01-01T00:00:00Z"},
                {"type": kind, "status": status, "reason": reason, "message": "",
                 "lastTransitionTime": "2026-01-01T00:00:00Z"},
            ]})
        };
        assert!(is_settled(&with("CatalogSynced", "True", "CatalogApplied")));
        assert!(is_settled(&with("Available", "False", "ScaledToZero")));
        assert!(!is_settled(&with("CatalogSynced", "False", "CatalogBehind")));
        assert!(!is_settled(&json!({"schedulableOfDiscovered": "2/3"})));
    }

    /// Definitions that are older than this operator refuse a field they do not know.
    #[tokio::test(start_paused = true)]
    async fn a_status_that_is_refused_is_tried_again_ever_more_seldom() {
        let (asked, refuses) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(true)));
        let (count, refuse) = (asked.clone(), refuses.clone());
        let service = tower::service_fn(move |_: Request<KubeBody>| {
            count.fetch_add(1, Relaxed);
            let (code, body) = if refuse.load(Relaxed) {
                let message = "failed to create typed patch object: .status.newer: field not declared in schema";
                (500, json!({"kind": "Status", "status": "Failure", "code": 500, "reason": "", "message": message}))
            } else {
                (200, json!({"apiVersion": "pointsman.dev/v1alpha1", "kind": "ModelPool", "metadata": {"name": "p"}}))
            };
            let mut response = Response::new(KubeBody::from(body.to_string().into_bytes()));
            *response.status_mut() = StatusCode::from_u16(code).unwrap();
            async move { Ok::<_, Infallible>(response) }
        });
        let mut writer = Writer::new(Client::new(service, "demo"));
        let key = ObjectKey { kind: "ModelPool", namespace: "demo".to_owned(), name: "p".to_owned() };
        writer.offer(key, "u", json!({}), json!({"newer": 1}), Instant::now());
        let mut pass = async |seconds: u64| {
            for _ in 0..10 * seconds {
                writer.advance(Instant::now());
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            writer.counts()
        };
        let counts = pass(600).await;
        // After 1, 2, 4 ... 32 s, and from then on once a minute.
        assert!((12..=16).contains(&counts.failed), "{counts:?}");
        assert_eq!((counts.written, asked.load(Relaxed) as u64), (0, counts.failed));
        refuses.store(false, Relaxed);
        assert_eq!(pass(61).await.written, 1);
        assert_eq!(pass(600).await.written, 1, "what was written is not written again");
    }
}
