//! What a selector without operator is told: which Service, and a ModelPool's spec for its endpoints.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::{
    kubernetes::{
        api::{ModelPool, ModelPoolSpec, crds},
        connection::{NAMESPACE_FILE, own_namespace},
        source::check_pool,
    },
    service::file::read_bounded,
};

/// Longest file of settings, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Why settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// Outside a pod nobody tells the namespace.
    #[error("the namespace is not known: --kubernetes-namespace names it where {NAMESPACE_FILE} does not")]
    NoNamespace,
    /// The file cannot be read.
    #[error("cannot read {file}: {reason}")]
    Unreadable {
        /// Its path.
        file: String,
        /// Why.
        reason: String,
    },
    /// The file says what a ModelPool cannot.
    #[error("{file}: {reason}")]
    Invalid {
        /// Its path.
        file: String,
        /// What is wrong.
        reason: String,
    },
}

/// What is discovered.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Namespace of the Service.
    pub namespace: String,
    /// The Service whose endpoints are the workers.
    pub service: String,
    /// What their records say.
    pub pool: ModelPoolSpec,
}

impl Settings {
    /// Puts settings together. Without a file of the pool's spec: model `default`, the port called `http`, and the
    /// engines are asked for the rest.
    ///
    /// # Errors
    /// [`SettingsError`].
    pub fn new(service: &str, pool_file: Option<&Path>, namespace: Option<String>) -> Result<Self, SettingsError> {
        let namespace = namespace.or_else(own_namespace).filter(|name| !name.is_empty());
        let namespace = namespace.ok_or(SettingsError::NoNamespace)?;
        let file = pool_file.map_or_else(|| "the pool".to_owned(), |path| path.display().to_string());
        let text = pool_file.map(read).transpose()?.unwrap_or_else(|| DEFAULT_POOL.to_owned());
        let pool = parse(&text, service).map_err(|reason| SettingsError::Invalid { file, reason })?;
        Ok(Self { namespace, service: service.to_owned(), pool })
    }

    /// Owner of the workers in the catalog.
    pub fn owner(&self) -> String {
        format!("k8s.{}.{}", self.namespace, self.service)
    }
}

/// What holds without a file.
const DEFAULT_POOL: &str = "{modelName: default, endpoint: {port: http}, kvEvents: {source: Engine}}";

fn read(path: &Path) -> Result<String, SettingsError> {
    let file = path.display().to_string();
    let unreadable = |reason: String| SettingsError::Unreadable { file: file.clone(), reason };
    let bytes = read_bounded(path, MAX_FILE_BYTES).map_err(|error| unreadable(error.to_string()))?;
    let bytes = bytes.ok_or_else(|| unreadable(format!("it has more than {MAX_FILE_BYTES} bytes")))?;
    String::from_utf8(bytes).map_err(|error| unreadable(error.to_string()))
}

/// Reads the spec of a ModelPool. Its `selectorRef` and `workers` are those of the command line, whatever it says.
fn parse(text: &str, service: &str) -> Result<ModelPoolSpec, String> {
    let options = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
    let spec: Map<String, Value> =
        serde_saphyr::from_str_with_options(text, options).map_err(|error| error.to_string())?;
    let mut spec = Value::Object(spec);
    if let Some(key) = unknown_key(&spec, &schema()) {
        return Err(format!("{key} is no field of a ModelPool's spec"));
    }
    spec["selectorRef"] = json!({ "name": service });
    spec["workers"] = json!({ "service": { "name": service } });
    let spec: ModelPoolSpec = serde_json::from_value(spec).map_err(|error| error.to_string())?;
    check_pool(&ModelPool::new(service, spec.clone()))?;
    Ok(spec)
}

/// The schema of a ModelPool's spec.
fn schema() -> Value {
    let [_, pool] = crds();
    let crd = serde_json::to_value(pool).expect("a CRD is JSON");
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"].clone()
}

/// The path of the first member that `schema` does not know.
fn unknown_key(value: &Value, schema: &Value) -> Option<String> {
    match value {
        Value::Object(members) => {
            let properties = schema["properties"].as_object()?;
            members.iter().find_map(|(name, member)| match properties.get(name) {
                None => Some(name.clone()),
                Some(schema) => unknown_key(member, schema).map(|inner| format!("{name}.{inner}")),
            })
        }
        Value::Array(items) => items.iter().find_map(|item| unknown_key(item, &schema["items"])),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_the_spec_of_a_pool_without_its_places() {
        let spec =
            parse("{modelName: m, endpoint: {port: 8000}, blockSize: 16, kvEvents: {port: 5557}}", "vllm").unwrap();
        assert_eq!((spec.block_size, &*spec.selector_ref.name), (Some(16), "vllm"));
        assert_eq!(spec.workers.service.unwrap().name, "vllm");
        // The spec of a ModelPool that is at hand can be used as it is.
        let whole =
            "{selectorRef: {name: x}, workers: {podSelector: {}}, modelName: m, endpoint: {port: 1}, blockSize: 1}";
        assert_eq!(parse(whole, "vllm").unwrap().workers.pod_selector, None);
    }

    #[test]
    fn without_a_file_engines_are_asked() {
        let spec = parse(DEFAULT_POOL, "vllm").unwrap();
        assert_eq!((&*spec.model_name, spec.block_size), ("default", None));
    }

    #[test]
    fn what_a_pool_cannot_say_is_named() {
        for (text, word) in [
            ("{modelName: m, endpoint: {port: 1}}", "blockSize is required"),
            ("{modelName: m, endpoint: {port: 1, prot: 2}, blockSize: 1}", "endpoint.prot is no field"),
            ("{modelName: m, endpoint: {port: 1}, blockSize: 1, kvEvents: {}}", "kvEvents.port is required"),
            ("{endpoint: {port: 1}, blockSize: 1}", "modelName"),
            ("[1]", ""),
        ] {
            let error = parse(text, "vllm").unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn a_namespace_that_is_named_needs_no_pod() {
        let settings = Settings::new("vllm", None, Some("models".to_owned())).unwrap();
        assert_eq!(settings.owner(), "k8s.models.vllm");
    }
}
