//! The policy of a set as the text of a document, judged with the loader that its selectors use.

use serde_json::Value;

use crate::{
    kubernetes::api::selector_set::Router,
    selection::{
        SelectionConfig,
        policy::{
            document::{self, DocumentError, ErrorKind, PolicyComposition, PolicyDocument},
            registry::{RouterPluginRegistry, WorkerSelectionPolicyRegistryError},
        },
        worker::WorkerRole,
    },
};

/// The document of a set that asks for none: the built-in policy for everything.
pub const DEFAULT_DOCUMENT: &str = "worker_selection:\n  aggregated: default\n";
/// Name of the built-in policy.
const DEFAULT: &str = "default";
/// Sections that a running selector does not take over.
const FIXED_SECTIONS: [&str; 2] = ["router", "request_classifier"];

/// The document that `router` asks for, if selectors can use it. `foreign` selectors may know types that `registry` does
/// not have; what they refuse, they tell themselves.
///
/// # Errors
/// The selectors' words, with line, column and field.
pub fn text(router: Option<&Router>, registry: &RouterPluginRegistry, foreign: bool) -> Result<String, String> {
    let default = Router::default();
    let router = router.unwrap_or(&default);
    let text = match (&router.policy, &router.document) {
        (_, Some(document)) => as_yaml(&Value::Object(document.clone())).map_err(|error| error.to_string())?,
        (Some(name), None) if name != DEFAULT => of_type(name)?,
        _ => return Ok(DEFAULT_DOCUMENT.to_owned()),
    };
    judge(&text, router, registry, foreign).map_err(|error| match (&router.document, &router.policy) {
        (None, Some(name)) => format!("router.policy {name:?}: {}", error.reason),
        _ => format!("router.document: {error}"),
    })?;
    Ok(text)
}

/// One policy for workers of every role.
fn of_type(name: &str) -> Result<String, String> {
    if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte)) {
        return Err(format!("router.policy {name:?}: only letters, digits, dots, dashes and underscores are allowed"));
    }
    let mut text = "worker_selection:\n".to_owned();
    for role in WorkerRole::ALL {
        text.push_str(&format!("  {role}: {name:?}\n"));
    }
    text.push_str(&format!("  instances:\n    - name: {name:?}\n      type: {name:?}\n"));
    Ok(text)
}

/// YAML for a person to read; JSON, which is YAML too, where that would say something else.
fn as_yaml(value: &Value) -> serde_json::Result<String> {
    if let Ok(yaml) = serde_saphyr::to_string(value)
        && serde_saphyr::from_str::<Value>(&yaml).is_ok_and(|read| read == *value)
    {
        return Ok(yaml);
    }
    serde_json::to_string_pretty(value)
}

fn judge(text: &str, router: &Router, registry: &RouterPluginRegistry, foreign: bool) -> Result<(), DocumentError> {
    let document = PolicyDocument::parse(text, "policy.yaml")?;
    let refuse = |reason: String| DocumentError { kind: ErrorKind::Invalid, place: document.place("router"), reason };
    document::check_combination(&document.router).map_err(refuse)?;
    let mut config = SelectionConfig::default();
    config.use_kv_events = document.router.use_kv_events.or(router.kv_events).unwrap_or(config.use_kv_events);
    document::apply(&document, &mut config);
    config.validate().map_err(|error| refuse(error.to_string()))?;
    match resolve(&document, &config, registry) {
        Err(error) if foreign && error.kind == ErrorKind::Resolution => Ok(()),
        judged => judged,
    }
}

/// Makes every policy of the document and throws them away.
fn resolve(
    document: &PolicyDocument,
    config: &SelectionConfig,
    registry: &RouterPluginRegistry,
) -> Result<(), DocumentError> {
    let roles = &WorkerRole::ALL;
    let composition = PolicyComposition::resolve(registry, config, Some(document), roles, &Default::default())?;
    for role in &composition.roles {
        role.inputs(config).map_err(|error| match &role.instance {
            Some(instance) => document.refuse_instance(instance, error.reason),
            None => error,
        })?;
    }
    let instances = document.worker_selection.iter().flat_map(|section| &section.instances);
    for instance in instances {
        if let Err(error) = registry.check_instance(instance) {
            let reason = match error {
                WorkerSelectionPolicyRegistryError::Provider { source, .. } => source.to_string(),
                error => error.to_string(),
            };
            return Err(document.refuse_instance(&instance.name, reason));
        }
    }
    if let Some(promise) = document::index_promise(&document.router) {
        composition.check_index_promise(promise, config, Some(document), &[WorkerRole::Aggregated])?;
    }
    Ok(())
}

/// What a selector takes from the document `text` at its start alone, in a stable spelling; empty when there is nothing.
pub fn fixed_part(text: &str) -> String {
    let Ok(document) = serde_saphyr::from_str::<Value>(text) else { return String::new() };
    let sections = FIXED_SECTIONS.iter().filter_map(|name| Some(format!("{name}={}\n", document.get(name)?)));
    sections.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plugins::router_plugin_registry;

    fn document(value: Value) -> Router {
        Router { document: value.as_object().cloned(), ..Router::default() }
    }

    fn judged(router: &Router) -> Result<String, String> {
        text(Some(router), &router_plugin_registry(), false)
    }

    #[test]
    fn no_policy_is_the_default_one() {
        for router in [Router::default(), Router { policy: Some("default".to_owned()), ..Router::default() }] {
            assert_eq!(judged(&router), Ok(DEFAULT_DOCUMENT.to_owned()));
        }
        judge(DEFAULT_DOCUMENT, &Router::default(), &router_plugin_registry(), false).unwrap();
    }

    #[test]
    fn a_name_is_that_type_for_every_role() {
        let text = judged(&Router { policy: Some("least-loaded".to_owned()), ..Router::default() }).unwrap();
        let document = PolicyDocument::parse(&text, "policy.yaml").unwrap();
        let mut config = SelectionConfig::default();
        document::apply(&document, &mut config);
        let roles = &WorkerRole::ALL;
        let registry = router_plugin_registry();
        let made = PolicyComposition::resolve(&registry, &config, Some(&document), roles, &Default::default()).unwrap();
        for role in made.roles {
            assert_eq!(role.policy_type.as_deref(), Some("least-loaded"), "{}", role.role);
        }
        let refused = judged(&Router { policy: Some("no-such".to_owned()), ..Router::default() }).unwrap_err();
        assert!(refused.contains("no-such") && refused.starts_with("router.policy"), "{refused}");
        judged(&Router { policy: Some("a\nb".to_owned()), ..Router::default() }).unwrap_err();
    }

    #[test]
    fn a_document_is_told_with_its_place() {
        let bad = document(json!({"policy_classes": [{"name": "a", "quantum": 0}]}));
        let refused = judged(&bad).unwrap_err();
        assert!(refused.starts_with("router.document: ") && refused.contains("line "), "{refused}");
        let refused = judged(&document(json!({"worker_selektion": {}}))).unwrap_err();
        assert!(refused.contains("worker_selektion"), "{refused}");
        let unknown =
            document(json!({"worker_selection": {"decode": "x", "instances": [{"name": "x", "type": "mine"}]}}));
        let refused = judged(&unknown).unwrap_err();
        assert!(refused.contains("mine"), "{refused}");
        text(Some(&unknown), &router_plugin_registry(), true).unwrap();
        let unused = document(json!({"worker_selection": {"instances": [{"name": "x", "type": "mine"}]}}));
        judged(&unused).unwrap_err();
    }

    #[test]
    fn words_that_yaml_takes_for_something_else_stay_words() {
        let value =
            json!({"a": ["yes", "no", "null", "1e3", "0x10", "~", "", " x", "a: b", "#", "-", "1_000", "line\nbreak"]});
        let yaml = as_yaml(&value).unwrap();
        assert_eq!(serde_saphyr::from_str::<Value>(&yaml).unwrap(), value);
    }

    #[test]
    fn only_what_needs_a_restart_is_fixed() {
        assert_eq!(fixed_part(DEFAULT_DOCUMENT), "");
        let one = fixed_part("router: {router_ttl_secs: 5}\nworker_selection: {aggregated: default}\n");
        assert_eq!(one, fixed_part("# a comment\nrouter:\n  router_ttl_secs: 5\n"));
        assert_ne!(one, fixed_part("router: {router_ttl_secs: 6}\n"));
        assert_ne!(fixed_part("request_classifier: {type: a}\n"), "");
    }
}
