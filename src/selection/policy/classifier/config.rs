//! Which classifier is configured, and how its type becomes one.

use std::{
    collections::BTreeMap,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

pub use super::parameters::{RequestClassifierConfig, RequestClassifierParameters, RequestClassifierProviderError};
use super::{RequestClassifier, context::RequestClassifierContext};
use crate::selection::{config::SelectionConfig, policy::failures::panic_text};

/// Makes the classifier of a partition.
pub type RequestClassifierFactory = Arc<dyn Fn(RequestClassifierContext) -> Box<dyn RequestClassifier> + Send + Sync>;

/// Turns parameters into a factory. Called once, at start.
pub type RequestClassifierProvider = Arc<
    dyn Fn(&RequestClassifierParameters) -> Result<RequestClassifierFactory, RequestClassifierProviderError>
        + Send
        + Sync,
>;

/// Why a classifier type cannot be registered, or the configured one not be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "fields are named in the texts")]
pub enum RequestClassifierRegistryError {
    /// A type needs a name.
    #[error("request-classifier type must not be empty")]
    EmptyName,
    /// The name means that nothing is classified.
    #[error("request-classifier type 'default' is reserved for Dynamo's pass-through behavior")]
    ReservedDefault,
    /// Nothing is ever replaced.
    #[error("request-classifier type {name:?} is already registered")]
    Duplicate { name: String },
    /// The configuration names no linked type.
    #[error("unknown request-classifier type {name:?}; linked classifier types: {available}")]
    UnknownType { name: String, available: String },
    /// The provider refused the parameters, or panicked over them.
    #[error("invalid parameters for request-classifier type {classifier_type:?}: {source}")]
    Provider {
        classifier_type: String,
        #[source]
        source: RequestClassifierProviderError,
    },
}

/// Linked classifier types.
#[derive(Clone, Default)]
pub(in crate::selection::policy) struct ClassifierTypes(BTreeMap<String, RequestClassifierProvider>);

impl fmt::Debug for ClassifierTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl ClassifierTypes {
    pub(in crate::selection::policy) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(in crate::selection::policy) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    pub(in crate::selection::policy) fn register(
        &mut self,
        name: String,
        provider: RequestClassifierProvider,
    ) -> Result<(), RequestClassifierRegistryError> {
        if name.is_empty() {
            return Err(RequestClassifierRegistryError::EmptyName);
        }
        if name == "default" {
            return Err(RequestClassifierRegistryError::ReservedDefault);
        }
        if self.0.contains_key(&name) {
            return Err(RequestClassifierRegistryError::Duplicate { name });
        }
        self.0.insert(name, provider);
        Ok(())
    }

    pub(in crate::selection::policy) fn resolve(
        &self,
        config: &SelectionConfig,
    ) -> Result<Option<RequestClassifierFactory>, RequestClassifierRegistryError> {
        let Some(RequestClassifierConfig { classifier_type, parameters }) = config.request_classifier.as_deref() else {
            return Ok(None);
        };
        let provider = self.0.get(classifier_type).ok_or_else(|| {
            let names: Vec<&str> = self.names().collect();
            let available = if names.is_empty() { "<none>".to_owned() } else { names.join(", ") };
            RequestClassifierRegistryError::UnknownType { name: classifier_type.clone(), available }
        })?;
        let provided = catch_unwind(AssertUnwindSafe(|| provider(parameters))).unwrap_or_else(|panic| {
            let text = format!("provider panicked: {}", panic_text(&*panic));
            Err(RequestClassifierProviderError::new(text))
        });
        provided.map(Some).map_err(|source| RequestClassifierRegistryError::Provider {
            classifier_type: classifier_type.clone(),
            source,
        })
    }
}
