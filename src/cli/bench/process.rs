//! CPU time and memory of a process, from `/proc`.

use std::{fs, time::Duration};

/// The unit of CPU times in `/proc`; fixed for programs, whatever the kernel's own tick is.
const TICKS_PER_SECOND: u64 = 100;

/// A process of this machine.
#[derive(Clone, Copy, Debug)]
pub struct Process(u32);

impl Process {
    /// The process `pid`.
    ///
    /// # Errors
    /// It is not there.
    pub fn new(pid: u32) -> Result<Self, String> {
        let process = Self(pid);
        process.cpu().map(|_| process).ok_or_else(|| format!("there is no process {pid} on this machine"))
    }

    /// This process.
    pub fn own() -> Self {
        Self(std::process::id())
    }

    /// CPU time of all its threads so far.
    pub fn cpu(self) -> Option<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0)).ok()?;
        // The second field is a name in parentheses that may hold anything.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        let ticks: u64 = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
        Some(Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND))
    }

    /// Memory it holds now, in bytes.
    pub fn resident(self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0)).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        Some(line.trim().trim_end_matches(" kB").trim().parse::<u64>().ok()? * 1024)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_process_has_numbers_and_a_missing_one_has_not() {
        assert!(Process::own().cpu().is_some());
        assert!(Process::own().resident().is_some_and(|bytes| bytes > 1 << 20));
        assert!(Process::new(u32::MAX).is_err());
    }
}
