//! The field reference, and that troubleshooting knows every word that a status can have.

use std::{collections::BTreeSet, fmt::Write, path::Path};

use pointsman::kubernetes::api::{self, constants::annotations};
use serde_json::Value;

use super::{assert_generated, read};

#[test]
fn drift_of_the_reference() {
    assert_generated("docs/kubernetes/reference.md", &reference());
}

#[test]
fn troubleshooting_knows_every_reason_and_no_other() {
    let source = read("src/kubernetes/api/constants.rs");
    let mut words = BTreeSet::new();
    let mut module = "";
    for line in source.lines() {
        if let Some(name) = line.strip_prefix("pub mod ") {
            module = name.trim_end_matches(" {");
        }
        if let ("reason" | "rejection", Some((_, value))) = (module, line.split_once(": &str = \"")) {
            words.insert(value.trim_end_matches("\";").to_owned());
        }
    }
    assert!(words.len() > 30, "{words:?}");
    let guide = read("docs/kubernetes/troubleshooting.md");
    let rows = guide.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let told: BTreeSet<String> = rows.map(|(word, _)| word.to_owned()).collect();
    let untold: Vec<_> = words.difference(&told).collect();
    let unknown: Vec<_> = told.difference(&words).collect();
    assert!(untold.is_empty() && unknown.is_empty(), "not told: {untold:?}; unknown: {unknown:?}");
}

#[test]
fn every_annotation_is_told() {
    let guide = read("docs/kubernetes/concepts.md");
    for name in annotations::ALL {
        assert!(guide.contains(&format!("`{name}`")), "{name}");
    }
}

/// Names of all functions below `folder`.
fn functions(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            functions(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            let source = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            let names = source.split("fn ").skip(1).filter_map(|rest| rest.split_once('('));
            found.extend(names.map(|(name, _)| name.to_owned()));
        }
    }
}

#[test]
fn tests_that_pages_name_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut known = BTreeSet::new();
    ["src", "tests"].iter().for_each(|folder| functions(&root.join(folder), &mut known));
    let mut named = 0;
    for page in ["docs/field-reports.md", "docs/compatibility.md"] {
        for word in read(page).split('`').skip(1).step_by(2) {
            let is_path = word.starts_with("src/") || word.starts_with("tests/");
            assert!(!is_path || root.join(word).exists(), "{page}: {word}");
            // Short ones are fields, flags and cases of the corpus.
            let name = word.rsplit("::").next().unwrap_or(word);
            let is_plain = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
            if is_plain && name.matches('_').count() >= 4 {
                assert!(known.contains(name), "{page}: there is no test {name}");
                named += 1;
            }
        }
    }
    assert!(named > 150, "{named} tests are named");
}

/// `docs/kubernetes/reference.md`.
fn reference() -> String {
    let mut out = String::from(
        "# SelectorSet and ModelPool, field by field\n\n\
         Made from the types (`POINTSMAN_BLESS=1 cargo test drift` rewrites it); `kubectl explain selectorset.spec` and \
         `kubectl explain modelpool.spec` say the same. API group `pointsman.dev/v1alpha1`, both namespaced. Fields in \
         bold must be set.\n",
    );
    for crd in api::crds() {
        let crd = serde_json::to_value(&crd).expect("a CRD is plain data");
        let names = &crd["spec"]["names"];
        let version = &crd["spec"]["versions"][0];
        let schema = &version["schema"]["openAPIV3Schema"];
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        // Writing to a string cannot fail, here and below.
        writeln!(out, "\n## {}\n", word(&names["kind"])).ok();
        writeln!(out, "{}\n", line(&schema["description"])).ok();
        writeln!(out, "Short name `{}`, category `pointsman`.", word(&names["shortNames"][0])).ok();
        if version["subresources"]["scale"].is_object() {
            writeln!(out, "`kubectl scale` and a HorizontalPodAutoscaler work on it.").ok();
        }
        out.push_str("\n**Columns**\n\n| column | |\n|---|---|\n");
        for column in version["additionalPrinterColumns"].as_array().into_iter().flatten() {
            let wide = if column["priority"].as_i64().unwrap_or(0) > 0 { " (`-o wide`)" } else { "" };
            if column["description"].is_string() {
                writeln!(out, "| {}{wide} | {} |", word(&column["name"]).to_uppercase(), line(&column["description"]))
                    .ok();
            }
        }
        for (part, title) in [("spec", "Spec"), ("status", "Status")] {
            writeln!(out, "\n**{title}**\n\n| field | type | default | |\n|---|---|---|---|").ok();
            fields(&mut out, "", &schema["properties"][part]);
        }
        out.push_str("\n**Rules.** The apiserver refuses an object that breaks one, with these words:\n\n");
        let mut rules = Vec::new();
        collect_rules("", schema, &mut rules);
        for rule in &rules {
            writeln!(out, "* {rule}").ok();
        }
    }
    out
}

fn line(text: &Value) -> String {
    text.as_str().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

fn collect_rules(path: &str, schema: &Value, rules: &mut Vec<String>) {
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        let place = if path.is_empty() { String::new() } else { format!("`{}`: ", path.trim_start_matches('.')) };
        rules.push(format!("{place}{}", line(&rule["message"])));
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        collect_rules(&format!("{path}.{name}"), field, rules);
    }
}

fn fields(out: &mut String, path: &str, schema: &Value) {
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let shown = if required.contains(&name.as_str()) { format!("**`{path}`**") } else { format!("`{path}`") };
        let default = match &field["default"] {
            Value::Null | Value::Object(_) => String::new(),
            default => format!("`{default}`"),
        };
        writeln!(out, "| {shown} | {} | {default} | {} |", kind(field), line(&field["description"])).ok();
        fields(out, &path, field);
        if field["items"]["properties"].is_object() {
            fields(out, &format!("{path}[]"), &field["items"]);
        }
    }
}

fn kind(field: &Value) -> String {
    if let Some(words) = field["enum"].as_array() {
        return words.iter().filter_map(Value::as_str).map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ");
    }
    if field["x-kubernetes-int-or-string"] == true {
        return "number or text".to_owned();
    }
    let word = field["type"].as_str().unwrap_or("any");
    match word {
        "array" => format!("list of {}", field["items"]["type"].as_str().unwrap_or("any")),
        "object" if field["additionalProperties"].is_object() => "map".to_owned(),
        "integer" | "number" => {
            let bound = |key: &str| field[key].as_f64().map(|n| n.to_string());
            match (bound("minimum"), bound("maximum")) {
                (Some(least), Some(most)) => format!("{word}, {least} to {most}"),
                (Some(least), None) => format!("{word}, at least {least}"),
                _ => word.to_owned(),
            }
        }
        _ => word.to_owned(),
    }
}
