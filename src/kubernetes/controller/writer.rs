//! Writing statuses: only differences, and not every step of a change.
//!
//! Invariants: a status is written when it has been the same for [`SETTLE`], or has been changing for [`LONGEST`]; one
//! write an object at a time; one that fails is tried again after a growing pause, with what is true by then.

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

use crate::kubernetes::api::constants::FIELD_MANAGER;

/// How long a status stays the same before it is written.
pub const SETTLE: Duration = Duration::from_millis(400);
/// How long it may go on changing.
pub const LONGEST: Duration = Duration::from_secs(2);
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
    retry: Option<(Instant, Duration)>,
    in_flight: bool,
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
            retry: None,
            in_flight: false,
        });
        // Somebody else wrote it, or what is watched lags behind our own write.
        if entry.known != live && !entry.in_flight && now.duration_since(entry.known_since) >= WATCH_LAG {
            entry.known = live;
            entry.known_since = now;
        }
        if entry.wanted != wanted {
            entry.wanted = wanted;
            entry.wanted_since = now;
        }
        if entry.wanted == entry.known {
            entry.differs_since = None;
        } else {
            entry.differs_since.get_or_insert(now);
        }
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
        let due = |entry: &Entry| {
            let Some(since) = entry.differs_since else { return false };
            let settled = now.duration_since(entry.wanted_since) >= SETTLE || now.duration_since(since) >= LONGEST;
            settled && !entry.in_flight && entry.retry.is_none_or(|(at, _)| at <= now)
        };
        for (key, entry) in self.entries.iter_mut().filter(|(_, e)| due(e)).take(free) {
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
    use crate::kubernetes::api::constants::{GROUP, VERSION};
    let plural = format!("{}s", key.kind.to_lowercase());
    let resource = ApiResource {
        group: GROUP.to_owned(),
        version: VERSION.to_owned(),
        api_version: format!("{GROUP}/{VERSION}"),
        kind: key.kind.to_owned(),
        plural,
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
