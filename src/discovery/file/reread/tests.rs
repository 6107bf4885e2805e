//! A text that is read by its changes gives what a reading of the whole gives, or is read whole.

use super::*;
use crate::discovery::file::parse;

const FILE: &str = "workers.yaml";

fn flow(n: usize) -> String {
    format!("  - {{name: gpu-{n}, endpoint: \"http://10.0.0.{n}:8000\", total_kv_blocks: {n}}}\n")
}

fn block(n: usize) -> String {
    format!("  - name: gpu-{n}\n    # a comment\n    endpoint: 'http://10.0.0.{n}:8000'\n\n    taints:\n      - spot\n")
}

fn file(entries: impl IntoIterator<Item = String>) -> String {
    let head = "# ours\nversion: 1\ndefaults: {model_name: llama, block_size: 16}\n\nworkers:\n".to_owned();
    head + &entries.into_iter().collect::<String>()
}

fn parts(text: &str) -> Parts {
    let mut last = LastReading::default();
    last.read(text.to_owned(), FILE).unwrap_or_else(|e| panic!("{e}\n{text}"));
    last.0.unwrap_or_else(|| panic!("cannot be taken apart:\n{text}"))
}

/// Reads `new` by what it changes in `old`, and then `old` by what that changes again.
fn by_changes(old: &str, new: &str) {
    let whole = parse(new, FILE).unwrap_or_else(|e| panic!("{e}\n{new}"));
    let (next, workers) = parts(old).reread(new, FILE).unwrap_or_else(|| panic!("read whole:\n{old}\n->\n{new}"));
    assert_eq!(workers, whole, "{old}\n->\n{new}");
    assert_eq!((&next.begins, next.indent), (&parts(new).begins, parts(new).indent), "{old}\n->\n{new}");
    if let Some((_, workers)) = next.reread(old, FILE) {
        assert_eq!(workers, parse(old, FILE).unwrap());
    }
}

/// Takes the whole reading for `new`, whatever `old` was.
fn whole(old: &str, new: &str) {
    assert!(parts(old).reread(new, FILE).is_none(), "{old}\n->\n{new}");
    let mut last = LastReading::default();
    last.read(old.to_owned(), FILE).unwrap();
    assert_eq!(last.read(new.to_owned(), FILE), parse(new, FILE), "{old}\n->\n{new}");
}

#[test]
fn one_change_needs_no_other_entry() {
    for entry in [flow, block] {
        let old = file((0..9).map(entry));
        for changed in 0..9 {
            by_changes(&old, &file((0..9).map(|n| entry(if n == changed { 40 } else { n }))));
            by_changes(&old, &file((0..9).filter(|n| *n != changed || changed == 0).map(entry)));
            by_changes(
                &old,
                &file((0..9).flat_map(|n| [n].into_iter().chain((n == changed).then_some(50))).map(entry)),
            );
        }
        by_changes(&old, &old.replace("http", "https"));
        by_changes(&old, &format!("{old}  # the end\n"));
        by_changes(&old, &file([2, 3, 4, 0, 1].map(entry)));
        by_changes(&old, &file([0, 41, 2, 3, 42, 5, 6, 43, 8].map(entry)));
        by_changes(&old, &file([0, 5, 41, 7, 2, 1, 8].map(entry)));
        by_changes(&old, &file([0].map(entry)));
    }
    let unindented = |n: usize| flow(n)[2..].to_owned();
    by_changes(&file((0..9).map(unindented)), &file((0..7).map(unindented)));
}

#[test]
fn names_and_ids_are_checked_over_the_whole_file() {
    let old = file((0..9).map(flow));
    whole(&old, &old.replace("gpu-7", "gpu-2"));
    let ids = |n: usize| format!("- {{worker_id: {}, endpoint: e}}\n", n + 1);
    whole(&file((0..9).map(ids)), &file((0..9).map(|n| ids(n % 8))));
    // Taken by hand, the id that a name had moves it on, though its own entry is the same.
    let taken = parse(&old, FILE).unwrap()[3].request.worker_id;
    by_changes(&old, &format!("{old}  - {{worker_id: {taken}, endpoint: e}}\n"));
}

#[test]
fn what_reaches_past_an_entry_is_read_whole() {
    let old = file((0..9).map(flow));
    for (from, to) in [
        // An open quote, bracket or block takes in what follows.
        ("name: gpu-4, endpoint: \"http://10.0.0.4:8000\"", "name: gpu-4, endpoint: \"http://10.0.0.4:8000"),
        ("total_kv_blocks: 4}", "total_kv_blocks: 4"),
        ("  - {name: gpu-4,", "  - |\n  - {name: gpu-4,"),
        // Another structure, another document.
        ("  - {name: gpu-4,", "defaults: {block_size: 32}\n  - {name: gpu-4,"),
        ("  - {name: gpu-4,", "...\n  - {name: gpu-4,"),
        ("  - {name: gpu-4,", "   - {name: gpu-4,"),
        ("  - {name: gpu-4,", " - {name: gpu-4,"),
        ("  - {name: gpu-4,", "  -\n    {name: gpu-4,"),
        ("block_size: 16", "block_size: 32"),
        ("name: gpu-4", "name: *gpu-4"),
        ("name: gpu-4", "name: &gpu-4 gpu-4"),
        ("name: gpu-4", "name: !!str gpu-4"),
        ("gpu-4", "gpu-4\r"),
        ("total_kv_blocks: 4}", "total_kv_blocks: -4}"),
    ] {
        assert!(old.contains(from), "{from}");
        whole(&old, &old.replace(from, to));
    }
    // Each of two entries goes on in the other, past one that did not change.
    let quoted = |n: usize, end: &str| format!("  - {{name: gpu-{n}, endpoint: {end}\n");
    let [open, close] = [quoted(4, "\"a"), "  - b\"}\n".to_owned()];
    whole(&old, &old.replace(&flow(4), &open).replace(&flow(6), &close));
    // The list has ended, so that what follows belongs to nothing.
    let plain = old.replace("defaults: {model_name: llama, block_size: 16}\n", "");
    for end in ["defaults: {}\n", "...\n"] {
        whole(&plain, &plain.replace("  - {name: gpu-4,", &format!("{end}  - {{name: gpu-4,")));
    }
    let defaults_last = "version: 1\nworkers:\n- {name: a}\n- {name: b}\n- {name: c}\ndefaults: {block_size: 16}\n";
    whole(defaults_last, &defaults_last.replace("name: a", "name: d"));
}

#[test]
fn any_edit_gives_what_a_whole_reading_gives() {
    const PIECES: [&str; 20] = [
        "'",
        "\"",
        "{",
        "}",
        "[",
        "]",
        ": ",
        "\n",
        "  ",
        "- ",
        "#",
        " #",
        "|\n",
        "?",
        ",",
        "---\n",
        "x",
        "é",
        "name: z",
        "  - {name: new}\n",
    ];
    let seed = std::env::var("POINTSMAN_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    println!("POINTSMAN_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut by_changes, mut refused) = (0, 0);
    for _ in 0..300 {
        let entry = if random.bool() { flow } else { block };
        let mut text = file((0..random.usize(1..8)).map(entry));
        if random.u8(..4) == 0 {
            text.push_str("defaults: {block_size: 8}\n");
            text = text.replacen("defaults: {model_name: llama, block_size: 16}\n", "", 1);
        }
        let mut last = LastReading::default();
        for _ in 0..12 {
            let mut next = text.clone();
            for _ in 0..random.usize(1..3) {
                let mut lines: Vec<&str> = next.split_inclusive('\n').collect();
                let [line, other] = [(); 2].map(|()| random.usize(..lines.len()));
                match random.u8(..6) {
                    0 => drop(lines.remove(line)),
                    1 => lines.insert(other, lines[line]),
                    2 => lines.swap(line, other),
                    3 => lines.truncate(line.max(5)),
                    _ => {}
                }
                let mut changed = lines.concat();
                if random.bool() {
                    let at = random.usize(..=changed.len());
                    let at = (0..=at).rev().find(|at| changed.is_char_boundary(*at)).unwrap_or(0);
                    changed.insert_str(at, PIECES[random.usize(..PIECES.len())]);
                }
                if changed.is_empty() {
                    continue;
                }
                next = changed;
            }
            let whole = parse(&next, FILE);
            let shortcut = last.0.take().and_then(|parts| parts.reread(&next, FILE));
            if let Some((parts, workers)) = shortcut {
                by_changes += 1;
                assert_eq!(Ok(&workers), whole.as_ref(), "{text}\n->\n{next}");
                last.0 = Some(parts);
            }
            refused += usize::from(whole.is_err());
            // From one good text to the next, over texts that are refused.
            if whole.is_ok() {
                text = next;
            }
            assert_eq!(last.read(text.clone(), FILE), parse(&text, FILE), "{text}");
        }
    }
    println!("{by_changes} read by their changes, {refused} refused");
    assert!(by_changes > 300 && refused > 300, "{by_changes} read by their changes, {refused} refused");
}
