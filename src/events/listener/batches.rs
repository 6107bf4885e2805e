//! Applying one batch.

use std::cell::RefCell;

use super::{
    super::{
        counts::{DropReason, Tally},
        decode::Batch,
        normalise::{Buffers, EventTarget, apply},
    },
    Listener,
};
use crate::selection::ingest::Trust;

thread_local! {
    /// Buffers of this thread: applying never waits, so thousands of listeners share a few of them.
    static SCRATCH: RefCell<(Batch, Buffers)> = RefCell::default();
}

impl<T: EventTarget> Listener<T> {
    /// Takes batch `seq` into the index. The position moves first, so that a batch that makes applying panic is not met
    /// again when the listener restarts.
    pub(super) fn apply(&mut self, seq: u64, mark: u64, payload: &[u8]) {
        if seq == 0 && self.position.at().is_none() {
            // The stream is known from its beginning.
            self.inherited = false;
            self.set_trust(Trust::Complete);
        }
        self.position.advance(seq, mark);
        let mut tally = Tally::default();
        let outcome = SCRATCH.with_borrow_mut(|(batch, buffers)| {
            let mut stream = self.shared.stream.lock();
            stream.position = Some((seq, mark));
            batch.decode(payload)?;
            Ok(apply(batch, payload, &mut stream.memories, buffers, &self.target, &mut tally))
        });
        match outcome {
            Ok(applied) => {
                if applied.cleared {
                    self.inherited = false;
                    self.set_trust(Trust::Complete);
                }
                if applied.lost {
                    self.set_trust(Trust::Partial);
                }
            }
            Err(error) => {
                let error: super::super::decode::DecodeError = error;
                self.position.set_undecoded();
                self.set_trust(Trust::Partial);
                self.shared.set_error(format!("batch {seq}: {error}"));
                tally.drop(DropReason::UndecodableBatch, 1);
            }
        }
        self.shared.add(&tally);
    }
}
