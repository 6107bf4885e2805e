//! Trials on a real Kubernetes: real pods, kubelet, kube-proxy and DNS.
//!
//! `POINTSMAN_CLUSTER` names the state folder that `tests/cluster/up.sh` printed. Without it every trial is ignored, or, with
//! `POINTSMAN_CLUSTER_REQUIRED`, the run fails. See `tests/cluster/README.md`.
#![allow(clippy::unwrap_used, reason = "a trial that cannot go on fails")]

mod availability;
mod chart;
mod cluster_is_real;
mod crds;
mod endings;
mod engines;
mod harness;
mod managed;
mod operators;
mod outages;
mod plain_selectors;
mod quickstart;
mod rights;
mod scale;
mod sidecars;
mod workers;

use std::process::ExitCode;

use libtest_mimic::Arguments;

use self::harness::Cluster;

/// Trials at a time: most of one is waiting, but a small machine runs everybody's pods.
const THREADS: usize = 3;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(THREADS);
    let trials = [
        availability::trials(),
        chart::trials(),
        cluster_is_real::trials(),
        crds::trials(),
        endings::trials(),
        engines::trials(),
        operators::trials(),
        outages::trials(),
        plain_selectors::trials(),
        quickstart::trials(),
        rights::trials(),
        scale::trials(),
        sidecars::trials(),
        workers::trials(),
    ]
    .into_iter()
    .flatten()
    .collect();
    if let Some(reason) = Cluster::missing()
        && !arguments.list
    {
        if std::env::var_os("POINTSMAN_CLUSTER_REQUIRED").is_some() {
            eprintln!("the trials on a cluster must not be skipped here, but {reason}");
            return ExitCode::FAILURE;
        }
        println!("skipped, because {reason}");
    }
    harness::tell_panics_once();
    libtest_mimic::run(&arguments, harness::in_order(trials)).exit_code()
}
