//! The replica sync of one selector: looks, registrations, and the memory of what was registered.

use std::{collections::BTreeMap, path::PathBuf};

use reqwest::Method;

use super::{
    endpoint::{Resolved, advertised, default_publisher, split},
    look::{self, Look},
    plan::{Facts, Member, Plan, Strangers, plan},
};
use crate::discovery::apply::{ClientError, PassError, RemoteClient, StateFile, WiredPeers};

/// How a selector is wired.
#[derive(Clone, Debug, Default)]
pub struct WireOptions {
    /// Where it publishes, when neither the selector nor the default should decide.
    pub publisher: Option<String>,
    /// Names the state file beside the selector's address.
    pub owner: String,
    /// Where what was registered is remembered over restarts.
    pub state_dir: Option<PathBuf>,
    /// Remove peers that somebody else registered.
    pub prune: bool,
    /// Endpoints that are not removed even so.
    pub keep: Vec<String>,
}

/// What became of the calls of a pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Endpoints registered.
    pub registered: Vec<String>,
    /// Endpoints removed.
    pub deregistered: Vec<String>,
    /// Endpoints whose call failed, and why.
    pub problems: Vec<(String, String)>,
}

/// One selector.
#[derive(Debug)]
pub struct Wire {
    client: RemoteClient,
    options: WireOptions,
    state: Option<StateFile<WiredPeers>>,
    /// Endpoints this side registered or wanted there, with the URL of their selector; none before the first pass.
    tracked: Option<BTreeMap<String, String>>,
    http: Resolved,
    publisher: Resolved,
}

impl Wire {
    /// The selector behind `client`, on the board under its address.
    pub fn new(client: RemoteClient, options: WireOptions) -> Self {
        let state = options.state_dir.as_deref().map(|d| StateFile::new(d, client.address(), &options.owner));
        let (http, publisher) = Default::default();
        Self { client, options, state, tracked: None, http, publisher }
    }

    /// Its base URL.
    pub fn name(&self) -> &str {
        self.client.address()
    }

    /// Asks for its replica sync and peers.
    ///
    /// # Errors
    /// It cannot be asked.
    pub async fn look(&mut self) -> Result<(Look, Facts), PassError> {
        let look = look::look(&self.client).await?;
        let (host, port) = self.client.host_and_port();
        let publisher = match (&self.options.publisher, &look.publisher) {
            (Some(named), _) => named.clone(),
            (None, Some(told)) => advertised(told, host).unwrap_or_else(|| default_publisher(host)),
            (None, None) => default_publisher(host),
        };
        let http_addresses = self.http.get(host, port).await;
        let publisher_addresses = match split(&publisher) {
            Some((host, port)) => self.publisher.get(host, port).await,
            None => Default::default(),
        };
        let facts = Facts {
            sync: look.sync,
            publisher,
            instance_id: look.instance_id.clone(),
            router_id: look.router_id,
            http_addresses,
            publisher_addresses,
        };
        Ok((look, facts))
    }

    /// What is to be done there, when `look` is what it told and `members` what all told.
    ///
    /// # Errors
    /// The thread that reads the state file ended.
    pub async fn plan(&mut self, members: &[Member], look: &Look) -> Result<Plan, PassError> {
        self.remember().await?;
        let tracked = self.tracked.get_or_insert_default();
        let strangers =
            if self.options.prune { Strangers::Remove { but: &self.options.keep } } else { Strangers::Keep };
        let me = members.iter().position(|m| *m.url == *self.client.address());
        Ok(me.map_or_else(Plan::default, |me| plan(me, members, &look.peers, tracked, strangers)))
    }

    /// Does it. One endpoint that is refused does not stop the others.
    ///
    /// # Errors
    /// The selector is away or answers with a server error; what was to be done cannot be remembered.
    pub async fn apply(&mut self, plan: &Plan, outcome: &mut Outcome) -> Result<(), PassError> {
        self.track(plan).await?;
        let mut failed = None;
        for (endpoint, _) in &plan.register {
            match self.post("register_peer", endpoint).await {
                Ok(()) => {
                    tracing::info!(selector = self.name(), peer = endpoint, "peer registered");
                    outcome.registered.push(endpoint.clone());
                }
                Err(error) => Self::failed(endpoint, error, outcome, &mut failed)?,
            }
        }
        for endpoint in &plan.deregister {
            match self.post("deregister_peer", endpoint).await {
                Ok(()) => {
                    tracing::info!(selector = self.name(), peer = endpoint, "peer removed");
                    outcome.deregistered.push(endpoint.clone());
                }
                // Gone already.
                Err(error) if error.status() == Some(404) => outcome.deregistered.push(endpoint.clone()),
                Err(error) => Self::failed(endpoint, error, outcome, &mut failed)?,
            }
        }
        if !outcome.deregistered.is_empty() {
            let tracked = self.tracked.get_or_insert_default();
            tracked.retain(|endpoint, _| !outcome.deregistered.contains(endpoint));
            self.store().await?;
        }
        failed.map_or(Ok(()), Err)
    }

    /// Notes a failure; ends the pass when nobody is there, because every further call would wait for its timeout.
    fn failed(
        endpoint: &str,
        error: ClientError,
        outcome: &mut Outcome,
        first: &mut Option<PassError>,
    ) -> Result<(), PassError> {
        outcome.problems.push((endpoint.to_owned(), error.to_string()));
        let error = PassError::Call(error);
        if error.is_absence() {
            return Err(error);
        }
        first.get_or_insert(error);
        Ok(())
    }

    async fn post(&self, verb: &str, endpoint: &str) -> Result<(), ClientError> {
        let body = serde_json::json!({ "endpoint": endpoint }).to_string().into_bytes();
        self.client.call_replica_sync(Method::POST, verb, Some(body)).await.map(|_| ())
    }

    /// Reads the state file before the first plan.
    async fn remember(&mut self) -> Result<(), PassError> {
        if self.tracked.is_some() {
            return Ok(());
        }
        let Some(state) = self.state.clone() else {
            self.tracked = Some(BTreeMap::new());
            return Ok(());
        };
        // What was registered before is then not known: strangers stay, which is the safe side.
        self.tracked = Some(state.load_apart().await?.map_or_else(
            |error| {
                tracing::error!(selector = self.name(), %error, "state file cannot be used; peers of former runs stay");
                BTreeMap::new()
            },
            |known| known.peers,
        ));
        Ok(())
    }

    /// Writes down what is about to be registered and what is there and wanted; forgets what is neither there nor
    /// wanted any more.
    ///
    /// # Errors
    /// The state file cannot be written: nothing may be registered then.
    pub async fn track(&mut self, plan: &Plan) -> Result<(), PassError> {
        let wanted = plan.register.iter().chain(&plan.registered);
        let mut tracked: BTreeMap<String, String> = wanted.map(|(e, url)| (e.clone(), url.to_string())).collect();
        let there = plan.deregister.iter().chain(&plan.strangers);
        let before = self.tracked.get_or_insert_default();
        tracked.extend(there.filter_map(|e| before.get_key_value(e)).map(|(e, url)| (e.clone(), url.clone())));
        if *before == tracked {
            return Ok(());
        }
        *before = tracked;
        self.store().await
    }

    async fn store(&self) -> Result<(), PassError> {
        match (self.state.clone(), self.tracked.clone()) {
            (Some(state), Some(peers)) => state.store_apart(WiredPeers { peers }).await,
            _ => Ok(()),
        }
    }
}
