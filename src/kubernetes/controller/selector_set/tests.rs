//! Whole passes against an apiserver in memory.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::json;

use super::*;
use crate::{kubernetes::controller::apply::mock::Cluster, plugins::router_plugin_registry};

fn set(spec: Value) -> Arc<SelectorSet> {
    let mut set = SelectorSet::new("fleet", serde_json::from_value(spec).unwrap());
    set.metadata.namespace = Some("ns".to_owned());
    set.metadata.uid = Some("u".to_owned());
    Arc::new(set)
}

fn context(client: &Client) -> Context {
    let selector_image = Image { repository: Some("r".to_owned()), tag: Some("1".to_owned()), ..Image::default() };
    let registry = router_plugin_registry();
    Context::new(client.clone(), Options { selector_image, controller_namespace: None, registry })
}

async fn pass(context: &Context, spec: Value) -> Reconciled {
    reconcile(context, set(spec), &[]).await.unwrap()
}

fn secret(key: &str, bytes: &[u8]) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {key: STANDARD.encode(bytes)}})
}

fn policy_of(cluster: &Cluster) -> String {
    cluster.get("configmaps/fleet-policy").unwrap()["data"]["policy.yaml"].as_str().unwrap().to_owned()
}

fn restart_hash_of(cluster: &Cluster) -> Value {
    let set = cluster.get("statefulsets/fleet").unwrap();
    set["spec"]["template"]["metadata"]["annotations"]["pointsman.dev/restart-hash"].clone()
}

#[tokio::test]
async fn a_set_becomes_its_objects_and_then_nothing_is_written() {
    let (cluster, client) = Cluster::start();
    let first = context(&client);
    let spec = json!({"podTemplate": {"resources": {"requests": {"cpu": "1000m"}}}});
    let done = pass(&first, spec.clone()).await;
    assert_eq!(
        cluster.paths(),
        [
            "configmaps/fleet-policy",
            "poddisruptionbudgets/fleet",
            "services/fleet",
            "services/fleet-peers",
            "statefulsets/fleet",
        ]
    );
    assert_eq!((done.writes, done.statefulset.map(|view| view.wanted)), (5, Some(3)));
    assert_eq!(cluster.writes().len(), 5);
    for _ in 0..3 {
        assert_eq!(pass(&first, spec.clone()).await.writes, 0);
    }
    assert_eq!(cluster.writes(), [""; 0]);
    // The quantity is spelled in another way than it was sent, which a process that did not send it cannot know.
    let restarted = context(&client);
    assert_eq!(pass(&restarted, spec.clone()).await.writes, 1);
    assert_eq!(cluster.writes(), ["PATCH statefulsets/fleet"]);
    assert_eq!(pass(&restarted, spec).await.writes, 0);
}

#[tokio::test]
async fn a_change_is_one_write_an_object() {
    let (cluster, client) = Cluster::start();
    let context = context(&client);
    pass(&context, json!({})).await;
    cluster.writes();
    pass(&context, json!({"replicas": 5})).await;
    assert_eq!(cluster.writes(), ["PATCH statefulsets/fleet"]);
    pass(&context, json!({"replicas": 5, "router": {"policy": "least-loaded"}})).await;
    assert_eq!(cluster.writes(), ["PATCH configmaps/fleet-policy"], "no pod is restarted");
    pass(&context, json!({"replicas": 1, "router": {"policy": "least-loaded"}})).await;
    assert_eq!(cluster.writes(), ["PATCH statefulsets/fleet", "DELETE poddisruptionbudgets/fleet"]);
}

#[tokio::test]
async fn a_bad_policy_is_told_and_the_last_good_one_stays() {
    let (cluster, client) = Cluster::start();
    let first = context(&client);
    let done = pass(&first, json!({"router": {"policy": "no-such"}})).await;
    assert!(done.policy.as_ref().unwrap_err().contains("no-such"));
    assert_eq!(policy_of(&cluster), policy::DEFAULT_DOCUMENT, "none was ever good");
    let done = pass(&first, json!({"router": {"policy": "least-loaded"}})).await;
    assert_eq!(done.policy, Ok(()));
    assert_eq!(done.events.len(), 1, "{:?}", done.events);
    let good = policy_of(&cluster);
    cluster.writes();
    let bad = json!({"router": {"document": {"worker_selektion": {}}}});
    let done = pass(&first, bad.clone()).await;
    assert!(done.policy.is_err());
    assert_eq!(done.events[0].reason, reason::POLICY_INVALID);
    let again = pass(&first, bad.clone()).await;
    assert!(again.policy.is_err() && again.events.is_empty(), "told once");
    assert!(pass(&context(&client), bad).await.policy.is_err());
    assert_eq!((policy_of(&cluster), cluster.writes()), (good, vec![]));
}

#[tokio::test]
async fn a_missing_secret_is_told_and_keeps_what_runs() {
    let (cluster, client) = Cluster::start();
    let context = context(&client);
    pass(&context, json!({})).await;
    cluster.writes();
    let spec = json!({"trackingHash": {"keySecretRef": {"name": "s", "key": "k"}, "keyId": "e"}});
    let done = pass(&context, spec.clone()).await;
    assert_eq!(done.missing_references[0].object, "Secret s");
    assert_eq!((done.events[0].reason, done.requeue), (reason::REFERENCE_MISSING, MISSING_AGAIN));
    assert!(done.statefulset.is_some(), "it is there still");
    for (unusable, word) in [(secret("other", &[0; 32]), "no key k"), (secret("k", &[0; 31]), "31 bytes")] {
        cluster.put("secrets/s", unusable);
        let done = pass(&context, spec.clone()).await;
        assert!(done.missing_references[0].message.contains(word), "{:?}", done.missing_references);
    }
    assert_eq!(cluster.writes(), [""; 0]);
    cluster.put("secrets/s", secret("k", &[1; 32]));
    let done = pass(&context, spec.clone()).await;
    assert!(done.missing_references.is_empty());
    assert_eq!(cluster.writes(), ["PATCH statefulsets/fleet"]);
    let before = restart_hash_of(&cluster);
    assert_eq!(pass(&context, spec.clone()).await.writes, 0);
    cluster.put("secrets/s", secret("k", &[2; 32]));
    pass(&context, spec).await;
    assert_ne!(restart_hash_of(&cluster), before, "another key restarts the pods");
}

#[tokio::test]
async fn what_a_running_selector_does_not_take_over_restarts_it() {
    let (cluster, client) = Cluster::start();
    let context = context(&client);
    let spec = |ttl: u64, policy: &str| json!({"router": {"document": {"router": {"router_ttl_secs": ttl}, "worker_selection": {"aggregated": policy}}}});
    assert_eq!(pass(&context, spec(5, "default")).await.policy, Ok(()));
    let before = restart_hash_of(&cluster);
    pass(&context, spec(6, "default")).await;
    assert_ne!(restart_hash_of(&cluster), before);
}

#[tokio::test]
async fn objects_of_others_are_left_alone_and_the_rest_is_made() {
    let (cluster, client) = Cluster::start();
    let context = context(&client);
    let theirs = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "fleet"}, "spec": {"ports": []}});
    cluster.put("services/fleet", theirs);
    let before = cluster.get("services/fleet");
    let done = pass(&context, json!({})).await;
    assert_eq!(done.conflicts[0].object, "Service fleet");
    assert_eq!((done.events[0].reason, done.events[0].is_warning), (reason::NAME_CONFLICT, true));
    assert_eq!(cluster.get("services/fleet"), before);
    assert!(cluster.get("statefulsets/fleet").is_some());
    cluster.take("services/fleet");
    let done = pass(&context, json!({})).await;
    assert!(done.conflicts.is_empty() && cluster.get("services/fleet").is_some());
}

#[tokio::test]
async fn a_wrong_spec_keeps_the_pods_and_says_why() {
    let (cluster, client) = Cluster::start();
    let context = context(&client);
    pass(&context, json!({})).await;
    cluster.writes();
    let done = pass(&context, json!({"router": {"extraArgs": ["--port=1"]}})).await;
    assert_eq!((&*done.refused[0].object, done.refused[0].reason), ("spec", reason::INVALID_SPEC));
    assert_eq!(cluster.writes(), [""; 0]);
    cluster.fail("PATCH statefulsets/fleet", 422, "updates to statefulset spec are forbidden");
    let done = pass(&context, json!({"replicas": 4})).await;
    assert_eq!((&*done.refused[0].object, done.refused[0].reason), ("StatefulSet fleet", reason::APPLY_REFUSED));
    assert!(done.statefulset.is_some());
    pass(&context, json!({"replicas": 4})).await;
    assert_eq!(cluster.writes().len(), 1, "what is refused is not sent again and again");
}

#[tokio::test]
async fn monitors_are_made_where_there_are_such_kinds() {
    let (cluster, client) = Cluster::start();
    let spec = json!({"monitoring": {"podMonitor": true}});
    pass(&context(&client), spec.clone()).await;
    assert!(cluster.get("podmonitors/fleet").is_none());
    *cluster.monitors.lock() = vec![("podmonitors", "PodMonitor"), ("servicemonitors", "ServiceMonitor")];
    let context = context(&client);
    pass(&context, spec).await;
    assert!(cluster.get("podmonitors/fleet").is_some() && cluster.get("servicemonitors/fleet").is_none());
    pass(&context, json!({})).await;
    assert!(cluster.get("podmonitors/fleet").is_none());
}

#[tokio::test]
async fn of_an_external_set_nothing_is_built() {
    let (cluster, client) = Cluster::start();
    cluster.put("secrets/s", secret("t", b"token\n"));
    let spec = json!({
        "mode": "External", "podSelector": {"matchLabels": {"a": "b"}}, "adminTokenSecretRef": {"name": "s", "key": "t"},
    });
    let done = pass(&context(&client), spec).await;
    assert_eq!(done.admin_token.as_deref().map(String::as_str), Some("token"));
    assert_eq!(cluster.writes(), [""; 0]);
}

#[tokio::test]
async fn a_set_that_is_being_deleted_is_left_alone() {
    let (cluster, client) = Cluster::start();
    let mut going = SelectorSet::clone(&set(json!({})));
    going.metadata.deletion_timestamp = Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
    let done = reconcile(&context(&client), Arc::new(going), &[]).await.unwrap();
    assert_eq!((done.writes, cluster.writes()), (0, vec![]));
}

#[tokio::test]
async fn a_pod_that_holds_up_a_roll_out_is_deleted() {
    let (cluster, client) = Cluster::start();
    let context = context(&client);
    pass(&context, json!({})).await;
    cluster.edit("statefulsets/fleet", |set| {
        set["metadata"]["generation"] = json!(2);
        set["status"] = json!({"replicas": 3, "observedGeneration": 2, "updateRevision": "new"});
    });
    for (name, uid) in [("fleet-1", "1"), ("fleet-2", "other")] {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "uid": uid}});
        cluster.put(&format!("pods/{name}"), pod);
    }
    cluster.writes();
    let pod = |ordinal: u32| SelectorPod {
        name: format!("fleet-{ordinal}").into(),
        uid: ordinal.to_string().into(),
        ip: None,
        ready: false,
        terminating: false,
        finished: false,
        revision: Some("bad".into()),
        failing: Some("ImagePullBackOff".to_owned()),
    };
    let done = reconcile(&context, set(json!({})), &[pod(2), pod(1)]).await.unwrap();
    assert_eq!(done.replaced_pod, None, "the pod of that name is another one by now");
    let done = reconcile(&context, set(json!({})), &[pod(1)]).await.unwrap();
    assert_eq!(done.replaced_pod.as_deref(), Some("fleet-1"));
    assert_eq!(done.events[0].reason, event::POD_REPLACED);
    assert!(cluster.get("pods/fleet-1").is_none() && cluster.get("pods/fleet-2").is_some());
}

#[tokio::test]
async fn an_apiserver_that_fails_ends_the_pass() {
    let (cluster, client) = Cluster::start();
    let context = context(&client);
    cluster.fail("PATCH statefulsets/fleet", 500, "etcd is away");
    let error = reconcile(&context, set(json!({})), &[]).await.unwrap_err();
    assert_eq!(error.reason(), "apiserver");
    cluster.heal();
    assert!(pass(&context, json!({})).await.statefulset.is_some());
}
