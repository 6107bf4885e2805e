//! Programs that are run to their end, with what they printed in the error.

use std::{
    io::Write,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// Longest time for any program; those that wait have limits of their own.
const LIMIT: Duration = Duration::from_secs(600);

/// What a program printed on its output.
///
/// # Errors
/// Its words, status and everything it printed.
pub fn run(command: &mut Command, input: Option<&str>) -> Result<String, String> {
    let words = {
        let arguments: Vec<_> = command.get_args().map(|a| a.to_string_lossy().into_owned()).collect();
        format!("{} {}", command.get_program().to_string_lossy(), arguments.join(" "))
    };
    let stdin = if input.is_some() { Stdio::piped() } else { Stdio::null() };
    let mut child = command
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("{words}: {e}"))?;
    if let (Some(mut stdin), Some(input)) = (child.stdin.take(), input.map(str::to_owned)) {
        // A program that ends early closes its input; its own words say why.
        std::thread::spawn(move || stdin.write_all(input.as_bytes()).ok());
    }
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).map_err(|e| e.to_string())?);
    let (ended, watch) = std::sync::mpsc::channel::<()>();
    let started = Instant::now();
    std::thread::spawn(move || {
        if watch.recv_timeout(LIMIT) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).ok();
        }
    });
    let output = child.wait_with_output().map_err(|e| format!("{words}: {e}"))?;
    drop(ended);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    let seconds = started.elapsed().as_secs();
    Err(format!("{words}: {} after {seconds} s\n{}\n{}", output.status, text(&output.stdout), text(&output.stderr)))
}
