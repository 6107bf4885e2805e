//! Discovery: sources of complete worker snapshots, and targets they are applied to.
