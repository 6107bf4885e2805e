//! Puts a service together.

use std::{fmt, sync::Arc};

use super::{PolicySource, SelectionService, classifier::ClassifierChoice, config::ServiceConfig, sources::Sources};
use crate::{
    events::listener::ListenerConfig,
    mesh::BoundMesh,
    plugins::request_classifier::{ClassifierLimits, RequestClassifierFactory},
    selection::{
        Clock,
        config::ConfigError,
        core::LifecycleOwner,
        ingest::EventSources,
        moment::SystemClock,
        policy::{builtin, registry::RouterPluginRegistry, stages::WorkerSelectionPolicyFactory},
        worker::WorkerRole,
    },
};

/// Builds a [`SelectionService`].
///
/// ```no_run
/// # async fn host() -> Result<(), Box<dyn std::error::Error>> {
/// use pointsman::service::{SelectionServiceBuilder, ServiceConfig};
///
/// let service = SelectionServiceBuilder::new(ServiceConfig::default()).build()?;
/// service.recovered().await;
/// # Ok(()) }
/// ```
pub struct SelectionServiceBuilder {
    config: ServiceConfig,
    clock: Arc<dyn Clock>,
    listener: ListenerConfig,
    sources: Option<Arc<dyn EventSources>>,
    mesh: Option<BoundMesh>,
    classifier: ClassifierChoice,
    plugins: HostPlugins,
    policies: Option<PolicySource>,
}

/// Policies that the host links.
struct HostPlugins {
    registry: RouterPluginRegistry,
    role: WorkerRole,
    factory: Option<WorkerSelectionPolicyFactory>,
}

impl fmt::Debug for SelectionServiceBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SelectionServiceBuilder").field("config", &self.config).finish_non_exhaustive()
    }
}

/// Why a service cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A setting out of range, or a policy that cannot be.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The service runs tasks of its own.
    #[error("a selection service must be built inside a tokio runtime")]
    NoRuntime,
}

impl SelectionServiceBuilder {
    /// A service with `config`, the machine's clock, listeners for KV events, and the policies that ship.
    pub fn new(config: ServiceConfig) -> Self {
        Self::with_plugins(config, WorkerRole::default(), builtin::router_plugin_registry())
    }

    /// A service whose policies come from `registry`. What is configured for `role` must be possible; another role's
    /// policy that is not fails the selections of its partitions.
    pub fn with_plugins(config: ServiceConfig, role: WorkerRole, registry: RouterPluginRegistry) -> Self {
        Self {
            config,
            clock: Arc::new(SystemClock::default()),
            listener: ListenerConfig::default(),
            sources: None,
            mesh: None,
            plugins: HostPlugins { registry, role, factory: None },
            classifier: ClassifierChoice {
                factory: None,
                limits: ClassifierLimits::default(),
                owner: LifecycleOwner::Booking,
            },
            policies: None,
        }
    }

    /// Every partition gets its policy from `factory`, whatever is configured.
    #[must_use]
    pub fn worker_selection_policy_factory(mut self, factory: WorkerSelectionPolicyFactory) -> Self {
        self.plugins.factory = Some(factory);
        self
    }

    /// Takes the time from `clock`.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Sockets, deadlines and limits of the listeners for KV events.
    #[must_use]
    pub fn listeners(mut self, config: ListenerConfig) -> Self {
        self.listener = config;
        self
    }

    /// Tells other replicas of what happens here, and follows them.
    #[must_use]
    pub fn mesh(mut self, mesh: BoundMesh) -> Self {
        self.mesh = Some(mesh);
        self
    }

    /// Runs event streams in `sources` instead of listeners, for hosts that get KV events in their own way.
    #[must_use]
    pub fn event_sources(mut self, sources: Arc<dyn EventSources>) -> Self {
        self.sources = Some(sources);
        self
    }

    /// Lets classifiers of this factory see requests before they queue, whatever is configured.
    #[must_use]
    pub fn request_classifier(mut self, factory: RequestClassifierFactory) -> Self {
        self.classifier.factory = Some(factory);
        self
    }

    /// Limits of each classifier.
    #[must_use]
    pub fn request_classifier_limits(mut self, limits: ClassifierLimits) -> Self {
        self.classifier.limits = limits;
        self
    }

    /// The host tells of its requests by [`SelectionService::begin_request_lifecycle`]; only those are classified.
    /// Without it a booking is the lifecycle: it begins with `select_and_reserve` and ends with the booking.
    #[must_use]
    pub fn host_manages_request_lifecycle(mut self) -> Self {
        self.classifier.owner = LifecycleOwner::Host;
        self
    }

    /// Policies by role, from a document that may be followed; they go before what the registry or a factory would give.
    #[must_use]
    pub fn policies(mut self, source: PolicySource) -> Self {
        self.policies = Some(source);
        self
    }

    /// Builds the service and starts its tasks; start-up recovery goes on in the background (see
    /// [`SelectionService::recovered`]).
    ///
    /// # Errors
    /// A setting out of range; a policy that cannot be; no tokio runtime.
    pub fn build(self) -> Result<SelectionService, BuildError> {
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| BuildError::NoRuntime)?;
        let sources = match self.sources {
            Some(sources) => Sources::host(sources),
            None => Sources::listeners(runtime.clone(), self.listener),
        };
        let HostPlugins { registry, role, factory } = self.plugins;
        let policies = match (self.policies, factory) {
            (Some(policies), _) => policies,
            (None, Some(factory)) => PolicySource::fixed(factory, &self.config.selection, registry),
            (None, None) => PolicySource::of(&self.config.selection, registry, role)?,
        };
        let mut classifier = self.classifier;
        if classifier.factory.is_none() {
            let resolved = policies.registry.resolve_request_classifier(&self.config.selection);
            classifier.factory = resolved.map_err(|error| ConfigError(error.to_string()))?;
        }
        let classifier = (classifier, runtime);
        Ok(SelectionService::start(self.config, self.clock, sources, self.mesh, policies, classifier)?)
    }
}
