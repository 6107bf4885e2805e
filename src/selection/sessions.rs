//! Session affinity: which rank a session is bound to.
