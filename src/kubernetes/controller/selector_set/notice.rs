//! What a person should hear of once, as Kubernetes Events: problems when they appear, not at every pass.

use std::collections::{BTreeSet, HashMap};

use kube::runtime::events::{Event, EventType};
use parking_lot::Mutex;

/// Longest text of an Event, in bytes; the apiserver's limit is 1024.
const MAX_NOTE: usize = 1000;

/// One Event about a SelectorSet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Notice {
    /// Something is wrong.
    pub is_warning: bool,
    /// One of [`crate::kubernetes::api::constants::reason`] or [`crate::kubernetes::api::constants::event`].
    pub reason: &'static str,
    /// What the operator was doing.
    pub action: &'static str,
    /// For a person, at most 1,000 bytes.
    pub note: String,
}

impl Notice {
    /// A problem.
    pub fn warning(reason: &'static str, action: &'static str, note: impl Into<String>) -> Self {
        Self { is_warning: true, reason, action, note: cut(note.into()) }
    }

    /// Something that happened.
    pub fn normal(reason: &'static str, action: &'static str, note: impl Into<String>) -> Self {
        Self { is_warning: false, reason, action, note: cut(note.into()) }
    }

    /// As the recorder takes it.
    pub fn into_event(self) -> Event {
        Event {
            type_: if self.is_warning { EventType::Warning } else { EventType::Normal },
            reason: self.reason.to_owned(),
            note: Some(self.note),
            action: self.action.to_owned(),
            secondary: None,
        }
    }
}

fn cut(mut note: String) -> String {
    if note.len() > MAX_NOTE {
        note.truncate(note.floor_char_boundary(MAX_NOTE - 3));
        note.push_str("...");
    }
    note
}

/// The problems of every set that were told.
#[derive(Debug, Default)]
pub struct Told(Mutex<HashMap<(String, String), BTreeSet<Notice>>>);

impl Told {
    /// Those of `problems` that were not there at the last pass over the set. What is gone may be told again.
    pub fn news(&self, namespace: &str, set: &str, problems: Vec<Notice>) -> Vec<Notice> {
        let mut told = self.0.lock();
        let known = told.entry((namespace.to_owned(), set.to_owned())).or_default();
        let news = problems.iter().filter(|problem| !known.contains(problem)).cloned().collect();
        *known = problems.into_iter().collect();
        news
    }

    /// Forgets a set that is gone.
    pub fn forget(&self, namespace: &str, set: &str) {
        self.0.lock().remove(&(namespace.to_owned(), set.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_told_when_it_appears() {
        let told = Told::default();
        let problem = || vec![Notice::warning("NameConflict", "Apply", "Service fleet")];
        assert_eq!(told.news("ns", "fleet", problem()).len(), 1);
        assert_eq!(told.news("ns", "fleet", problem()).len(), 0);
        assert_eq!(told.news("ns", "other", problem()).len(), 1);
        assert_eq!(told.news("ns", "fleet", vec![]).len(), 0);
        assert_eq!(told.news("ns", "fleet", problem()).len(), 1);
    }

    #[test]
    fn long_texts_are_cut_between_letters() {
        let notice = Notice::normal("R", "A", "\u{e4}".repeat(1000));
        assert!(notice.note.len() <= MAX_NOTE && notice.note.ends_with("..."));
    }
}
