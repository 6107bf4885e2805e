//! `choices [--traces DIR] [--workers N,N] [--loads N,N] [--seed N] [WORKLOAD...]`

use std::{path::PathBuf, str::FromStr};

use pointsman::simulation::{catalogue, workload::LEVELS};

/// What is compared.
pub struct Arguments {
    /// Folder of the traces.
    pub traces: Option<PathBuf>,
    /// Fleet sizes.
    pub workers: Vec<u32>,
    /// Load levels.
    pub loads: Vec<u8>,
    /// Of everything that is drawn.
    pub seed: u64,
    /// Their names.
    pub workloads: Vec<String>,
}

impl Arguments {
    /// Reads the words after `choices`; without workloads, all of them.
    pub fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut arguments =
            Self { traces: None, workers: vec![8, 32], loads: (1..=LEVELS).collect(), seed: 1, workloads: Vec::new() };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--traces" => arguments.traces = Some(value()?.into()),
                "--workers" => arguments.workers = numbers(&value()?)?,
                "--loads" => arguments.loads = numbers(&value()?)?,
                "--seed" => arguments.seed = number(&value()?)?,
                flag if flag.starts_with('-') => return Err(format!("unknown flag {flag}")),
                _ => arguments.workloads.push(word),
            }
        }
        if arguments.workloads.is_empty() {
            arguments.workloads = catalogue::NAMES.map(str::to_owned).to_vec();
        }
        Ok(arguments)
    }
}

fn numbers<T: FromStr>(text: &str) -> Result<Vec<T>, String> {
    text.split(',').map(number).collect()
}

fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text:?} is not a number in range"))
}
