//! Types, instances and choices by role (spec plugins 5).

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use pointsman::{
    KvRouterConfig, RoutingPartitionRef, WorkerType,
    plugins::{
        RouterPluginRegistry, RouterPlugins, WorkerSelectionOverrides, WorkerSelectionPolicyParameters,
        WorkerSelectionPolicyProvider, router_plugin_registry,
        worker_selection::{WorkerSelectionConfig, WorkerSelectionInstance},
    },
    selection::core::Plugins,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::support::{Fleet, factory, lowest, policy, request};

pub fn parameters(value: Value) -> WorkerSelectionPolicyParameters {
    WorkerSelectionPolicyParameters::from_value(serde_value::to_value(value).unwrap())
}

pub fn instance(name: &str, policy_type: &str, value: Value) -> WorkerSelectionInstance {
    WorkerSelectionInstance {
        name: name.into(),
        policy_type: policy_type.into(),
        parameters: parameters(value),
        location: Some("p.yaml:3".into()),
    }
}

/// Aggregated pools get `aggregated`.
pub fn configured<const N: usize>(aggregated: &str, instances: [WorkerSelectionInstance; N]) -> KvRouterConfig {
    let section = WorkerSelectionConfig {
        aggregated: Some(aggregated.into()),
        instances: instances.into(),
        ..WorkerSelectionConfig::default()
    };
    KvRouterConfig { worker_selection: Some(Arc::new(section)), ..KvRouterConfig::default() }
}

/// A provider of policies with a name, counting its calls.
fn named(name: &'static str, calls: &Arc<AtomicU32>) -> WorkerSelectionPolicyProvider {
    let calls = Arc::clone(calls);
    Arc::new(move |_| {
        calls.fetch_add(1, Ordering::Relaxed);
        Ok(factory(move || policy(vec![], vec![], lowest()).with_name(name)))
    })
}

/// The policy a role gets: from the label that its factory gave.
fn made(plugins: &RouterPlugins, role: WorkerType) -> String {
    let factory = plugins.worker_selection().unwrap();
    let policy = factory(&KvRouterConfig::default(), role, RoutingPartitionRef::new("m", "g"));
    format!("{policy:?}").split('"').nth(1).unwrap().to_owned()
}

fn registry(calls: &Arc<AtomicU32>) -> RouterPluginRegistry {
    let mut registry = RouterPluginRegistry::default()
        .with_default_factory(factory(|| policy(vec![], vec![], lowest()).with_name("host default")));
    registry.register_worker_selection("alpha", named("alpha", calls)).unwrap();
    registry.register("beta", named("beta", calls)).unwrap();
    registry
}

#[test]
fn names_are_taken_once() {
    let calls = Arc::default();
    let mut registry = registry(&calls);
    for (name, text) in [
        ("", "worker-selection policy type must not be empty"),
        ("default", "worker-selection policy type 'default' is reserved for Dynamo's built-in selector"),
        ("alpha", "worker-selection policy type \"alpha\" is already registered"),
    ] {
        assert_eq!(registry.register_worker_selection(name, named("x", &calls)).unwrap_err().to_string(), text);
    }
    assert!(!registry.is_empty());
    assert!(RouterPluginRegistry::default().is_empty());
    let only_default =
        RouterPluginRegistry::default().with_default_factory(factory(|| policy(vec![], vec![], lowest())));
    assert!(only_default.is_empty(), "the default factory does not count");
    assert!(RouterPluginRegistry::default().resolve(&KvRouterConfig::default()).unwrap().is_none());
}

#[test]
fn each_role_gets_what_was_chosen_for_it() {
    let calls = Arc::new(AtomicU32::new(0));
    let registry = registry(&calls);
    let mut config = configured("a", [instance("a", "alpha", json!({})), instance("b", "beta", json!({}))]);
    let roles = |config: &KvRouterConfig| {
        calls.store(0, Ordering::Relaxed);
        let plugins = registry.resolve_plugins(config).unwrap();
        WorkerType::ALL.map(|role| made(&plugins, role))
    };
    // Prefill, decode, encode, aggregated.
    assert_eq!(roles(&config), ["host default", "host default", "host default", "alpha"]);
    config.worker_selection_overrides =
        WorkerSelectionOverrides { global: Some(" b ".into()), prefill: Some("a".into()), decode: Some("  ".into()) };
    assert_eq!(roles(&config), ["alpha", "beta", "beta", "beta"]);
    assert_eq!(calls.load(Ordering::Relaxed), 2, "once an instance");
    config.worker_selection_overrides.prefill = Some("default".into());
    config.worker_selection_overrides.global = None;
    assert_eq!(roles(&config), ["host default", "host default", "host default", "alpha"]);
    config.worker_selection_overrides.global = Some("default".into());
    assert_eq!(roles(&config), ["host default"; 4]);
    let plugins = registry.resolve_plugins(&config).unwrap();
    assert!(!plugins.has_custom_worker_selection() && !plugins.has_custom_plugins() && !plugins.is_empty());
    let custom = RouterPlugins::default();
    assert!(custom.is_empty());
    let custom = custom.with_worker_selection(factory(|| policy(vec![], vec![], lowest())));
    assert!(custom.has_custom_worker_selection() && custom.has_custom_plugins());
}

#[test]
fn what_is_not_there_is_named() {
    let calls = Arc::default();
    let registry = registry(&calls);
    let text = |config: &KvRouterConfig| registry.resolve(config).err().unwrap().to_string();
    let config = configured("g", [instance("b", "beta", json!({})), instance("a", "alpha", json!({}))]);
    assert_eq!(text(&config), "unknown worker-selection instance \"g\"; configured instances: a, b");
    let overrides = WorkerSelectionOverrides { global: Some("ghost".into()), ..WorkerSelectionOverrides::default() };
    let config = KvRouterConfig { worker_selection_overrides: overrides, ..KvRouterConfig::default() };
    assert_eq!(text(&config), "unknown worker-selection instance \"ghost\"; configured instances: <none>");
    let config = configured("g", [instance("g", "t", json!({}))]);
    assert_eq!(text(&config), "unknown worker-selection policy type \"t\"; linked policy types: alpha, beta");
    let nothing = RouterPluginRegistry::default();
    assert_eq!(
        nothing.resolve(&config).err().unwrap().to_string(),
        "unknown worker-selection policy type \"t\"; linked policy types: <none>"
    );
    let mut no_default = RouterPluginRegistry::default();
    no_default.register_worker_selection("alpha", named("alpha", &calls)).unwrap();
    let config = configured("a", [instance("a", "alpha", json!({}))]);
    assert_eq!(
        no_default.resolve(&config).err().unwrap().to_string(),
        "routing host must supply a default worker-selection policy factory"
    );
    assert!(no_default.resolve_for_worker_type(&config, WorkerType::Aggregated).unwrap().is_some());
    assert!(no_default.resolve_for_worker_type(&config, WorkerType::Prefill).unwrap().is_none());
}

#[test]
fn a_host_of_one_role_looks_at_no_other() {
    let calls = Arc::default();
    let registry = registry(&calls);
    let section = WorkerSelectionConfig {
        prefill: Some("x".into()),
        instances: vec![instance("x", "nope", json!({}))],
        ..WorkerSelectionConfig::default()
    };
    let config = KvRouterConfig { worker_selection: Some(Arc::new(section)), ..KvRouterConfig::default() };
    assert!(registry.resolve_for_worker_type(&config, WorkerType::Aggregated).is_ok());
    assert!(registry.resolve_for_worker_type(&config, WorkerType::Prefill).is_err());
    // A core that serves aggregated pools starts; selections of the other role fail with the reason.
    let fleet = Fleet::with(config, Plugins::Registry { registry: &registry, role: WorkerType::Aggregated });
    fleet.worker(1, json!({}));
    fleet.worker(2, json!({"model_name": "p", "worker_role": "prefill"}));
    fleet.reserve(request(1)).unwrap();
    let mut prefill = request(1);
    prefill.model_name = "p".into();
    let error = fleet.reserve(prefill).unwrap_err();
    assert_eq!(error.to_string(), "unknown worker-selection policy type \"nope\"; linked policy types: alpha, beta");
}

#[test]
fn a_partition_has_the_policy_of_its_workers_role() {
    let calls = Arc::default();
    let registry = registry(&calls);
    let section = WorkerSelectionConfig {
        aggregated: Some("a".into()),
        prefill: Some("b".into()),
        instances: vec![instance("a", "alpha", json!({})), instance("b", "beta", json!({}))],
        ..WorkerSelectionConfig::default()
    };
    let config = KvRouterConfig { worker_selection: Some(Arc::new(section)), ..KvRouterConfig::default() };
    let fleet = Fleet::with(config, Plugins::Registry { registry: &registry, role: WorkerType::Aggregated });
    fleet.worker(1, json!({}));
    fleet.worker(2, json!({"model_name": "p", "worker_role": "prefill"}));
    let name = |model: &str| {
        let mut ask = request(1);
        ask.model_name = model.into();
        ask.explain = true;
        fleet.select(ask).unwrap().explain.unwrap().policy
    };
    assert_eq!([name("m"), name("p")], ["alpha", "beta"]);
}

#[test]
fn parameters_become_a_type_of_the_plugin() {
    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Own {
        weight: f64,
        #[serde(default)]
        limits: Vec<u32>,
    }
    let read = |value| parameters(value).deserialize::<Own>();
    assert_eq!(read(json!({"weight": 1})).unwrap(), Own { weight: 1.0, limits: vec![] });
    assert_eq!(read(json!({"weight": 2.5, "limits": [1, 2]})).unwrap(), Own { weight: 2.5, limits: vec![1, 2] });
    let text = |value| read(value).unwrap_err().to_string();
    assert_eq!(text(json!({})), "missing field `weight`");
    assert_eq!(
        text(json!({"weight": 1, "wieght": 2})),
        "wieght: unknown field `wieght`, expected `weight` or `limits`"
    );
    assert_eq!(text(json!({"weight": "x"})), "weight: invalid type: string \"x\", expected f64");
    assert_eq!(text(json!({"weight": 1, "limits": [1, -2]})), "limits[1]: invalid value: integer `-2`, expected u32");
    let nan =
        serde_value::Value::Map([(serde_value::to_value("weight").unwrap(), serde_value::Value::F64(f64::NAN))].into());
    let nan = WorkerSelectionPolicyParameters::from_value(nan);
    assert!(nan.deserialize::<Own>().unwrap().weight.is_nan());
    assert!(
        WorkerSelectionPolicyParameters::default()
            .deserialize::<std::collections::BTreeMap<String, u32>>()
            .unwrap()
            .is_empty()
    );
}

#[test]
fn what_ships_is_registered() {
    let registry = router_plugin_registry();
    let types: Vec<&str> = registry.policy_types().collect();
    assert_eq!(
        types,
        [
            "consistent-hashing",
            "dynamo-default-cost-fn",
            "dynamo-soft-affinity-load-guard",
            "dynamo-two-tier-cost-fn",
            "least-loaded",
            "pipeline",
            "power-of-two-choices",
            "random",
            "round-robin",
            "session-sticky",
            "soft-affinity-load-guard",
            "thunderagent",
            "work-ahead",
        ]
    );
    assert!(registry.resolve(&KvRouterConfig::default()).unwrap().is_some(), "it has a default");
}
