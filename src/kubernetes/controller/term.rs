//! What is done while this process leads: SelectorSets are reconciled, selectors served, statuses written.
//!
//! One task owns all decisions ([`Term::run`]); the reconciles of SelectorSets run beside it in a kube `Controller` and
//! leave what they came to in [`Known`].

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::StreamExt;
use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        core::v1::{ConfigMap, Service},
        networking::v1::NetworkPolicy,
        policy::v1::PodDisruptionBudget,
    },
    jiff::Timestamp,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    core::{DeserializeGuard, PartialObjectMeta},
    runtime::{
        Controller, Predicate, PredicateConfig, WatchStreamExt,
        controller::{Action, Config as ControllerConfig},
        events::{Recorder, Reporter},
        predicates, reflector, watcher,
    },
};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
    time::{Instant, MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use super::{
    ControllerError, external,
    fleet::{FleetView, Fleets, is_leaving},
    health::Health,
    lease::{Leadership, Raise},
    metrics::Counts,
    notices,
    selector_set::{self, Reconciled},
    status::{self, Facts},
    writer::{ObjectKey, Writer},
};
use crate::{
    kubernetes::{
        api::{
            ModelPool, SelectorSet,
            constants::{MANAGED_BY, SELECTOR_SET_LABEL},
        },
        source::{PoolOutcome, SetKey, SetState, Sets},
    },
    telemetry::causes::chain,
};

/// How often statuses and epochs are looked at.
const TICK: Duration = Duration::from_millis(200);
/// SelectorSets that are reconciled at once.
const RECONCILES: u16 = 4;
/// How long a term may take to get to know what it tells of.
const FIRST_CONTACT: Duration = Duration::from_secs(10);
/// Pause before a deleted set that is still there is let go again.
const LET_GO_AGAIN: Duration = Duration::from_secs(5);
/// Longest wait for the reconciles at the end of a term.
const LAST_RECONCILES: Duration = Duration::from_secs(20);

/// What every term has.
#[derive(Clone)]
pub(super) struct TermOptions {
    pub(super) client: Client,
    pub(super) namespace: Option<String>,
    pub(super) sets: selector_set::Options,
    pub(super) reporter: Reporter,
    pub(super) raise: Raise,
    pub(super) counts: Arc<Counts>,
    pub(super) health: Health,
}

/// What the last reconcile of each set came to.
#[derive(Default)]
struct Known {
    sets: Mutex<BTreeMap<SetKey, Arc<Reconciled>>>,
    changed: Notify,
}

/// What a reconcile works with.
struct Context {
    passes: Arc<selector_set::Context>,
    source: watch::Receiver<Arc<Sets>>,
    known: Arc<Known>,
    recorder: Recorder,
    counts: Arc<Counts>,
    client: Client,
    failures: Mutex<BTreeMap<SetKey, u32>>,
}

/// One term.
pub(super) struct Term {
    options: TermOptions,
    epoch: u64,
    started: Instant,
    stop: CancellationToken,
    known: Arc<Known>,
    passes: Arc<selector_set::Context>,
    recorder: Recorder,
    writer: Writer,
    /// Deleted sets that were let go, by UID, and when.
    let_go: BTreeMap<String, Instant>,
}

impl Term {
    pub(super) fn new(options: TermOptions, epoch: u64, stop: CancellationToken) -> Self {
        let recorder = Recorder::new(options.client.clone(), options.reporter.clone());
        let writer = Writer::new(options.client.clone());
        let passes = Arc::new(selector_set::Context::new(options.client.clone(), options.sets.clone()));
        let known = Arc::default();
        let (started, let_go) = (Instant::now(), BTreeMap::new());
        Self { options, epoch, started, stop, known, passes, recorder, writer, let_go }
    }

    /// Leads until the token ends it.
    ///
    /// # Errors
    /// A task that should go on for ever ended.
    pub(super) async fn run(
        mut self,
        mut sets: watch::Receiver<Arc<Sets>>,
        mut leadership: watch::Receiver<Leadership>,
    ) -> Result<(), ControllerError> {
        let mut reconciles = self.start_reconciles(sets.clone());
        let mut fleets = Fleets::new(self.options.raise.clone(), self.epoch, self.stop.child_token());
        let mut ticks = interval(TICK);
        // A late look is as good as one in time.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut mark = 0;
        let mut stale = true;
        let known = self.known.clone();
        let outcome = loop {
            tokio::select! {
                changed = sets.changed() => {
                    if changed.is_err() {
                        break self.ended("source");
                    }
                    stale = true;
                }
                () = known.changed.notified() => stale = true,
                Ok(()) = leadership.changed() => {
                    if let Some(epoch) = leadership.borrow_and_update().epoch {
                        fleets.set_epoch(epoch);
                        stale = true;
                    }
                }
                _ = ticks.tick() => {
                    self.options.health.beat();
                    fleets.look_for_later_epochs();
                }
                _ = &mut reconciles => break self.ended("reconciles"),
                () = self.stop.cancelled() => break Ok(()),
            }
            // News that came with a tick stays news: only what is followed counts as seen.
            let now = if stale { sets.borrow_and_update().clone() } else { sets.borrow().clone() };
            if stale {
                self.forget(&now);
                fleets.follow(&now, |key, object| known.token(key, object));
            }
            let seen = fleets.mark();
            if stale || seen != mark || self.writer.is_open() {
                stale = self.tell(&now, &fleets.views());
            }
            // By the clock too: a set goes after a while even when nothing happens.
            self.let_go(&now, &fleets);
            mark = seen;
        };
        self.options.health.rest();
        self.stop.cancel();
        fleets.finish().await;
        if !reconciles.is_finished() && tokio::time::timeout(LAST_RECONCILES, &mut reconciles).await.is_err() {
            reconciles.abort();
        }
        outcome
    }

    /// What it means that a task ended: it may, with the term.
    fn ended(&self, task: &'static str) -> Result<(), ControllerError> {
        if self.stop.is_cancelled() { Ok(()) } else { Err(ControllerError::Ended(task)) }
    }

    /// Forgets what was known of sets that are gone.
    fn forget(&self, sets: &Sets) {
        self.known.sets.lock().retain(|key, _| {
            let stays = sets.get(key).is_some_and(|state| state.object.is_some());
            if !stays {
                self.passes.forget(&key.namespace, &key.name);
            }
            stays
        });
    }

    /// Works out every status, and writes those that differ. Whether something is not told yet: what a term does not know
    /// at its beginning is no news, and what the term before has said stands.
    fn tell(&mut self, sets: &Sets, views: &BTreeMap<SetKey, FleetView>) -> bool {
        let (now, time) = (Instant::now(), whole_second());
        let is_early = now.duration_since(self.started) < FIRST_CONTACT;
        let mut is_held = false;
        let known = self.known.sets.lock().clone();
        for (key, state) in sets {
            let view = views.get(key);
            let facts = state.object.as_deref().map(|object| Facts {
                object,
                state,
                fleet: view,
                reconciled: known.get(key).map(|r| &**r),
            });
            if is_early && !facts.map_or_else(|| state.pools.values().all(|pool| !pool.listing), |f| f.is_known()) {
                is_held = true;
                continue;
            }
            if let Some(facts) = facts {
                self.tell_set(facts, now, time);
            }
            for outcome in state.pools.values() {
                self.tell_pool(facts, outcome, now, time);
            }
        }
        self.writer.retain(|key| is_there(sets, key));
        for written in self.writer.advance(now) {
            let recorder = self.recorder.clone();
            tokio::spawn(async move { notices::publish_written(&recorder, &written).await });
        }
        let counts = self.writer.counts();
        self.options.counts.statuses_written.store(counts.written, Ordering::Relaxed);
        self.options.counts.statuses_failed.store(counts.failed, Ordering::Relaxed);
        is_held
    }

    fn tell_set(&mut self, facts: Facts<'_>, now: Instant, time: Timestamp) {
        let Some((key, uid)) = names::<SelectorSet>("SelectorSet", facts.object) else { return };
        let before = self.writer.last(&key, uid).and_then(|v| serde_json::from_value(v.clone()).ok());
        let before = before.or_else(|| facts.object.status.clone());
        let wanted = json(&status::selector_set_status(facts, before.as_ref(), time));
        self.writer.offer(key, uid, json(&facts.object.status), wanted, now);
    }

    fn tell_pool(&mut self, facts: Option<Facts<'_>>, outcome: &PoolOutcome, now: Instant, time: Timestamp) {
        let Some((key, uid)) = names::<ModelPool>("ModelPool", &outcome.object) else { return };
        let before = self.writer.last(&key, uid).and_then(|v| serde_json::from_value(v.clone()).ok());
        let before = before.or_else(|| outcome.object.status.clone());
        let wanted = json(&status::model_pool_status(facts, outcome, before.as_ref(), time));
        self.writer.offer(key, uid, json(&outcome.object.status), wanted, now);
    }

    /// Lets deleted External sets go once their selectors have given up their workers, or have had the time to.
    fn let_go(&mut self, sets: &Sets, fleets: &Fleets) {
        let leaving = |state: &SetState| state.object.as_deref().is_some_and(is_leaving);
        if !sets.values().any(|state| leaving(state)) {
            return;
        }
        let (now, time, views) = (Instant::now(), whole_second(), fleets.views());
        self.let_go.retain(|_, at| now.duration_since(*at) < LET_GO_AGAIN);
        for (key, state) in sets {
            let Some(set) = state.object.as_deref().filter(|set| external::may_go(set, views.get(key), time)) else {
                continue;
            };
            // An attempt that met a newer version of the object is made again after a while.
            let Entry::Vacant(entry) = self.let_go.entry(set.uid().unwrap_or_default()) else { continue };
            entry.insert(now);
            let (client, set) = (self.options.client.clone(), set.clone());
            tokio::spawn(async move {
                if let Err(error) = external::write(client, &set, false).await {
                    tracing::warn!(error = chain(&error), set = set.name_any(), "the set cannot go yet");
                }
            });
        }
    }

    /// Reconciles SelectorSets whenever they or what they own change, until the end of the term.
    fn start_reconciles(&self, source: watch::Receiver<Arc<Sets>>) -> JoinHandle<()> {
        let client = &self.options.client;
        let context = Arc::new(Context {
            passes: self.passes.clone(),
            source: source.clone(),
            known: self.known.clone(),
            recorder: self.recorder.clone(),
            counts: self.options.counts.clone(),
            client: client.clone(),
            failures: Mutex::default(),
        });
        let owned = watcher::Config::default()
            .labels(&format!("app.kubernetes.io/managed-by={MANAGED_BY},{SELECTOR_SET_LABEL}"));
        let (reader, writer) = reflector::store();
        // Our own writes to the status change neither: they cause no reconcile.
        let seen = predicates::generation.combine(predicates::finalizers);
        let sets: Api<DeserializeGuard<SelectorSet>> = self.scoped();
        let stream = watcher(sets, watcher::Config::default())
            .default_backoff()
            .reflect(writer)
            .applied_objects()
            .predicate_filter(seen, PredicateConfig::default());
        let controller = Controller::for_stream(stream, reader)
            .owns(self.scoped::<PartialObjectMeta<StatefulSet>>(), owned.clone())
            .owns(self.scoped::<PartialObjectMeta<Service>>(), owned.clone())
            .owns(self.scoped::<PartialObjectMeta<ConfigMap>>(), owned.clone())
            .owns(self.scoped::<PartialObjectMeta<PodDisruptionBudget>>(), owned.clone())
            .owns(self.scoped::<PartialObjectMeta<NetworkPolicy>>(), owned)
            .with_config(ControllerConfig::default().concurrency(RECONCILES))
            .reconcile_all_on(failing_pods(source))
            .graceful_shutdown_on(self.stop.clone().cancelled_owned())
            .run(reconcile, retry, context);
        tokio::spawn(controller.for_each(|outcome| async {
            if let Err(error) = outcome {
                tracing::debug!(%error, "reconcile");
            }
        }))
    }

    fn scoped<K>(&self) -> Api<K>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()> + DeserializeOwned,
    {
        match &self.options.namespace {
            Some(namespace) => Api::namespaced(self.options.client.clone(), namespace),
            None => Api::all(self.options.client.clone()),
        }
    }
}

impl Known {
    /// The admin token of a set: none while the reconcile that reads it has not been.
    fn token(&self, key: &SetKey, object: &SelectorSet) -> Option<Option<Zeroizing<String>>> {
        if object.spec.admin_token_secret_ref.is_none() {
            return Some(None);
        }
        let token = self.sets.lock().get(key)?.admin_token.clone()?;
        Some(Some(token))
    }
}

/// Fires when other pods of selectors fail than before: one that a broken roll-out left behind may have to go.
fn failing_pods(source: watch::Receiver<Arc<Sets>>) -> impl futures_util::Stream<Item = ()> + Send + 'static {
    let failing = |sets: &Sets| -> Vec<(Arc<str>, bool)> {
        let pods = sets.values().flat_map(|set| set.selectors.iter());
        pods.filter(|pod| pod.failing.is_some()).map(|pod| (pod.uid.clone(), pod.ready)).collect()
    };
    futures_util::stream::unfold((source, Vec::new()), move |(mut source, before)| async move {
        loop {
            source.changed().await.ok()?;
            let now = failing(&source.borrow_and_update());
            if now != before {
                return Some(((), (source, now)));
            }
        }
    })
}

async fn reconcile(
    object: Arc<DeserializeGuard<SelectorSet>>,
    context: Arc<Context>,
) -> Result<Action, selector_set::Error> {
    // An object that cannot be read is told by the source; a change of it wakes this again.
    let Ok(set) = &object.0 else { return Ok(Action::await_change()) };
    let key = SetKey::new(set.namespace().unwrap_or_default(), set.name_any());
    // One in mode External that is leaving is still asked for its token: its selectors want it.
    if set.metadata.deletion_timestamp.is_some() && !is_leaving(set) {
        return Ok(Action::await_change());
    }
    if external::needs_finalizer(set) {
        external::write(context.client.clone(), set, true).await?;
    }
    let pods = context.source.borrow().get(&key).map(|state| state.selectors.clone()).unwrap_or_default();
    let reconciled = selector_set::reconcile(&context.passes, Arc::new(set.clone()), &pods).await?;
    context.counts.reconciled("ok");
    context.failures.lock().remove(&key);
    for notice in &reconciled.events {
        notices::publish(&context.recorder, &set.object_ref(&()), notice.clone()).await;
    }
    let again = reconciled.requeue;
    context.known.sets.lock().insert(key, Arc::new(reconciled));
    context.known.changed.notify_one();
    Ok(Action::requeue(again))
}

fn retry(object: Arc<DeserializeGuard<SelectorSet>>, error: &selector_set::Error, context: Arc<Context>) -> Action {
    let key = SetKey::new(object.namespace().unwrap_or_default(), object.name_any());
    let failures = {
        let mut all = context.failures.lock();
        let failures = all.entry(key).or_default();
        *failures = failures.saturating_add(1);
        *failures
    };
    let reason = error.reason();
    context.counts.reconciled(reason);
    tracing::warn!(error = chain(error), set = object.name_any(), reason, "SelectorSet not reconciled");
    Action::requeue(error.backoff(failures))
}

fn names<'a, K>(kind: &'static str, object: &'a K) -> Option<(ObjectKey, &'a str)>
where
    K: Resource,
{
    let meta = object.meta();
    let key = ObjectKey { kind, namespace: meta.namespace.clone()?, name: meta.name.clone()? };
    Some((key, meta.uid.as_deref()?))
}

fn is_there(sets: &Sets, key: &ObjectKey) -> bool {
    let in_set = |(set, state): (&SetKey, &Arc<SetState>)| {
        set.namespace == key.namespace
            && match key.kind {
                "SelectorSet" => set.name == key.name && state.object.is_some(),
                _ => state.pools.contains_key(&key.name),
            }
    };
    sets.iter().any(in_set)
}

fn json(value: &impl serde::Serialize) -> Value {
    serde_json::to_value(value).expect("a status has string keys and finite numbers")
}

/// The time, as conditions have it.
fn whole_second() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}
