//! `pointsman controller`: the Kubernetes operator.

use std::{net::IpAddr, time::Duration};

use clap::{Args, ValueEnum};
use kube::Client;
use tokio_util::sync::CancellationToken;

use super::{CliError, runtime};
use crate::{
    kubernetes::{
        api::{
            constants::LEASE_NAME,
            selector_set::{Image, PullPolicy},
        },
        connection::{self, own_namespace},
        controller::{self, ControllerOptions, lease::LeaseOptions, selector_set::Options},
    },
    plugins::RouterPluginRegistry,
    telemetry::shutdown::StopSignals,
};

/// Run the Kubernetes operator: SelectorSets and their selectors, ModelPools and their workers
///
/// Several may run; a Lease decides which one acts. Outside a pod the kubeconfig is used.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub struct ControllerArgs {
    /// The one namespace to work in [default: all]
    #[arg(long, env = "POINTSMAN_NAMESPACE", value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Image of selectors whose SelectorSet names none
    #[arg(long, env = "POINTSMAN_SELECTOR_IMAGE", value_name = "IMAGE", value_parser = image)]
    selector_image: Image,
    /// When that image is pulled [default: as the cluster decides]
    #[arg(long, env = "POINTSMAN_SELECTOR_IMAGE_PULL_POLICY", value_name = "POLICY")]
    selector_image_pull_policy: Option<PullPolicyWord>,

    /// Namespace of the Lease [default: the pod's, else `default`]
    #[arg(long, env = "POINTSMAN_LEASE_NAMESPACE", value_name = "NAMESPACE", help_heading = "Leader election")]
    lease_namespace: Option<String>,
    /// Name of the Lease; operators of one name stand in for each other
    #[arg(long, env = "POINTSMAN_LEASE_NAME", value_name = "NAME", default_value = LEASE_NAME, help_heading = "Leader election")]
    lease_name: String,
    /// Seconds after which a leader that shows no sign of life is replaced
    #[arg(
        long,
        env = "POINTSMAN_LEASE_DURATION",
        value_name = "SECONDS",
        default_value_t = 15,
        help_heading = "Leader election"
    )]
    #[arg(value_parser = clap::value_parser!(u32).range(3..=3600))]
    lease_duration: u32,
    /// Name of this process in the Lease; something unique is added [default: HOSTNAME]
    #[arg(long, env = "POD_NAME", value_name = "NAME", help_heading = "Leader election")]
    identity: Option<String>,

    /// Address to bind for /livez, /readyz and /metrics
    #[arg(
        long,
        env = "POINTSMAN_HOST",
        value_name = "HOST",
        default_value = "0.0.0.0",
        help_heading = "Health and metrics"
    )]
    host: IpAddr,
    /// Port for them; 0 takes a free one and logs it
    #[arg(
        long,
        env = "POINTSMAN_CONTROLLER_PORT",
        value_name = "PORT",
        default_value_t = 8093,
        help_heading = "Health and metrics"
    )]
    port: u16,
}

const AFTER_HELP: &str = "\
Examples:
  Work in every namespace:
    pointsman controller --selector-image registry.example/pointsman:0.1.0

  Work in one namespace, with the rights of a Role alone:
    pointsman controller --namespace team-a --selector-image registry.example/pointsman:0.1.0";

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PullPolicyWord {
    /// At every start
    #[value(name = "Always")]
    Always,
    /// When the node lacks it
    #[value(name = "IfNotPresent")]
    IfNotPresent,
    /// Not at all
    #[value(name = "Never")]
    Never,
}

/// Runs the operator until a signal ends it.
///
/// # Errors
/// No way to the apiserver; a port that is taken; a part that died.
pub fn run(args: ControllerArgs, registry: &RouterPluginRegistry) -> Result<(), CliError> {
    runtime(None)?.block_on(follow(args, registry.clone()))
}

async fn follow(args: ControllerArgs, registry: RouterPluginRegistry) -> Result<(), CliError> {
    let mut signals = StopSignals::install().map_err(CliError::failed)?;
    let config = connection::config().await.map_err(CliError::failed)?;
    let namespace =
        args.lease_namespace.filter(|n| !n.is_empty()).or_else(own_namespace).unwrap_or_else(|| "default".to_owned());
    let name = args.identity.or_else(|| std::env::var("HOSTNAME").ok()).unwrap_or_else(|| "pointsman".to_owned());
    let options = ControllerOptions {
        namespace: args.namespace.filter(|n| !n.is_empty()),
        sets: Options {
            controller_namespace: own_namespace(),
            registry,
            selector_image: Image {
                pull_policy: args.selector_image_pull_policy.map(|word| match word {
                    PullPolicyWord::Always => PullPolicy::Always,
                    PullPolicyWord::IfNotPresent => PullPolicy::IfNotPresent,
                    PullPolicyWord::Never => PullPolicy::Never,
                }),
                ..args.selector_image
            },
        },
        lease: LeaseOptions {
            namespace,
            name: args.lease_name,
            identity: format!("{name}_{}", uuid::Uuid::new_v4()),
            duration: Duration::from_secs(args.lease_duration.into()),
        },
        host: args.host,
        port: args.port,
    };
    tracing::info!(
        apiserver = %config.cluster_url,
        namespace = options.namespace.as_deref().unwrap_or("all"),
        selector_image = ?options.sets.selector_image,
        lease = format!("{}/{}", options.lease.namespace, options.lease.name),
        identity = options.lease.identity,
        "effective configuration"
    );
    let plain = connection::plain_client(config.clone()).map_err(CliError::failed)?;
    let client = Client::try_from(config).map_err(CliError::failed)?;
    let stop = CancellationToken::new();
    let running = controller::run(client, plain, options, stop.clone());
    tokio::pin!(running);
    tokio::select! {
        outcome = &mut running => return outcome.map_err(CliError::failed),
        signal = signals.recv() => tracing::info!(signal, "stopping; selectors go on with what they have"),
    }
    stop.cancel();
    running.await.map_err(CliError::failed)
}

/// Reads `REPOSITORY[:TAG][@DIGEST]`.
fn image(text: &str) -> Result<Image, String> {
    let (rest, digest) = match text.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest.to_owned())),
        None => (text, None),
    };
    // A colon before the last slash is the registry's port.
    let name_at = rest.rfind('/').map_or(0, |at| at + 1);
    let (repository, tag) = match rest[name_at..].split_once(':') {
        Some((name, tag)) => (format!("{}{name}", &rest[..name_at]), Some(tag.to_owned())),
        None => (rest.to_owned(), None),
    };
    if repository.is_empty() || repository.ends_with('/') || text.chars().any(char::is_whitespace) {
        return Err(format!("`{text}` is no image"));
    }
    Ok(Image { repository: Some(repository), tag, digest, pull_policy: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_read_in_parts() {
        for (text, repository, tag, digest) in [
            ("pointsman", "pointsman", None, None),
            ("ghcr.io/a/pointsman:1.2", "ghcr.io/a/pointsman", Some("1.2"), None),
            ("localhost:5000/pointsman", "localhost:5000/pointsman", None, None),
            ("localhost:5000/pointsman:1@sha256:ab", "localhost:5000/pointsman", Some("1"), Some("sha256:ab")),
        ] {
            let image = image(text).unwrap();
            assert_eq!(image.repository.as_deref(), Some(repository), "{text}");
            assert_eq!((image.tag.as_deref(), image.digest.as_deref()), (tag, digest), "{text}");
        }
        for bad in ["", "a/", "a b"] {
            assert!(image(bad).is_err(), "{bad}");
        }
    }
}
