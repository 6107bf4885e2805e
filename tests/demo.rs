//! `pointsman demo` as its users run it.

#![allow(clippy::unwrap_used)]

use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// Longest wait for a run; a loaded machine may need much of it.
const DEADLINE: Duration = Duration::from_secs(120);

fn demo(flags: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pointsman"));
    command.arg("demo").args(flags).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits for the end of a run: its exit code, standard output and standard error.
fn finish(child: Child) -> (Option<i32>, String, String) {
    let pid = Pid::from_raw(child.id() as i32);
    let (ended, watch) = mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        if watch.recv_timeout(DEADLINE) == Err(mpsc::RecvTimeoutError::Timeout) {
            kill(pid, Signal::SIGKILL).unwrap();
        }
    });
    let output = child.wait_with_output().unwrap();
    drop(ended);
    watchdog.join().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// The number before ` %` that follows `label` in a line.
fn percent_after(text: &str, label: &str) -> f64 {
    let rest = &text[text.find(label).unwrap_or_else(|| panic!("no {label:?} in\n{text}")) + label.len()..];
    rest.split('%').next().unwrap().trim().parse().unwrap()
}

#[test]
fn it_ends_by_itself_and_a_killed_selector_comes_back_with_all_its_peers_know() {
    let (code, out, err) = finish(demo(&["--seconds", "8", "--sessions-per-second", "8", "--engines", "3"]));
    assert_eq!(code, Some(0), "{out}\n{err}");
    assert!(out.contains("engine-2 TRT-LLM"), "{out}");
    let ours = percent_after(&out, "Cached share of the prompts:");
    let theirs = percent_after(&out, "by the selectors' choice,");
    assert!(ours > theirs, "{ours} % and {theirs} %\n{out}");
    assert!(percent_after(&out, "knew the cached tokens exactly for") > 0.0);
    assert_eq!(out.matches("calls answered   0 bookings live").count(), 3, "{out}");

    assert!(out.contains("was killed with"), "{out}");
    let known = out.lines().find(|line| line.contains("Then it knew")).unwrap();
    let digits = |text: &str| text.replace(' ', "").parse::<u64>().unwrap();
    let between = |from: &str, to: &str| {
        let rest = &known[known.find(from).unwrap() + from.len()..];
        digits(rest.split(to).next().unwrap())
    };
    // Both are read while users go on: a block or a booking may be under way.
    let (blocks, all_blocks) = (between("knew ", " of"), between("peers' ", " blocks"));
    assert!(all_blocks > 100 && 10 * blocks >= 9 * all_blocks, "{known}");
    let (bookings, all_bookings) = (between("blocks and ", " of"), {
        let rest = &known[known.find("blocks and ").unwrap()..];
        digits(rest.split(" of ").nth(1).unwrap().split(" bookings").next().unwrap())
    });
    assert!(2 * bookings >= all_bookings, "{known}");
    assert!(!known.contains("never"), "{known}");
    assert!(out.contains("In the end all 3 selectors know the same"), "{out}");
    assert!(!out.contains('\u{1b}'), "no terminal, no control sequences");
    let file = out.lines().find_map(|line| line.trim().strip_prefix("workers file")).unwrap().trim();
    assert!(!std::path::Path::new(file).exists(), "{file} was left behind");
}

#[test]
fn one_selector_is_enough_and_is_not_killed() {
    let (code, out, err) = finish(demo(&["--seconds", "3", "--selectors", "1", "--engines", "2"]));
    assert_eq!(code, Some(0), "{out}\n{err}");
    assert!(out.contains("selector-0") && !out.contains("selector-1") && !out.contains("killed"), "{out}");
}

#[test]
fn selectors_end_with_a_demo_that_is_killed() {
    let mut child = demo(&["--forever", "--seconds", "40"]);
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut read = String::new();
    while !read.contains("requests   pointsman:") {
        assert!(lines.read_line(&mut read).unwrap() > 0, "{read}");
    }
    let addresses: Vec<_> = read.split_whitespace().filter_map(|word| word.strip_prefix("http://")).collect();
    assert_eq!(addresses.len(), 3, "{read}");
    let connect = |address: &&str| std::net::TcpStream::connect(address);
    let mut connections: Vec<_> = addresses.iter().map(|address| connect(address).unwrap()).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    for connection in &mut connections {
        connection.set_read_timeout(Some(DEADLINE)).unwrap();
        assert!(matches!(connection.read(&mut [0]), Ok(0)), "it ends");
    }
    assert!(addresses.iter().all(|address| connect(address).is_err()), "nothing listens any more");
    // Nobody was left to remove it.
    let file = read.lines().find_map(|line| line.trim().strip_prefix("workers file")).unwrap().trim();
    std::fs::remove_dir_all(std::path::Path::new(file).parent().unwrap()).unwrap();
}

#[test]
fn an_endless_run_shows_its_selectors_and_ends_cleanly_at_ctrl_c() {
    let mut child = demo(&["--forever", "--seconds", "40"]);
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut read = String::new();
    // The first count is printed when everything is up and the users have begun.
    while !read.contains("requests   pointsman:") {
        assert!(lines.read_line(&mut read).unwrap() > 0, "{read}");
    }
    let url = read.split_whitespace().find(|word| word.starts_with("http://")).unwrap().to_owned();
    let address = url.trim_start_matches("http://");
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    std::io::Write::write_all(&mut stream, b"GET /workers HTTP/1.1\r\nHost: demo\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer.matches("\"schedulable\"").count(), 4, "{answer}");

    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    let rest = std::thread::spawn(move || {
        let mut rest = String::new();
        lines.read_to_string(&mut rest).unwrap();
        rest
    });
    let (code, _, err) = finish(child);
    let rest = rest.join().unwrap();
    assert_eq!(code, Some(0), "{rest}\n{err}");
    assert!(rest.contains("all engines"), "the summary so far is shown: {rest}");
    assert!(std::net::TcpStream::connect(address).is_err(), "nothing listens any more");
}

#[test]
fn help_says_what_it_does_and_wrong_flags_are_refused() {
    let (code, out, _) = finish(demo(&["--help"]));
    assert_eq!(code, Some(0));
    for part in ["--forever", "--seconds", "Examples:", "Exit code:", "no cluster"] {
        assert!(out.contains(part), "no {part:?} in\n{out}");
    }
    let (code, _, err) = finish(demo(&["--engines", "0"]));
    assert_eq!(code, Some(2), "{err}");
}
