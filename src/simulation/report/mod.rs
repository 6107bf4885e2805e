//! Comparisons for readers: a table, CSV, and a page with charts.

mod chart;
mod csv;
mod html;
mod text;

pub use self::{csv::csv, html::html, text::text};

/// A time in seconds, with as many digits as it deserves.
fn time(seconds: f64) -> String {
    match seconds {
        s if s >= 100.0 => format!("{s:.0} s"),
        s if s >= 10.0 => format!("{s:.1} s"),
        s if s >= 1.0 => format!("{s:.2} s"),
        s => format!("{:.0} ms", s * 1e3),
    }
}

/// The time of a decision, where it was not left out.
fn decision(nanos: Option<f64>) -> String {
    nanos.map_or_else(|| "-".to_owned(), |nanos| format!("{:.1} us", nanos / 1e3))
}

/// A ratio to the baseline.
fn ratio(ratio: f64) -> String {
    if ratio >= 10.0 { format!("{ratio:.1}x") } else { format!("{ratio:.2}x") }
}
