//! The parameters of a pipeline as they are written.

use std::collections::HashSet;

use serde::{Deserialize, de::DeserializeOwned};

use super::{MAX_COMPONENTS, MAX_NAME_LENGTH, WorkerSelectionPolicyProviderError, refused};
use crate::selection::policy::parameters::WorkerSelectionPolicyParameters;

/// `parameters` of an instance of type `pipeline`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Document {
    pub filters: Vec<Component>,
    pub scorers: Vec<Component>,
    pub picker: Option<Component>,
    pub exclusive_affinity: bool,
}

/// One entry: an expression or a built-in component.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Component {
    pub name: Option<String>,
    pub cel: Option<String>,
    #[serde(rename = "type")]
    pub component_type: Option<String>,
    pub parameters: Option<serde_value::Value>,
    pub weight: Option<f64>,
}

impl Document {
    /// What no single entry shows.
    pub fn check(&self) -> Result<(), WorkerSelectionPolicyProviderError> {
        if self.filters.is_empty() && self.scorers.is_empty() && self.picker.is_none() {
            let message = "a pipeline needs `filters`, `scorers` or a `picker`";
            return Err(WorkerSelectionPolicyProviderError::new(message));
        }
        for (stage, entries) in [("filters", &self.filters), ("scorers", &self.scorers)] {
            if entries.len() > MAX_COMPONENTS {
                return Err(refused(stage, format!("at most {MAX_COMPONENTS} entries")));
            }
            let mut names = HashSet::new();
            for (at, name) in entries.iter().enumerate().filter_map(|(at, entry)| Some((at, entry.name.as_deref()?))) {
                let path = format!("{stage}[{at}].name");
                let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
                if name.is_empty() || name.len() > MAX_NAME_LENGTH || !name.bytes().all(allowed) {
                    let message = format!("{name:?} is not 1 to {MAX_NAME_LENGTH} of A-Z, a-z, 0-9, `_`, `.` and `-`");
                    return Err(refused(&path, message));
                }
                if !names.insert(name) {
                    return Err(refused(&path, format!("{name:?} is there twice")));
                }
            }
        }
        Ok(())
    }
}

impl Component {
    /// Its name in errors and explanations: the given one, else `default`.
    pub fn named(&self, default: &str) -> String {
        self.name.clone().unwrap_or_else(|| default.to_owned())
    }

    /// Parameters of a built-in component.
    pub fn parameters<T: DeserializeOwned>(&self, path: &str) -> Result<T, WorkerSelectionPolicyProviderError> {
        let parameters = self.parameters.clone().map(WorkerSelectionPolicyParameters::from_value).unwrap_or_default();
        parameters.deserialize().map_err(|error| refused(&format!("{path}.parameters"), error))
    }
}

/// Parameters of a component that takes none.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NoParameters {}

/// The error for a type that does not exist.
pub(super) fn unknown_type(path: &str, name: &str, available: &[&str]) -> WorkerSelectionPolicyProviderError {
    refused(&format!("{path}.type"), format!("unknown type {name:?}; there are {}", available.join(", ")))
}
