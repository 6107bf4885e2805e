//! The way to the apiserver, and what a pod knows of itself.

use kube::{Client, Config, config::InferConfigError};

/// Where a pod finds its own namespace.
pub const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// How to reach the cluster that this process runs in, or the one that its kubeconfig names.
///
/// # Errors
/// There is no such cluster.
pub async fn config() -> Result<Config, InferConfigError> {
    // With two TLS providers linked, a client that is not told panics. Another part of the process may have told it.
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        tracing::debug!("a TLS provider is installed already");
    }
    Config::infer().await
}

/// A client that repeats nothing by itself, for those that pause and count on their own: watches and the Lease.
///
/// # Errors
/// `config` cannot be used.
pub fn plain_client(mut config: Config) -> kube::Result<Client> {
    config.default_retry = false;
    Client::try_from(config)
}

/// The namespace of this pod; none outside of one.
pub fn own_namespace() -> Option<String> {
    let text = std::fs::read_to_string(NAMESPACE_FILE).ok()?;
    Some(text.trim().to_owned()).filter(|name| !name.is_empty())
}
