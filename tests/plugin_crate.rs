//! A package of an outside author compiles against the library without its features, and its policy chooses.

use std::{env, fs, path::Path, process::Command};

#[test]
fn a_package_of_its_own_compiles_and_passes_its_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    // A copy: the sources may be read-only, and a lock file beside them would be one too many.
    let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join("plugin_crate");
    fs::create_dir_all(copy.join("src")).unwrap();
    let manifest = fs::read_to_string(root.join("tests/plugin_crate/Cargo.toml")).unwrap();
    let library = format!("path = {:?}", root.display().to_string());
    assert!(manifest.contains(r#"path = "../..""#));
    fs::write(copy.join("Cargo.toml"), manifest.replace(r#"path = "../..""#, &library)).unwrap();
    fs::copy(root.join("tests/plugin_crate/src/lib.rs"), copy.join("src/lib.rs")).unwrap();
    // The versions this package was tested with; they are there, so nothing is fetched.
    fs::copy(root.join("Cargo.lock"), copy.join("Cargo.lock")).unwrap();
    // Beside this package's results rather than among them: cargo holds a lock on those.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("plugin_crate_target");
    let output = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["test", "--offline", "--quiet", "--manifest-path"])
        .arg(copy.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(target)
        .env_remove("RUSTFLAGS")
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    assert!(text(&output.stdout).contains("1 passed"), "{}", text(&output.stdout));
}
