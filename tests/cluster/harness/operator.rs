//! The product's chart: its CRDs, which a cluster has once, and operators in trials' namespaces.

use std::{path::PathBuf, sync::OnceLock};

use super::{
    cluster::Cluster,
    namespace::{HelmRelease, Namespace},
};

/// Name of the release that [`Namespace::install_operator`] makes.
const RELEASE: &str = "pointsman";

/// Folder of the chart.
pub fn chart() -> String {
    format!("{}/charts/pointsman", env!("CARGO_MANIFEST_DIR"))
}

impl Cluster {
    /// Brings the cluster's CRDs to what `crds/` holds; once a process.
    #[track_caller]
    pub fn apply_crds(&self) {
        static APPLIED: OnceLock<Result<(), String>> = OnceLock::new();
        let folder: PathBuf = [env!("CARGO_MANIFEST_DIR"), "crds"].iter().collect();
        let apply = || {
            let folder = folder.to_string_lossy();
            let words = ["apply", "--server-side", "--force-conflicts", "--field-manager=trial", "-f", &folder];
            self.try_kubectl(&words, None)?;
            let words = ["wait", "--for=condition=Established", "--timeout=60s", "-f", &folder];
            self.try_kubectl(&words, None).map(drop)
        };
        APPLIED.get_or_init(apply).clone().unwrap_or_else(|e| panic!("{e}"));
    }

    /// Values of the chart that name the image of the program under test.
    pub fn image_values(&self) -> Vec<String> {
        let (repository, tag) = self.image().rsplit_once(':').expect("an image has a tag");
        ["--set-string".into(), format!("image.repository={repository},image.tag={tag}")].into()
    }
}

impl Namespace {
    /// Installs the chart with the program under test and `words` (`--set replicas=2`). The operator looks after this
    /// namespace alone, under the chart's own rights, so that it meets no other trial's.
    #[track_caller]
    pub fn install_operator(&self, words: &[&str]) -> HelmRelease {
        self.cluster().apply_crds();
        let mut all = self.cluster().image_values();
        all.extend(["--set", "crds.install=false,rbac.scope=namespace"].map(str::to_owned));
        all.extend(words.iter().map(|&w| w.to_owned()));
        self.helm_install(RELEASE, &chart(), &all.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Service account of the operator that [`Namespace::install_operator`] made, for the audit log.
    pub fn operator_account(&self) -> &'static str {
        "pointsman-controller"
    }
}
