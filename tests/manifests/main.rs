//! What is generated for Kubernetes, and that it is what it was generated from: `crds/`, the chart's copies, its schema
//! and table of values, the plain manifests, the field reference. `POINTSMAN_BLESS=1 cargo test drift` rewrites all of it.

mod chart;
mod crds;
mod docs;
mod helm;
mod values;

use std::path::{Path, PathBuf};

use serde_json::Value;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All documents of a YAML text.
fn yaml(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap_or_else(|error| panic!("{error}:\n{text}"))
}

/// `path` has `text`, written there first when asked to.
fn assert_generated(path: &str, text: &str) {
    assert_generated_as(path, text, |text| text.to_owned());
}

/// `path` has what `text` means.
fn assert_generated_as<T: PartialEq>(path: &str, text: &str, meaning: impl Fn(&str) -> T) {
    let file: PathBuf = root().join(path);
    if std::env::var_os("POINTSMAN_BLESS").is_some() {
        std::fs::create_dir_all(file.parent().expect("in a folder")).expect("the folder can be made");
        std::fs::write(&file, text).unwrap_or_else(|error| panic!("{path} cannot be written: {error}"));
    }
    let stale = match std::fs::read_to_string(&file) {
        Ok(copy) => meaning(&copy) != meaning(text),
        Err(_) => true,
    };
    assert!(!stale, "{path} is stale: `POINTSMAN_BLESS=1 cargo test drift` rewrites it");
}
