//! Parameters of plugins, and the providers that turn them into factories.

use std::{fmt, sync::Arc};

use serde::de::DeserializeOwned;
use serde_value::Value;

use super::stages::WorkerSelectionPolicyFactory;

/// The parameters of one configured instance: a mapping, with numbers as they were written (NaN and infinities too).
#[derive(Clone, PartialEq)]
pub struct WorkerSelectionPolicyParameters(Value);

impl WorkerSelectionPolicyParameters {
    /// Parameters from what any serde format gave.
    pub fn from_value(value: Value) -> Self {
        Self(value)
    }

    /// What they were made from.
    pub fn value(&self) -> &Value {
        &self.0
    }

    /// The parameters as a type of the plugin's own; `{}` when the instance has none.
    ///
    /// # Errors
    /// Type, missing or unknown field; the text names the field.
    pub fn deserialize<T: DeserializeOwned>(&self) -> Result<T, WorkerSelectionPolicyProviderError> {
        let deserializer = serde_value::ValueDeserializer::<serde_value::DeserializerError>::new(self.0.clone());
        serde_path_to_error::deserialize(deserializer).map_err(|error| {
            let path = error.path().to_string();
            let inner = error.into_inner();
            WorkerSelectionPolicyProviderError::new(if path == "." {
                inner.to_string()
            } else {
                format!("{path}: {inner}")
            })
        })
    }
}

impl Default for WorkerSelectionPolicyParameters {
    fn default() -> Self {
        Self(Value::Map(std::collections::BTreeMap::new()))
    }
}

impl fmt::Debug for WorkerSelectionPolicyParameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// Why a provider refused parameters; the text is shown as it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct WorkerSelectionPolicyProviderError(String);

impl WorkerSelectionPolicyProviderError {
    /// A refusal with its reason.
    pub fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

/// Turns the parameters of an instance into the factory of its policies. Called once an instance, at start.
pub type WorkerSelectionPolicyProvider = Arc<
    dyn Fn(&WorkerSelectionPolicyParameters) -> Result<WorkerSelectionPolicyFactory, WorkerSelectionPolicyProviderError>
        + Send
        + Sync,
>;
