//! Values, errors and inputs of expressions.

use std::collections::HashMap;

use super::{
    super::{FaultKind, INPUTS, Input, Purpose, Scope, ValueType},
    Cell, Expression, Sheet, filter, kept, requests, scored, scorer,
};
use crate::selection::trust::Trust;

/// Of a text about constants.
fn number(text: &str) -> f64 {
    scored(text, &requests([0])).unwrap_or_else(|(_, fault)| panic!("{text}: {fault}"))[0]
}

fn fault(text: &str, sheet: &Sheet) -> (usize, String) {
    let (row, fault) = scored(text, sheet).expect_err("fails");
    (row, fault.to_string())
}

#[test]
fn arithmetic_is_cel_s() {
    assert_eq!(number("7 / 2"), 3.0);
    assert_eq!(number("-7 / 2"), -3.0);
    assert_eq!(number("-7 % 3"), -1.0);
    assert_eq!(number("7.0 / 2.0"), 3.5);
    assert_eq!(number("1.0 / 0.0"), f64::INFINITY);
    assert_eq!(number("int(-2.9)"), -2.0);
    assert_eq!(number("double(3u) + 0.5"), 3.5);
    assert_eq!(number("math.greatest(1, 5, 3) - math.least(4, 2)"), 3.0);
    assert_eq!(number("math.round(-2.5)"), -3.0);
    assert_eq!(number("math.sign(-3.0) + math.sign(0.0) + math.abs(-4.0)"), 3.0);
    assert_eq!(number("size('häuser')"), 6.0);
    assert_eq!(number("1 > 2 || 'a' == 'a' ? 10 : 20"), 10.0);
    assert_eq!(number("math.isNaN(0.0 / 0.0) && math.isInf(1.0 / 0.0) && !math.isFinite(1.0 / 0.0) ? 1 : 0"), 1.0);
}

#[test]
fn faults_say_what_and_where() {
    let sheet = requests([1, 0, 2]);
    let cases = [
        ("4 / load.active_requests", 1, "division by zero at line 1, column 3"),
        ("4 %\nload.active_requests", 1, "division by zero at line 1, column 3"),
        ("9223372036854775807 + load.active_requests", 0, "the result does not fit its type at line 1, column 21"),
        ("0u - uint(load.active_requests)", 0, "the result does not fit its type at line 1, column 4"),
        ("uint(1 - load.active_requests)", 2, "the result does not fit its type at line 1, column 5"),
        ("int(1.0e300 * double(load.active_requests))", 0, "the result does not fit its type at line 1, column 4"),
        (
            "(-9223372036854775807 - load.active_requests) / -1",
            0,
            "the result does not fit its type at line 1, column 47",
        ),
        ("int(-9223372036854775808.0)", 0, "the result does not fit its type at line 1, column 4"),
        ("uint(-0.5)", 0, "the result does not fit its type at line 1, column 5"),
        ("affinity.worker_id", 0, "`affinity.worker_id` is absent; test it with has() at line 1, column 1"),
        ("session.headers['x'] == 'y' ? 1 : 0", 0, "`session.headers[\"x\"]` is absent"),
    ];
    for (text, row, says) in cases {
        let (at, fault) = fault(text, &sheet);
        assert!(at == row && fault.contains(says), "{text}: row {at}: {fault}");
    }
    let (_, fault) = scored("1 / 0", &sheet).expect_err("fails");
    assert_eq!((fault.kind, fault.line, fault.column), (FaultKind::DivisionByZero, 1, 3));
}

#[test]
fn logic_and_choices_hide_faults_as_cel_does() {
    let sheet = requests([0, 1]);
    let positive = "4 / load.active_requests > 1";
    assert_eq!(kept(&format!("load.active_requests == 0 || {positive}"), &sheet), Ok(vec![true, true]));
    assert_eq!(kept(&format!("{positive} || load.active_requests == 0"), &sheet), Ok(vec![true, true]));
    assert_eq!(kept(&format!("load.active_requests != 0 && {positive}"), &sheet), Ok(vec![false, true]));
    assert_eq!(kept(&format!("{positive} && load.active_requests != 0"), &sheet), Ok(vec![false, true]));
    assert_eq!(kept(&format!("load.active_requests == 0 ? true : {positive}"), &sheet), Ok(vec![true, true]));
    for fails in ["{} && load.active_requests == 0", "load.active_requests != 0 || {}", "{} ? true : true", "!({})"] {
        let text = fails.replace("{}", positive);
        assert_eq!(kept(&text, &sheet).expect_err("fails").0, 0, "{text}");
    }
}

#[test]
fn what_can_be_missing_can_be_tested() {
    let mut sheet = requests([1]);
    let text = "has(session.id) && session.id.startsWith('batch-')";
    assert_eq!(kept(text, &sheet), Ok(vec![false]));
    sheet.shared.insert(Input::SessionId, Cell::Text("batch-7"));
    assert_eq!(kept(text, &sheet), Ok(vec![true]));
    assert_eq!(kept("has(load.active_requests)", &sheet), Ok(vec![true]));
    assert_eq!(kept("'X-Tier' in session.headers", &sheet), Ok(vec![false]));
    sheet.headers.insert("x-tier", "gold");
    for text in [
        "'X-Tier' in session.headers",
        "session.headers['X-Tier'] == 'gold'",
        "session.headers['x-tier'] in ['gold', 'b']",
    ] {
        assert_eq!(kept(text, &sheet), Ok(vec![true]), "{text}");
    }
    sheet.headers.insert("tier", "silver");
    assert_eq!(kept("has(session.headers.tier) && session.headers.tier != 'gold'", &sheet), Ok(vec![true]));
}

#[test]
fn long_texts_are_not_searched() {
    let mut sheet = requests([1]);
    sheet.shared.insert(Input::SessionId, Cell::Text(Box::leak("x".repeat(1_025).into_boxed_str())));
    let (_, fault) = kept("session.id.contains('y')", &sheet).expect_err("too long");
    assert_eq!(fault.to_string(), "text longer than 1024 bytes at line 1, column 20");
    assert!(kept("session.id == 'y'", &sheet).is_ok());
}

#[test]
fn trust_is_a_text_of_each_candidate() {
    let rows = Trust::ALL.map(|trust| HashMap::from([(Input::CacheTrust, Cell::Trust(trust))]));
    let sheet = Sheet { rows: rows.into(), ..Sheet::default() };
    let in_list = kept("cache.trust in ['complete', 'partial']", &sheet);
    assert_eq!(in_list, Ok(vec![true, false, true, false, false]));
    let chosen = "(cache.trust == 'stale' ? 'unknown' : cache.trust) == 'unknown'";
    assert_eq!(kept(chosen, &sheet), Ok(vec![false, false, false, true, true]));
}

#[test]
fn folds_are_over_all_candidates() {
    let sheet = requests(0..200);
    let spread = scored("candidates.max_active_requests - candidates.min_active_requests", &sheet).expect("no fault");
    assert_eq!(spread, vec![199.0; 200]);
    let mean = scored("double(load.active_requests) - candidates.mean_active_requests", &sheet).expect("no fault");
    assert_eq!((mean[0], mean[199]), (-99.5, 99.5));
    assert_eq!(scored("candidates.count", &sheet).expect("no fault"), vec![200.0; 200]);
}

#[test]
fn rows_beyond_a_chunk_are_evaluated_alike() {
    for count in [1, 63, 64, 65, 128, 200] {
        let sheet = requests(0..count);
        let expected: Vec<f64> = (0..count).map(|n| (n * 3 % 7) as f64).collect();
        assert_eq!(scored("load.active_requests * 3 % 7", &sheet), Ok(expected), "{count} rows");
    }
    assert_eq!(fault("10 / (load.active_requests - 150)", &requests(0..200)).0, 150);
    assert_eq!(kept("load.active_requests > 3", &requests([])), Ok(vec![]));
}

#[test]
fn constants_and_repeated_parts_cost_nothing() {
    assert_eq!(filter("load.active_requests < 4 * 8 + 2").steps(), (0, 2));
    assert_eq!(scorer("load.decode_blocks * load.decode_blocks + load.decode_blocks").steps(), (0, 3));
    assert_eq!(scorer("double(request.prompt_tokens / request.block_size) - cache.device_blocks").steps(), (4, 2));
}

#[test]
fn literals_next_to_a_comparison_take_its_type() {
    let mut sheet = requests([1]);
    sheet.shared.insert(Input::WorkerId, Cell::UInt(u64::MAX));
    sheet.shared.insert(Input::DeviceBlocks, Cell::Double(4.0));
    assert_eq!(
        kept("worker.id > 7 && 4 <= cache.device_blocks && cache.device_blocks in [3, 4]", &sheet),
        Ok(vec![true])
    );
    let error = Expression::compile("worker.id > -1", Purpose::Filter).expect_err("no uint is negative");
    assert_eq!(
        error.message,
        "`>` compares values of one type, not uint with int; convert one with int(), uint() or double()"
    );
    let error = Expression::compile("cache.device_blocks < 9007199254740993", Purpose::Filter).expect_err("inexact");
    assert_eq!(error.column, 21);
}

#[test]
fn every_input_can_be_read_and_is_listed_once() {
    let mut names = std::collections::HashSet::new();
    let sheet = requests([1]);
    for facts in INPUTS {
        assert!(names.insert(facts.name));
        assert!(std::ptr::eq(facts.input.facts(), facts), "{} is in its place", facts.name);
        assert_eq!(facts.scope == Scope::Candidates, facts.name.starts_with("candidates."), "{}", facts.name);
        let text = match facts.value {
            ValueType::Bool => format!("{0} ? 1 : 0", facts.name),
            ValueType::Text => format!("{0} == 'x' ? 1 : 0", facts.name),
            _ => facts.name.to_owned(),
        };
        assert_eq!(scorer(&text).inputs(), [facts.input], "{text}");
        // Missing or zero, but read through the method of its type.
        assert_eq!(scored(&text, &sheet).is_err(), facts.presence == super::super::Presence::Maybe, "{text}");
    }
}
