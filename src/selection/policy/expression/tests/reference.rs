//! The reference page: its table of names is made from the list, its examples load.

use super::super::{Expression, INPUTS, Presence, Purpose, Scope};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/expressions.md");
const MARKS: (&str, &str) = ("<!-- inputs -->\n", "<!-- /inputs -->");

fn table() -> String {
    let mut table = "| name | type | of the | maybe | meaning |\n|---|---|---|---|---|\n".to_owned();
    for facts in INPUTS {
        let of = match facts.scope {
            Scope::Request => "request",
            Scope::Candidates => "candidates",
            Scope::Row => "candidate",
        };
        let maybe = if facts.presence == Presence::Maybe { "maybe" } else { "" };
        let (name, value, doc) = (facts.name, facts.value.name(), facts.doc.trim_end_matches('.'));
        table += &format!("| `{name}` | {value} | {of} | {maybe} | {doc} |\n");
        if name == "session.input_trigger" {
            table += "| `session.headers['NAME']` | string | request | maybe | First value of an agent header |\n";
        }
    }
    table
}

#[test]
fn the_table_of_names_has_no_drift() {
    let page = std::fs::read_to_string(PAGE).expect("the page is there");
    let (before, rest) = page.split_once(MARKS.0).expect("the table's beginning is marked");
    let (shown, after) = rest.split_once(MARKS.1).expect("and its end");
    if std::env::var_os("POINTSMAN_BLESS").is_some() {
        let page = format!("{before}{}{}{}{after}", MARKS.0, table(), MARKS.1);
        std::fs::write(PAGE, page).expect("docs can be written");
        return;
    }
    assert!(shown == table(), "docs/expressions.md is stale: `POINTSMAN_BLESS=1 cargo test drift` rewrites it");
}

#[test]
fn examples_of_the_page_load() {
    let page = std::fs::read_to_string(PAGE).expect("the page is there");
    let quoted = page.lines().filter_map(|line| line.split_once("cel: \"")?.1.split_once('"'));
    let texts: Vec<&str> = quoted.map(|(text, _)| text).filter(|text| *text != "EXPRESSION").collect();
    assert!(texts.len() >= 8, "{texts:?}");
    for text in texts {
        let [filter, scorer] = [Purpose::Filter, Purpose::Scorer].map(|purpose| Expression::compile(text, purpose));
        assert!(filter.is_ok() || scorer.is_ok(), "{text}: {}", scorer.expect_err("neither"));
    }
}
