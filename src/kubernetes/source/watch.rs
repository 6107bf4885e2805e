//! The edge of the source: lists and watches what it needs, feeds the [`World`], and publishes what comes out.

use std::{fmt::Debug, sync::Arc, time::Duration};

use k8s_openapi::{
    api::{
        core::v1::{Node, Pod},
        discovery::v1::EndpointSlice,
    },
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject},
    core::{PartialObjectMeta, Resource},
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    counters::SourceCounters,
    engine::Askers,
    follow::{Followed, Input, View, follow},
    objects::{ObjectKey, PodView, SERVICE_NAME_LABEL, SliceView},
    state::Sets,
    world::{Kind, Object, Reads, World},
};
use crate::kubernetes::api::{ModelPool, ModelPoolSpec, SelectorSet, common::LocalReference};

/// Inputs that wait for the world; what is watched waits with them.
const WAITING_INPUTS: usize = 1024;
/// Answers of engines that wait.
const WAITING_ANSWERS: usize = 64;
/// Changes that come together are computed together.
const DEBOUNCE: Duration = Duration::from_millis(20);
/// Objects a page of a list.
pub(super) const PAGE: u32 = 500;
/// Longest sleep; clocks that jump are noticed by then.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// What is read, and from where.
#[derive(Clone, Debug)]
pub struct SourceOptions {
    /// The one namespace that is read; none: all.
    pub namespace: Option<String>,
    /// Nodes are read, for their labels.
    pub nodes: bool,
    /// Without the right to read pods, carry on without them. Decided at the first list: a right that comes later is
    /// used after a restart.
    pub pods_are_optional: bool,
    /// SelectorSet and ModelPools that are given instead of read.
    pub given: Option<Given>,
    /// Objects a page of a list.
    pub page: u32,
}

impl SourceOptions {
    /// What an operator reads of `namespace`, or of all.
    pub fn new(namespace: Option<String>, nodes: bool) -> Self {
        Self { namespace, nodes, pods_are_optional: false, given: None, page: PAGE }
    }
}

/// A set that is given.
#[derive(Clone, Debug)]
pub struct Given {
    /// The set.
    pub set: SelectorSet,
    /// Its pools.
    pub pools: Vec<ModelPool>,
    /// Services whose slices are read.
    pub services: Vec<String>,
}

/// A running source. It ends when it is dropped, or at the word to stop.
#[derive(Debug)]
pub struct ClusterSource {
    sets: watch::Receiver<Arc<Sets>>,
    counters: Arc<SourceCounters>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl ClusterSource {
    /// Starts to read the cluster. `client` should not retry by itself (`default_retry` off): the source pauses and
    /// counts, and a client that does so too hides failures.
    pub fn start(client: Client, options: SourceOptions, stop: &CancellationToken) -> Self {
        let stop = stop.child_token();
        let (publish, sets) = watch::channel(Arc::default());
        let counters = Arc::<SourceCounters>::default();
        let run = run(client, options, publish, counters.clone());
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            tokio::select! {
                () = run => {}
                () = stopped.cancelled() => {}
            }
        });
        Self { sets, counters, stop, task }
    }

    /// Every set, as it is now and from now on. Its end is the end of the source.
    pub fn sets(&self) -> watch::Receiver<Arc<Sets>> {
        self.sets.clone()
    }

    /// What was counted.
    pub fn counters(&self) -> Arc<SourceCounters> {
        self.counters.clone()
    }

    /// Ends it.
    pub async fn shutdown(mut self) {
        self.stop.cancel();
        if let Err(error) = (&mut self.task).await {
            tracing::error!(%error, "the source of workers ended badly");
        }
    }
}

impl Drop for ClusterSource {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Tasks that end with this.
struct Tasks(Vec<JoinHandle<()>>);

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

async fn run(client: Client, options: SourceOptions, publish: watch::Sender<Arc<Sets>>, counters: Arc<SourceCounters>) {
    let (to, mut inputs) = mpsc::channel(WAITING_INPUTS);
    let (answer, mut answers) = mpsc::channel(WAITING_ANSWERS);
    let mut askers = Askers::new(answer);
    let mut world = World::new(Reads { pods: true, nodes: options.nodes });
    let _tasks = follow_all(&client, options, &mut world, &to, &counters);
    // Only those who follow hold the other end: when they have all ended, so does this.
    drop(to);
    loop {
        let wake = sleep_for(world.next_wake(), Timestamp::now());
        tokio::select! {
            input = inputs.recv() => match input {
                Some(input) => take_in(&mut world, input),
                None => return tracing::error!("nothing of the cluster is followed any more"),
            },
            Some((key, answer)) = answers.recv() => world.answer(key, answer),
            () = tokio::time::sleep(wake) => {}
        }
        let computed_at = Instant::now() + DEBOUNCE;
        loop {
            tokio::select! {
                Some(input) = inputs.recv() => take_in(&mut world, input),
                Some((key, answer)) = answers.recv() => world.answer(key, answer),
                () = sleep_until(computed_at) => break,
            }
        }
        if world.recompute(Timestamp::now()) {
            publish.send_replace(world.sets().clone());
        }
        let (pools, snapshots) = world.counts();
        counters.set_recomputed(pools, snapshots);
        askers.want(&world.asks());
    }
}

fn take_in(world: &mut World, input: Input) {
    match input {
        Input::Reset(kind, objects) => {
            tracing::info!(kind = kind.as_str(), objects = objects.len(), "listed");
            world.reset(kind, objects);
        }
        Input::Apply(object) => world.apply(object),
        Input::Delete(kind, key) => world.delete(kind, &key),
        Input::GiveUp(kind) => world.give_up(kind),
    }
}

fn sleep_for(wake: Option<Timestamp>, now: Timestamp) -> Duration {
    let Some(wake) = wake else { return LONGEST_SLEEP };
    // A little later than due, so that what is due is due.
    let left = Duration::try_from(wake.duration_since(now)).unwrap_or_default() + Duration::from_millis(1);
    left.min(LONGEST_SLEEP)
}

fn follow_all(
    client: &Client,
    options: SourceOptions,
    world: &mut World,
    to: &mpsc::Sender<Input>,
    counters: &Arc<SourceCounters>,
) -> Tasks {
    let SourceOptions { namespace, nodes, pods_are_optional, given, page } = options;
    let followed = |kind: Kind, labels: Option<String>| Followed { kind, labels, page, is_optional: false };
    let mut tasks = Vec::new();
    let slices_of = match given {
        Some(Given { set, pools, services }) => {
            let key = ObjectKey::new(
                set.metadata.namespace.as_deref().unwrap_or_default(),
                set.metadata.name.as_deref().unwrap_or_default(),
            );
            world.reset(Kind::Sets, vec![Object::Set(key, Ok(Arc::new(set)))]);
            world.reset(Kind::Pools, pools.into_iter().map(|pool| Object::Pool(Arc::new(pool), None)).collect());
            format!("{SERVICE_NAME_LABEL} in ({})", services.join(","))
        }
        None => {
            let sets = dynamic::<SelectorSet>(client, namespace.as_deref());
            let view = counting(counters, Kind::Sets, set_view);
            tasks.push(tokio::spawn(follow(sets, followed(Kind::Sets, None), view, to.clone(), counters.clone())));
            let pools = dynamic::<ModelPool>(client, namespace.as_deref());
            let view = counting(counters, Kind::Pools, pool_view);
            tasks.push(tokio::spawn(follow(pools, followed(Kind::Pools, None), view, to.clone(), counters.clone())));
            SERVICE_NAME_LABEL.to_owned()
        }
    };
    let slices = typed::<EndpointSlice>(client, namespace.as_deref());
    let what = followed(Kind::Slices, Some(slices_of));
    tasks.push(tokio::spawn(follow(slices, what, slice_view, to.clone(), counters.clone())));
    let pods = typed::<Pod>(client, namespace.as_deref());
    let what = Followed { is_optional: pods_are_optional, ..followed(Kind::Pods, None) };
    tasks.push(tokio::spawn(follow(pods, what, pod_view, to.clone(), counters.clone())));
    if nodes {
        let api = Api::<PartialObjectMeta<Node>>::all(client.clone());
        let view = |node: PartialObjectMeta<Node>| Object::node(&node).map(View::Object);
        tasks.push(tokio::spawn(follow(api, followed(Kind::Nodes, None), view, to.clone(), counters.clone())));
    }
    Tasks(tasks)
}

fn typed<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()> + DeserializeOwned + Clone + Debug,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

/// Objects of ours are read loosely, so that one that cannot be read stops no other.
fn dynamic<K: Resource<DynamicType = ()>>(client: &Client, namespace: Option<&str>) -> Api<DynamicObject> {
    let resource = ApiResource::erase::<K>(&());
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

fn key_of(object: &impl Resource) -> Option<ObjectKey> {
    let meta = object.meta();
    Some(ObjectKey::new(meta.namespace.as_deref()?, meta.name.as_deref()?))
}

fn pod_view(pod: Pod) -> Option<View> {
    let view = PodView::new(&pod).map(|pod| View::Object(Object::Pod(Arc::new(pod))));
    view.or_else(|| key_of(&pod).map(View::Nothing))
}

pub(super) fn slice_view(slice: EndpointSlice) -> Option<View> {
    let view = SliceView::new(&slice).map(|slice| View::Object(Object::Slice(slice)));
    view.or_else(|| key_of(&slice).map(View::Nothing))
}

/// Counts objects that cannot be read.
fn counting(
    counters: &Arc<SourceCounters>,
    kind: Kind,
    view: fn(DynamicObject) -> Option<(Object, Option<String>)>,
) -> impl Fn(DynamicObject) -> Option<View> + use<> {
    let counters = counters.clone();
    move |object| {
        let (object, unreadable) = view(object)?;
        if let Some(error) = unreadable {
            let key = object.key();
            counters.count_unreadable(kind.index());
            tracing::error!(kind = kind.as_str(), namespace = %key.namespace, name = %key.name, error, "cannot be read");
        }
        Some(View::Object(object))
    }
}

fn set_view(object: DynamicObject) -> Option<(Object, Option<String>)> {
    let key = key_of(&object)?;
    let read = read::<SelectorSet>(object).map_err(|(error, _)| error);
    let unreadable = read.as_ref().err().cloned();
    Some((Object::Set(key, read.map(Arc::new)), unreadable))
}

fn pool_view(object: DynamicObject) -> Option<(Object, Option<String>)> {
    let metadata = object.metadata.clone();
    match read::<ModelPool>(object) {
        Ok(pool) => Some((Object::Pool(Arc::new(pool), None), None)),
        Err((error, data)) => {
            // Whose it is says where to tell that it cannot be read.
            let set = data.pointer("/spec/selectorRef/name").and_then(Value::as_str).unwrap_or_default();
            let spec = ModelPoolSpec { selector_ref: LocalReference { name: set.to_owned() }, ..Default::default() };
            let status = data.get("status").and_then(|status| serde_json::from_value(status.clone()).ok());
            let mut metadata = metadata;
            metadata.managed_fields = None;
            let pool = ModelPool { metadata, spec, status };
            Some((Object::Pool(Arc::new(pool), Some(error.clone())), Some(error)))
        }
    }
}

/// The object as its type, without managed fields; or why not, and what it is.
fn read<K: DeserializeOwned>(mut object: DynamicObject) -> Result<K, (String, Value)> {
    object.metadata.managed_fields = None;
    let value = serde_json::to_value(&object).map_err(|error| (error.to_string(), Value::Null))?;
    serde_json::from_value(value.clone()).map_err(|error| (error.to_string(), value))
}
