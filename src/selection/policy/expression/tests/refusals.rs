//! What is refused when it is loaded, with line and column.

use super::super::{Expression, Purpose};

fn refused(text: &str, purpose: Purpose) -> String {
    match Expression::compile(text, purpose) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("{text} was taken"),
    }
}

#[track_caller]
fn assert_refused(text: &str, purpose: Purpose, place: &str, part: &str) {
    let error = refused(text, purpose);
    assert!(error.starts_with(place) && error.contains(part), "{text}\n{error}");
}

#[test]
fn what_a_filter_refuses() {
    let cases = [
        (
            "load.active < 3",
            "line 1, column 1",
            "unknown name `load.active`; load has available, active_prefill_tokens",
        ),
        (
            "true &&\n  lode.active_requests < 3",
            "line 2, column 3",
            "unknown name `lode.active_requests`; there are worker",
        ),
        ("load.active_requests", "line 1, column 1", "a filter must be a bool, not int"),
        ("load.active_requests < 3.5", "line 1, column 22", "compares values of one type, not int with double"),
        ("1 + load.decode_blocks > 2.0", "line 1, column 3", "two numbers of one type, not int and double; convert"),
        ("load.active_requests && true", "line 1, column 1", "`&&` takes bool, not int"),
        ("!load.active_requests", "line 1, column 2", "`!` takes bool, not int"),
        ("-worker.id < 3u", "line 1, column 1", "`-` takes int or double, not uint"),
        ("true ? 1 : 'a' == 'a'", "line 1, column 6", "chooses between int and bool"),
        ("candidates.count > 3", "line 1, column 1", "known to scorers only"),
        ("cache.trust < 'partial'", "line 1, column 13", "string values have no order"),
        ("cache.trust.startsWith('p')", "line 1, column 23", "texts of the request, not of a candidate"),
        ("session.id + 'x' == 'y'", "line 1, column 12", "two numbers of one type, not string and string"),
        ("session.id.matches('x')", "line 1, column 19", "unknown function or method `matches`; there are int"),
        ("duration('3s') > 2", "line 1, column 9", "unknown function or method `duration`"),
        ("int() == 3", "line 1, column 4", "int() takes 1 argument, not 0"),
        ("math.ceil(1.0, 2.0) > 0.0", "line 1, column 10", "math.ceil() takes 1 argument, not 2"),
        ("math.ceil(load.active_requests) > 0", "line 1, column 10", "does not take int; use double()"),
        ("int('3') == 3", "line 1, column 4", "int() takes a number, not string"),
        ("[1, 2].exists(x, x == 1)", "line 1,", "all, exists, exists_one, map and filter are not supported"),
        ("[1, 2] == [1, 2]", "line 1, column 1", "a list can only be the right side of `in`"),
        ("{'a': 1} == {'a': 1}", "line 1, column 1", "maps and messages are not supported"),
        ("session.id == null", "line 1, column 15", "null is not supported; test for presence"),
        ("b'x' == b'x'", "line 1, column 1", "bytes are not supported"),
        ("worker.id in load", "line 1, column 11", "a list of literals"),
        ("worker.id in [load.active_requests]", "line 1, column 15", "may only hold literals"),
        ("worker.id in []", "line 1, column 11", "1 to 32 elements"),
        ("worker.id in ['a']", "line 1, column 15", "not uint with string"),
        ("session.id[0] == 'a'", "line 1, column 11", "only session.headers can be indexed"),
        ("session.headers[session.id] == 'a'", "line 1, column 16", "must be a literal string"),
        ("has(load.nothing)", "line 1, column 5", "unknown name `load.nothing`"),
        ("has(load)", "line 1", "invalid argument to has() macro"),
        ("(1 + 2).x == 3", "line 1", "only names have fields"),
        ("load.active_requests <", "line 1, column 23", "Syntax error"),
        ("load.active_requests < 99999999999999999999", "line 1, column 24", "invalid int literal"),
        ("  ", "line 1, column 1", "empty expression"),
        // Characters, not bytes.
        ("'äöü' == 'äöü' && nope", "line 1, column 19", "unknown name `nope`"),
    ];
    for (text, place, part) in cases {
        assert_refused(text, Purpose::Filter, place, part);
    }
}

#[test]
fn what_a_scorer_refuses() {
    let cases = [
        ("load.active_requests < 3", "line 1, column 22", "a scorer must be a number, not bool"),
        ("session.id", "line 1, column 1", "a scorer must be a number, not string"),
        ("load.decode_blocks % 2.0", "line 1, column 20", "`%` takes int or uint, not double"),
        ("math.greatest()", "line 1, column 14", "takes 1 argument, not 0"),
        ("math.least(1, 2.0)", "line 1, column 11", "not int and double"),
        ("math.cbrt(2.0)", "line 1, column 10", "unknown function or method `math.cbrt`"),
    ];
    for (text, place, part) in cases {
        assert_refused(text, Purpose::Scorer, place, part);
    }
}
