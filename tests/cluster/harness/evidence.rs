//! What a failed trial leaves to be read: objects, events, logs of its pods and of the cluster.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use super::{command, namespace::Namespace};

/// Kinds that are written down; those that the cluster does not know are left out.
const KINDS: &[&str] = &[
    "pods",
    "statefulsets",
    "deployments",
    "replicasets",
    "services",
    "endpointslices",
    "configmaps",
    "leases",
    "poddisruptionbudgets",
    "networkpolicies",
    "selectorsets.pointsman.dev",
    "modelpools.pointsman.dev",
];
/// Lines kept of each of the cluster's own logs.
const TAIL: usize = 2000;

/// Writes everything down that tells of a failure in `namespace`; the folder.
pub fn keep(namespace: &Namespace) -> PathBuf {
    let root = std::env::var_os("POINTSMAN_CLUSTER_EVIDENCE")
        .map_or_else(|| Path::new(env!("CARGO_TARGET_TMPDIR")).join("cluster-failures"), PathBuf::from);
    let folder = root.join(namespace.name());
    if let Err(error) = write(namespace, &folder) {
        eprintln!("evidence of {}: {error}", namespace.name());
    }
    folder
}

fn write(namespace: &Namespace, folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder.join("logs"))?;
    // What could not be had says so in its place.
    let kubectl = |words: &[&str]| namespace.try_kubectl(words).unwrap_or_else(|e| e);
    std::fs::write(folder.join("overview.txt"), kubectl(&["get", "all,endpointslices", "-o", "wide"]))?;
    std::fs::write(folder.join("events.txt"), kubectl(&["get", "events", "--sort-by=.metadata.creationTimestamp"]))?;
    std::fs::write(folder.join("describe-pods.txt"), kubectl(&["describe", "pods"]))?;
    for kind in KINDS {
        if let Ok(text) = namespace.try_kubectl(&["get", kind, "-o", "yaml"]) {
            std::fs::write(folder.join(format!("{kind}.yaml")), text)?;
        }
    }
    for pod in namespace.try_pods("").unwrap_or_default() {
        for (container, _) in &pod.containers {
            let log = ["logs", &pod.name, "-c", container, "--timestamps"];
            let path = |ending: &str| folder.join("logs").join(format!("{}.{container}{ending}", pod.name));
            std::fs::write(path(".log"), kubectl(&log))?;
            if let Ok(text) = namespace.try_kubectl(&[&log[..], &["--previous"]].concat()) {
                std::fs::write(path(".previous.log"), text)?;
            }
        }
    }
    std::fs::create_dir_all(folder.join("cluster"))?;
    for entry in std::fs::read_dir(namespace.cluster().state().join("log"))? {
        let path = entry?.path();
        let Some(name) = path.file_name() else { continue };
        let mut tail = Command::new("tail");
        tail.arg("-n").arg(TAIL.to_string()).arg(&path);
        std::fs::write(folder.join("cluster").join(name), command::run(&mut tail, None).unwrap_or_else(|e| e))?;
    }
    Ok(())
}
