//! The queue in front of the pick: whether a request may be decided now.
//!
//! The threshold parses and makes `max_num_batched_tokens` a requirement; classes, order and limits are the policies
//! module's next step. [`Admission`] is the seam.

pub mod profile;

use super::{
    error::SelectionError,
    moment::{Clock, Moment},
};

/// The one place every non-advisory selection passes before its pick.
#[derive(Debug, Default)]
pub struct Admission {}

impl Admission {
    /// Lets a request through once it may be decided.
    ///
    /// # Errors
    /// 429 when `deadline` has passed.
    pub async fn pass(&self, deadline: Option<Moment>, clock: &dyn Clock) -> Result<(), SelectionError> {
        match deadline {
            Some(deadline) if clock.now() >= deadline => Err(SelectionError::DeadlineExceeded),
            _ => Ok(()),
        }
    }

    /// Requests and prompt tokens that wait.
    pub fn waiting(&self) -> (u64, u64) {
        (0, 0)
    }
}
