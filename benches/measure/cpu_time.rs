//! CPU time of the calling thread, so that a busy machine does not show in the numbers.

use std::time::Duration;

use criterion::{
    Throughput,
    measurement::{Measurement, ValueFormatter},
};
use nix::time::{ClockId, clock_gettime};

/// Measures what the thread itself computed.
pub struct CpuTime;

fn spent() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("every Linux has this clock").into()
}

impl Measurement for CpuTime {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        spent()
    }

    fn end(&self, start: Duration) -> Duration {
        spent() - start
    }

    fn add(&self, a: &Duration, b: &Duration) -> Duration {
        *a + *b
    }

    fn zero(&self) -> Duration {
        Duration::ZERO
    }

    fn to_f64(&self, value: &Duration) -> f64 {
        value.as_nanos() as f64
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        &Nanoseconds
    }
}

struct Nanoseconds;

impl ValueFormatter for Nanoseconds {
    fn scale_values(&self, typical: f64, values: &mut [f64]) -> &'static str {
        let (factor, unit) = if typical < 1e3 { (1.0, "ns CPU") } else { (1e-3, "µs CPU") };
        values.iter_mut().for_each(|value| *value *= factor);
        unit
    }

    fn scale_throughputs(&self, _typical: f64, throughput: &Throughput, values: &mut [f64]) -> &'static str {
        let amount = match throughput {
            Throughput::Elements(amount) | Throughput::Bytes(amount) | Throughput::BytesDecimal(amount) => *amount,
            Throughput::Bits(amount) => *amount,
        };
        values.iter_mut().for_each(|value| *value = amount as f64 * 1e9 / *value);
        "a second of CPU"
    }

    fn scale_for_machines(&self, _values: &mut [f64]) -> &'static str {
        "ns"
    }
}
