//! What is built from a spec, asserted on the typed objects.

use k8s_openapi::api::core::v1::{Container, PodSpec};
use serde_json::json;

use super::{super::validate::validate, *};
use crate::kubernetes::api::selector_set::Image;

fn set(spec: Value) -> SelectorSet {
    let mut set = SelectorSet::new("fleet", serde_json::from_value(spec).unwrap());
    set.metadata.namespace = Some("ns".to_owned());
    set.metadata.uid = Some("u".to_owned());
    set
}

fn with_inputs<T>(spec: Value, restart_hash: Option<&str>, build: impl FnOnce(&Inputs<'_>) -> T) -> T {
    let set = set(spec);
    let image = Image { repository: Some("r".to_owned()), tag: Some("1".to_owned()), ..Image::default() };
    let validated = validate(&set, &image).unwrap();
    let owner = owner_reference(&set).unwrap();
    let controller_namespace = Some("operators");
    build(&Inputs { set: &set, validated: &validated, restart_hash, owner: &owner, controller_namespace })
}

fn stateful_set_of(spec: Value) -> StatefulSetSpec {
    with_inputs(spec, Some("h"), stateful_set).spec.unwrap()
}

fn pod_of(spec: Value) -> PodSpec {
    stateful_set_of(spec).template.spec.unwrap()
}

fn selector_of(spec: Value) -> Container {
    pod_of(spec).containers.remove(0)
}

fn args_of(spec: Value) -> Vec<String> {
    selector_of(spec).args.unwrap()
}

#[test]
fn pods_start_together_and_are_replaced_behind_readiness() {
    let spec = stateful_set_of(json!({"replicas": 5}));
    assert_eq!(spec.replicas, Some(5));
    assert_eq!(spec.pod_management_policy.as_deref(), Some("Parallel"));
    assert_eq!(spec.service_name.as_deref(), Some("fleet-peers"));
    let strategy = spec.update_strategy.unwrap();
    assert_eq!(strategy.type_.as_deref(), Some("RollingUpdate"));
    let pod_labels = spec.template.metadata.as_ref().unwrap().labels.clone().unwrap();
    let selector = spec.selector.match_labels.unwrap();
    assert!(selector.iter().all(|(label, value)| pod_labels.get(label) == Some(value)));
    assert_eq!(selector, selector_labels("fleet"));
    assert_eq!(selector.len(), 3, "a selector can never change");
}

#[test]
fn everything_has_the_set_as_its_controller() {
    let set = set(json!({"networkPolicy": {"enabled": true}}));
    let owner = owner_reference(&set).unwrap();
    let owners = [
        config_map(&set, &owner, "x").metadata,
        client_service(&set, &owner).metadata,
        peers_service(&set, &owner).metadata,
        disruption_budget(&set, &owner).unwrap().metadata,
        with_inputs(json!({"networkPolicy": {"enabled": true}}), None, |i| network_policy(i).unwrap()).metadata,
        with_inputs(json!({}), None, stateful_set).metadata,
    ];
    for metadata in owners {
        let owners = metadata.owner_references.unwrap();
        assert_eq!((owners.len(), &*owners[0].uid, owners[0].controller), (1, "u", Some(true)));
        assert_eq!(owners[0].block_owner_deletion, None);
        assert_eq!(metadata.namespace.as_deref(), Some("ns"));
        assert_eq!(metadata.labels.unwrap()[SELECTOR_SET_LABEL], "fleet");
    }
}

#[test]
fn a_selector_is_told_what_the_operator_relies_on() {
    let args = args_of(json!({"shutdownDelaySeconds": 7, "ports": {"http": 81, "replicaSync": 91}}));
    assert_eq!(
        args,
        [
            "selector",
            "--host=0.0.0.0",
            "--port=81",
            "--ready-requires=index,catalog,peers",
            "--shutdown-delay=7",
            "--router-policy-config=/etc/pointsman/policy/policy.yaml",
            "--policy-watch=true",
            "--indexer-peers=http://fleet-peers.ns.svc:81",
            "--replica-sync-port=91",
        ]
    );
}

#[test]
fn fields_become_flags() {
    let args = args_of(json!({
        "router": {"kvEvents": false, "queueThreshold": 0.5, "queuePolicy": "wspt", "temperature": 0.1,
                   "predictedBlockTtlSeconds": 60.0, "extraArgs": ["--router-prefill-load-scale=2"]},
        "sessionAffinityTtlSeconds": 600,
        "selectionCache": {"ttlSeconds": 5, "maxEntries": 6, "maxBytes": 268_435_456},
        "replicaSync": {"peers": ["tcp://10.0.0.8:9092", "tcp://10.0.0.9:9092"], "staleAfterSeconds": 30},
        "trackingHash": {"keySecretRef": {"name": "s", "key": "k"}, "keyId": "e1"},
        "adminTokenSecretRef": {"name": "t", "key": "token"},
    }));
    for flag in [
        "--no-router-kv-events",
        "--router-queue-threshold=0.5",
        "--router-queue-policy=wspt",
        "--router-temperature=0.1",
        "--router-ttl-secs=60",
        "--router-prefill-load-scale=2",
        "--session-affinity-ttl-secs=600",
        "--selection-cache-ttl-secs=5",
        "--selection-cache-max-entries=6",
        "--selection-cache-max-bytes=268435456",
        "--replica-sync-peers=tcp://10.0.0.8:9092,tcp://10.0.0.9:9092",
        "--peer-stale-after=30",
        "--router-tracking-hash=keyed-xxh3-v1",
        "--router-tracking-key-file=/etc/pointsman/tracking/key",
        "--router-tracking-key-id=e1",
        "--admin-token-file=/etc/pointsman/admin/token",
    ] {
        assert!(args.iter().any(|arg| arg == flag), "{flag} is missing in {args:?}");
    }
}

#[test]
fn without_replica_sync_nothing_is_published() {
    let spec = json!({"replicaSync": {"enabled": false, "peers": ["tcp://10.0.0.8:9092"]}, "networkPolicy": {"enabled": true}});
    assert!(args_of(spec.clone()).iter().all(|arg| !arg.starts_with("--replica-sync")));
    assert_eq!(selector_of(spec.clone()).ports.unwrap().len(), 1);
    let set = set(spec.clone());
    let owner = owner_reference(&set).unwrap();
    assert_eq!(peers_service(&set, &owner).spec.unwrap().ports.unwrap().len(), 1);
    let policy = with_inputs(spec, None, |inputs| network_policy(inputs).unwrap());
    assert_eq!(policy.spec.unwrap().ingress.unwrap()[1].ports.as_ref().unwrap().len(), 1);
}

#[test]
fn secrets_and_the_policy_are_mounted_as_directories() {
    let spec = json!({
        "trackingHash": {"keySecretRef": {"name": "s", "key": "k"}, "keyId": "e1"},
        "adminTokenSecretRef": {"name": "t", "key": "tok"},
        "podTemplate": {"volumes": [{"name": "scratch", "emptyDir": {}}], "volumeMounts": [{"name": "scratch", "mountPath": "/s"}]},
    });
    let pod = pod_of(spec);
    let mounts = pod.containers[0].volume_mounts.clone().unwrap();
    let at: Vec<_> = mounts.iter().map(|mount| (&*mount.name, &*mount.mount_path)).collect();
    assert_eq!(
        at,
        [
            ("policy", "/etc/pointsman/policy"),
            ("tracking-key", "/etc/pointsman/tracking"),
            ("admin-token", "/etc/pointsman/admin"),
            ("scratch", "/s"),
        ]
    );
    assert!(mounts.iter().all(|mount| mount.sub_path.is_none()));
    let volumes = pod.volumes.unwrap();
    assert_eq!(volumes[0].config_map.as_ref().unwrap().name, "fleet-policy");
    let tracking = volumes[1].secret.as_ref().unwrap();
    let item = &tracking.items.as_ref().unwrap()[0];
    assert_eq!((tracking.secret_name.as_deref(), &*item.key, &*item.path), (Some("s"), "k", "key"));
    assert_eq!(volumes[2].secret.as_ref().unwrap().items.as_ref().unwrap()[0].path, "token");
}

#[test]
fn pods_have_no_rights_and_the_time_they_need() {
    let pod = pod_of(json!({"shutdownDelaySeconds": 5}));
    assert_eq!(pod.automount_service_account_token, Some(false));
    assert_eq!(pod.enable_service_links, Some(false));
    assert!(pod.termination_grace_period_seconds.unwrap() > 5 + 30);
    let security = pod.security_context.unwrap();
    assert_eq!((security.run_as_user, security.run_as_non_root), (Some(65_532), Some(true)));
    assert_eq!(security.seccomp_profile.unwrap().type_, "RuntimeDefault");
    let selector = &pod.containers[0];
    let own = selector.security_context.clone().unwrap();
    assert_eq!((own.allow_privilege_escalation, own.read_only_root_filesystem), (Some(false), Some(true)));
    assert_eq!(own.capabilities.unwrap().drop.unwrap(), ["ALL"]);
    let path = |probe: &Option<k8s_openapi::api::core::v1::Probe>| {
        probe.as_ref().unwrap().http_get.as_ref().unwrap().path.clone().unwrap()
    };
    assert_eq!(path(&selector.startup_probe), "/livez");
    assert_eq!(path(&selector.liveness_probe), "/livez");
    assert_eq!(path(&selector.readiness_probe), "/readyz");
    let asked = pod_of(json!({"podTemplate": {"terminationGracePeriodSeconds": 3}}));
    assert_eq!(asked.termination_grace_period_seconds, Some(3));
}

#[test]
fn a_person_adds_and_the_operator_wins() {
    let template = json!({
        "labels": {"team": "a", "app.kubernetes.io/name": "mine"},
        "annotations": {"note": "b", "pointsman.dev/restart-hash": "mine"},
        "sidecars": [{"name": "proxy", "image": "p"}],
        "env": [{"name": "POINTSMAN_LOG", "value": "debug"}],
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"},
            {"maxSkew": 1, "topologyKey": "host", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"a": "b"}}},
        ],
    });
    let template = stateful_set_of(json!({"podTemplate": template})).template;
    let metadata = template.metadata.unwrap();
    let labels = metadata.labels.unwrap();
    assert_eq!((&*labels["team"], &*labels["app.kubernetes.io/name"]), ("a", "pointsman"));
    let annotations = metadata.annotations.unwrap();
    assert_eq!((&*annotations["note"], &*annotations["pointsman.dev/restart-hash"]), ("b", "h"));
    let pod = template.spec.unwrap();
    assert_eq!(pod.containers[1].name, "proxy");
    assert_eq!(pod.containers[0].env.as_ref().unwrap()[0].name, "POINTSMAN_LOG");
    let spread = pod.topology_spread_constraints.unwrap();
    assert_eq!(spread[0].label_selector.as_ref().unwrap().match_labels, Some(selector_labels("fleet")));
    assert_eq!(
        spread[1].label_selector.as_ref().unwrap().match_labels,
        Some([("a".to_owned(), "b".to_owned())].into())
    );
}

#[test]
fn selectors_prefer_different_nodes_unless_told_otherwise() {
    let affinity = pod_of(json!({})).affinity.unwrap().pod_anti_affinity.unwrap();
    let preferred = affinity.preferred_during_scheduling_ignored_during_execution.unwrap();
    assert_eq!(preferred[0].pod_affinity_term.topology_key, "kubernetes.io/hostname");
    assert_eq!(affinity.required_during_scheduling_ignored_during_execution, None);
    let own = pod_of(json!({"podTemplate": {"affinity": {"nodeAffinity": {}}}})).affinity.unwrap();
    assert!(own.pod_anti_affinity.is_none() && own.node_affinity.is_some());
}

#[test]
fn clients_reach_ready_selectors_and_selectors_all() {
    let set = set(json!({
        "ports": {"http": 81, "replicaSync": 91},
        "service": {"type_": "ClusterIP", "port": 80, "labels": {"a": "b"}, "annotations": {"c": "d"}},
    }));
    let owner = owner_reference(&set).unwrap();
    let client = client_service(&set, &owner);
    assert_eq!(client.metadata.name.as_deref(), Some("fleet"));
    assert_eq!(client.metadata.annotations.unwrap()["c"], "d");
    assert_eq!(client.metadata.labels.unwrap()["a"], "b");
    let spec = client.spec.unwrap();
    let port = &spec.ports.unwrap()[0];
    assert_eq!((port.port, &port.target_port), (80, &Some(IntOrString::String("http".to_owned()))));
    assert_eq!((spec.cluster_ip, spec.publish_not_ready_addresses), (None, None));
    let peers = peers_service(&set, &owner);
    assert_eq!(peers.metadata.name.as_deref(), Some("fleet-peers"));
    let spec = peers.spec.unwrap();
    assert_eq!((spec.cluster_ip.as_deref(), spec.publish_not_ready_addresses), (Some("None"), Some(true)));
    let ports: Vec<_> = spec.ports.unwrap().iter().map(|port| port.port).collect();
    assert_eq!(ports, [81, 91]);
}

#[test]
fn a_lone_selector_holds_up_no_drain() {
    let budget = |spec: Value| {
        let set = set(spec);
        disruption_budget(&set, &owner_reference(&set).unwrap()).map(|budget| budget.spec.unwrap())
    };
    assert_eq!(budget(json!({})).unwrap().max_unavailable, Some(IntOrString::Int(1)));
    assert_eq!(budget(json!({"replicas": 1})), None);
    assert_eq!(budget(json!({"podDisruptionBudget": {"enabled": false}})), None);
    assert!(budget(json!({"replicas": 1, "podDisruptionBudget": {}})).is_some(), "asked for");
    let least = budget(json!({"podDisruptionBudget": {"minAvailable": "50%"}})).unwrap();
    assert_eq!((least.min_available, least.max_unavailable), (Some(IntOrString::String("50%".to_owned())), None));
}

#[test]
fn a_network_policy_lets_in_clients_operator_and_peers() {
    assert!(with_inputs(json!({}), None, network_policy).is_none());
    let open = with_inputs(json!({"networkPolicy": {"enabled": true}}), None, |inputs| network_policy(inputs).unwrap());
    let ingress = open.spec.unwrap().ingress.unwrap();
    let clients = ingress[0].from.as_ref().unwrap();
    assert_eq!(clients[0].pod_selector, Some(LabelSelector::default()), "all of the namespace");
    let operator = clients[1].namespace_selector.as_ref().unwrap().match_labels.as_ref().unwrap();
    assert_eq!(operator["kubernetes.io/metadata.name"], "operators");
    let port = |rule: usize, at: usize| ingress[rule].ports.as_ref().unwrap()[at].port.clone();
    assert_eq!((ingress[0].ports.as_ref().unwrap().len(), port(0, 0)), (1, Some(IntOrString::Int(8092))));
    assert_eq!((port(1, 0), port(1, 1)), (Some(IntOrString::Int(8092)), Some(IntOrString::Int(9092))));
    let own = ingress[1].from.as_ref().unwrap();
    assert_eq!(own[0].pod_selector.as_ref().unwrap().match_labels, Some(selector_labels("fleet")));
    let clients = json!([{"podSelector": {"matchLabels": {"app": "gateway"}}}]);
    let closed = json!({"networkPolicy": {"enabled": true, "clients": clients}});
    let closed = with_inputs(closed, None, |inputs| network_policy(inputs).unwrap());
    let from = closed.spec.unwrap().ingress.unwrap().remove(0).from.unwrap();
    assert_eq!(from[0].pod_selector.as_ref().unwrap().match_labels.as_ref().unwrap()["app"], "gateway");
    assert_eq!(from.len(), 2);
}

#[test]
fn monitors_count_every_selector_once() {
    let set = set(
        json!({"monitoring": {"podMonitor": true, "serviceMonitor": true, "interval": "15s", "labels": {"p": "q"}}}),
    );
    let owner = owner_reference(&set).unwrap();
    let resource =
        |kind| kube::api::ApiResource::from_gvk(&kube::api::GroupVersionKind::gvk("monitoring.coreos.com", "v1", kind));
    let pod = pod_monitor(&set, &owner, &resource("PodMonitor")).unwrap().unwrap();
    assert_eq!(
        pod.value()["spec"]["podMetricsEndpoints"][0],
        json!({"port": "http", "path": "/metrics", "interval": "15s"})
    );
    assert_eq!(pod.value()["metadata"]["labels"]["p"], "q");
    assert_eq!(pod.value()["apiVersion"], "monitoring.coreos.com/v1");
    let service = service_monitor(&set, &owner, &resource("ServiceMonitor")).unwrap().unwrap();
    let expression = &service.value()["spec"]["selector"]["matchExpressions"][0];
    let peers = peers_service(&set, &owner).metadata.labels.unwrap();
    let excluded = &peers[expression["key"].as_str().unwrap()];
    assert_eq!((&expression["operator"], &expression["values"]), (&json!("NotIn"), &json!([excluded])));
    assert!(!client_service(&set, &owner).metadata.labels.unwrap().contains_key(expression["key"].as_str().unwrap()));
}

#[test]
fn only_what_needs_a_restart_changes_the_template() {
    let template = |spec: Value, hash| with_inputs(spec, hash, stateful_set).spec.unwrap().template;
    let base = template(json!({}), None);
    for same in [
        json!({"replicas": 7}),
        json!({"router": {"policy": "least-loaded"}}),
        json!({"service": {"type_": "NodePort"}}),
        json!({"networkPolicy": {"enabled": true}}),
        json!({"podDisruptionBudget": {"enabled": false}}),
    ] {
        assert_eq!(template(same.clone(), None), base, "{same}");
    }
    for other in
        [json!({"image": {"tag": "2"}}), json!({"shutdownDelaySeconds": 1}), json!({"router": {"kvEvents": false}})]
    {
        assert_ne!(template(other.clone(), None), base, "{other}");
    }
    assert_ne!(template(json!({}), Some("x")), base);
}
