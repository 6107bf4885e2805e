//! The selectors of every set: each gets the set's catalog, and all others as peers.
//!
//! Two tasks a selector pod, [`apply::run`] and [`wiring::run`], under one token. Invariants: a pod is served until it is
//! gone, so that what a leaving selector still publishes is heard; a set whose workers are not known in full yet is left
//! alone; a set's catalogs carry the epoch of this term.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{Hash, Hasher},
    net::IpAddr,
    sync::Arc,
};

use tokio::{sync::watch, task::JoinSet};
use tokio_util::sync::CancellationToken;
use xxhash_rust::xxh3::Xxh3Default;
use zeroize::Zeroizing;

use super::lease::Raise;
use crate::{
    discovery::{
        Snapshot, SourceState,
        apply::{self, ApplyOptions, PassError, RemoteClient, RemoteOptions, RemoteTarget, TargetStatus},
        fleet::{CatalogView, PeersView},
        wiring::{self, Board, Wire, WireOptions, WiringState, WiringStatus},
    },
    kubernetes::{
        api::selector_set::{Mode, Ports, SelectorSet},
        source::{SelectorPod, SetKey, SetState, Sets},
    },
    selection::catalog::SnapshotVersion,
};

/// What changes how a selector is talked to; another value makes new tasks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    url: String,
    publisher: String,
    keep: Vec<String>,
}

/// All sets.
#[derive(Debug)]
pub struct Fleets {
    sets: BTreeMap<SetKey, Fleet>,
    raise: Raise,
    epoch: u64,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

#[derive(Debug)]
struct Fleet {
    source: watch::Sender<SourceState>,
    board: Arc<Board>,
    token: Option<Zeroizing<String>>,
    prune: bool,
    /// By UID of the pod.
    members: BTreeMap<String, Member>,
}

#[derive(Debug)]
struct Member {
    name: String,
    place: Place,
    /// Its place on the board, as the client spells it.
    selector: String,
    stop: CancellationToken,
    catalog: watch::Receiver<TargetStatus>,
    wiring: watch::Receiver<WiringStatus>,
}

/// How one selector stands.
#[derive(Clone, Debug)]
pub struct MemberView {
    /// UID of its pod.
    pub uid: String,
    /// Its catalog.
    pub catalog: CatalogView,
    /// Its peers.
    pub peers: PeersView,
    /// Its peers, in a word.
    pub wiring: WiringState,
    /// Workers that take no bookings there, and why.
    pub not_schedulable: Vec<(u64, Vec<String>)>,
    /// It refuses the catalog as such.
    pub refused: bool,
}

/// How the selectors of a set stand.
#[derive(Clone, Debug, Default)]
pub struct FleetView {
    /// The catalog that all should have.
    pub snapshot: Option<Snapshot>,
    /// Every selector, by pod UID.
    pub members: Vec<MemberView>,
}

/// Whether the workers of `set` are to be taken from its selectors, which go on without it.
pub(super) fn is_leaving(set: &SelectorSet) -> bool {
    set.spec.mode == Mode::External && set.metadata.deletion_timestamp.is_some()
}

impl Fleets {
    /// No sets yet; everything ends with `stop`.
    pub fn new(raise: Raise, epoch: u64, stop: CancellationToken) -> Self {
        Self { sets: BTreeMap::new(), raise, epoch, stop, tasks: JoinSet::new() }
    }

    /// Catalogs carry `epoch` from now on.
    pub fn set_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
    }

    /// Makes the tasks be those of `sets`. `token` gives a set's admin token: none while it is not known yet, so that
    /// the set waits.
    pub fn follow(&mut self, sets: &Sets, token: impl Fn(&SetKey, &SelectorSet) -> Option<Option<Zeroizing<String>>>) {
        self.sets.retain(|key, fleet| {
            let stays = sets.get(key).is_some_and(|state| state.object.is_some());
            if !stays {
                fleet.members.values().for_each(|member| member.stop.cancel());
            }
            stays
        });
        for (key, state) in sets {
            let Some(object) = &state.object else { continue };
            let Some(token) = token(key, object) else { continue };
            self.follow_set(state, object, token);
        }
        while self.tasks.try_join_next().is_some() {}
    }

    fn follow_set(&mut self, state: &SetState, object: &SelectorSet, token: Option<Zeroizing<String>>) {
        let prune = object.spec.mode == Mode::Managed;
        let fleet = self.sets.entry(state.key.clone()).or_insert_with(|| Fleet {
            source: watch::Sender::default(),
            board: Board::new([]),
            token: token.clone(),
            prune,
            members: BTreeMap::new(),
        });
        if fleet.token != token {
            fleet.token = token;
            let gone: Vec<String> = fleet.members.keys().cloned().collect();
            gone.iter().for_each(|uid| fleet.leave(uid));
        }
        match &state.snapshot {
            _ if is_leaving(object) => fleet.empty(self.epoch),
            Some(snapshot) => fleet.publish(snapshot, self.epoch),
            None => {}
        }
        let owner = state.key.owner();
        let keep = object.spec.replica_sync.as_ref().map(|s| s.peers.clone()).unwrap_or_default();
        let wanted: BTreeMap<&str, (&SelectorPod, Place)> = state
            .selectors
            .iter()
            .filter_map(|pod| Some((&*pod.uid, (pod, place(pod, &object.spec.ports, &keep)?))))
            .collect();
        let gone = fleet.members.iter().filter(|(uid, m)| wanted.get(uid.as_str()).is_none_or(|(_, p)| *p != m.place));
        for uid in gone.map(|(uid, _)| uid.clone()).collect::<Vec<_>>() {
            fleet.leave(&uid);
        }
        let known: BTreeSet<String> = fleet.members.keys().cloned().collect();
        for (uid, (pod, place)) in wanted.into_iter().filter(|(uid, _)| !known.contains(*uid)) {
            if let Err(error) = fleet.join(&mut self.tasks, &self.stop, uid, pod, place, &owner) {
                tracing::error!(pod = &*pod.name, error, "the selector cannot be served");
            }
        }
    }

    /// Asks for a larger epoch where a selector has seen one.
    pub fn look_for_later_epochs(&self) {
        for member in self.sets.values().flat_map(|fleet| fleet.members.values()) {
            if let Some(PassError::Superseded(seen)) = &member.catalog.borrow().error {
                self.raise.above(seen.epoch);
            }
        }
    }

    /// Changes whenever something may have changed that [`Self::views`] shows, but for how long ago it was seen.
    pub fn mark(&self) -> u64 {
        let mut hash = Xxh3Default::new();
        for (key, fleet) in &self.sets {
            key.hash(&mut hash);
            fleet.source.borrow().snapshot.as_ref().map(|s| s.version.generation).hash(&mut hash);
            for (uid, member) in &fleet.members {
                let (catalog, wiring) = (member.catalog.borrow(), member.wiring.borrow());
                let plan = &wiring.plan;
                let peers = [plan.registered.len(), plan.register.len(), plan.deregister.len(), plan.awaited.len()];
                let seen = (catalog.passes, catalog.failures, catalog.away.is_some(), catalog.error.is_some());
                (uid, seen, wiring.state() as u8, peers, wiring.failures, wiring.error.is_some()).hash(&mut hash);
            }
        }
        hash.finish()
    }

    /// How every set stands.
    pub fn views(&self) -> BTreeMap<SetKey, FleetView> {
        self.sets.iter().map(|(key, fleet)| (key.clone(), fleet.view())).collect()
    }

    /// Ends every task.
    pub async fn finish(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

impl Fleet {
    fn publish(&self, snapshot: &Snapshot, epoch: u64) {
        let version = SnapshotVersion { epoch, generation: snapshot.version.generation };
        self.source.send_if_modified(|state| {
            let is_new =
                state.snapshot.as_ref().is_none_or(|s| s.version != version || s.digest() != snapshot.digest());
            if is_new {
                state.snapshot = Some(snapshot.with_version(version));
            }
            is_new
        });
    }

    /// Takes every worker away.
    fn empty(&self, epoch: u64) {
        let before = self.source.borrow().snapshot.clone();
        let generation = before.as_ref().map_or(0, |s| s.version.generation) + 1;
        let nothing = Snapshot::new(SnapshotVersion { epoch, generation }, Vec::new());
        if let Ok(nothing) = nothing
            && before.is_none_or(|s| !s.workers().is_empty())
        {
            self.source.send_modify(|state| state.snapshot = Some(nothing));
        }
    }

    fn leave(&mut self, uid: &str) {
        let Some(member) = self.members.remove(uid) else { return };
        member.stop.cancel();
        if !self.members.values().any(|m| m.selector == member.selector) {
            self.board.leave(&member.selector);
        }
        tracing::info!(pod = member.name, selector = member.selector, "selector left");
    }

    fn join(
        &mut self,
        tasks: &mut JoinSet<()>,
        stop: &CancellationToken,
        uid: &str,
        pod: &SelectorPod,
        place: Place,
        owner: &str,
    ) -> Result<(), String> {
        let options = RemoteOptions {
            owner: owner.to_owned(),
            token: self.token.clone(),
            state_dir: None,
            prune: self.prune,
            epochs_are_given: true,
        };
        let target = RemoteTarget::new(&place.url, options)?;
        let options = WireOptions {
            publisher: Some(place.publisher.clone()),
            owner: owner.to_owned(),
            state_dir: None,
            prune: self.prune,
            keep: place.keep.clone(),
        };
        let wire = Wire::new(RemoteClient::new(&place.url, self.token.clone())?, options);
        self.board.join(wire.name());
        let (catalog, wiring) =
            (watch::Sender::new(TargetStatus::default()), watch::Sender::new(WiringStatus::default()));
        let member = Member {
            name: pod.name.to_string(),
            place,
            selector: wire.name().to_owned(),
            stop: stop.child_token(),
            catalog: catalog.subscribe(),
            wiring: wiring.subscribe(),
        };
        tracing::info!(pod = member.name, selector = member.selector, "selector joined");
        let options = ApplyOptions::default();
        tasks.spawn(apply::run(target, self.source.subscribe(), options, catalog, member.stop.clone()));
        tasks.spawn(wiring::run(wire, self.board.clone(), options, wiring, member.stop.clone()));
        self.members.insert(uid.to_owned(), member);
        Ok(())
    }

    fn view(&self) -> FleetView {
        let snapshot = self.source.borrow().snapshot.clone();
        let wanted = snapshot.as_ref().map(Snapshot::digest);
        let member = |(uid, member): (&String, &Member)| {
            let (catalog, wiring) = (member.catalog.borrow(), member.wiring.borrow());
            MemberView {
                uid: uid.clone(),
                catalog: CatalogView::new(&catalog, wanted),
                peers: PeersView::new(&wiring),
                wiring: wiring.state(),
                not_schedulable: catalog.report.not_schedulable.clone(),
                refused: matches!(catalog.error, Some(PassError::Refused(_))),
            }
        };
        FleetView { members: self.members.iter().map(member).collect(), snapshot }
    }
}

/// Where `pod` is; none while it has no address, and when it has ended.
fn place(pod: &SelectorPod, ports: &Ports, keep: &[String]) -> Option<Place> {
    let host = match pod.ip.filter(|_| !pod.finished)? {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    };
    Some(Place {
        url: format!("http://{host}:{}", ports.http),
        publisher: format!("tcp://{host}:{}", ports.replica_sync),
        keep: keep.to_vec(),
    })
}
