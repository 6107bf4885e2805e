//! What plugins did wrong, counted by component.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicU64, Ordering},
};

/// A kind of plugin code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PluginComponent {
    /// Drops candidates.
    Filter,
    /// Adds costs.
    Scorer,
    /// Names the row.
    Picker,
    /// Makes policies.
    Factory,
    /// Makes factories, at start and at reload.
    Provider,
}

impl PluginComponent {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Filter, Self::Scorer, Self::Picker, Self::Factory, Self::Provider];

    /// A stable word for metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Scorer => "scorer",
            Self::Picker => "picker",
            Self::Factory => "factory",
            Self::Provider => "provider",
        }
    }
}

/// Counts errors and panics of plugins, of one core.
#[derive(Debug, Default)]
pub struct PluginFailures {
    errors: [AtomicU64; PluginComponent::ALL.len()],
    panics: [AtomicU64; PluginComponent::ALL.len()],
}

impl PluginFailures {
    /// Errors so far, wrong costs and rows included.
    pub fn errors(&self, component: PluginComponent) -> u64 {
        self.errors[component as usize].load(Ordering::Relaxed)
    }

    /// Panics so far.
    pub fn panics(&self, component: PluginComponent) -> u64 {
        self.panics[component as usize].load(Ordering::Relaxed)
    }

    /// Counts an error; how many there are now.
    pub fn count_error(&self, component: PluginComponent) -> u64 {
        one_more(&self.errors[component as usize])
    }

    /// Counts a panic; how many there are now.
    pub fn count_panic(&self, component: PluginComponent) -> u64 {
        one_more(&self.panics[component as usize])
    }
}

/// Counts one more; how many there are now.
pub(in crate::selection) fn one_more(count: &AtomicU64) -> u64 {
    count.fetch_add(1, Ordering::Relaxed).saturating_add(1)
}

/// Whether to log what happened for the `times`th time: a plugin that fails always would write a line a request. The
/// metrics count each.
pub(in crate::selection) fn is_worth_a_line(times: u64) -> bool {
    times.is_power_of_two()
}

/// Runs plugin code.
///
/// # Errors
/// What its panic said.
pub(in crate::selection) fn contained<R>(run: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| panic_text(&*panic).to_owned())
}

/// What a panic said.
pub(in crate::selection) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_at_every_request_is_told_ever_less_often() {
        let count = AtomicU64::new(0);
        let told: Vec<u64> = (0..100_000).map(|_| one_more(&count)).filter(|&times| is_worth_a_line(times)).collect();
        assert_eq!(told.len(), 17, "{told:?}");
        assert_eq!(told[..4], [1, 2, 4, 8]);
    }
}
