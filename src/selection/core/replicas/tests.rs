//! Events of other replicas, and taking over their state.
