//! A fleet in virtual time: engines, selectors in front of them, and what goes between them.
//!
//! | file | owns |
//! |---|---|
//! | this one | the order of things, and the requests |
//! | `config` | how many selectors and engines, and how late they hear |
//! | `event` | what an observer is told |
//! | `replica` | one selector: a real core |
//! | `waiting` | selections that wait in a router's queue |
//!
//! A request goes to a random selector, which chooses and books with the verbs that the HTTP API calls; its first token
//! and its end are told to the same selector at once. Every selector hears the engines' cache events after a delay, and
//! its peers' bookings after the lag of the mesh, encoded as on the wire.
//!
//! Invariants: one thread does everything, in order of time; what falls on one instant is done in a fixed order (mesh,
//! cache events, engines by number, periodic work, arrivals), so that equal seeds give equal outcomes.

mod config;
mod event;
mod replica;
#[cfg(test)]
mod tests;
mod waiting;

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

pub use self::{config::FleetConfig, event::FleetEvent};
use self::{
    replica::{GROUP, MODEL, Replica, content, name, worker_id, worker_request},
    waiting::{Selection, Waiting},
};
use super::{
    Nanos, SECOND, SimulationError,
    candidate::Candidate,
    clock::VirtualClock,
    engine::{Engine, EngineConfig, EngineEvent, EngineRequest, EngineStats},
    workload::{Session, Turn, WorkloadError},
};
use crate::{
    events::transport::Message,
    selection::{
        hash,
        index::StoredBlock,
        request::{PromptInput, SelectRequest, SelectResponse},
        worker::WorkerRequest,
    },
};

/// How often cores do their periodic work, as in the service.
const TICK: Nanos = 100_000_000;
/// Time without anything to do that is passed over.
const LULL: Nanos = 10 * SECOND;
/// How long requests may wait in routers' queues after everything else has come to rest.
const PATIENCE: Nanos = 600_000_000_000;

/// Days that a run may take in virtual time, well before that of engines saturates.
const MOST_DAYS: u64 = 200;
const MOST_TIME: Nanos = MOST_DAYS * 86_400 * SECOND;

/// One request's way.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// When it came.
    pub arrived: Nanos,
    /// Its first token, if there was one.
    pub first_token: Option<Nanos>,
    /// Its last token, if there was one.
    pub finished: Option<Nanos>,
    /// Prompt tokens.
    pub prompt_tokens: u32,
    /// Generated tokens.
    pub output_tokens: u32,
    /// Number of its session.
    session: u32,
    replica: u32,
}

#[cfg(test)]
impl Record {
    pub(super) fn new(
        arrived: Nanos,
        first_token: Option<Nanos>,
        finished: Option<Nanos>,
        prompt_tokens: u32,
        output_tokens: u32,
    ) -> Self {
        Self { arrived, first_token, finished, prompt_tokens, output_tokens, session: 0, replica: 0 }
    }
}

/// What came out.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// In order of arrival.
    pub requests: Vec<Record>,
    /// By worker.
    pub engines: Vec<EngineStats>,
    /// Requests that no worker was chosen for.
    pub refused: u64,
    /// The first reason for that.
    pub refusal: Option<String>,
    /// Polls of selections.
    pub decisions: u64,
    /// Wall-clock time they took.
    pub deciding: Duration,
    /// When nothing was left to do.
    pub ended: Nanos,
}

/// A session of which turns are left.
struct Active {
    id: Arc<str>,
    turns: std::vec::IntoIter<Turn>,
}

/// What arrives later, in order of time since the delay is always the same.
struct Delayed<T>(VecDeque<(Nanos, T)>);

impl<T> Delayed<T> {
    fn due(&self) -> Option<Nanos> {
        self.0.front().map(|(due, _)| *due)
    }

    fn pop(&mut self, now: Nanos) -> Option<T> {
        if self.due()? > now {
            return None;
        }
        self.0.pop_front().map(|(_, what)| what)
    }
}

/// A fleet at work.
pub struct Fleet<'a> {
    config: FleetConfig,
    clock: Arc<VirtualClock>,
    now: Nanos,
    workers: Vec<WorkerRequest>,
    replicas: Vec<Replica>,
    engines: Vec<Engine>,
    /// When each engine has something to tell.
    engines_due: Vec<Option<Nanos>>,
    /// Cache events on their way, with their engine.
    events: Delayed<(usize, EngineEvent)>,
    /// Messages on their way, with their sender.
    messages: Delayed<(usize, Message)>,
    /// Those of which turns are left, by number.
    sessions: hashbrown::HashMap<u32, Active>,
    session_number: u32,
    /// Later turns: when, and of which session. The number in between keeps equal times in order.
    turns: BinaryHeap<Reverse<(Nanos, u64, u32)>>,
    turn_number: u64,
    waiting: Waiting,
    /// Blocks of requests that have no worker yet.
    undecided: hashbrown::HashMap<u32, Arc<[u64]>>,
    rng: fastrand::Rng,
    next_tick: Nanos,
    told: Vec<EngineEvent>,
    stored: Vec<StoredBlock>,
    removed: Vec<u64>,
    locals: Vec<u64>,
    tracking: Vec<u64>,
    observer: Option<Observer<'a>>,
    outcome: Outcome,
}

/// Whoever is told what happens.
type Observer<'a> = &'a mut dyn FnMut(FleetEvent<'_>);

impl<'a> Fleet<'a> {
    /// A fleet at rest.
    ///
    /// # Errors
    /// The policy cannot be made, or the workers are refused.
    pub fn new(config: FleetConfig, candidate: &Candidate) -> Result<Self, SimulationError> {
        config.check()?;
        let clock = Arc::new(VirtualClock::default());
        let workers: Vec<_> = (0..config.workers).map(|worker| worker_request(worker, candidate, &config)).collect();
        let replicas = (0..config.replicas)
            .map(|number| Replica::new(number, candidate, &config, &workers, &clock))
            .collect::<Result<_, _>>()?;
        let engine = |worker: u32| {
            let speed = config.speeds.get(worker as usize % config.speeds.len().max(1));
            Engine::new(&EngineConfig {
                speed: speed.map_or(config.engine.speed, |speed| *speed),
                ..config.engine.clone()
            })
        };
        Ok(Self {
            clock,
            now: 0,
            workers,
            replicas,
            engines: (0..config.workers).map(engine).collect(),
            engines_due: vec![None; config.workers as usize],
            events: Delayed(VecDeque::new()),
            messages: Delayed(VecDeque::new()),
            sessions: hashbrown::HashMap::new(),
            session_number: 0,
            turns: BinaryHeap::new(),
            turn_number: 0,
            waiting: Waiting::default(),
            undecided: hashbrown::HashMap::new(),
            rng: fastrand::Rng::with_seed(config.seed),
            next_tick: TICK,
            told: Vec::new(),
            stored: Vec::new(),
            removed: Vec::new(),
            locals: Vec::new(),
            tracking: Vec::new(),
            observer: None,
            outcome: Outcome {
                requests: Vec::new(),
                engines: Vec::new(),
                refused: 0,
                refusal: None,
                decisions: 0,
                deciding: Duration::ZERO,
                ended: 0,
            },
            config,
        })
    }

    /// Tells `observer` what happens to the selectors, beginning with the workers they know.
    #[must_use]
    pub fn observed_by(mut self, observer: Observer<'a>) -> Self {
        self.workers.iter().for_each(|worker| observer(FleetEvent::Joined(worker)));
        self.observer = Some(observer);
        self
    }

    /// Serves `sessions`, which come in order of their start, until all is done that can be.
    ///
    /// # Errors
    /// The workload cannot be read on, or takes too long.
    pub fn run(
        mut self,
        sessions: impl Iterator<Item = Result<Session, WorkloadError>>,
    ) -> Result<Outcome, SimulationError> {
        let mut sessions = sessions;
        let mut next = sessions.next().transpose()?;
        let mut at_rest_since = 0;
        loop {
            let due = self.due(next.as_ref().map(|session| session.start));
            self.now = match due {
                Some(due) if due > MOST_TIME => return Err(SimulationError::Endless { days: MOST_DAYS }),
                Some(due) => {
                    at_rest_since = due;
                    if self.waiting.len() == 0 && due > self.next_tick + LULL {
                        // Periodic work that nobody is there to see is done once, before what comes.
                        self.next_tick = self.next_tick.max(due - due % TICK);
                    }
                    due.min(self.next_tick)
                }
                None if self.waiting.len() > 0 && self.next_tick - at_rest_since < PATIENCE => self.next_tick,
                None => break,
            };
            self.clock.advance_to(self.now);
            while let Some((sender, message)) = self.messages.pop(self.now) {
                for (number, replica) in self.replicas.iter().enumerate() {
                    if number != sender {
                        replica.mirror(&message)?;
                    }
                }
                self.serve_woken();
            }
            while let Some((worker, event)) = self.events.pop(self.now) {
                self.hear(worker, &event);
            }
            self.run_engines();
            if self.now >= self.next_tick {
                self.next_tick = self.now + TICK;
                for replica in &self.replicas {
                    replica.core.tick();
                }
                self.serve_woken();
            }
            while let Some(&Reverse((at, _, session))) = self.turns.peek()
                && at <= self.now
            {
                self.turns.pop();
                self.start_turn(session);
            }
            while let Some(session) = next.take_if(|session| session.start <= self.now) {
                self.open(session);
                next = sessions.next().transpose()?;
            }
        }
        self.outcome.ended = self.now;
        self.outcome.engines = self.engines.iter().map(Engine::stats).collect();
        Ok(self.outcome)
    }

    /// When the next thing happens but periodic work.
    fn due(&self, arrival: Option<Nanos>) -> Option<Nanos> {
        let turn = self.turns.peek().map(|Reverse((at, _, _))| *at);
        let engines = self.engines_due.iter().flatten().min().copied();
        [arrival, turn, engines, self.events.due(), self.messages.due()].into_iter().flatten().min()
    }

    fn open(&mut self, session: Session) {
        let id = format!("s{}", session.id).into();
        self.session_number += 1;
        self.sessions.insert(self.session_number, Active { id, turns: session.turns.into_iter() });
        self.start_turn(self.session_number);
    }

    fn start_turn(&mut self, session: u32) {
        let Some(active) = self.sessions.get_mut(&session) else { return };
        let Some(turn) = active.turns.next() else { return };
        let session_id = active.id.to_string();
        if active.turns.len() == 0 {
            self.sessions.remove(&session);
        }
        let request = self.outcome.requests.len() as u32;
        let replica = self.rng.u32(..self.config.replicas);
        self.outcome.requests.push(Record {
            arrived: self.now,
            first_token: None,
            finished: None,
            prompt_tokens: turn.prompt_tokens,
            output_tokens: turn.output_tokens,
            session,
            replica,
        });
        self.locals.clear();
        self.locals.extend(turn.prompt_blocks(self.config.engine.block_size).iter().map(|&id| content(id)));
        hash::sequence_hashes(&self.locals, &mut self.tracking);
        let bits = |hashes: &[u64]| Some(hashes.iter().map(|hash| hash.cast_signed()).collect());
        let wish = SelectRequest {
            model_name: MODEL.to_owned(),
            routing_group: GROUP.to_owned(),
            selection_id: Some(selection_id(request)),
            prompt: PromptInput {
                block_hashes: bits(&self.locals),
                sequence_hashes: bits(&self.tracking),
                isl_tokens: Some(turn.prompt_tokens.into()),
                ..PromptInput::default()
            },
            session_id: Some(session_id),
            ..SelectRequest::default()
        };
        self.undecided.insert(request, turn.blocks);
        tell(&mut self.observer, FleetEvent::Asked { replica, request: &wish });
        let core = Arc::clone(&self.replicas[replica as usize].core);
        self.decide(request, Box::pin(async move { core.select_and_reserve(wish).await }));
        self.serve_woken();
    }

    /// Polls a selection, and sends the request to the worker it names.
    fn decide(&mut self, request: u32, selection: Selection) {
        let began = Instant::now();
        let answer = self.waiting.poll(request, selection);
        self.outcome.deciding += began.elapsed();
        self.outcome.decisions += 1;
        let replica = self.outcome.requests[request as usize].replica;
        self.publish(replica as usize);
        match answer {
            None => {}
            Some(Ok(answer)) => {
                tell(&mut self.observer, FleetEvent::Chosen { replica, answer: &answer });
                self.submit(request, &answer);
            }
            Some(Err(error)) => {
                self.undecided.remove(&request);
                self.refuse(error.to_string());
            }
        }
    }

    fn refuse(&mut self, reason: String) {
        self.outcome.refused += 1;
        self.outcome.refusal.get_or_insert(reason);
    }

    fn submit(&mut self, request: u32, answer: &SelectResponse) {
        let Some(blocks) = self.undecided.remove(&request) else { return };
        let worker = (answer.worker_id - worker_id(0)) as usize;
        self.advance_engine(worker);
        let Record { prompt_tokens, output_tokens, replica, .. } = self.outcome.requests[request as usize];
        let there = EngineRequest { id: request, prompt_tokens, output_tokens, blocks };
        let taken = self.engines[worker].submit(there, self.now);
        self.engines_due[worker] = self.engines[worker].next();
        if let Err(error) = taken {
            self.free(request, replica);
            self.refuse(error.to_string());
        }
    }

    /// Takes the engine to this instant, and what it has to tell.
    fn advance_engine(&mut self, worker: usize) {
        let mut told = std::mem::take(&mut self.told);
        self.engines[worker].run(self.now, &mut told);
        self.engines_due[worker] = self.engines[worker].next();
        for event in told.drain(..) {
            self.take(worker, event);
        }
        self.told = told;
    }

    /// Lets every engine that has something to tell do so.
    fn run_engines(&mut self) {
        for worker in 0..self.engines.len() {
            if self.engines_due[worker].is_some_and(|due| due <= self.now) {
                self.advance_engine(worker);
                self.serve_woken();
            }
        }
    }

    fn take(&mut self, worker: usize, event: EngineEvent) {
        match event {
            EngineEvent::FirstToken { request, at } => {
                let record = &mut self.outcome.requests[request as usize];
                record.first_token = Some(at);
                let (replica, selection_id) = (record.replica, selection_id(request));
                let booked = self.replicas[replica as usize].core.prefill_complete(&selection_id).is_ok();
                self.publish(replica as usize);
                let selection_id = &selection_id;
                tell(&mut self.observer, FleetEvent::PrefillComplete { replica, selection_id, booked });
            }
            EngineEvent::Finished { request, at } => {
                let record = &mut self.outcome.requests[request as usize];
                record.finished = Some(at);
                let Record { replica, session, .. } = *record;
                self.free(request, replica);
                let active = self.sessions.get(&session);
                if let Some(turn) = active.and_then(|active| active.turns.as_slice().first()) {
                    self.turn_number += 1;
                    self.turns.push(Reverse((at + turn.think, self.turn_number, session)));
                }
            }
            EngineEvent::Stored { at, .. } | EngineEvent::Removed { at, .. } => {
                if let Some(delay) = self.config.event_delay {
                    self.events.0.push_back((at + delay, (worker, event)));
                }
            }
        }
    }

    /// Ends a booking.
    fn free(&mut self, request: u32, replica: u32) {
        let selection_id = selection_id(request);
        let booked = self.replicas[replica as usize].core.free_reservation(&selection_id).is_ok();
        self.publish(replica as usize);
        tell(&mut self.observer, FleetEvent::Freed { replica, selection_id: &selection_id, booked });
    }

    /// Tells all selectors what an engine told of its cache.
    fn hear(&mut self, worker: usize, event: &EngineEvent) {
        let worker_id = worker_id(worker as u32);
        match event {
            EngineEvent::Stored { parent, blocks, .. } => {
                self.stored.clear();
                self.stored.extend(blocks.iter().map(|&id| StoredBlock { name: name(id), local: content(id) }));
                let (parent, blocks) = (parent.map(name), &self.stored[..]);
                self.replicas.iter().for_each(|replica| replica.store(worker, parent, blocks));
                tell(&mut self.observer, FleetEvent::Stored { worker_id, parent, blocks });
            }
            EngineEvent::Removed { blocks, .. } => {
                self.removed.clear();
                self.removed.extend(blocks.iter().map(|&id| name(id)));
                let names = &self.removed[..];
                self.replicas.iter().for_each(|replica| replica.remove(worker, names));
                tell(&mut self.observer, FleetEvent::Removed { worker_id, names });
            }
            EngineEvent::FirstToken { .. } | EngineEvent::Finished { .. } => {}
        }
    }

    /// Puts what a replica has to tell the others on its way.
    fn publish(&mut self, replica: usize) {
        let Some(lag) = self.config.mesh_lag else { return };
        let (due, messages) = (self.now + lag, &mut self.messages.0);
        self.replicas[replica].publish(|message| messages.push_back((due, (replica, message))));
    }

    /// Goes on with selections whose turn came.
    fn serve_woken(&mut self) {
        while let Some((request, selection)) = self.waiting.next_woken() {
            self.decide(request, selection);
        }
    }
}

fn tell(observer: &mut Option<Observer<'_>>, event: FleetEvent<'_>) {
    if let Some(observer) = observer {
        observer(event);
    }
}

fn selection_id(request: u32) -> String {
    format!("r{request}")
}
