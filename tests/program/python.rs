//! The Python that has the reference.
//!
//! `POINTSMAN_REFERENCE` names a Python that has it; otherwise the one that `tests/setup/reference.sh` installs is taken.
//! A test that needs it fails where it is missing: it is a peer to prove compatibility against, not an extra.

use std::path::PathBuf;

/// Version that `tests/setup/reference.sh` installs.
const VERSION: &str = "1.6.1";

/// The Python that has the reference.
pub fn python() -> PathBuf {
    if let Some(named) = std::env::var_os("POINTSMAN_REFERENCE") {
        return named.into();
    }
    let cache = std::env::var_os("POINTSMAN_CACHE").map(PathBuf::from);
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache/pointsman");
    let python = cache.unwrap_or_else(home).join(format!("reference-{VERSION}/bin/python"));
    assert!(python.exists(), "no reference at {}: tests/setup/reference.sh installs it", python.display());
    python
}
