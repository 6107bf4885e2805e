//! `values.yaml` read with its comments: the one source of the chart's schema and of its table of values.

use serde_json::{Map, Value, json};

use super::{read, yaml};

/// One key.
pub struct Entry {
    /// From the top.
    pub path: Vec<String>,
    pub about: String,
    pub default: Value,
    /// What the comment says of the schema.
    schema: Map<String, Value>,
    /// Keys below, unless any may be there.
    pub below: Vec<Entry>,
}

/// All keys, in the order of the file.
pub fn entries() -> Vec<Entry> {
    let text = read("charts/pointsman/values.yaml");
    let defaults = yaml(&text).remove(0);
    let lines: Vec<&str> = text.lines().collect();
    let (entries, rest) = level(&lines, &[], &defaults);
    assert!(rest.is_empty(), "values.yaml: unexpected {:?}", rest[0]);
    entries
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// The keys below `path`, and the lines after them.
fn level<'a>(mut lines: &'a [&'a str], path: &[String], defaults: &Value) -> (Vec<Entry>, &'a [&'a str]) {
    let depth = path.len() * 2;
    let mut entries = Vec::new();
    let (mut about, mut schema) = (Vec::new(), Map::new());
    while let Some((line, rest)) = lines.split_first() {
        if line.is_empty() {
            about.clear();
        } else if indent(line) < depth {
            break;
        } else if let Some(comment) = line.trim_start().strip_prefix("# ") {
            match comment.strip_prefix("schema: ") {
                Some(flow) => schema = yaml(flow).remove(0).as_object().expect("a schema is a map").clone(),
                None => about.push(comment),
            }
        } else {
            let (key, _) = line.trim_start().split_once(':').unwrap_or_else(|| panic!("values.yaml: {line:?}"));
            assert!(!about.is_empty(), "values.yaml: {key} has no comment");
            let path = [path, &[key.to_owned()]].concat();
            let default = defaults[key].clone();
            let mut entry = Entry { about: about.join(" "), default, schema, below: Vec::new(), path };
            (about, schema) = (Vec::new(), Map::new());
            lines = rest;
            if entry.is_free_form() {
                while lines.first().is_some_and(|line| indent(line) > depth) {
                    lines = &lines[1..];
                }
            } else if entry.default.is_object() {
                let defaults = entry.default.clone();
                (entry.below, lines) = level(lines, &entry.path, &defaults);
            }
            entries.push(entry);
            continue;
        }
        lines = rest;
    }
    (entries, lines)
}

impl Entry {
    fn key(&self) -> &str {
        self.path.last().expect("a key has a name")
    }

    fn is_free_form(&self) -> bool {
        self.default.as_object().is_some_and(|map| map.is_empty() || self.schema.contains_key("additionalProperties"))
    }

    /// Whether templates cannot do without it: `null` takes a key away.
    fn is_required(&self) -> bool {
        match &self.default {
            Value::String(text) => !text.is_empty(),
            Value::Array(_) | Value::Null => false,
            Value::Object(_) => !self.is_free_form(),
            Value::Bool(_) | Value::Number(_) => true,
        }
    }

    fn schema(&self) -> Value {
        let mut schema = match &self.default {
            Value::Object(_) if !self.is_free_form() => object(&self.below),
            default => {
                let word = match default {
                    Value::String(_) => "string",
                    Value::Bool(_) => "boolean",
                    Value::Number(_) => "integer",
                    Value::Array(_) => "array",
                    Value::Object(_) => "object",
                    Value::Null => panic!("{}: null tells no type", self.path.join(".")),
                };
                json!({ "type": word })
            }
        };
        let fields = schema.as_object_mut().expect("a schema is a map");
        fields.insert("description".to_owned(), self.about.clone().into());
        fields.extend(self.schema.clone());
        schema
    }
}

fn object(entries: &[Entry]) -> Value {
    let properties: Map<String, Value> = entries.iter().map(|e| (e.key().to_owned(), e.schema())).collect();
    let required: Vec<&str> = entries.iter().filter(|e| e.is_required()).map(Entry::key).collect();
    json!({ "type": "object", "additionalProperties": false, "properties": properties, "required": required })
}

/// `values.schema.json`.
pub fn schema(entries: &[Entry]) -> String {
    let mut schema = object(entries);
    schema["$schema"] = "http://json-schema.org/draft-07/schema#".into();
    // Helm and charts above this one put these in; no template reads them.
    schema["properties"]["global"] = json!({ "type": "object" });
    schema["properties"]["enabled"] = json!({ "type": "boolean" });
    serde_json::to_string_pretty(&schema).expect("a schema is plain data") + "\n"
}

/// The table of the README.
pub fn table(entries: &[Entry]) -> String {
    let mut rows = String::from("| value | default | |\n|---|---|---|\n");
    add_rows(&mut rows, entries);
    rows
}

fn add_rows(rows: &mut String, entries: &[Entry]) {
    for entry in entries {
        let default = if entry.below.is_empty() {
            format!("`{}`", serde_json::to_string(&entry.default).expect("plain data").replace('|', "\\|"))
        } else {
            String::new()
        };
        let about = entry.about.replace('|', "\\|");
        rows.push_str(&format!("| `{}` | {default} | {about} |\n", entry.path.join(".")));
        add_rows(rows, &entry.below);
    }
}
