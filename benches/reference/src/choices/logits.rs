//! Costs of the reference: it writes the cost of the worker it chose into its log, as a number, and nowhere else.

use std::cell::Cell;

use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
    span::{Attributes, Id, Record},
};

/// Where it logs selections.
const TARGET: &str = "dynamo_kv_router::scheduling::selector";

thread_local! {
    /// The last one of this thread: the runtime has one, which the caller drives.
    static LAST: Cell<Option<f64>> = const { Cell::new(None) };
}

/// Reads the log of this process from now on.
///
/// # Panics
/// Somebody reads it already.
pub fn listen() {
    tracing::subscriber::set_global_default(Listener).expect("nobody else reads the log");
}

/// The cost of the worker chosen since the last call.
pub fn take() -> Option<f64> {
    LAST.take()
}

struct Listener;

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= Level::INFO && metadata.target() == TARGET
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::INFO)
    }

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Logit);
    }

    // Spans are not enabled.
    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

struct Logit;

impl Visit for Logit {
    fn record_f64(&mut self, field: &Field, value: f64) {
        if field.name() == "logit" {
            LAST.set(Some(value));
        }
    }

    fn record_debug(&mut self, _field: &Field, _value: &dyn std::fmt::Debug) {}
}
