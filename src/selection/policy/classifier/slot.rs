//! The place of a partition's classifier.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::ClassifierHost;
use crate::selection::moment::Moment;

/// The classifier of a partition, once there is one. It retires with the partition.
#[derive(Debug, Default)]
pub struct ClassifierSlot(Mutex<Option<Arc<ClassifierHost>>>);

impl ClassifierSlot {
    /// The classifier, if one was made.
    pub fn get(&self) -> Option<Arc<ClassifierHost>> {
        self.0.lock().clone()
    }

    pub(in crate::selection) fn lock(&self) -> MutexGuard<'_, Option<Arc<ClassifierHost>>> {
        self.0.lock()
    }

    pub(in crate::selection) fn tick(&self, now: Moment) {
        if let Some(host) = self.get() {
            host.tick(now);
        }
    }
}

impl Drop for ClassifierSlot {
    fn drop(&mut self) {
        if let Some(host) = self.0.get_mut() {
            host.retire();
        }
    }
}
