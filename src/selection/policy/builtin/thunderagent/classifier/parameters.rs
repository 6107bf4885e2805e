//! Parameters of `thunderagent`'s classifier: defaults and checks.

use std::time::Duration;

use serde::Deserialize;

use crate::selection::policy::classifier::config::RequestClassifierProviderError;

/// As in the policy document; shares are of a worker's KV capacity.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Parameters {
    /// Share above which programs are paused.
    pub(super) pause_threshold: f64,
    /// Share down to which they are.
    pub(super) pause_target: f64,
    /// How far below the threshold a worker has to stay when a paused program goes on.
    pub(super) resume_hysteresis: f64,
    /// Longest pause.
    pub(super) resume_timeout_seconds: f64,
    /// Idle programs are forgotten after that.
    pub(super) session_retention_seconds: f64,
    /// Pause of the periodic look at all programs.
    pub(super) scheduler_interval_seconds: f64,
    /// Weight of a program's tokens when it begins to act.
    pub(super) acting_token_weight: f64,
    /// Time in which that weight falls to 1/e.
    pub(super) acting_decay_tau_seconds: f64,
    /// Tokens a program may grow by before the next look.
    pub(super) buffer_per_program: u64,
    /// Requests that run or wait; more pass unwatched.
    pub(super) max_tracked_requests: usize,
    /// Known, and refused when on.
    pub(super) shared_prefix_budget: bool,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            pause_threshold: 0.95,
            pause_target: 0.80,
            resume_hysteresis: 0.10,
            resume_timeout_seconds: 1800.0,
            session_retention_seconds: 1800.0,
            scheduler_interval_seconds: 5.0,
            acting_token_weight: 1.0,
            acting_decay_tau_seconds: 1.0,
            buffer_per_program: 100,
            max_tracked_requests: 10_000,
            shared_prefix_budget: false,
        }
    }
}

impl Parameters {
    pub(super) fn checked(self) -> Result<Self, RequestClassifierProviderError> {
        let refuse = |text: &str| Err(RequestClassifierProviderError::new(text));
        for (name, share) in [("pause_threshold", self.pause_threshold), ("pause_target", self.pause_target)] {
            if !(share > 0.0 && share <= 1.0) {
                return refuse(&format!("{name} must be above 0 and at most 1"));
            }
        }
        if self.pause_target > self.pause_threshold {
            return refuse("pause_target must not exceed pause_threshold");
        }
        if !(self.resume_hysteresis >= 0.0 && self.resume_hysteresis <= self.pause_threshold) {
            return refuse("resume_hysteresis must be between 0 and pause_threshold");
        }
        for (name, seconds) in [
            ("resume_timeout_seconds", self.resume_timeout_seconds),
            ("session_retention_seconds", self.session_retention_seconds),
            ("scheduler_interval_seconds", self.scheduler_interval_seconds),
            ("acting_decay_tau_seconds", self.acting_decay_tau_seconds),
        ] {
            let fits = Duration::try_from_secs_f64(seconds).is_ok_and(|duration| !duration.is_zero());
            if !fits {
                return refuse(&format!("{name} must be a positive number of seconds"));
            }
        }
        if !(self.acting_token_weight.is_finite() && self.acting_token_weight >= 0.0) {
            return refuse("acting_token_weight must be finite and non-negative");
        }
        if self.max_tracked_requests == 0 {
            return refuse("max_tracked_requests must be greater than zero");
        }
        if self.shared_prefix_budget {
            return refuse("shared_prefix_budget is not supported: a prefix that programs share counts for each");
        }
        Ok(self)
    }

    pub(super) fn resume_timeout(&self) -> Duration {
        duration(self.resume_timeout_seconds)
    }

    pub(super) fn retention(&self) -> Duration {
        duration(self.session_retention_seconds)
    }

    pub(super) fn interval(&self) -> Duration {
        duration(self.scheduler_interval_seconds)
    }

    /// Weight of a program's tokens after it has acted for `acting`.
    pub(super) fn acting_weight(&self, acting: Duration) -> f64 {
        self.acting_token_weight * (-acting.as_secs_f64() / self.acting_decay_tau_seconds).exp()
    }
}

/// What was checked to fit.
fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}
