//! Plans as text.

mod by_part;
mod command;
mod config;
mod explain;
mod failures;
mod text;
mod what_if;

pub use command::{NamedModel, command};
pub use config::config;
pub use explain::explain;
pub use failures::{FailureForecast, failures};
pub use text::{MAX_RANKS, details, notes, render};
pub use what_if::{WhatIf, render_what_if, what_if};

/// A duration of a step.
fn seconds(seconds: f64) -> String {
    match seconds {
        s if s >= 100.0 => format!("{s:.0} s"),
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 1e-3 => format!("{:.1} ms", s * 1e3),
        s => format!("{:.1} µs", s * 1e6),
    }
}

/// A number with its thousands apart.
fn count(number: f64) -> String {
    let digits = format!("{:.0}", number.abs());
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number of parameters.
fn billions(number: f64) -> String {
    match number {
        n if n >= 1e9 => format!("{:.2}B", n / 1e9),
        n if n >= 1e6 => format!("{:.1}M", n / 1e6),
        n => count(n),
    }
}
