//! The examples that are not run by anybody else: a binary with a policy of its own, and packages around one.

use std::{path::Path, process::Command};

fn target() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_pointsman")).parent().expect("in a folder")
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn a_binary_with_a_policy_of_its_own_checks_and_tries_it() {
    let binary = target().join("examples/custom_policy");
    let file = root().join("examples/custom_policy.yaml");
    let run = |arguments: &[&str]| {
        let output = Command::new(&binary).args(arguments).output().expect("cargo built it for the tests");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        text
    };
    let checked = run(&["policy", "check", file.to_str().expect("Unicode")]);
    for line in ["aggregated: mine (work-to-do)", "request_weight: 4.0", "scorer WorkToDo reads cache, load"] {
        assert!(checked.contains(line), "{checked}");
    }
}

#[test]
fn the_packages_of_an_outside_author_compile() {
    let manifest = root().join("examples/routing-policy/Cargo.toml");
    let output = Command::new(env!("CARGO"))
        .args(["check", "--quiet", "--locked", "--manifest-path"])
        .arg(&manifest)
        .arg("--target-dir")
        .arg(target().join("routing-policy"))
        .env_remove("CARGO_TARGET_DIR")
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
