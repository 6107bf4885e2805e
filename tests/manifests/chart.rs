//! Chart.yaml, schema and README of the chart.

use serde_json::Value;

use super::{assert_generated, assert_generated_as, read, values};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const BEGIN: &str = "<!-- made from values.yaml: begin -->\n";
const END: &str = "<!-- end -->\n";

#[test]
fn drift_of_the_version() {
    let path = "charts/pointsman/Chart.yaml";
    let lines = read(path)
        .lines()
        .map(|line| match line.split_once(": ") {
            Some((key @ ("version" | "appVersion"), _)) => format!("{key}: {VERSION}\n"),
            _ => format!("{line}\n"),
        })
        .collect::<String>();
    assert_generated(path, &lines);
}

#[test]
fn drift_of_the_schema() {
    let text = values::schema(&values::entries());
    assert_generated_as("charts/pointsman/values.schema.json", &text, |text| serde_json::from_str::<Value>(text).ok());
}

#[test]
fn drift_of_the_table_of_values() {
    let path = "charts/pointsman/README.md";
    let readme = read(path);
    let (head, rest) = readme.split_once(BEGIN).expect("the README says where the table begins");
    let (_, tail) = rest.split_once(END).expect("the README says where the table ends");
    let table = values::table(&values::entries());
    assert_generated(path, &format!("{head}{BEGIN}{table}{END}{tail}"));
}

#[test]
fn examples_name_the_image_of_this_version() {
    for name in ["quickstart", "sidecar", "standalone"] {
        let path = format!("examples/kubernetes/{name}.yaml");
        let text = read(&path);
        let images: Vec<&str> = text.lines().filter_map(|line| line.trim().strip_prefix("image: ")).collect();
        assert!(!images.is_empty(), "{path}");
        let expected = format!("pointsman/pointsman:{VERSION}");
        assert!(images.iter().all(|image| *image == expected), "{path}: {images:?}");
    }
}
