//! Which programs go, wait and go on, by a clock that tests move.

use std::{
    sync::Arc,
    task::Waker,
    time::{Duration, Instant},
};

use super::{
    parameters::Parameters,
    programs::{Admission, Programs, Ticket, Turn},
};
use crate::selection::{
    identity::WorkerWithDpRank,
    policy::classifier::{
        context::RequestClassifierWorker,
        progress::{RequestProgress, RequestProgressUpdater},
    },
};

/// Workers of 1,000 tokens, in blocks of 10.
struct Bed {
    programs: Programs,
    workers: Vec<RequestClassifierWorker>,
    now: Instant,
    requests: u64,
}

/// A request that came.
struct Came {
    id: String,
    progress: RequestProgressUpdater,
    admission: Admission,
}

impl Came {
    fn ticket(&self) -> Ticket {
        match self.admission {
            Admission::Waits(ticket) => ticket,
            Admission::Now(target) => panic!("it went to {target:?}"),
        }
    }

    fn target(&self) -> Option<WorkerWithDpRank> {
        match self.admission {
            Admission::Now(target) => target,
            Admission::Waits(_) => panic!("it waits"),
        }
    }
}

fn at(worker_id: u64) -> WorkerWithDpRank {
    WorkerWithDpRank::new(worker_id, 0)
}

impl Bed {
    fn new(workers: u64, change: impl FnOnce(&mut Parameters)) -> Self {
        let mut parameters = Parameters { buffer_per_program: 0, ..Parameters::default() };
        change(&mut parameters);
        let parameters = Arc::new(parameters.checked().expect("they fit"));
        let now = Instant::now();
        let workers = (1..=workers).map(|id| RequestClassifierWorker::new(at(id), Some(100))).collect();
        Self { programs: Programs::new(parameters, 10, now), workers, now, requests: 0 }
    }

    fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }

    fn turn(&mut self, program: &str, input_tokens: usize, change: impl FnOnce(&mut Turn)) -> Came {
        self.requests += 1;
        let id = format!("{program}{}", self.requests);
        let (progress, updater) = RequestProgress::new(input_tokens);
        let request_id = id.clone();
        let program = program.into();
        let mut turn = Turn { program, request_id, progress, input_tokens, is_last: false, pinned: None };
        change(&mut turn);
        self.programs.measure(&self.workers, self.now);
        let admission = self.programs.arrive(turn, self.now);
        Came { id, progress: updater, admission }
    }

    /// A request comes, goes, and is sent to `worker`.
    fn runs(&mut self, program: &str, input_tokens: usize, worker: u64) -> Came {
        let came = self.turn(program, input_tokens, |_| {});
        came.target();
        self.programs.sent(&came.id, at(worker));
        came
    }

    fn ends(&mut self, came: &Came) {
        self.programs.ended(&came.id, None, self.now);
    }

    fn reconcile(&mut self) {
        self.programs.reconcile(&self.workers, self.now);
    }

    /// Where a request that waited goes, if it does.
    fn goes(&mut self, came: &Came) -> Option<Option<WorkerWithDpRank>> {
        self.programs.poll(came.ticket(), Waker::noop())
    }
}

#[test]
fn parameters_have_defaults_and_limits() {
    let read = |json: serde_json::Value| {
        serde_json::from_value::<Parameters>(json)
            .map_err(|error| error.to_string())
            .and_then(|parameters| parameters.checked().map_err(|error| error.to_string()))
    };
    let default = read(serde_json::json!({})).expect("all are optional");
    assert_eq!((default.pause_threshold, default.pause_target, default.resume_hysteresis), (0.95, 0.80, 0.10));
    assert_eq!((default.resume_timeout_seconds, default.session_retention_seconds), (1800.0, 1800.0));
    assert_eq!((default.scheduler_interval_seconds, default.buffer_per_program), (5.0, 100));
    assert_eq!((default.acting_token_weight, default.acting_decay_tau_seconds), (1.0, 1.0));
    assert_eq!(default.max_tracked_requests, 10_000);
    let refused = [
        (serde_json::json!({"pause_threshold": 1.5}), "pause_threshold must be above 0 and at most 1"),
        (serde_json::json!({"pause_target": 0.96}), "pause_target must not exceed pause_threshold"),
        (serde_json::json!({"resume_hysteresis": 0.96}), "resume_hysteresis must be between 0 and pause_threshold"),
        (serde_json::json!({"resume_hysteresis": -0.1}), "resume_hysteresis must be between 0 and pause_threshold"),
        (
            serde_json::json!({"resume_timeout_seconds": 0}),
            "resume_timeout_seconds must be a positive number of seconds",
        ),
        (
            serde_json::json!({"scheduler_interval_seconds": 1e300}),
            "scheduler_interval_seconds must be a positive number of seconds",
        ),
        (
            serde_json::json!({"acting_decay_tau_seconds": -1}),
            "acting_decay_tau_seconds must be a positive number of seconds",
        ),
        (serde_json::json!({"acting_token_weight": -1}), "acting_token_weight must be finite and non-negative"),
        (serde_json::json!({"max_tracked_requests": 0}), "max_tracked_requests must be greater than zero"),
        (
            serde_json::json!({"shared_prefix_budget": true}),
            "shared_prefix_budget is not supported: a prefix that programs share counts for each",
        ),
    ];
    for (json, text) in refused {
        assert_eq!(read(json), Err(text.to_owned()));
    }
    assert!(read(serde_json::json!({"pause": 1})).expect_err("no such parameter").contains("unknown field `pause`"));
}

#[test]
fn programs_go_anywhere_while_there_is_room_everywhere_and_stay_where_they_are() {
    let mut bed = Bed::new(2, |_| {});
    assert_eq!(bed.turn("a", 400, |_| {}).target(), None);
    bed.programs.sent("a1", at(2));
    bed.programs.ended("a1", Some(450), bed.now);
    bed.pass(3);
    assert_eq!(bed.turn("a", 500, |_| {}).target(), Some(at(2)));
    // A second request of a program that runs goes along.
    assert_eq!(bed.turn("a", 900, |_| {}).target(), Some(at(2)));
}

#[test]
fn a_new_program_goes_where_there_is_room_or_waits() {
    let mut bed = Bed::new(2, |_| {});
    let a = bed.runs("a", 900, 1);
    assert_eq!(bed.turn("b", 100, |_| {}).target(), Some(at(2)), "worker 1 has no room for it");
    bed.programs.sent("b2", at(2));
    let c = bed.turn("c", 900, |_| {});
    assert_eq!(bed.goes(&c), None);
    bed.reconcile();
    assert_eq!(bed.goes(&c), None, "nothing changed");
    bed.ends(&a);
    bed.reconcile();
    assert_eq!(bed.goes(&c), Some(Some(at(1))), "a acts, and makes room or is paused");
}

#[test]
fn full_workers_pause_programs_down_to_the_target() {
    let mut bed = Bed::new(1, |_| {});
    let (a, b, c) = (bed.runs("a", 400, 1), bed.runs("b", 300, 1), bed.runs("c", 100, 1));
    a.progress.update_context_tokens(600);
    // 1,000 of 1,000: the largest goes, 400 remain.
    bed.reconcile();
    bed.ends(&a);
    bed.ends(&c);
    bed.pass(10);
    let a = bed.turn("a", 620, |_| {});
    bed.reconcile();
    assert_eq!(bed.goes(&a), None, "300 and 620 are below the threshold, and not far enough for what was paused");
    let again = bed.turn("b", 310, |_| {});
    assert_eq!(again.target(), Some(at(1)), "b was not paused");
    bed.ends(&again);
    bed.ends(&b);
    bed.reconcile();
    assert_eq!(bed.goes(&a), Some(Some(at(1))), "nothing runs any more");
}

#[test]
fn acting_programs_are_paused_first() {
    let mut bed = Bed::new(1, |_| {});
    let (a, b) = (bed.runs("a", 500, 1), bed.runs("b", 400, 1));
    bed.ends(&b);
    a.progress.update_context_tokens(580);
    bed.reconcile();
    let again = bed.turn("a", 580, |_| {});
    assert_eq!(again.target(), Some(at(1)), "the larger one was not paused");
    let b = bed.turn("b", 410, |_| {});
    assert_eq!(bed.goes(&b), None, "the acting one was");
    bed.ends(&again);
    bed.ends(&a);
    bed.pass(10);
    bed.turn("a", 600, |_| {}).ticket();
    bed.reconcile();
    assert_eq!(bed.goes(&b), Some(Some(at(1))), "b is ahead");
}

#[test]
fn what_acts_counts_less_and_less() {
    let mut bed = Bed::new(1, |parameters| parameters.acting_decay_tau_seconds = 10.0);
    let (a, b) = (bed.runs("a", 600, 1), bed.runs("b", 100, 1));
    bed.ends(&a);
    let c = bed.turn("c", 400, |_| {});
    assert_eq!(bed.goes(&c), None, "600, 100 and 400 are too many");
    // 600 / e^0.6 = 329.
    bed.pass(6);
    bed.reconcile();
    assert!(bed.goes(&c).is_some());
    bed.ends(&b);
}

#[test]
fn a_paused_program_may_go_on_elsewhere() {
    let mut bed = Bed::new(2, |_| {});
    let (a, b) = (bed.runs("a", 500, 1), bed.runs("b", 400, 1));
    bed.ends(&b);
    a.progress.update_context_tokens(580);
    bed.reconcile();
    assert_eq!(bed.turn("b", 410, |_| {}).target(), Some(at(2)), "worker 2 is empty");
}

#[test]
fn a_pause_ends_after_its_time_even_when_nothing_is_free() {
    let mut bed = Bed::new(1, |parameters| parameters.resume_timeout_seconds = 60.0);
    let _a = bed.runs("a", 900, 1);
    let b = bed.turn("b", 500, |_| {});
    bed.pass(59);
    bed.reconcile();
    assert_eq!(bed.goes(&b), None);
    bed.pass(1);
    assert!(bed.programs.is_due(bed.now));
    bed.reconcile();
    assert_eq!(bed.goes(&b), Some(Some(at(1))));
}

#[test]
fn who_waits_goes_in_order_and_one_that_is_too_large_holds_up_nobody() {
    let mut bed = Bed::new(1, |_| {});
    let (a, _b) = (bed.runs("a", 500, 1), bed.runs("b", 400, 1));
    let large = bed.turn("large", 900, |_| {});
    let (small, tiny) = (bed.turn("small", 300, |_| {}), bed.turn("tiny", 10, |_| {}));
    assert!(small.ticket() < tiny.ticket(), "tiny would fit, and waits its turn");
    bed.ends(&a);
    bed.pass(10);
    bed.reconcile();
    assert_eq!((bed.goes(&large), bed.goes(&small).is_some(), bed.goes(&tiny).is_some()), (None, true, true));
}

#[test]
fn who_leaves_is_forgotten_and_pins_pass() {
    let mut bed = Bed::new(1, |_| {});
    let a = bed.runs("a", 900, 1);
    let waits = bed.turn("b", 500, |_| {});
    assert_eq!(bed.turn("c", 500, |turn| turn.pinned = Some(at(1))).target(), Some(at(1)));
    bed.programs.leave(waits.ticket());
    bed.programs.ended("c3", None, bed.now);
    bed.ends(&a);
    bed.pass(1_800);
    bed.reconcile();
    assert_eq!(bed.programs.size(), (0, 0, 0));
}

#[test]
fn a_session_that_says_it_is_over_is_forgotten_with_its_last_request() {
    let mut bed = Bed::new(1, |_| {});
    let a = bed.turn("a", 100, |turn| turn.is_last = true);
    assert_eq!(bed.programs.size(), (1, 1, 0));
    bed.ends(&a);
    assert_eq!(bed.programs.size(), (0, 0, 0));
}

#[test]
fn requests_beyond_the_limit_pass_unwatched() {
    let mut bed = Bed::new(1, |parameters| parameters.max_tracked_requests = 2);
    let _a = bed.runs("a", 900, 1);
    let _b = bed.turn("b", 500, |_| {});
    assert_eq!(bed.turn("c", 500, |_| {}).target(), None);
    assert_eq!(bed.programs.size(), (2, 1, 1));
}

#[test]
fn workers_that_state_no_size_are_never_full() {
    let mut bed = Bed::new(1, |_| {});
    bed.workers = vec![RequestClassifierWorker::new(at(1), None)];
    for program in ["a", "b", "c"] {
        bed.runs(program, 1 << 40, 1);
    }
    bed.reconcile();
    assert_eq!(bed.turn("a", 1 << 41, |_| {}).target(), Some(at(1)));
}
