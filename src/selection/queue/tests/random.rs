//! Random arrivals, bookings, departures, deadlines, workers and profiles against a naive model, which keeps a list of
//! requests and looks at everything each time.

use std::collections::BTreeSet;

use super::*;

/// A waiting request as the model keeps it.
#[derive(Clone, Debug)]
struct Waiting {
    id: String,
    class_name: String,
    steering: Steering,
    tokens: u64,
    cached: u64,
    arrived: Moment,
    number: u64,
    deadline: Option<Moment>,
}

impl Waiting {
    fn cost(&self) -> u64 {
        self.steering.scheduling_cost.unwrap_or(self.tokens - self.cached).max(1)
    }

    /// Whether it goes before `other` under a policy.
    fn goes_before(&self, other: &Self, policy: QueuePolicy) -> bool {
        let jump = |waiting: &Self| waiting.steering.priority_jump.unwrap_or(0.0).max(0.0);
        let seconds = |waiting: &Self| waiting.arrived.0 as f64 / 1e9;
        let score = |waiting: &Self| match policy {
            QueuePolicy::Fcfs => jump(waiting) - seconds(waiting),
            QueuePolicy::Lcfs => jump(waiting) + seconds(waiting),
            QueuePolicy::Wspt => (1.0 + jump(waiting)) / waiting.cost() as f64,
        };
        let strict = |waiting: &Self| waiting.steering.strict_priority.unwrap_or(0);
        if strict(self) != strict(other) {
            return strict(self) > strict(other);
        }
        match (self.steering.due, other.steering.due) {
            (Some(mine), Some(theirs)) if mine != theirs => return mine < theirs,
            (Some(_), None) => return true,
            (None, Some(_)) => return false,
            _ => {}
        }
        if score(self) != score(other) {
            return score(self) > score(other);
        }
        self.number < other.number
    }
}

#[derive(Clone, Debug)]
struct Worker {
    facts: WorkerFacts,
    /// Prefill tokens in progress by rank.
    tokens: BTreeMap<u32, BTreeMap<u64, u64>>,
}

struct Naive {
    profile: Arc<PolicyProfile>,
    waiting: Vec<Waiting>,
    workers: BTreeMap<u64, Worker>,
    deficits: Vec<u64>,
    cursor: usize,
    carry: Option<usize>,
    grant: Option<(String, Option<Moment>)>,
    limits: QueueLimits,
}

impl Naive {
    fn ranks(&self, steering: &Steering) -> Vec<(u64, u32)> {
        let mut ranks = Vec::new();
        for (&id, worker) in &self.workers {
            for rank in worker.facts.ranks.clone() {
                let fits = match steering.pinned_worker {
                    Some(pin) => pin == WorkerWithDpRank::new(id, rank),
                    None => {
                        steering.allowed_worker_ids.as_ref().is_none_or(|ids| ids.contains(&id))
                            && steering.routing_constraints.required_taints.is_subset(&worker.facts.taints)
                    }
                };
                if fits && !worker.facts.draining {
                    ranks.push((id, rank));
                }
            }
        }
        ranks
    }

    fn tokens(&self, (worker, rank): (u64, u32)) -> u64 {
        self.workers[&worker].tokens.get(&rank).map_or(0, |bookings| bookings.values().sum())
    }

    fn is_busy(&self, class: &PolicyClass, rank: (u64, u32)) -> bool {
        let tokens = self.tokens(rank);
        let capacity = self.workers[&rank.0].facts.max_num_batched_tokens.unwrap_or(10_000_000);
        class.prefill_busy_threshold.is_some_and(|limit| tokens > limit)
            || class.prefill_busy_threshold_frac.is_some_and(|frac| tokens as f64 > frac * capacity as f64)
    }

    fn is_blocked(&self, class: &PolicyClass, steering: &Steering) -> bool {
        let ranks = self.ranks(steering);
        !ranks.is_empty() && ranks.into_iter().all(|rank| self.is_busy(class, rank))
    }

    fn class_of(&self, waiting: &Waiting) -> usize {
        self.profile.resolve(Some(&waiting.class_name), waiting.tokens - waiting.cached)
    }

    fn totals(&self, class: usize) -> (u64, u64, u64) {
        let of: Vec<_> = self.waiting.iter().filter(|waiting| self.class_of(waiting) == class).collect();
        let sum = |value: fn(&Waiting) -> u64| of.iter().map(|waiting| value(waiting)).sum();
        (of.len() as u64, sum(|waiting| waiting.tokens), sum(|waiting| waiting.cached))
    }

    /// The limit that refuses a request.
    fn refuses(&self, class: usize, steering: &Steering) -> Option<&'static str> {
        let (requests, tokens, cached) = self.totals(class);
        let workers = self.workers.len() as u64;
        let spec = &self.profile.classes[class];
        // Who has an idle rank passes a full queue.
        let room = if self.is_blocked(spec, steering) { 1 } else { 2 };
        let over = |limit: Option<u64>, current: u64| limit.is_some_and(|limit| current >= limit * workers);
        if over(spec.request_queue_limit_per_worker, requests) {
            Some("requests")
        } else if over(spec.raw_isl_token_queue_limit_per_worker, tokens) {
            Some("raw_isl_tokens")
        } else if over(spec.cached_token_queue_limit_per_worker, cached) {
            Some("cached_tokens")
        } else if self.waiting.len() as u64 >= self.limits.requests * room {
            Some("partition_requests")
        } else if self.waiting.iter().map(|waiting| waiting.tokens).sum::<u64>() >= self.limits.tokens * room {
            Some("partition_isl_tokens")
        } else {
            None
        }
    }

    /// Takes the request that goes next out of the list: the round robin word by word.
    fn next(&mut self) -> Option<Waiting> {
        if self.grant.is_some() {
            return None;
        }
        let classes = self.profile.classes.len();
        let mut heads: Vec<Option<usize>> = vec![None; classes];
        for (at, waiting) in self.waiting.iter().enumerate() {
            let class = self.class_of(waiting);
            let spec = &self.profile.classes[class];
            if self.is_blocked(spec, &waiting.steering) {
                continue;
            }
            if heads[class].is_none_or(|head| waiting.goes_before(&self.waiting[head], spec.queue_policy)) {
                heads[class] = Some(at);
            }
        }
        if heads.iter().all(Option::is_none) {
            return None;
        }
        let cost = |class: usize| heads[class].map(|head| self.waiting[head].cost());
        let order: Vec<usize> = (0..classes).map(|step| (self.cursor + step) % classes).collect();
        let mut deficits = self.deficits.clone();
        let affordable = |deficits: &[u64], class: usize| cost(class).is_some_and(|cost| cost <= deficits[class]);
        let mut chosen = self.carry.filter(|&carry| affordable(&deficits, carry));
        if chosen.is_none() {
            for &class in &order {
                if cost(class).is_none() {
                    continue;
                }
                if !affordable(&deficits, class) {
                    deficits[class] += self.profile.classes[class].quantum;
                }
                if affordable(&deficits, class) {
                    chosen = Some(class);
                    break;
                }
            }
        }
        while chosen.is_none() {
            for class in (0..classes).filter(|&class| heads[class].is_some()) {
                deficits[class] += self.profile.classes[class].quantum;
            }
            chosen = order.iter().copied().find(|&class| affordable(&deficits, class));
        }
        let class = chosen?;
        let gone = self.waiting.remove(heads[class]?);
        self.deficits = deficits;
        self.deficits[class] -= gone.cost();
        self.cursor = (class + 1) % classes;
        self.forget_empty();
        self.carry = (self.deficits[class] > 0).then_some(class);
        Some(gone)
    }

    fn forget_empty(&mut self) {
        for class in 0..self.profile.classes.len() {
            if self.totals(class).0 == 0 {
                self.deficits[class] = 0;
            }
        }
    }

    fn advance(&mut self) {
        if let Some(gone) = self.next() {
            self.grant = Some((gone.id, None));
        }
    }

    fn tick(&mut self, now: Moment) {
        let late = |waiting: &Waiting| {
            let expires = waiting.steering.due.into_iter().chain(waiting.deadline).min();
            expires.is_some_and(|expires| expires <= now)
        };
        self.waiting.retain(|waiting| !late(waiting));
        self.forget_empty();
        match &mut self.grant {
            Some((_, Some(seen))) if now.0 - seen.0 >= 1_000_000_000 => self.grant = None,
            Some((_, seen @ None)) => *seen = Some(now),
            _ => {}
        }
        self.advance();
    }
}

fn random_profile(rng: &mut fastrand::Rng) -> Arc<PolicyProfile> {
    let policy = |rng: &mut fastrand::Rng| [QueuePolicy::Fcfs, QueuePolicy::Lcfs, QueuePolicy::Wspt][rng.usize(0..3)];
    let some = |rng: &mut fastrand::Rng, value: u64| rng.bool().then_some(value);
    let shaped = |class: PolicyClass, rng: &mut fastrand::Rng| PolicyClass {
        queue_policy: policy(rng),
        quantum: rng.u64(1..60),
        prefill_busy_threshold: some(rng, 20).map(|limit| rng.u64(0..=limit)),
        prefill_busy_threshold_frac: rng.bool().then(|| rng.f64() * 0.5),
        request_queue_limit_per_worker: (rng.u8(0..4) == 0).then(|| rng.u64(0..5)),
        raw_isl_token_queue_limit_per_worker: (rng.u8(0..6) == 0).then(|| rng.u64(20..200)),
        cached_token_queue_limit_per_worker: (rng.u8(0..6) == 0).then(|| rng.u64(5..60)),
        ..class
    };
    let mut classes =
        vec![shaped(family("std_small", "std", "small"), rng), shaped(family("std_big", "std", "big"), rng)];
    for name in ["x", "y", "z"] {
        if rng.bool() {
            classes.push(shaped(class(name), rng));
        }
    }
    let bucket = |min_tokens, name: &str| CacheBucket { min_tokens, name: name.into() };
    Arc::new(PolicyProfile {
        default_family: "std".into(),
        buckets: vec![bucket(0, "small"), bucket(20, "big")],
        classes,
    })
}

fn random_steering(rng: &mut fastrand::Rng, now: Moment) -> Steering {
    let mut steering = Steering::default();
    match rng.u8(0..10) {
        0 | 1 => steering.allowed_worker_ids = Some((0..rng.usize(0..3)).map(|_| rng.u64(1..5)).collect()),
        2 => steering.pinned_worker = Some(WorkerWithDpRank::new(rng.u64(1..5), rng.u32(0..2))),
        3 => steering.routing_constraints.required_taints = ["t".to_owned()].into(),
        4 => {
            steering.routing_constraints.required_taints = ["t".to_owned()].into();
            steering.allowed_worker_ids = Some([rng.u64(1..5), rng.u64(1..5)].into());
        }
        _ => {}
    }
    if rng.u8(0..4) == 0 {
        steering.strict_priority = Some(rng.u32(0..3));
    }
    if rng.u8(0..4) == 0 {
        steering.priority_jump = Some(rng.f64() * 4.0 - 1.0);
    }
    if rng.u8(0..6) == 0 {
        steering.due = Some(Moment(now.0 + rng.u64(1..3_000_000_000)));
    }
    if rng.u8(0..4) == 0 {
        steering.deadline_ms = Some(rng.u64(1..4000));
    }
    if rng.u8(0..8) == 0 {
        steering.scheduling_cost = Some(rng.u64(0..200));
    }
    steering
}

struct Run {
    bed: Bed,
    naive: Naive,
    rng: fastrand::Rng,
    /// Bookings whose prefill runs.
    bookings: Vec<(BookingId, u64, u32)>,
    next: u64,
    what: String,
    accepted: usize,
    ended: BTreeSet<String>,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let profile = random_profile(&mut rng);
        let limits = QueueLimits { requests: rng.u64(5..40), tokens: rng.u64(50..800) };
        let naive = Naive {
            deficits: vec![0; profile.classes.len()],
            profile: Arc::clone(&profile),
            waiting: Vec::new(),
            workers: BTreeMap::new(),
            cursor: 0,
            carry: None,
            grant: None,
            limits,
        };
        let bed = Bed::with_limits(profile, limits);
        Self {
            bed,
            naive,
            rng,
            bookings: Vec::new(),
            next: 0,
            what: String::new(),
            accepted: 0,
            ended: BTreeSet::new(),
        }
    }

    fn worker(&mut self) {
        let worker_id = self.rng.u64(1..5);
        let facts = WorkerFacts {
            worker_id,
            ranks: 0..self.rng.u32(1..3),
            max_num_batched_tokens: (self.rng.u8(0..8) > 0).then(|| self.rng.u64(0..120)),
            draining: self.rng.u8(0..6) == 0,
            taints: self.rng.bool().then(|| "t".to_owned()).into_iter().collect(),
            ..WorkerFacts::default()
        };
        // Ranks that go leave with their bookings first, as a partition does it.
        let known = self.naive.workers.get(&worker_id).map_or(0..0, |worker| worker.facts.ranks.clone());
        for dp_rank in known.filter(|rank| !facts.ranks.contains(rank)) {
            let gone = self.bed.load.remove_rank(WorkerWithDpRank::new(worker_id, dp_rank));
            self.bookings.retain(|(id, _, _)| !gone.contains(id));
        }
        let entry = self.naive.workers.entry(worker_id);
        let worker = entry.or_insert_with(|| Worker { facts: facts.clone(), tokens: BTreeMap::new() });
        worker.facts = facts.clone();
        worker.tokens.retain(|rank, _| facts.ranks.contains(rank));
        self.naive.advance();
        self.bed.worker(worker_id, |place| *place = facts);
    }

    fn remove_worker(&mut self) {
        let worker_id = self.rng.u64(1..5);
        self.naive.workers.remove(&worker_id);
        self.bookings.retain(|&(_, worker, _)| worker != worker_id);
        self.naive.advance();
        self.bed.remove_worker(worker_id);
    }

    fn arrive(&mut self) {
        self.next += 1;
        let id = self.next.to_string();
        let class_name = ["", "std", "x", "y", "z", "nobody"][self.rng.usize(0..6)].to_owned();
        let tokens = self.rng.u64(1..60);
        let cached = if self.rng.bool() { 0 } else { self.rng.u64(0..=tokens) };
        let steering = random_steering(&mut self.rng, self.bed.now);
        let deadline = steering.deadline_ms.map(|ms| Moment(self.bed.now.0 + ms * 1_000_000));
        let request = Waiting {
            id: id.clone(),
            class_name: class_name.clone(),
            steering: steering.clone(),
            tokens,
            cached,
            arrived: self.bed.now,
            number: self.next,
            deadline,
        };
        let class = self.naive.class_of(&request);
        let spec = self.naive.profile.classes[class].clone();
        let zero = [
            spec.request_queue_limit_per_worker,
            spec.raw_isl_token_queue_limit_per_worker,
            spec.cached_token_queue_limit_per_worker,
        ]
        .contains(&Some(0));
        let has_backlog = self.naive.totals(class).0 > 0;
        let direct = self.naive.workers.is_empty()
            || zero && !has_backlog && !self.naive.is_blocked(&spec, &steering)
            || zero && spec.prefill_busy_threshold.is_none() && spec.prefill_busy_threshold_frac.is_none();
        let expected = if direct {
            Ok(true)
        } else if let Some(kind) = self.naive.refuses(class, &steering) {
            Err(kind)
        } else {
            self.naive.waiting.push(request);
            match self.naive.next() {
                Some(gone) if gone.id == id => Ok(true),
                Some(gone) => {
                    self.naive.grant = Some((gone.id, None));
                    Ok(false)
                }
                None => Ok(false),
            }
        };
        let outcome = self.bed.arrive_with(&id, &class_name, tokens, cached, |place| *place = steering.clone());
        let outcome = outcome.map_err(|error| match error {
            SelectionError::QueueRejected(rejection) => rejection.limit_kind,
            other => panic!("{}: {other}", self.what),
        });
        assert_eq!(outcome, expected, "{}", self.what);
        self.accepted += usize::from(expected.is_ok());
        if expected == Ok(true) {
            self.ended.insert(id);
            let ranks = self.naive.ranks(&steering);
            self.decide(&ranks, tokens - cached);
        }
        self.naive.advance();
        self.bed.advance();
    }

    /// A request that goes books on the rank with the least tokens, or nothing when it only asks.
    fn decide(&mut self, ranks: &[(u64, u32)], tokens: u64) {
        if self.rng.u8(0..4) == 0 {
            return;
        }
        if let Some(&rank) = ranks.iter().min_by_key(|&&rank| (self.naive.tokens(rank), rank)) {
            self.book(rank, tokens);
        }
    }

    fn book(&mut self, (worker, rank): (u64, u32), tokens: u64) {
        let naive = self.naive.workers.get_mut(&worker).unwrap();
        naive.tokens.entry(rank).or_default().insert(self.bed.last_booking + 1, tokens);
        let id = self.bed.book(worker, rank, tokens);
        self.bookings.push((id, worker, rank));
    }

    /// Whoever has the grant decides, or gives up.
    fn settle(&mut self) {
        let Some(id) = self.bed.granted() else { return };
        let ticket = self.bed.tickets.remove(&id).unwrap();
        assert!(self.ended.insert(id.clone()), "{}: {id} goes twice", self.what);
        if self.naive.grant.as_ref().is_some_and(|(granted, _)| *granted == id) {
            self.naive.grant = None;
        }
        if self.rng.u8(0..5) == 0 {
            self.bed.queue.cancel(&ticket, Departure::Cancelled);
        } else {
            self.bed.queue.redeem(&ticket);
            let ranks = self.naive.ranks(&Steering::default());
            let tokens = self.rng.u64(0..40);
            self.decide(&ranks, tokens);
        }
        self.naive.advance();
        self.bed.advance();
    }

    fn complete(&mut self) {
        if self.bookings.is_empty() {
            return;
        }
        let (id, worker, rank) = self.bookings.swap_remove(self.rng.usize(0..self.bookings.len()));
        self.naive.workers.get_mut(&worker).unwrap().tokens.get_mut(&rank).unwrap().remove(&id.0);
        self.naive.advance();
        self.bed.complete(id);
    }

    fn bypass(&mut self) {
        let ranks = self.naive.ranks(&Steering::default());
        if !ranks.is_empty() {
            let (rank, tokens) = (ranks[self.rng.usize(0..ranks.len())], self.rng.u64(0..40));
            self.book(rank, tokens);
            self.naive.advance();
        }
    }

    fn cancel(&mut self) {
        let waiting = self.naive.waiting.len();
        if waiting == 0 {
            return;
        }
        let gone = self.naive.waiting.remove(self.rng.usize(0..waiting));
        self.naive.forget_empty();
        self.naive.advance();
        self.bed.cancel(&gone.id);
        self.ended.insert(gone.id);
    }

    fn tick(&mut self) {
        let millis = self.rng.u64(1..700);
        let before: BTreeSet<String> = self.naive.waiting.iter().map(|waiting| waiting.id.clone()).collect();
        self.naive.tick(Moment(self.bed.now.0 + millis * 1_000_000));
        self.bed.tick(millis);
        for id in before {
            if self.bed.state(&id) == State::Failed(SelectionError::DeadlineExceeded) {
                self.bed.tickets.remove(&id);
                assert!(self.ended.insert(id.clone()), "{}: {id} ends twice", self.what);
            }
        }
    }

    fn swap(&mut self) {
        let profile =
            if self.rng.u8(0..5) == 0 { Arc::clone(&self.naive.profile) } else { random_profile(&mut self.rng) };
        self.bed.queue.set_profile(Arc::clone(&profile), &mut self.bed.load);
        if *self.naive.profile != *profile {
            let of = |class: &PolicyClass| self.naive.profile.classes.iter().position(|old| old.name == class.name);
            let deficits = profile.classes.iter().map(|class| of(class).map_or(0, |at| self.naive.deficits[at]));
            self.naive.deficits = deficits.collect();
            (self.naive.profile, self.naive.cursor, self.naive.carry) = (profile, 0, None);
            self.naive.forget_empty();
        }
        self.naive.advance();
        self.bed.advance();
    }

    /// The queue and the model agree on everything.
    fn check(&self) {
        let Self { bed, naive, what, .. } = self;
        let granted: BTreeSet<_> = bed.tickets.keys().filter(|id| bed.state(id) == State::Granted).collect();
        if let Some((id, _)) = &naive.grant {
            assert!(granted.contains(id), "{what}: {id} should go, not {granted:?}");
        }
        let waiting: BTreeSet<_> = bed.tickets.keys().filter(|id| bed.state(id) == State::Waits).cloned().collect();
        let expected: BTreeSet<_> = naive.waiting.iter().map(|waiting| waiting.id.clone()).collect();
        assert_eq!(waiting, expected, "{what}");
        for (at, (class, share)) in bed.queue.classes.iter().zip(&bed.queue.shares).enumerate() {
            let totals = (class.waiting.requests, class.waiting.raw_tokens, class.waiting.cached_tokens);
            assert_eq!(totals, naive.totals(at), "{what}, class {at}");
            assert_eq!(share.deficit, naive.deficits[at], "{what}, class {at}");
            assert_eq!(class.lanes.len() as u64, totals.0, "{what}, class {at}");
            if naive.grant.is_none() && !naive.waiting.is_empty() {
                class.lanes.check(&bed.load, class.board);
            }
        }
        let lost = self.accepted - self.ended.len() - waiting.len() - granted.len();
        assert_eq!(lost, 0, "{what}: lost requests");
        for (&worker, facts) in &naive.workers {
            for rank in facts.facts.ranks.clone() {
                let slot = bed.load.slot(WorkerWithDpRank::new(worker, rank)).unwrap();
                assert_eq!(bed.load.load(slot, bed.now).prefill_tokens, naive.tokens((worker, rank)), "{what}");
            }
        }
    }

    fn step(&mut self) {
        match self.rng.u8(0..100) {
            0..35 => self.arrive(),
            35..60 => self.settle(),
            60..78 => self.complete(),
            78..82 => self.bypass(),
            82..87 => self.cancel(),
            87..91 => self.tick(),
            91..95 => self.worker(),
            95..97 => self.remove_worker(),
            _ => self.swap(),
        }
        self.check();
    }

    /// Everything that runs ends, and everybody who waits goes.
    fn drain(&mut self) {
        let mut rounds = 0;
        while !self.bed.tickets.is_empty() {
            while !self.bookings.is_empty() {
                self.complete();
            }
            assert!(self.bed.granted_any(), "{}: {:?} starve", self.what, self.naive.waiting);
            self.settle_any();
            self.check();
            rounds += 1;
            assert!(rounds < 10_000, "{}: no end", self.what);
        }
        assert_eq!((self.bed.queue.totals(), self.ended.len()), ((0, 0), self.accepted), "{}", self.what);
    }

    /// As [`Self::settle`], where a late grant may stand beside the one in force.
    fn settle_any(&mut self) {
        let late = self.bed.tickets.keys().find(|id| {
            self.bed.state(id) == State::Granted && self.naive.grant.as_ref().is_none_or(|(granted, _)| granted != *id)
        });
        match late.cloned() {
            Some(id) => {
                let ticket = self.bed.tickets.remove(&id).unwrap();
                self.bed.queue.redeem(&ticket);
                self.ended.insert(id);
                self.bed.advance();
            }
            None => self.settle(),
        }
    }
}

impl Bed {
    fn granted_any(&self) -> bool {
        self.tickets.keys().any(|id| self.state(id) == State::Granted)
    }
}

#[test]
fn it_goes_as_a_naive_queue_would() {
    let seeds = std::env::var("POINTSMAN_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(60);
    for seed in 0..seeds {
        let mut run = Run::new(seed);
        for step in 0..600 {
            run.what = format!("seed {seed}, step {step}");
            while run.bed.tickets.keys().filter(|id| run.bed.state(id) == State::Granted).count() > 1 {
                run.settle_any();
            }
            run.step();
        }
        run.what = format!("seed {seed}, end");
        run.drain();
    }
}
