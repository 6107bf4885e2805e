//! From a spec to what can be built of it, or to why not. Pure.
//!
//! What the CRD's schema cannot check is checked here: objects of a Pod that are kept as they are written (each field
//! must be one that a Pod has), flags that the selector must know and the operator must not set itself, names of which
//! Services can be made.

use k8s_openapi::api::{
    core::v1::{
        Affinity, Container, EnvFromSource, EnvVar, LocalObjectReference, ResourceRequirements, Toleration,
        TopologySpreadConstraint, Volume, VolumeMount,
    },
    networking::v1::NetworkPolicyPeer,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::build::{args, pod::RESERVED_VOLUMES};
use crate::kubernetes::api::{
    SelectorSet, SelectorSetSpec,
    selector_set::{Image, PodTemplate},
};

/// Longest name of a set: pods, their labels and the headless Service are named after it.
const MAX_NAME: usize = 52;

/// The parts of a spec that need reading, read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Validated {
    /// Reference of the selectors' image.
    pub image: String,
    /// When it is pulled.
    pub pull_policy: Option<&'static str>,
    /// Arguments of the selector, from its subcommand on.
    pub args: Vec<String>,
    /// The pod's parts.
    pub pod: PodParts,
    /// Clients that a NetworkPolicy lets in; none = all of the namespace.
    pub clients: Vec<NetworkPolicyPeer>,
}

/// The objects in `podTemplate`, under its names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodParts {
    pub resources: Option<ResourceRequirements>,
    pub affinity: Option<Affinity>,
    pub tolerations: Vec<Toleration>,
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,
    pub image_pull_secrets: Vec<LocalObjectReference>,
    pub env: Vec<EnvVar>,
    pub env_from: Vec<EnvFromSource>,
    pub volumes: Vec<Volume>,
    pub volume_mounts: Vec<VolumeMount>,
    pub sidecars: Vec<Container>,
}

/// Reads `set`; `operator_image` is what its image leaves out.
///
/// # Errors
/// Everything that is wrong with it, a sentence each.
pub fn validate(set: &SelectorSet, operator_image: &Image) -> Result<Validated, Vec<String>> {
    let mut wrong = Vec::new();
    let name = set.metadata.name.as_deref().unwrap_or_default();
    if !is_service_name(name) {
        wrong.push(format!(
            "the name {name:?} cannot be a Service's: at most {MAX_NAME} lower-case letters, digits and dashes, the first \
             one a letter"
        ));
    }
    let spec = &set.spec;
    let is_foreign_image = is_foreign(spec.image.as_ref(), operator_image);
    let args = args::arguments(set);
    wrong.extend(args::refused(&spec.router.iter().flat_map(|router| &router.extra_args).cloned().collect::<Vec<_>>()));
    // A selector of somebody's own may have flags of its own, and tells by itself what it does not know.
    if wrong.is_empty() && !is_foreign_image {
        wrong.extend(args::unusable(&args));
    }
    if spec.ports.http == spec.ports.replica_sync {
        wrong.push("ports.http and ports.replicaSync are the same".to_owned());
    }
    if let Some(tracking) = &spec.tracking_hash
        && tracking.key_id.trim() != tracking.key_id
    {
        wrong.push("trackingHash.keyId has blanks at its ends".to_owned());
    }
    let (image, pull_policy) = match image(spec, operator_image) {
        Ok(image) => image,
        Err(reason) => {
            wrong.push(reason);
            Default::default()
        }
    };
    let pod = spec.pod_template.as_ref().map(|template| pod_parts(template, &mut wrong)).unwrap_or_default();
    let peers = spec.network_policy.as_ref().map(|policy| &*policy.clients).unwrap_or_default();
    let clients = list("networkPolicy.clients", peers, &mut wrong);
    if wrong.is_empty() { Ok(Validated { image, pull_policy, args, pod, clients }) } else { Err(wrong) }
}

fn is_service_name(name: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.len() <= MAX_NAME
        && name.bytes().next().is_some_and(|first| first.is_ascii_lowercase())
        && name.bytes().next_back().is_some_and(word)
        && name.bytes().all(|byte| word(byte) || byte == b'-')
}

/// Whether the selectors come from another repository than the operator, and may know more policies and flags.
pub fn is_foreign(image: Option<&Image>, operator: &Image) -> bool {
    let repository = image.and_then(|image| image.repository.as_ref());
    repository.is_some_and(|repository| Some(repository) != operator.repository.as_ref())
}

/// The reference and the pull policy. A digest wins over a tag, and a tag of the set's over the operator's digest, which
/// belongs to another repository or tag.
fn image(spec: &SelectorSetSpec, operator: &Image) -> Result<(String, Option<&'static str>), String> {
    let none = Image::default();
    let own = spec.image.as_ref().unwrap_or(&none);
    let Some(repository) = own.repository.as_ref().or(operator.repository.as_ref()) else {
        return Err("image.repository is needed: the operator has no image to give".to_owned());
    };
    let inherits =
        own.tag.is_none() && own.repository.as_ref().is_none_or(|own| Some(own) == operator.repository.as_ref());
    let digest = own.digest.as_ref().or(operator.digest.as_ref().filter(|_| inherits));
    let tag = own.tag.as_ref().or(operator.tag.as_ref());
    let reference = match (digest, tag) {
        (Some(digest), _) => format!("{repository}@{digest}"),
        (None, Some(tag)) => format!("{repository}:{tag}"),
        (None, None) => return Err("image.tag or image.digest is needed: the operator has none to give".to_owned()),
    };
    let pull_policy = own.pull_policy.or(operator.pull_policy).map(|policy| policy.as_str());
    Ok((reference, pull_policy))
}

fn pod_parts(template: &PodTemplate, wrong: &mut Vec<String>) -> PodParts {
    let object = |map: &Option<serde_json::Map<String, Value>>| map.clone().map(Value::Object);
    let parts = PodParts {
        resources: one("podTemplate.resources", object(&template.resources), wrong),
        affinity: one("podTemplate.affinity", object(&template.affinity), wrong),
        tolerations: list("podTemplate.tolerations", &template.tolerations, wrong),
        topology_spread_constraints: list(
            "podTemplate.topologySpreadConstraints",
            &template.topology_spread_constraints,
            wrong,
        ),
        image_pull_secrets: list("podTemplate.imagePullSecrets", &template.image_pull_secrets, wrong),
        env: list("podTemplate.env", &template.env, wrong),
        env_from: list("podTemplate.envFrom", &template.env_from, wrong),
        volumes: list("podTemplate.volumes", &template.volumes, wrong),
        volume_mounts: list("podTemplate.volumeMounts", &template.volume_mounts, wrong),
        sidecars: list("podTemplate.sidecars", &template.sidecars, wrong),
    };
    for volume in &parts.volumes {
        if RESERVED_VOLUMES.contains(&&*volume.name) {
            wrong.push(format!("podTemplate.volumes: the name {} is the operator's", volume.name));
        }
    }
    for sidecar in &parts.sidecars {
        if sidecar.name == super::build::pod::CONTAINER {
            wrong.push(format!("podTemplate.sidecars: the name {} is the selector's", sidecar.name));
        }
    }
    parts
}

fn list<T: Serialize + DeserializeOwned>(field: &str, items: &[Value], wrong: &mut Vec<String>) -> Vec<T> {
    let item = |(at, item): (usize, &Value)| one(&format!("{field}[{at}]"), Some(item.clone()), wrong);
    items.iter().enumerate().filter_map(item).collect()
}

/// A typed object that says all that `value` says.
fn one<T: Serialize + DeserializeOwned>(field: &str, value: Option<Value>, wrong: &mut Vec<String>) -> Option<T> {
    let value = value?;
    let typed: T = match serde_json::from_value(value.clone()) {
        Ok(typed) => typed,
        Err(error) => {
            wrong.push(format!("{field}: {error}"));
            return None;
        }
    };
    if let Some(unknown) = serde_json::to_value(&typed).ok().and_then(|known| lost(&value, &known, field)) {
        wrong.push(format!("{unknown}: there is no such field"));
        return None;
    }
    Some(typed)
}

/// The first field of `value` that `known` lacks. Nulls and empty objects mean nothing.
fn lost(value: &Value, known: &Value, path: &str) -> Option<String> {
    match (value, known) {
        (Value::Object(value), Value::Object(known)) => value.iter().find_map(|(name, value)| {
            let path = format!("{path}.{name}");
            match known.get(name) {
                Some(known) => lost(value, known, &path),
                None if value.is_null() => None,
                None => Some(path),
            }
        }),
        (Value::Array(value), Value::Array(known)) => value
            .iter()
            .zip(known)
            .enumerate()
            .find_map(|(at, (value, known))| lost(value, known, &format!("{path}[{at}]"))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn set(spec: Value) -> SelectorSet {
        let mut set = SelectorSet::new("fleet", serde_json::from_value(spec).unwrap());
        set.metadata.namespace = Some("ns".to_owned());
        set
    }

    fn operator() -> Image {
        Image {
            repository: Some("registry.example/pointsman".to_owned()),
            tag: Some("1".to_owned()),
            digest: Some("sha256:00".to_owned()),
            pull_policy: None,
        }
    }

    fn refused(spec: Value) -> String {
        validate(&set(spec), &operator()).unwrap_err().join("\n")
    }

    #[test]
    fn an_image_is_merged_over_the_operators() {
        for (image, reference) in [
            (json!(null), "registry.example/pointsman@sha256:00"),
            (json!({"tag": "2"}), "registry.example/pointsman:2"),
            (json!({"repository": "other"}), "other:1"),
            (json!({"digest": "sha256:11"}), "registry.example/pointsman@sha256:11"),
            (json!({"repository": "other", "tag": "3", "digest": "sha256:11"}), "other@sha256:11"),
        ] {
            let validated = validate(&set(json!({"image": image})), &operator()).unwrap();
            assert_eq!(validated.image, reference);
            assert_eq!(
                is_foreign(set(json!({"image": image})).spec.image.as_ref(), &operator()),
                reference.starts_with("other")
            );
        }
        let reasons = validate(&set(json!({})), &Image::default()).unwrap_err();
        assert!(reasons[0].contains("image.repository"), "{reasons:?}");
    }

    #[test]
    fn flags_that_are_the_operators_are_refused() {
        for flag in
            ["--port=1", "--replica-sync-peers=tcp://a:1", "--router-policy-config=/x", "--kubernetes-service=x"]
        {
            let reasons = refused(json!({"router": {"extraArgs": [flag]}}));
            assert!(reasons.contains(flag.split('=').next().unwrap()), "{reasons}");
        }
        let reasons = refused(json!({"router": {"extraArgs": ["--router-temperature=1"]}}));
        assert!(reasons.contains("router.temperature"), "{reasons}");
        let reasons = refused(json!({"router": {"extraArgs": ["--no-such-flag"]}}));
        assert!(reasons.contains("--no-such-flag"), "{reasons}");
        let reasons = refused(json!({"router": {"extraArgs": ["--router-prefill-load-scale=many"]}}));
        assert!(reasons.contains("many"), "{reasons}");
        let reasons = refused(json!({"router": {"extraArgs": ["word"]}}));
        assert!(reasons.contains("word"), "{reasons}");
        let good = json!({"router": {"extraArgs": ["--router-prefill-load-scale=2", "--queue-max-requests=5"]}});
        let args = validate(&set(good), &operator()).unwrap().args;
        assert_eq!(args[args.len() - 2..], ["--router-prefill-load-scale=2", "--queue-max-requests=5"]);
    }

    #[test]
    fn a_pod_has_the_fields_that_pods_have() {
        let reasons = refused(json!({"podTemplate": {"tolerations": [{"key": "gpu"}, {"kee": "x"}]}}));
        assert_eq!(reasons, "podTemplate.tolerations[1].kee: there is no such field");
        let reasons = refused(json!({"podTemplate": {"env": [{"name": "A", "value": 5}]}}));
        assert!(reasons.starts_with("podTemplate.env[0]: "), "{reasons}");
        let reasons = refused(json!({"podTemplate": {"volumes": [{"name": "policy", "emptyDir": {}}]}}));
        assert!(reasons.contains("policy"), "{reasons}");
        let reasons = refused(json!({"podTemplate": {"sidecars": [{"name": "selector"}]}}));
        assert!(reasons.contains("selector"), "{reasons}");
        let parts =
            json!({"volumes": [{"name": "a", "emptyDir": {}}], "resources": {"requests": {"cpu": 1, "memory": "1Gi"}}});
        let pod = validate(&set(json!({"podTemplate": parts})), &operator()).unwrap().pod;
        assert!(pod.volumes[0].empty_dir.is_some() && pod.resources.is_some());
    }

    #[test]
    fn names_can_be_services_names() {
        let longest = "a".repeat(52);
        for (name, good) in [
            ("fleet", true),
            ("f-1", true),
            (&*longest, true),
            (&*format!("{longest}a"), false),
            ("1fleet", false),
            ("a.b", false),
            ("a-", false),
            ("", false),
        ] {
            assert_eq!(is_service_name(name), good, "{name}");
        }
    }

    #[test]
    fn contradictions_are_told_together() {
        let reasons = refused(json!({
            "ports": {"http": 1, "replicaSync": 1},
            "trackingHash": {"keyId": " a", "keySecretRef": {"name": "s", "key": "k"}},
        }));
        assert!(reasons.contains("ports.http") && reasons.contains("trackingHash.keyId"), "{reasons}");
    }
}
