//! The operator's rights under the chart's own roles, as the cluster lists them, pinned for both scopes in `rights/`.
//! `POINTSMAN_BLESS=1` rewrites the files.

use std::{collections::BTreeSet, fs, path::PathBuf};

use libtest_mimic::Trial;

use super::harness::{Namespace, chart, trial};

pub fn trials() -> Vec<Trial> {
    vec![trial("rights::are_these_and_no_others", are_these_and_no_others)]
}

/// Longest name that the chart gives its objects, without their endings.
const LONGEST: usize = 47;

/// Rights of a ServiceAccount in the namespace, as `kubectl auth can-i --list` has them, without those that everybody has.
fn rights(ns: &Namespace, account: &str) -> BTreeSet<String> {
    let name = format!("--as=system:serviceaccount:{}:{account}", ns.name());
    let text = ns.kubectl(&["auth", "can-i", "--list", &name]);
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ").replace(account, "NAME-controller");
    let everybodys = ["selfsubject", "[/", "Resources "];
    text.lines().map(words).filter(|line| !everybodys.iter().any(|mark| line.starts_with(mark))).collect()
}

fn are_these_and_no_others(ns: &Namespace) {
    for scope in ["cluster", "namespace"] {
        let name = format!("{}-{scope}", ns.name());
        let name = name.get(..LONGEST).unwrap_or(&name).trim_end_matches('-');
        let settings = format!("crds.install=false,replicas=0,rbac.scope={scope},fullnameOverride={name}");
        let _release = ns.helm_install(scope, &chart(), &["--set", &settings]);
        let account = format!("{name}-controller");
        let actual: String = rights(ns, &account).into_iter().map(|line| line + "\n").collect();
        let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/cluster/rights/{scope}.txt"));
        if std::env::var_os("POINTSMAN_BLESS").is_some() {
            fs::write(&file, &actual).unwrap();
        }
        let pinned = fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        assert_eq!(actual, pinned, "other rights in scope {scope}: `POINTSMAN_BLESS=1` rewrites {}", file.display());
        let me = format!("--as=system:serviceaccount:{}:{account}", ns.name());
        let elsewhere = ns.cluster().try_kubectl(&["auth", "can-i", "list", "pods", "-n", "default", &me], None);
        assert_eq!(elsewhere.is_ok(), scope == "cluster", "{elsewhere:?}");
    }
}
