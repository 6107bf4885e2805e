//! Parameters of plugins, and the providers that turn them into factories.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use serde::{Serialize, de::DeserializeOwned};
use serde_value::Value;

/// The parameters of one configured instance: a mapping, with numbers as they were written (NaN and infinities too).
#[derive(Clone)]
pub struct WorkerSelectionPolicyParameters {
    given: Value,
    /// What the plugin made of them, for reports; clones share it.
    effective: Arc<OnceLock<Value>>,
}

impl PartialEq for WorkerSelectionPolicyParameters {
    fn eq(&self, other: &Self) -> bool {
        self.given == other.given
    }
}

impl WorkerSelectionPolicyParameters {
    /// Parameters from what any serde format gave.
    pub fn from_value(value: Value) -> Self {
        Self { given: value, effective: Arc::default() }
    }

    /// What they were made from.
    pub fn value(&self) -> &Value {
        &self.given
    }

    /// With defaults filled in, where the plugin read them with [`Self::deserialize_shown`]; else as they were given.
    pub fn effective(&self) -> &Value {
        self.effective.get().unwrap_or(&self.given)
    }

    /// [`Self::deserialize`] for a type that can be written as well, so that reports show it with its defaults. Ours.
    ///
    /// # Errors
    /// As there.
    pub fn deserialize_shown<T: DeserializeOwned + Serialize>(&self) -> Result<T, WorkerSelectionPolicyProviderError> {
        let parameters = self.deserialize()?;
        if let Ok(shown) = serde_value::to_value(&parameters) {
            self.effective.get_or_init(|| shown);
        }
        Ok(parameters)
    }

    /// The parameters as a type of the plugin's own; `{}` when the instance has none.
    ///
    /// # Errors
    /// Type, missing or unknown field; the text names the field.
    pub fn deserialize<T: DeserializeOwned>(&self) -> Result<T, WorkerSelectionPolicyProviderError> {
        let deserializer = serde_value::ValueDeserializer::<serde::de::value::Error>::new(self.given.clone());
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
        Self::from_value(Value::Map(std::collections::BTreeMap::new()))
    }
}

impl fmt::Debug for WorkerSelectionPolicyParameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.given, f)
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
