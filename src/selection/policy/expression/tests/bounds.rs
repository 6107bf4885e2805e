//! Limits: what is longer, deeper or wider is refused, and what is within them needs little stack.

use super::super::{Expression, MAX_LENGTH, MAX_LIST, MAX_STEPS, MAX_TOKENS, Purpose};

/// Half of what threads of a server have.
const STACK: usize = 1 << 20;

fn compile(text: String) -> Result<(), String> {
    let thread = std::thread::Builder::new().stack_size(STACK);
    let compiled = thread.spawn(move || Expression::compile(&text, Purpose::Scorer).map(drop));
    compiled.expect("threads can be made").join().expect("no panic").map_err(|error| error.to_string())
}

#[track_caller]
fn assert_refused(text: String, part: &str) {
    let error = compile(text).expect_err("more than allowed");
    assert!(error.contains(part), "{error}");
}

#[test]
fn whatever_is_deep_is_refused_without_much_stack() {
    let many = MAX_LENGTH;
    for deep in [
        "(".repeat(many),
        format!("{}1{}", "(".repeat(30), ")".repeat(30)),
        format!("{}1{}", "-(".repeat(30), ")".repeat(30)),
        "-".repeat(many),
        "!".repeat(many),
        "[".repeat(many),
        "{1:".repeat(many / 3),
        format!("1{}", "+1".repeat(many / 2 - 1)),
        format!("a{}", ".a".repeat(many / 2 - 1)),
        format!("1{}", "?1:1".repeat(many / 4 - 1)),
        format!("1{}", "<1".repeat(200)),
        format!("1{}", "+1".repeat(200)),
        format!("a{}", ".a".repeat(200)),
        format!("a{}", ".a()".repeat(60)),
        format!("a{}", "[1]".repeat(60)),
        format!("true{}", "?1:true".repeat(60)),
        "f(".repeat(many / 2),
        "has(".repeat(40),
        "\"(\")(".repeat(300),
    ] {
        let text = deep.clone();
        assert!(compile(deep).is_err(), "{text}");
    }
    assert_refused(format!("{}1{}", "(".repeat(30), ")".repeat(30)), "nested more than 24 levels deep");
    assert_refused(format!("1{}", "+1".repeat(70)), "more than 64 levels");
    compile(format!("{}1{}", "(".repeat(20), ")".repeat(20))).expect("20 levels are fine");
    compile(format!("1{}", "+1".repeat(60))).expect("60 terms are fine");
    compile(format!("{}1", "-".repeat(400))).expect("signs cancel out");
}

#[test]
fn size_is_bounded() {
    assert_refused("1".repeat(MAX_LENGTH + 1), "longer than 2048 bytes");
    assert_refused("1 ".repeat(MAX_TOKENS + 1), "more than 512 tokens");
    assert_refused("size(session.id) + ".repeat(65) + "1", "more than 64 opening brackets");
    let list = |count: usize| {
        let elements: Vec<String> = (0..count).map(|n| n.to_string()).collect();
        format!("worker.dp_rank in [{}] ? 1 : 2", elements.join(","))
    };
    compile(list(MAX_LIST)).expect("as many as allowed");
    assert_refused(list(MAX_LIST + 1), "1 to 32 elements");
    let wide = |count: usize| {
        let terms: Vec<String> = (0..count).map(|n| format!("taint_multiplier<{n}")).collect();
        format!("{} ? 1 : 2", terms.join("||"))
    };
    compile(wide(MAX_STEPS / 3 - 2)).expect("three steps a term");
    assert_refused(wide(MAX_STEPS / 3 + 1), "more than 256 steps");
}
