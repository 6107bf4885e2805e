//! The queue in front of the pick: whether a request may be decided now.
//!
//! The threshold parses and makes `max_num_batched_tokens` a requirement; classes, order and limits are the policies
//! module's next step. [`Admission`] is the seam.

/// The one place every non-advisory selection passes before its pick.
#[derive(Debug, Default)]
pub struct Admission {}

impl Admission {
    /// Requests and prompt tokens that wait.
    pub fn waiting(&self) -> (u64, u64) {
        (0, 0)
    }
}
