//! The programs of a partition: their footprints by worker, who is paused, who waits, who goes on.
//!
//! Invariants: a request is counted from the moment it may go to its one last event; while requests wait, one that needs
//! room waits behind them; of those that wait, the ones that came first are looked at first, and one that does not fit
//! holds up none that do; a worker on which no request runs takes any program, so nobody waits for room that cannot come.
//! Nothing here calls out: wakers are handed out.

mod usage;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    task::Waker,
    time::{Duration, Instant},
};

use self::usage::Usage;
use super::parameters::Parameters;
use crate::selection::{
    identity::WorkerWithDpRank,
    policy::classifier::{context::RequestClassifierWorker, progress::RequestProgress},
};

/// Usage older than this is measured again before it decides anything.
const FRESH: Duration = Duration::from_millis(100);

/// A request of a program.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) program: Arc<str>,
    pub(super) request_id: String,
    pub(super) progress: RequestProgress,
    pub(super) input_tokens: usize,
    /// The session ends with it.
    pub(super) is_last: bool,
    pub(super) pinned: Option<WorkerWithDpRank>,
}

/// What a request is told when it comes.
#[derive(Debug)]
pub(super) enum Admission {
    /// It goes, there if anywhere.
    Now(Option<WorkerWithDpRank>),
    Waits(Ticket),
}

/// The place of a request that waits; smaller ones came first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Ticket(u64);

#[derive(Debug)]
pub(super) struct Program {
    paused: bool,
    worker: Option<WorkerWithDpRank>,
    /// Context after its last turn, or of its first one.
    tokens: usize,
    /// Its requests that run.
    running: Vec<RequestProgress>,
    waiting: usize,
    /// When its last request ended, or came.
    since: Instant,
    is_over: bool,
}

impl Program {
    /// Its context now.
    fn tokens(&self) -> usize {
        self.running.iter().map(RequestProgress::context_tokens).max().unwrap_or(0).max(self.tokens)
    }
}

struct Running {
    program: Arc<str>,
    progress: RequestProgress,
}

struct Waiting {
    turn: Turn,
    since: Instant,
    waker: Option<Waker>,
}

/// All programs of a partition.
pub(super) struct Programs {
    parameters: Arc<Parameters>,
    programs: HashMap<Arc<str>, Program>,
    running: HashMap<String, Running>,
    waiting: BTreeMap<Ticket, Waiting>,
    /// Where those go that may and do not know yet.
    granted: HashMap<Ticket, Option<WorkerWithDpRank>>,
    usage: Usage,
    next_ticket: u64,
    reconciled: Instant,
    /// Something came or ended since that may let a request go.
    changed: bool,
}

impl Programs {
    pub(super) fn new(parameters: Arc<Parameters>, block_size: u32, now: Instant) -> Self {
        Self {
            usage: Usage::new(block_size, now),
            parameters,
            programs: HashMap::new(),
            running: HashMap::new(),
            waiting: BTreeMap::new(),
            granted: HashMap::new(),
            next_ticket: 0,
            reconciled: now,
            changed: false,
        }
    }

    /// Programs, requests that run, requests that wait.
    #[cfg(test)]
    pub(super) fn size(&self) -> (usize, usize, usize) {
        (self.programs.len(), self.running.len(), self.waiting.len())
    }

    /// Whether [`Self::measure`] is to be called before a request comes.
    pub(super) fn is_stale(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.usage.measured()) >= FRESH || self.usage.is_empty()
    }

    /// Whether [`Self::reconcile`] is to be called.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        let waited_out = || self.waiting.values().next().is_some_and(|oldest| self.waited_out(oldest, now));
        let hurries = !self.waiting.is_empty() && (self.changed || waited_out());
        hurries || now.saturating_duration_since(self.reconciled) >= self.parameters.interval()
    }

    fn waited_out(&self, waiting: &Waiting, now: Instant) -> bool {
        now.saturating_duration_since(waiting.since) >= self.parameters.resume_timeout()
    }

    /// Adds up what workers have room for and what programs take.
    pub(super) fn measure(&mut self, workers: &[RequestClassifierWorker], now: Instant) {
        self.usage.measure(workers, self.programs.values(), &self.parameters, now);
    }

    /// A request comes. It goes when its program runs, when its worker is given, or when there is room.
    pub(super) fn arrive(&mut self, turn: Turn, now: Instant) -> Admission {
        if self.running.len() + self.waiting.len() >= self.parameters.max_tracked_requests {
            tracing::debug!(program = %turn.program, "more requests than are tracked: this one passes unwatched");
            return Admission::Now(None);
        }
        let known = self.programs.get(&turn.program);
        let goes = match known {
            _ if turn.pinned.is_some() => Some(turn.pinned),
            Some(program) if program.waiting == 0 && !program.paused && !program.running.is_empty() => {
                Some(self.here(program))
            }
            _ if !self.waiting.is_empty() => None,
            Some(program) => self.place(program, turn.input_tokens, now),
            None => self.usage.place(self.with_buffer(turn.input_tokens), None, self.most(false)),
        };
        let is_known = known.is_some();
        let program = self.programs.entry(Arc::clone(&turn.program)).or_insert_with(|| Program {
            paused: false,
            worker: None,
            tokens: 0,
            running: Vec::new(),
            waiting: 0,
            since: now,
            is_over: false,
        });
        program.is_over = turn.is_last;
        program.since = now;
        match goes {
            Some(target) => {
                self.go(turn, target);
                Admission::Now(target)
            }
            None => {
                program.waiting += 1;
                program.paused |= is_known;
                self.changed = true;
                let ticket = Ticket(self.next_ticket);
                self.next_ticket += 1;
                self.waiting.insert(ticket, Waiting { turn, since: now, waker: None });
                Admission::Waits(ticket)
            }
        }
    }

    /// The share of a worker up to which programs are let on it.
    fn most(&self, paused: bool) -> f64 {
        self.parameters.pause_threshold - if paused { self.parameters.resume_hysteresis } else { 0.0 }
    }

    /// Where a program may go on with a prompt of `input_tokens`: `Some(None)` = anywhere, `None` = nowhere.
    fn place(&self, program: &Program, input_tokens: usize, now: Instant) -> Option<Option<WorkerWithDpRank>> {
        let counted = usage::footprint(program, &self.parameters, now);
        let grows_by = (self.with_buffer(program.tokens().max(input_tokens)) - counted).max(0.0);
        self.usage.place(grows_by, self.here(program), self.most(program.paused))
    }

    /// Its worker, while that takes bookings.
    fn here(&self, program: &Program) -> Option<WorkerWithDpRank> {
        program.worker.filter(|worker| self.usage.has(*worker))
    }

    fn with_buffer(&self, tokens: usize) -> f64 {
        tokens as f64 + self.parameters.buffer_per_program as f64
    }

    /// A request goes.
    fn go(&mut self, turn: Turn, target: Option<WorkerWithDpRank>) {
        let Some(program) = self.programs.get_mut(&turn.program) else { return };
        let before = if program.running.is_empty() { 0 } else { program.tokens() };
        program.paused = false;
        program.running.push(turn.progress.clone());
        program.tokens = program.tokens.max(turn.input_tokens);
        if target.is_some() {
            program.worker = target;
        }
        let grown = program.tokens().saturating_sub(before) as f64;
        if let Some(worker) = program.worker {
            self.usage.add(worker, grown + self.parameters.buffer_per_program as f64);
        }
        self.running.insert(turn.request_id, Running { program: turn.program, progress: turn.progress });
    }

    /// A request that waited asks whether it may go; it is woken when it may.
    pub(super) fn poll(&mut self, ticket: Ticket, waker: &Waker) -> Option<Option<WorkerWithDpRank>> {
        if let Some(waiting) = self.waiting.get_mut(&ticket) {
            waiting.waker = Some(waker.clone());
            return None;
        }
        self.granted.get(&ticket).copied()
    }

    /// A request that waited is gone, on its way or not.
    pub(super) fn leave(&mut self, ticket: Ticket) {
        self.granted.remove(&ticket);
        let Some(Waiting { turn, .. }) = self.waiting.remove(&ticket) else { return };
        if let Some(program) = self.programs.get_mut(&turn.program) {
            program.waiting -= 1;
        }
        self.changed = true;
    }

    /// A request was sent to a worker.
    pub(super) fn sent(&mut self, request_id: &str, worker: WorkerWithDpRank) {
        let Some(running) = self.running.get(request_id) else { return };
        if let Some(program) = self.programs.get_mut(&running.program)
            && program.worker != Some(worker)
        {
            program.worker = Some(worker);
            self.usage.add(worker, program.tokens() as f64 + self.parameters.buffer_per_program as f64);
        }
    }

    /// A request ended with that much context.
    pub(super) fn ended(&mut self, request_id: &str, context_tokens: Option<usize>, now: Instant) {
        let Some(Running { program: name, progress }) = self.running.remove(request_id) else { return };
        self.changed = true;
        let Some(program) = self.programs.get_mut(&name) else { return };
        let at = program.running.iter().position(|other| other.is(&progress));
        at.map(|at| program.running.swap_remove(at));
        program.tokens = program.tokens.max(context_tokens.unwrap_or(0)).max(progress.context_tokens());
        program.since = now;
        if program.is_over && program.running.is_empty() && program.waiting == 0 {
            self.programs.remove(&name);
        }
    }

    /// Forgets idle programs, pauses some where workers are too full, and lets go on who may. Whoever goes is handed
    /// out, to be woken.
    pub(super) fn reconcile(&mut self, workers: &[RequestClassifierWorker], now: Instant) -> Vec<Waker> {
        self.reconciled = now;
        self.changed = false;
        let retention = self.parameters.retention();
        self.programs.retain(|_, program| {
            let idle = program.running.is_empty() && program.waiting == 0;
            !idle || now.saturating_duration_since(program.since) < retention
        });
        self.measure(workers, now);
        self.pause(now);
        self.resume(now)
    }

    /// Pauses programs of workers above the threshold until what remains is below the target: acting ones first, since
    /// nothing of theirs is under way, then those that take most. A reasoning one ends its turn.
    fn pause(&mut self, now: Instant) {
        for worker in self.usage.above(self.parameters.pause_threshold) {
            let mut of_worker: Vec<(bool, f64, &mut Program)> = self
                .programs
                .values_mut()
                .filter(|program| program.worker == Some(worker) && !program.paused)
                .map(|program| {
                    let weight = usage::footprint(program, &self.parameters, now);
                    (!program.running.is_empty(), weight, program)
                })
                // What hardly counts any more frees nothing.
                .filter(|(_, weight, _)| *weight > self.parameters.buffer_per_program as f64)
                .collect();
            of_worker.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.total_cmp(&a.1)));
            let mut remains = self.usage.used(worker);
            let target = self.usage.capacity(worker) * self.parameters.pause_target;
            for (reasoning, weight, program) in of_worker {
                if remains <= target {
                    break;
                }
                program.paused = true;
                remains -= weight;
                if !reasoning {
                    self.usage.add(worker, -weight);
                }
            }
        }
    }

    fn resume(&mut self, now: Instant) -> Vec<Waker> {
        let mut wakers = Vec::new();
        let tickets: Vec<Ticket> = self.waiting.keys().copied().collect();
        for ticket in tickets {
            let Some(waiting) = self.waiting.get(&ticket) else { continue };
            let Some(program) = self.programs.get(&waiting.turn.program) else { continue };
            let here = self.here(program);
            let target = if !program.paused && !program.running.is_empty() {
                // Another request of it went on before.
                Some(here)
            } else if self.waited_out(waiting, now) {
                Some(here.or_else(|| self.usage.emptiest()))
            } else {
                self.place(program, waiting.turn.input_tokens, now)
            };
            let Some(target) = target else { continue };
            let Some(Waiting { turn, waker, .. }) = self.waiting.remove(&ticket) else { continue };
            wakers.extend(waker);
            self.granted.insert(ticket, target);
            if let Some(program) = self.programs.get_mut(&turn.program) {
                program.waiting -= 1;
            }
            self.go(turn, target);
        }
        wakers
    }
}
