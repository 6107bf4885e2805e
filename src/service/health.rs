//! Whether the service is alive, and whether requests should come.

use serde::Serialize;

use super::{RecoveryReport, SelectionService};

/// Whether the process does its work; a restart is the cure when not.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct LivenessReport {
    /// All is well.
    pub live: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
}

/// Whether requests should be sent here.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct ReadinessReport {
    /// They should.
    pub ready: bool,
    /// Required conditions that do not hold yet.
    pub missing: Vec<&'static str>,
    /// The service is going down.
    pub shutting_down: bool,
    /// Why the service is not alive, which makes it not ready.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
    /// How start-up recovery ended; absent while it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recovery: Option<RecoveryReport>,
}

impl SelectionService {
    /// Whether the core does its periodic work and all background tasks run.
    pub fn liveness(&self) -> LivenessReport {
        let shared = &self.shared;
        let mut reasons: Vec<String> =
            shared.tasks.dead().into_iter().map(|name| format!("background task {name} ended")).collect();
        let age = shared.ticked.age();
        if age > shared.config.stuck_after {
            reasons.push(format!("periodic work has not completed for {} s", age.as_secs()));
        }
        LivenessReport { live: reasons.is_empty(), reasons }
    }

    /// Whether the service is alive, not going down, and all required conditions hold.
    pub fn readiness(&self) -> ReadinessReport {
        let shared = &self.shared;
        let missing: Vec<_> = shared.readiness.missing().into_iter().map(|condition| condition.name()).collect();
        let shutting_down = shared.readiness.is_shutting_down();
        let LivenessReport { live, reasons } = self.liveness();
        ReadinessReport {
            ready: live && missing.is_empty() && !shutting_down,
            missing,
            shutting_down,
            reasons,
            recovery: shared.recovery.borrow().clone(),
        }
    }

    /// Whether a selection can be made at all: alive, not going down, recovered, and a partition somewhere has a
    /// schedulable worker and selects without panics (`GET /ready`).
    pub fn can_select(&self) -> bool {
        !self.shared.readiness.is_shutting_down()
            && self.is_recovered()
            && self.shared.core.can_select()
            && self.liveness().live
    }
}
