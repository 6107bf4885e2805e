//! Pending selections: what a query decided, kept for a later booking.
