//! Applying against an apiserver in memory: what is written, left alone and refused.

use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::json;

use super::{mock::Cluster, *};

fn owner() -> OwnerReference {
    OwnerReference {
        api_version: "pointsman.dev/v1alpha1".to_owned(),
        kind: "SelectorSet".to_owned(),
        name: "fleet".to_owned(),
        uid: "u".to_owned(),
        controller: Some(true),
        ..OwnerReference::default()
    }
}

fn desired(text: &str) -> Desired {
    let mut map = ConfigMap::default();
    map.metadata.name = Some("fleet-policy".to_owned());
    map.metadata.namespace = Some("ns".to_owned());
    map.metadata.owner_references = Some(vec![owner()]);
    map.data = Some([("policy.yaml".to_owned(), text.to_owned())].into());
    Desired::of(&map).unwrap()
}

const PATH: &str = "configmaps/fleet-policy";

async fn apply(applier: &Applier, client: &Client, text: &str) -> Outcome {
    applier.apply(client, "ns", &owner(), &desired(text)).await.unwrap()
}

#[tokio::test]
async fn nothing_is_written_without_a_difference() {
    let (cluster, client) = Cluster::start();
    let applier = Applier::default();
    assert!(matches!(apply(&applier, &client, "a").await, Outcome::Written(_)));
    assert_eq!(cluster.writes(), ["PATCH configmaps/fleet-policy"]);
    for touch in 0..5 {
        cluster.edit(PATH, |map| map["metadata"]["annotations"]["somebody/else"] = json!(touch.to_string()));
        assert!(matches!(apply(&applier, &client, "a").await, Outcome::Unchanged(_)));
    }
    assert!(matches!(apply(&Applier::default(), &client, "a").await, Outcome::Unchanged(_)), "after a restart");
    assert_eq!(cluster.writes(), [""; 0]);
    assert!(matches!(apply(&applier, &client, "b").await, Outcome::Written(_)));
    assert_eq!(cluster.get(PATH).unwrap()["data"]["policy.yaml"], "b");
}

#[tokio::test(start_paused = true)]
async fn what_others_change_is_put_back() {
    let (cluster, client) = Cluster::start();
    let applier = Applier::default();
    apply(&applier, &client, "a").await;
    cluster.edit(PATH, |map| map["data"]["policy.yaml"] = json!("theirs"));
    assert!(matches!(apply(&applier, &client, "a").await, Outcome::Later(_)), "no race");
    tokio::time::advance(step::CORRECTION_PAUSE).await;
    assert!(matches!(apply(&applier, &client, "a").await, Outcome::Written(_)));
    assert_eq!(cluster.get(PATH).unwrap()["data"]["policy.yaml"], "a");
}

#[tokio::test]
async fn objects_of_others_are_neither_written_nor_deleted() {
    let (cluster, client) = Cluster::start();
    let applier = Applier::default();
    let theirs =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "fleet-policy"}, "data": {"x": "y"}});
    cluster.put(PATH, theirs);
    let before = cluster.get(PATH);
    assert!(matches!(apply(&applier, &client, "a").await, Outcome::Conflict(_)));
    let resource = ApiResource::erase::<ConfigMap>(&());
    assert!(!applier.remove(&client, "ns", &owner(), &resource, "fleet-policy").await.unwrap());
    assert_eq!(cluster.writes(), [""; 0]);
    assert_eq!(cluster.get(PATH), before);
}

#[tokio::test]
async fn what_is_not_wanted_any_more_is_deleted() {
    let (cluster, client) = Cluster::start();
    let applier = Applier::default();
    let resource = ApiResource::erase::<ConfigMap>(&());
    assert!(!applier.remove(&client, "ns", &owner(), &resource, "fleet-policy").await.unwrap());
    apply(&applier, &client, "a").await;
    assert!(applier.remove(&client, "ns", &owner(), &resource, "fleet-policy").await.unwrap());
    assert_eq!(cluster.writes(), ["PATCH configmaps/fleet-policy", "DELETE configmaps/fleet-policy"]);
    assert_eq!(cluster.get(PATH), None);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_told_and_not_repeated() {
    let (cluster, client) = Cluster::start();
    let applier = Applier::default();
    cluster.fail("PATCH configmaps/fleet-policy", 422, "field is immutable");
    for _ in 0..3 {
        assert_eq!(apply(&applier, &client, "a").await, Outcome::Refused("field is immutable".to_owned()));
    }
    assert_eq!(cluster.writes().len(), 1);
    tokio::time::advance(step::REFUSAL_PAUSE).await;
    apply(&applier, &client, "a").await;
    assert_eq!(cluster.writes().len(), 1);
    cluster.heal();
    assert!(matches!(apply(&applier, &client, "b").await, Outcome::Written(_)), "another wish is tried at once");
}

#[tokio::test]
async fn an_apiserver_that_fails_is_an_error() {
    let (cluster, client) = Cluster::start();
    let applier = Applier::default();
    cluster.fail("PATCH configmaps/fleet-policy", 500, "etcd is away");
    let error = applier.apply(&client, "ns", &owner(), &desired("a")).await.unwrap_err();
    assert_eq!((error.reason(), &*error.to_string()), ("apiserver", "cannot apply ConfigMap fleet-policy"));
    cluster.fail("GET configmaps/fleet-policy", 403, "forbidden");
    let error = applier.apply(&client, "ns", &owner(), &desired("a")).await.unwrap_err();
    assert_eq!(error.reason(), "forbidden");
}

#[tokio::test(start_paused = true)]
async fn no_answer_is_an_error_in_time() {
    let service = tower::service_fn(|_: axum::http::Request<kube::client::Body>| async {
        std::future::pending::<Result<axum::http::Response<kube::client::Body>, std::convert::Infallible>>().await
    });
    let error = Applier::default().apply(&Client::new(service, "ns"), "ns", &owner(), &desired("a")).await.unwrap_err();
    assert_eq!(error.reason(), "timeout");
}
