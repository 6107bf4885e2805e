//! What happened to classifications and events, counted by outcome.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::selection::policy::failures::one_more;

/// How one call for a classification ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum ClassifyOutcome {
    /// The classifier answered.
    Classified,
    /// An earlier answer for the same request served again.
    Reused,
    /// It answered with an error.
    Error,
    /// It panicked, or its factory did.
    Panic,
    /// It handed back another request.
    Replaced,
    /// It set something that cannot be.
    Invalid,
    /// It did not answer in time.
    TimedOut,
    /// The request's deadline passed while it waited.
    Deadline,
    /// The request ended meanwhile.
    Ended,
    /// Its caller left.
    Cancelled,
    /// As many requests are tracked as may be.
    Full,
    /// The service is going down.
    Shutdown,
}

impl ClassifyOutcome {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Classified,
        Self::Reused,
        Self::Error,
        Self::Panic,
        Self::Replaced,
        Self::Invalid,
        Self::TimedOut,
        Self::Deadline,
        Self::Ended,
        Self::Cancelled,
        Self::Full,
        Self::Shutdown,
    ];

    /// A stable word for metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Classified => "classified",
            Self::Reused => "reused",
            Self::Error => "error",
            Self::Panic => "panic",
            Self::Replaced => "replaced",
            Self::Invalid => "invalid",
            Self::TimedOut => "timed_out",
            Self::Deadline => "deadline",
            Self::Ended => "ended",
            Self::Cancelled => "cancelled",
            Self::Full => "full",
            Self::Shutdown => "shutdown",
        }
    }
}

/// What became of one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum EventOutcome {
    /// The classifier heard it.
    Delivered,
    /// The classifier panicked over it.
    Panicked,
    /// The classifier took too long over it and was interrupted.
    TimedOut,
    /// As many events wait as may be; never a last one.
    DroppedFull,
    /// The service went down before it was delivered.
    DroppedShutdown,
}

impl EventOutcome {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Delivered, Self::Panicked, Self::TimedOut, Self::DroppedFull, Self::DroppedShutdown];

    /// A stable word for metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Panicked => "panicked",
            Self::TimedOut => "timed_out",
            Self::DroppedFull => "dropped_full",
            Self::DroppedShutdown => "dropped_shutdown",
        }
    }
}

/// Counts of all classifiers of a core.
#[derive(Debug, Default)]
pub struct ClassifierCounts {
    classifications: [AtomicU64; ClassifyOutcome::ALL.len()],
    events: [AtomicU64; EventOutcome::ALL.len()],
    tick_panics: AtomicU64,
}

impl ClassifierCounts {
    /// Calls that ended so.
    pub fn classifications(&self, outcome: ClassifyOutcome) -> u64 {
        self.classifications[outcome as usize].load(Ordering::Relaxed)
    }

    /// Events that went so.
    pub fn events(&self, outcome: EventOutcome) -> u64 {
        self.events[outcome as usize].load(Ordering::Relaxed)
    }

    /// Panics in [`super::RequestClassifier::on_tick`].
    pub fn tick_panics(&self) -> u64 {
        self.tick_panics.load(Ordering::Relaxed)
    }

    /// Counts a call; how many ended so by now.
    pub(in crate::selection) fn count(&self, outcome: ClassifyOutcome) -> u64 {
        one_more(&self.classifications[outcome as usize])
    }

    /// Counts an event; how many went so by now.
    pub(super) fn count_event(&self, outcome: EventOutcome) -> u64 {
        one_more(&self.events[outcome as usize])
    }

    pub(super) fn count_events(&self, outcome: EventOutcome, number: usize) {
        self.events[outcome as usize].fetch_add(number as u64, Ordering::Relaxed);
    }

    pub(super) fn count_tick_panic(&self) -> u64 {
        one_more(&self.tick_panics)
    }
}
