//! Why a verb failed, one variant a kind, so that an edge can map kinds to statuses without reading texts; and why
//! settings are refused.

/// Queue limits of a policy class that refused a request.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct QueueRejection {
    /// The class.
    pub policy_class: String,
    /// `requests`, `raw_isl_tokens` or `cached_tokens`.
    pub limit_kind: &'static str,
    /// What waits now.
    pub current: u64,
    /// The limit.
    pub limit: u64,
}

/// Why a verb failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectionError {
    /// The request itself is wrong (400).
    #[error("{0}")]
    BadRequest(String),
    /// What it names is not there (404).
    #[error("{0}")]
    NotFound(String),
    /// It collides with what is there (409).
    #[error("{0}")]
    Conflict(String),
    /// Only overload excludes the candidates (429).
    #[error("{0}")]
    Overloaded(String),
    /// The class's queue is full (429).
    #[error("router policy class \"{}\" queue {} limit reached (current={}, limit={})", .0.policy_class, .0.limit_kind, .0.current, .0.limit)]
    QueueRejected(QueueRejection),
    /// The deadline passed (429).
    #[error("request deadline exceeded")]
    DeadlineExceeded,
    /// A policy or this service failed (500).
    #[error("{0}")]
    Internal(String),
    /// The request classifier failed (500). The text is for hosts and logs; over HTTP it is hidden.
    #[error("{0}")]
    Classifier(String),
    /// Nobody can take the request now (503).
    #[error("{0}")]
    Unavailable(String),
}

impl SelectionError {
    /// A stable word for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::BadRequest(_) => "bad_request",
            Self::NotFound(_) => "not_found",
            Self::Conflict(_) => "conflict",
            Self::Overloaded(_) => "overloaded",
            Self::QueueRejected(_) => "queue_rejected",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::Internal(_) => "internal",
            Self::Classifier(_) => "request_classifier",
            Self::Unavailable(_) => "unavailable",
        }
    }
}

/// A setting out of its range; the text names it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);
