//! The section `request_classifier` of a policy document, and its parameters.

use serde::de::DeserializeOwned;
use serde_value::Value;

use crate::selection::policy::parameters::WorkerSelectionPolicyParameters;

/// The section `request_classifier` of a policy document.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestClassifierConfig {
    /// Registered type.
    pub classifier_type: String,
    /// Parameters.
    pub parameters: RequestClassifierParameters,
}

impl RequestClassifierConfig {
    /// Registered type.
    pub fn classifier_type(&self) -> &str {
        &self.classifier_type
    }

    /// Parameters.
    pub fn parameters(&self) -> &RequestClassifierParameters {
        &self.parameters
    }
}

/// Parameters of a classifier: a mapping.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestClassifierParameters(WorkerSelectionPolicyParameters);

impl RequestClassifierParameters {
    /// Parameters from what any serde format gave.
    pub fn from_value(value: Value) -> Self {
        Self(WorkerSelectionPolicyParameters::from_value(value))
    }

    /// The parameters as a type of the plugin's own; `{}` when there are none.
    ///
    /// # Errors
    /// Type, missing or unknown field; the text names the field.
    pub fn deserialize<T: DeserializeOwned>(&self) -> Result<T, RequestClassifierProviderError> {
        self.0.deserialize().map_err(|error| RequestClassifierProviderError::new(error.to_string()))
    }
}

impl From<WorkerSelectionPolicyParameters> for RequestClassifierParameters {
    fn from(parameters: WorkerSelectionPolicyParameters) -> Self {
        Self(parameters)
    }
}

/// Why a provider refused parameters; the text is shown as it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RequestClassifierProviderError(String);

impl RequestClassifierProviderError {
    /// A refusal with its reason.
    pub fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}
