//! `thunderagent`: routing for fleets of agents (spec plugins 8.1).

pub(super) mod classifier;
