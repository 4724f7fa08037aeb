//! Numbers in flags and environment variables. Errors say what is allowed.

use std::time::Duration;

use brigade_comm::{MAX_WORLD_SIZE, allowed_world_size};

use crate::node_count::NodeCount;

/// A decimal number within bounds, or a description of the bounds.
pub fn count(text: &str, least: usize, most: usize) -> Result<usize, String> {
    let number = text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten();
    number.filter(|n| (least..=most).contains(n)).ok_or_else(|| format!("a number from {least} to {most}"))
}

/// A number of nodes: `N`, or torchrun's `MIN:MAX`.
pub fn node_count(text: &str) -> Result<NodeCount, String> {
    let (least, most) = text.split_once(':').unwrap_or((text, text));
    let nodes = |text| {
        count(text, 1, MAX_WORLD_SIZE)
            .map_err(|range| format!("{range}, each with at least one rank; {}", allowed_world_size()))
    };
    let (least, most) = (nodes(least)?, nodes(most)?);
    if least > most {
        return Err(format!("in MIN:MAX, MIN must not exceed MAX, but {least} is more than {most}"));
    }
    Ok(NodeCount { least, most })
}

/// A port, 1 to 65535.
pub fn port(text: &str) -> Result<u16, String> {
    let number = text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten();
    number.filter(|port| *port != 0).ok_or_else(|| "a port is a number from 1 to 65535".into())
}

/// A number of seconds, with or without a fraction.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.bytes().all(|b| b.is_ascii_digit() || b == b'.').then(|| text.parse().ok()).flatten();
    let duration = number.filter(|seconds| *seconds <= 1e9).map(Duration::try_from_secs_f64);
    duration.and_then(Result::ok).ok_or_else(|| "a number of seconds from 0 to 1000000000".into())
}

/// A number of seconds to wait for another node, at least one: a healthy host may stay silent for almost that long.
pub fn node_timeout(text: &str) -> Result<Duration, String> {
    let allowed = Duration::from_secs(1)..=Duration::from_secs(1_000_000);
    let given = seconds(text).ok().filter(|given| allowed.contains(given));
    given.ok_or_else(|| "a number of seconds from 1 to 1000000".into())
}
