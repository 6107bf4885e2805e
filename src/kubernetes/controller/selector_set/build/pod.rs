//! The pod of a selector.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{
        Affinity, Capabilities, ConfigMapVolumeSource, Container, ContainerPort, HTTPGetAction, KeyToPath,
        PodAffinityTerm, PodAntiAffinity, PodSecurityContext, PodSpec, PodTemplateSpec, Probe, SeccompProfile,
        SecretVolumeSource, SecurityContext, TopologySpreadConstraint, Volume, VolumeMount, WeightedPodAffinityTerm,
    },
    apimachinery::pkg::{
        apis::meta::v1::{LabelSelector, ObjectMeta},
        util::intstr::IntOrString,
    },
};
use kube::ResourceExt;

use super::{
    ADMIN_TOKEN_PATH, Inputs, POLICY_KEY, POLICY_PATH, TRACKING_KEY_PATH, labels, policy_name, selector_labels,
};
use crate::kubernetes::api::{
    SelectorSet,
    common::SecretKeyReference,
    constants::{HTTP_PORT_NAME, REPLICA_SYNC_PORT_NAME, RESTART_ANNOTATION},
};

/// Name of the selector's container.
pub const CONTAINER: &str = "selector";
const POLICY_VOLUME: &str = "policy";
const TRACKING_VOLUME: &str = "tracking-key";
const TOKEN_VOLUME: &str = "admin-token";
/// Names of volumes that are the operator's.
pub const RESERVED_VOLUMES: [&str; 3] = [POLICY_VOLUME, TRACKING_VOLUME, TOKEN_VOLUME];
/// User and group of the process.
const USER: i64 = 65_532;
/// Seconds that a selector drains at most once it refuses requests, and what its end may take beyond.
const DRAIN_SECONDS: i64 = 30;
const END_SECONDS: i64 = 10;
/// Readable by the group of the process alone.
const SECRET_MODE: i32 = 0o440;

/// The template of the set's pods.
pub fn template(inputs: &Inputs<'_>) -> PodTemplateSpec {
    let set = inputs.set;
    let given = set.spec.pod_template.clone().unwrap_or_default();
    let mut pod_labels = given.labels.clone();
    pod_labels.extend(labels(&set.name_any()));
    let mut annotations = given.annotations.clone();
    annotations.extend(inputs.restart_hash.map(|hash| (RESTART_ANNOTATION.to_owned(), hash.to_owned())));
    let parts = &inputs.validated.pod;
    let grace = i64::from(set.spec.shutdown_delay_seconds) + DRAIN_SECONDS + END_SECONDS;
    let spec = PodSpec {
        affinity: Some(parts.affinity.clone().unwrap_or_else(|| apart(set))),
        automount_service_account_token: Some(false),
        containers: std::iter::once(container(inputs)).chain(parts.sidecars.iter().cloned()).collect(),
        // A Service's name would become environment names, which programs take for settings.
        enable_service_links: Some(false),
        image_pull_secrets: listed(parts.image_pull_secrets.clone()),
        node_selector: Some(given.node_selector.clone()).filter(|labels| !labels.is_empty()),
        priority_class_name: given.priority_class_name.clone(),
        runtime_class_name: given.runtime_class_name.clone(),
        security_context: Some(PodSecurityContext {
            fs_group: Some(USER),
            run_as_group: Some(USER),
            run_as_non_root: Some(true),
            run_as_user: Some(USER),
            seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), ..SeccompProfile::default() }),
            ..PodSecurityContext::default()
        }),
        service_account_name: given.service_account_name.clone(),
        termination_grace_period_seconds: Some(given.termination_grace_period_seconds.unwrap_or(grace)),
        tolerations: listed(parts.tolerations.clone()),
        topology_spread_constraints: listed(spread(set, &parts.topology_spread_constraints)),
        volumes: Some(volumes(set).into_iter().chain(parts.volumes.iter().cloned()).collect()),
        ..PodSpec::default()
    };
    let metadata = ObjectMeta {
        annotations: Some(annotations).filter(|annotations| !annotations.is_empty()),
        labels: Some(pod_labels),
        ..ObjectMeta::default()
    };
    PodTemplateSpec { metadata: Some(metadata), spec: Some(spec) }
}

fn container(inputs: &Inputs<'_>) -> Container {
    let spec = &inputs.set.spec;
    let validated = inputs.validated;
    let port = |name: &str, number: u16| ContainerPort {
        name: Some(name.to_owned()),
        container_port: number.into(),
        protocol: Some("TCP".to_owned()),
        ..ContainerPort::default()
    };
    let mut ports = vec![port(HTTP_PORT_NAME, spec.ports.http)];
    if spec.replica_sync.as_ref().is_none_or(|sync| sync.enabled) {
        ports.push(port(REPLICA_SYNC_PORT_NAME, spec.ports.replica_sync));
    }
    Container {
        name: CONTAINER.to_owned(),
        image: Some(validated.image.clone()),
        image_pull_policy: validated.pull_policy.map(str::to_owned),
        args: Some(validated.args.clone()),
        env: listed(validated.pod.env.clone()),
        env_from: listed(validated.pod.env_from.clone()),
        ports: Some(ports),
        resources: validated.pod.resources.clone(),
        // Recovery from peers may take minutes; the port is open from the start.
        startup_probe: Some(probe("/livez", 1, 5, 120)),
        liveness_probe: Some(probe("/livez", 10, 5, 3)),
        readiness_probe: Some(probe("/readyz", 2, 3, 2)),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), ..Capabilities::default() }),
            read_only_root_filesystem: Some(true),
            ..SecurityContext::default()
        }),
        volume_mounts: Some(
            mounts(inputs.set).into_iter().chain(validated.pod.volume_mounts.iter().cloned()).collect(),
        ),
        ..Container::default()
    }
}

fn probe(path: &str, period: i32, timeout: i32, failures: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::String(HTTP_PORT_NAME.to_owned()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period),
        timeout_seconds: Some(timeout),
        failure_threshold: Some(failures),
        ..Probe::default()
    }
}

/// Different nodes, where there are some.
fn apart(set: &SelectorSet) -> Affinity {
    let term = PodAffinityTerm {
        label_selector: Some(own_pods(set)),
        topology_key: "kubernetes.io/hostname".to_owned(),
        ..PodAffinityTerm::default()
    };
    let preferred = WeightedPodAffinityTerm { pod_affinity_term: term, weight: 100 };
    Affinity {
        pod_anti_affinity: Some(PodAntiAffinity {
            preferred_during_scheduling_ignored_during_execution: Some(vec![preferred]),
            ..PodAntiAffinity::default()
        }),
        ..Affinity::default()
    }
}

fn own_pods(set: &SelectorSet) -> LabelSelector {
    LabelSelector { match_labels: Some(selector_labels(&set.name_any())), ..LabelSelector::default() }
}

fn spread(set: &SelectorSet, given: &[TopologySpreadConstraint]) -> Vec<TopologySpreadConstraint> {
    let mut constraints = given.to_vec();
    for constraint in &mut constraints {
        constraint.label_selector.get_or_insert_with(|| own_pods(set));
    }
    constraints
}

fn volumes(set: &SelectorSet) -> Vec<Volume> {
    let policy = Volume {
        name: POLICY_VOLUME.to_owned(),
        config_map: Some(ConfigMapVolumeSource {
            name: policy_name(&set.name_any()),
            ..ConfigMapVolumeSource::default()
        }),
        ..Volume::default()
    };
    let mut volumes = vec![policy];
    if let Some(tracking) = &set.spec.tracking_hash {
        volumes.push(secret(TRACKING_VOLUME, &tracking.key_secret_ref, TRACKING_KEY_PATH));
    }
    if let Some(token) = &set.spec.admin_token_secret_ref {
        volumes.push(secret(TOKEN_VOLUME, token, ADMIN_TOKEN_PATH));
    }
    volumes
}

fn secret(volume: &str, reference: &SecretKeyReference, path: &str) -> Volume {
    let item = KeyToPath { key: reference.key.clone(), path: file_of(path), ..KeyToPath::default() };
    Volume {
        name: volume.to_owned(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(reference.name.clone()),
            items: Some(vec![item]),
            default_mode: Some(SECRET_MODE),
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    }
}

/// Whole directories: what is mounted by file is never updated.
fn mounts(set: &SelectorSet) -> Vec<VolumeMount> {
    let mount = |volume: &str, path: &str| VolumeMount {
        name: volume.to_owned(),
        mount_path: directory_of(path),
        read_only: Some(true),
        ..VolumeMount::default()
    };
    let mut mounts = vec![mount(POLICY_VOLUME, POLICY_PATH)];
    mounts.extend(set.spec.tracking_hash.iter().map(|_| mount(TRACKING_VOLUME, TRACKING_KEY_PATH)));
    mounts.extend(set.spec.admin_token_secret_ref.iter().map(|_| mount(TOKEN_VOLUME, ADMIN_TOKEN_PATH)));
    debug_assert!(POLICY_PATH.ends_with(POLICY_KEY), "the file in the directory is the ConfigMap's key");
    mounts
}

fn directory_of(path: &str) -> String {
    path.rsplit_once('/').map_or_else(String::new, |(directory, _)| directory.to_owned())
}

fn file_of(path: &str) -> String {
    path.rsplit_once('/').map_or(path, |(_, file)| file).to_owned()
}

fn listed<T>(items: Vec<T>) -> Option<Vec<T>> {
    Some(items).filter(|items| !items.is_empty())
}

/// Labels of one object, with those of a person; the operator's win.
pub fn merged(given: &BTreeMap<String, String>, set: &str) -> BTreeMap<String, String> {
    let mut all = given.clone();
    all.extend(labels(set));
    all
}
