//! The sections about plugins: `worker_selection` and `request_classifier` (spec plugins 5.1).

use std::collections::{BTreeMap, HashSet};

use super::{
    DocumentError,
    node::{Cursor, Node, Value},
    profile::identifier,
};
use crate::selection::policy::{
    classifier::config::RequestClassifierConfig,
    instances::{WorkerSelectionConfig, WorkerSelectionInstance},
    parameters::WorkerSelectionPolicyParameters,
};

const ROLES: [&str; 4] = ["aggregated", "prefill", "decode", "encode"];

/// Reads `worker_selection`; `file` is what locations begin with.
pub(super) fn read(section: &Cursor<'_>, file: &str) -> Result<WorkerSelectionConfig, DocumentError> {
    let fields = section.fields(&["aggregated", "prefill", "decode", "encode", "instances"])?;
    let mut instances: Vec<WorkerSelectionInstance> = Vec::new();
    let mut names = HashSet::new();
    for item in fields.get("instances").map(Cursor::items).transpose()?.unwrap_or_default() {
        let instance = instance(&item, file)?;
        if !names.insert(instance.name.clone()) {
            return Err(item.invalid(format!("worker_selection contains duplicate instance {:?}", instance.name)));
        }
        instances.push(instance);
    }
    let selected = |role: &str| {
        fields.optional(role, |value| {
            let name = value.text()?;
            if name != "default" && !names.contains(name) {
                let reason = format!("worker_selection {role} {name:?} does not name a configured instance");
                return Err(value.invalid(reason));
            }
            Ok(name.to_owned())
        })
    };
    let [aggregated, prefill, decode, encode] = ROLES.map(selected);
    let config = WorkerSelectionConfig {
        aggregated: aggregated?,
        prefill: prefill?,
        decode: decode?,
        encode: encode?,
        instances,
    };
    if config == WorkerSelectionConfig::default() {
        return Err(section.invalid(
            "worker_selection must define an instance or an aggregated, prefill, decode, or encode selection",
        ));
    }
    Ok(config)
}

fn instance(item: &Cursor<'_>, file: &str) -> Result<WorkerSelectionInstance, DocumentError> {
    let fields = item.fields(&["name", "type", "parameters"])?;
    let name = fields.required("name")?;
    let policy_type = fields.required("type")?;
    identifier(name, "instance", "worker_selection")?;
    if name.text()? == "default" {
        return Err(name.invalid("worker_selection instance name 'default' is reserved for Dynamo's built-in selector"));
    }
    identifier(policy_type, "policy type", "worker_selection")?;
    let whose = format!("worker_selection instance {:?}", name.text()?);
    Ok(WorkerSelectionInstance {
        name: name.text()?.to_owned(),
        policy_type: policy_type.text()?.to_owned(),
        parameters: parameters(fields.get("parameters"), &whose)?,
        location: Some(format!("{file}:{}", item.node.at.line)),
    })
}

/// Reads `request_classifier`.
pub(super) fn read_classifier(section: &Cursor<'_>) -> Result<RequestClassifierConfig, DocumentError> {
    let fields = section.fields(&["type", "parameters"])?;
    let classifier_type = fields.required("type")?;
    identifier(classifier_type, "classifier type", "request_classifier")?;
    if classifier_type.text()? == "default" {
        return Err(classifier_type.invalid(
            "request_classifier type 'default' is reserved; omit request_classifier to use Dynamo's pass-through \
             classifier",
        ));
    }
    Ok(RequestClassifierConfig {
        classifier_type: classifier_type.text()?.to_owned(),
        parameters: parameters(fields.get("parameters"), "request_classifier")?.into(),
    })
}

/// A mapping; `null` is none.
fn parameters(value: Option<&Cursor<'_>>, whose: &str) -> Result<WorkerSelectionPolicyParameters, DocumentError> {
    match value {
        None => Ok(WorkerSelectionPolicyParameters::default()),
        Some(given) if matches!(given.node.value, Value::Map(_)) => {
            Ok(WorkerSelectionPolicyParameters::from_value(plain(given.node)))
        }
        Some(given) => Err(given.invalid(format!("{whose} parameters must be a YAML mapping"))),
    }
}

/// A tree without places.
fn plain(node: &Node) -> serde_value::Value {
    use serde_value::Value as Plain;
    match &node.value {
        Value::Null => Plain::Unit,
        Value::Boolean(value) => Plain::Bool(*value),
        Value::Unsigned(value) => Plain::U64(*value),
        Value::Signed(value) => Plain::I64(*value),
        Value::Float(value) => Plain::F64(*value),
        Value::Text(text) => Plain::String(text.clone()),
        Value::List(items) => Plain::Seq(items.iter().map(plain).collect()),
        Value::Map(entries) => {
            let entry = |(key, node): &(super::node::Key, Node)| (Plain::String(key.name.clone()), plain(node));
            Plain::Map(entries.iter().map(entry).collect::<BTreeMap<_, _>>())
        }
    }
}
