//! The task of one selector: when it is looked at, and when a pass that failed is tried again.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{Board, Facts, Look, Outcome, Plan, Wire, WiringStatus};
use crate::discovery::apply::ApplyOptions;

/// Least time between two looks, however often other selectors tell something new.
const LEAST_PAUSE: Duration = Duration::from_millis(200);

/// Keeps `wire` wired until `stop`.
pub async fn run(
    wire: Wire,
    board: Arc<Board>,
    options: ApplyOptions,
    status: watch::Sender<WiringStatus>,
    stop: CancellationToken,
) {
    let mut news = board.subscribe();
    let mut driver = Driver { wire, board, options, failed: None };
    loop {
        let started = Instant::now();
        tokio::select! {
            // A pass that is cut short is safe: every one starts from what the selector says it has.
            () = driver.round(&mut news, &status) => {}
            () = stop.cancelled() => return,
        }
        // From its end: looks at a slow selector must not follow each other without a pause.
        let next = Instant::now() + options.check;
        let wake = async {
            tokio::select! {
                () = sleep_until(next) => {}
                // The board outlives its tasks.
                _ = news.changed() => sleep_until(started + LEAST_PAUSE).await,
            }
        };
        tokio::select! {
            () = wake => {}
            () = stop.cancelled() => return,
        }
    }
}

/// A pass that failed.
struct Failed {
    plan: Plan,
    problems: Vec<(String, String)>,
    error: String,
    retry_at: Instant,
}

struct Driver {
    wire: Wire,
    board: Arc<Board>,
    options: ApplyOptions,
    failed: Option<Failed>,
}

impl Driver {
    async fn round(&mut self, news: &mut watch::Receiver<Vec<super::Member>>, status: &watch::Sender<WiringStatus>) {
        let (look, facts) = match self.wire.look().await {
            Ok(found) => found,
            Err(error) => return self.tell_failure(&error.to_string(), status),
        };
        self.board.tell(self.wire.name(), facts.clone());
        let members = news.borrow_and_update().clone();
        match self.wire.plan(&members, &look).await {
            Ok(plan) => self.pursue(look, &facts, plan, status).await,
            Err(error) => self.tell_failure(&error.to_string(), status),
        }
    }

    async fn pursue(&mut self, look: Look, facts: &Facts, plan: Plan, status: &watch::Sender<WiringStatus>) {
        let mut outcome = Outcome::default();
        let waits = self.failed.as_ref().is_some_and(|f| f.plan == plan && Instant::now() < f.retry_at);
        if !waits {
            let done =
                if plan.has_work() { self.wire.apply(&plan, &mut outcome).await } else { self.wire.track(&plan).await };
            self.failed = done.err().map(|error| {
                tracing::warn!(selector = self.wire.name(), %error, reason = error.reason(), "peers not wired");
                Failed {
                    plan: plan.clone(),
                    problems: outcome.problems.clone(),
                    error: error.to_string(),
                    retry_at: Instant::now() + self.options.retry,
                }
            });
        }
        let failed_now = !waits && self.failed.is_some();
        let left = remaining(plan, &outcome);
        status.send_modify(|s| {
            if s.look.as_ref().map(|l| l.sync) != Some(look.sync) {
                tracing::info!(selector = self.wire.name(), replica_sync = ?look.sync, publisher = facts.publisher, "asked");
            }
            if s.plan.same_as != left.same_as && !left.same_as.is_empty() {
                let others = left.same_as.join(" ");
                tracing::warn!(selector = self.wire.name(), others, "addresses of one selector: wired once");
            }
            if s.plan.clashes != left.clashes && !left.clashes.is_empty() {
                let (publisher, others) = (&facts.publisher, left.clashes.join(" "));
                tracing::error!(
                    selector = self.wire.name(),
                    publisher,
                    others,
                    "these publish at one address: name the right ones after a comma in --selector"
                );
            }
            s.registered += outcome.registered.len() as u64;
            s.deregistered += outcome.deregistered.len() as u64;
            s.failures += u64::from(failed_now);
            s.look = Some(look);
            s.away = false;
            s.publisher = Some(facts.publisher.clone());
            s.plan = left;
            s.error = self.failed.as_ref().map(|f| f.error.clone());
            s.problems = self.failed.as_ref().map(|f| f.problems.clone()).unwrap_or_default();
            if s.state().is_settled() {
                s.last_success = Some(Instant::now());
            }
        });
    }

    fn tell_failure(&self, error: &str, status: &watch::Sender<WiringStatus>) {
        status.send_modify(|s| {
            if !s.away {
                tracing::warn!(selector = self.wire.name(), error, "cannot ask for peers");
            }
            s.away = true;
            s.error = Some(error.to_owned());
            s.problems.clear();
            s.failures += 1;
        });
    }
}

/// What is left of `plan` after `outcome`; the next look tells whether that is true.
pub(super) fn remaining(mut plan: Plan, outcome: &Outcome) -> Plan {
    let (done, left) = plan.register.into_iter().partition(|(e, _)| outcome.registered.contains(e));
    plan.register = left;
    let mut done: Vec<_> = done;
    plan.registered.append(&mut done);
    plan.deregister.retain(|e| !outcome.deregistered.contains(e));
    plan
}
