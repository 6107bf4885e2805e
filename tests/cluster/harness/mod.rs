//! What a trial on the test cluster needs: the cluster and its processes, a namespace of its own, faults, a client that
//! books, and the apiserver's audit log.
//!
//! Everything panics with what it saw: a trial is a function that returns when all went well. Whatever a trial makes is
//! removed by the guard that made it, and a failed trial leaves logs, events and objects in a folder that its failure names.
#![allow(dead_code, unused_imports, reason = "trials use what they need of it")]
#![allow(clippy::unwrap_used, reason = "a trial that cannot go on fails")]

mod agreement;
mod audit;
mod booking;
mod cluster;
mod command;
mod evidence;
mod faults;
mod fleet;
mod http;
pub mod manifests;
mod names;
mod namespace;
mod operator;
mod trials;
mod wait;

pub use self::{
    agreement::Agreement,
    audit::{AuditLog, Request, Requests},
    booking::{Booker, BookingLoad, Failure, Report},
    cluster::{Cluster, Component},
    faults::{Cordon, Cut, kill_container, reaches, reset_container},
    fleet::{Fleet, Known, Workers, condition, id_at, pool, selector_set},
    http::{Answer, call},
    names::{CLUSTER_DNS, resolve},
    namespace::{HelmRelease, Namespace, PodFacts},
    operator::chart,
    trials::{alone, in_order, tell_panics_once, trial},
    wait::{PATIENCE, wait_until, within},
};
