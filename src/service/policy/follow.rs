//! Follows the document's file.

use std::{path::PathBuf, sync::Arc};

use super::{Policies, PolicyReloadError};
use crate::{
    selection::{
        SelectionCore,
        policy::document::{DocumentError, MAX_DOCUMENT_BYTES},
    },
    service::file::{self, Pace, Reader, Seen, StopHandle},
};

/// Starts to follow the file that the policies are from, until the handle is dropped; `None` when there is none or it is
/// not to be followed.
///
/// # Errors
/// The system gives no thread.
pub(in crate::service) fn follow(
    policies: &Arc<Policies>,
    core: &Arc<SelectionCore>,
) -> std::io::Result<Option<StopHandle>> {
    let Some((name, text)) = policies.watched_file() else { return Ok(None) };
    // What changed since it was read at start is news.
    let reader = Reader::new(PathBuf::from(&name), Pace::default(), MAX_DOCUMENT_BYTES).knows(text.as_bytes());
    let (policies, core) = (Arc::clone(policies), Arc::downgrade(core));
    // Why the content of the last reading was refused.
    let mut refusal = None;
    file::follow("policy-file", reader, move |seen| {
        let Some(core) = core.upgrade() else { return };
        let whole = |outcome, reason: String| {
            PolicyReloadError::whole(outcome, format!("failed to read router policy config {name}: {reason}"))
        };
        match seen {
            Seen::Changed(bytes) => {
                refusal = match String::from_utf8(bytes) {
                    Ok(text) => policies.reload(&core, &text).err(),
                    Err(error) => {
                        let error = whole("syntax", format!("not UTF-8: {error}"));
                        policies.refuse(error.clone());
                        Some(error)
                    }
                };
            }
            // As ever; but something else may have been told in between.
            Seen::Same => match &refusal {
                Some(error) => policies.refuse(error.clone()),
                None => policies.confirm(),
            },
            Seen::TooLarge => {
                let error = PolicyReloadError::whole("too_large", DocumentError::too_large().in_file(&name));
                policies.refuse(error.clone());
                refusal = Some(error);
            }
            Seen::Lost(error) => policies.refuse(whole("unreadable", error.to_string())),
        }
    })
    .map(Some)
}
