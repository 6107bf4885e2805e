//! Random histories: bookings, calls on any replica, expiry, kills, restarts, stops, cuts, losses, workers that come and
//! go.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use pointsman::engine::{CompletionRequest, EngineConfig, MockEngine};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::{
    link::{Faults, Link},
    model::{Call, Model},
    program::wait_for,
    replica::{Knowledge, Replica},
};

/// Seeds of a short run.
const FEW: u64 = 3;
const STEPS: usize = 120;
const WORKERS: [u64; 3] = [1, 2, 3];
/// The worker that comes and goes; no session is bound to it.
const CHURNED: u64 = 3;
/// Longest a fault lasts.
const FAULT: Duration = Duration::from_millis(1_200);
/// What the fleet is promised to need.
const AGREEMENT: Duration = Duration::from_secs(5);
/// Ages in seconds at which bookings end, one a history; a history takes longer than the shorter ones.
const EXPIRIES: [Option<u64>; 3] = [None, Some(3), Some(6)];

struct Fleet {
    directory: tempfile::TempDir,
    replicas: Vec<Replica>,
    engines: Vec<MockEngine>,
    model: Model,
    rng: fastrand::Rng,
    generation: u64,
    workers: BTreeSet<u64>,
    /// Faults under way: when they end, and what they are.
    healing: Vec<(Instant, Fault)>,
    bookings: u64,
    prompts: u32,
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Link(usize, usize),
    Stop(usize),
    Down(usize),
}

impl Fleet {
    async fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let count = rng.usize(3..=5);
        let mut replicas: Vec<Replica> = (0..count).map(|_| Replica::new()).collect();
        for from in 0..count {
            for to in (0..count).filter(|&to| to != from) {
                let link = Link::new(replicas[from].publisher(), rng.u64(..)).await;
                replicas[to].links.insert(from, link);
            }
        }
        let mut engines = Vec::new();
        for _ in WORKERS {
            let config = EngineConfig { ranks: 2, block_size: 4, num_blocks: 256, ..EngineConfig::default() };
            engines.push(MockEngine::start(config).await.unwrap());
        }
        Self {
            directory: tempfile::tempdir().unwrap(),
            replicas,
            engines,
            model: Model::default(),
            rng,
            generation: 0,
            workers: WORKERS.into(),
            healing: Vec::new(),
            bookings: 0,
            prompts: 0,
        }
    }

    fn start(&mut self) {
        for replica in &mut self.replicas {
            replica.start(self.directory.path());
        }
        self.replicas.iter().for_each(Replica::wait_until_ready);
        self.apply_catalog();
    }

    fn snapshot(&self) -> Value {
        let worker = |&id: &u64| {
            let engine = &self.engines[id as usize - 1];
            let events = |rank| engine.kv_events_endpoint(rank).unwrap();
            let replay = |rank| engine.replay_endpoint(rank).unwrap();
            json!({
                "worker_id": id, "model_name": "m", "endpoint": engine.url(), "block_size": 4,
                "data_parallel_size": 2, "max_num_batched_tokens": 8192,
                "kv_events_endpoints": {"0": events(0), "1": events(1)},
                "replay_endpoints": {"0": replay(0), "1": replay(1)},
            })
        };
        let workers: Vec<Value> = self.workers.iter().map(worker).collect();
        json!({"epoch": 1, "generation": self.generation, "digest": format!("g{}", self.generation), "workers": workers})
    }

    /// Gives the catalog to every replica that runs; the others get it when they are back.
    fn apply_catalog(&mut self) {
        self.generation += 1;
        let snapshot = self.snapshot();
        for replica in self.replicas.iter().filter(|replica| replica.is_running()) {
            assert_eq!(replica.call("PUT", "/catalog/test", Some(&snapshot)).0, 200);
        }
    }

    fn someone(&mut self) -> usize {
        let running: Vec<usize> = (0..self.replicas.len()).filter(|&at| self.replicas[at].is_running()).collect();
        running[self.rng.usize(..running.len())]
    }

    fn running(&self) -> usize {
        self.replicas.iter().filter(|replica| replica.is_running()).count()
    }

    fn reserve(&mut self) {
        let (at, id) = (self.someone(), format!("b{}", self.bookings));
        self.bookings += 1;
        let workers: Vec<u64> = self.workers.iter().copied().collect();
        let (worker, rank) = (workers[self.rng.usize(..workers.len())], self.rng.u64(..2));
        let blocks = self.rng.u64(1..20);
        let first = self.rng.u64(..5) * 100;
        let hashes: Vec<u64> = (first..first + blocks).collect();
        let body = json!({
            "selection_id": id, "model_name": "m", "worker_id": worker, "dp_rank": rank, "sequence_hashes": hashes,
            "isl_tokens": blocks * 4, "effective_prefill_tokens": self.rng.u64(..=blocks * 4),
        });
        let (status, answer) = self.replicas[at].call("POST", "/reservations", Some(&body));
        println!("{:?} reserve {id} on {worker}/{rank} at {at}: {status}", Instant::now());
        if status == 201 {
            self.model.made(&id, worker, rank, at);
        } else {
            // A replica that just came back has no catalog for a moment.
            assert!([404, 503].contains(&status), "{status} {answer}");
        }
    }

    fn select(&mut self) {
        let (at, id) = (self.someone(), format!("b{}", self.bookings));
        self.bookings += 1;
        let tokens: Vec<u32> = (0..self.rng.u32(4..60)).map(|k| k + self.rng.u32(..3) * 1000).collect();
        let body = json!({
            "selection_id": id, "model_name": "m", "token_ids": tokens, "allowed_worker_ids": [1, 2],
            "session_id": format!("s{}", self.rng.u32(..8)),
        });
        let (status, answer) = self.replicas[at].call("POST", "/select_and_reserve", Some(&body));
        if status == 200 {
            let number = |name: &str| answer[name].as_u64().unwrap();
            self.model.made(&id, number("worker_id"), number("dp_rank"), at);
        } else {
            assert!([400, 404, 503].contains(&status), "{status} {answer}");
        }
    }

    fn call(&mut self, call: Call) {
        let candidates = self.model.candidates();
        if candidates.is_empty() {
            return;
        }
        // Often the newest, which may not be everywhere yet.
        let newest = candidates.len().saturating_sub(1);
        let id = &candidates[if self.rng.bool() { newest } else { self.rng.usize(..candidates.len()) }];
        let at = self.someone();
        let (method, path) = match call {
            Call::Ended => ("DELETE", format!("/reservations/{id}")),
            _ => ("POST", format!("/reservations/{id}/prefill_complete")),
        };
        let (status, answer) = self.replicas[at].call(method, &path, None);
        assert!([200, 404].contains(&status), "{status} {answer}");
        println!("{:?} {call:?} {id} at {at}: {status}", Instant::now());
        self.model.called(id, call, at);
    }

    fn fault(&mut self) {
        let until = Instant::now() + FAULT.mul_f64(0.2 + 0.8 * self.rng.f64());
        let to = self.rng.usize(..self.replicas.len());
        let from: Vec<usize> = self.replicas[to].links.keys().copied().collect();
        let from = from[self.rng.usize(..from.len())];
        let link = &self.replicas[to].links[&from];
        match self.rng.u8(..8) {
            0..4 => {
                let delay = Duration::from_millis(self.rng.u64(..50));
                println!("{:?} faults {from} -> {to}", Instant::now());
                link.set_faults(Faults {
                    lost: self.rng.u32(..400),
                    swapped: self.rng.u32(..300),
                    delay,
                    swallows: false,
                });
                self.model.breaks(from);
                self.healing.push((until, Fault::Link(to, from)));
            }
            4 | 5 => {
                println!("{:?} cut {from} -> {to}", Instant::now());
                link.cut();
                self.model.breaks(from);
                self.healing.push((until, Fault::Link(to, from)));
            }
            6 if self.running() > 2 => {
                let at = self.someone();
                println!("{:?} stop {at}", Instant::now());
                self.replicas[at].stop();
                self.model.breaks(at);
                self.healing.push((until, Fault::Stop(at)));
            }
            7 if self.running() > 2 => {
                let at = self.someone();
                println!("{:?} kill {at}", Instant::now());
                self.replicas[at].kill();
                self.model.died(at);
                self.healing.push((until, Fault::Down(at)));
            }
            _ => {}
        }
    }

    /// Ends faults whose time has come.
    fn heal(&mut self, all: bool) {
        let now = Instant::now();
        let (due, later) = self.healing.drain(..).partition(|(until, _)| all || *until <= now);
        self.healing = later;
        let due: Vec<(Instant, Fault)> = due;
        for (_, fault) in due {
            println!("{:?} heal {fault:?}", Instant::now());
            match fault {
                Fault::Link(to, from) => {
                    self.replicas[to].links[&from].heal();
                    self.model.heals(from);
                }
                Fault::Stop(at) => {
                    self.replicas[at].go_on();
                    self.model.heals(at);
                    let snapshot = self.snapshot();
                    self.replicas[at].call("PUT", "/catalog/test", Some(&snapshot));
                }
                Fault::Down(at) => {
                    self.replicas[at].start(self.directory.path());
                    let snapshot = self.snapshot();
                    assert_eq!(self.replicas[at].call("PUT", "/catalog/test", Some(&snapshot)).0, 200);
                    self.replicas[at].wait_until_ready();
                }
            }
        }
    }

    fn churn(&mut self) {
        println!("{:?} churn", Instant::now());
        if self.workers.remove(&CHURNED) {
            self.model.worker_left(CHURNED, self.running() == self.replicas.len());
        } else {
            self.workers.insert(CHURNED);
        }
        self.apply_catalog();
    }

    fn complete(&mut self, runtime: &Runtime) {
        self.prompts += 1;
        let engine = &self.engines[self.rng.usize(..2)];
        let (start, length) = (self.rng.u32(..4) * 100, self.rng.u32(4..80));
        let request = CompletionRequest {
            prompt: (start..start + length).collect(),
            max_tokens: 1,
            namespace: Default::default(),
            rank: Some(self.rng.u32(..2)),
        };
        runtime.block_on(engine.complete(request).unwrap().finish()).unwrap();
    }

    fn step(&mut self, runtime: &Runtime) {
        match self.rng.u8(..100) {
            0..30 => self.reserve(),
            30..45 => self.select(),
            45..65 => self.call(Call::Ended),
            65..78 => self.call(Call::Done),
            78..88 => self.complete(runtime),
            88..98 => self.fault(),
            _ => self.churn(),
        }
        let pause = Duration::from_millis(self.rng.u64(..25));
        std::thread::park_timeout(pause);
        self.heal(false);
    }

    /// Everything is whole again: all replicas come to know the same, and what the model says. Returns how long it took.
    fn agree(&mut self, seed: u64) -> Duration {
        self.heal(true);
        self.apply_catalog();
        let start = Instant::now();
        let (mut last, mut aged) = (Vec::new(), BTreeSet::new());
        while start.elapsed() < AGREEMENT {
            aged = self.model.aged();
            let known = self.replicas.iter().map(|replica| replica.knowledge_without("m", &aged));
            last = known.collect::<Vec<Knowledge>>();
            if last.iter().any(|known| known.load.is_empty()) {
                last.iter_mut().for_each(|known| known.load.clear());
            }
            let alike = last.windows(2).all(|pair| pair[0] == pair[1]);
            if alike && self.model.objections(&last[0], &aged).is_empty() {
                return start.elapsed();
            }
            std::thread::park_timeout(Duration::from_millis(50));
        }
        for (at, known) in last.iter().enumerate() {
            let (other, status) = (&last[(at + 1) % last.len()], self.replicas[at].status());
            let more = |a: &Knowledge, b: &Knowledge| {
                let bookings = a.bookings.iter().filter(|(id, row)| b.bookings.get(*id) != Some(row));
                let sessions = a.sessions.iter().filter(|(id, row)| b.sessions.get(*id) != Some(row));
                let load = a.load.iter().filter(|(id, row)| b.load.get(*id) != Some(row));
                format!(
                    "{:?} {:?} {:?} {:?}",
                    bookings.collect::<Vec<_>>(),
                    sessions.collect::<Vec<_>>(),
                    load.collect::<Vec<_>>(),
                    a.blocks.difference(&b.blocks).count()
                )
            };
            println!("replica {at} against the model: {:#?}", self.model.objections(known, &aged));
            println!("replica {at} beyond the next: {}\n{status:#}", more(known, other));
            println!("{}", self.replicas[at].selector().program.log());
        }
        panic!("seed {seed}: no agreement within {AGREEMENT:?}");
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn history(seed: u64) {
    println!("seed {seed}");
    let runtime = runtime();
    let mut fleet = runtime.block_on(Fleet::new(seed));
    let _inside = runtime.enter();
    let expiry = EXPIRIES[fleet.rng.usize(..EXPIRIES.len())];
    fleet.model.expiry = expiry.map(Duration::from_secs);
    fleet.replicas.iter_mut().for_each(|replica| replica.expiry = expiry);
    fleet.start();
    for _ in 0..STEPS {
        fleet.step(&runtime);
    }
    let took = fleet.agree(seed);
    let expired = fleet.model.aged().len();
    println!("seed {seed}: {} replicas agreed after {took:?}, {expired} bookings aged", fleet.replicas.len());
}

#[test]
fn replicas_agree_after_any_history() {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    match number("POINTSMAN_SEED") {
        Some(seed) => history(seed),
        None => (0..number("POINTSMAN_SEEDS").unwrap_or(FEW)).for_each(|_| history(fastrand::u64(..))),
    }
}

/// The answer of `probe` on every replica.
fn on_all<R>(fleet: &Fleet, what: &str, probe: impl Fn(&Replica) -> Option<R>) {
    for replica in &fleet.replicas {
        wait_for(what, || probe(replica));
    }
}

#[test]
fn a_restarted_replica_is_warm_before_it_is_ready() {
    let runtime = runtime();
    let mut fleet = runtime.block_on(Fleet::new(7));
    let _inside = runtime.enter();
    fleet.start();
    for _ in 0..20 {
        fleet.reserve();
        fleet.select();
    }
    let live = fleet.model.candidates().len();
    on_all(&fleet, "every booking everywhere", |replica| (replica.knowledge("m").bookings.len() == live).then_some(()));
    let before = fleet.replicas[1].knowledge("m");
    fleet.replicas[0].kill();
    fleet.replicas[0].start(fleet.directory.path());
    let snapshot = fleet.snapshot();
    assert_eq!(fleet.replicas[0].call("PUT", "/catalog/test", Some(&snapshot)).0, 200);
    fleet.replicas[0].wait_until_ready();
    let after = fleet.replicas[0].knowledge("m");
    assert_eq!((after.bookings, after.sessions), (before.bookings, before.sessions));
}

#[test]
fn a_selector_that_leaves_says_so_and_its_bookings_stay() {
    let runtime = runtime();
    let mut fleet = runtime.block_on(Fleet::new(11));
    let _inside = runtime.enter();
    fleet.start();
    let leaving = fleet.replicas[0].publisher();
    for _ in 0..10 {
        fleet.reserve();
    }
    // Nothing waits: what the last request published must be with the others when the process is gone.
    let made = fleet.model.candidates();
    fleet.replicas[0].terminate();
    for replica in &fleet.replicas[1..] {
        wait_for("every booking on those that stay", || {
            made.iter().all(|id| replica.knowledge("m").bookings.contains_key(id)).then_some(())
        });
    }
    let from = fleet.replicas[1].links[&0].endpoint();
    let said = |status: &Value| {
        let peers = status["peers"].as_array().unwrap();
        peers.iter().any(|peer| peer["endpoint"] == json!(from) && peer["leaving"] == json!(true))
    };
    wait_for("the word that it leaves", || said(&fleet.replicas[1].status()).then_some(leaving));
    for id in &made {
        assert_eq!(fleet.replicas[1].call("DELETE", &format!("/reservations/{id}"), None).0, 200);
    }
    wait_for("their end on the others", || fleet.replicas[2].knowledge("m").bookings.is_empty().then_some(()));
}
