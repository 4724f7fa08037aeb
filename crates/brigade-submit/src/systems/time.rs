//! Limits of time, as `sbatch --time` takes them.

use crate::error::{Error, Result};

/// Seconds of `--time`; the greatest number where there is no limit.
///
/// # Errors
/// If `sbatch` would not take it.
pub fn limit(given: &str) -> Result<u64> {
    seconds(given).ok_or_else(|| {
        Error::value(
            "--time",
            given,
            "it must have a form that sbatch takes: MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, DAYS-HOURS, \
             DAYS-HOURS:MINUTES, DAYS-HOURS:MINUTES:SECONDS, or UNLIMITED",
        )
    })
}

/// Seconds of a limit, of which Slurm counts whole minutes; the greatest number where there is no limit. None if `sbatch` would not take it.
fn seconds(limit: &str) -> Option<u64> {
    if ["UNLIMITED", "INFINITE"].iter().any(|word| limit.eq_ignore_ascii_case(word)) {
        return Some(u64::MAX);
    }
    let (days, clock) = limit.split_once('-').map_or((None, limit), |(days, clock)| (Some(days), clock));
    let clock: Vec<u64> = clock.split(':').map(number).collect::<Option<_>>()?;
    let (hours, minutes, seconds) = match (days, clock.as_slice()) {
        (Some(_), [hours]) => (*hours, 0, 0),
        (Some(_), [hours, minutes]) => (*hours, *minutes, 0),
        (None, [minutes]) => (0, *minutes, 0),
        (None, [minutes, seconds]) => (0, *minutes, *seconds),
        (_, [hours, minutes, seconds]) => (*hours, *minutes, *seconds),
        _ => return None,
    };
    let hours = number(days.unwrap_or("0"))?.saturating_mul(24).saturating_add(hours);
    let minutes = hours.saturating_mul(60).saturating_add(minutes).saturating_add(seconds.div_ceil(60));
    Some(if minutes == 0 { u64::MAX } else { minutes.saturating_mul(60) })
}

fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::seconds;

    #[test]
    fn limits_of_time_are_those_of_sbatch() {
        const MINUTE: u64 = 60;
        const HOUR: u64 = 60 * MINUTE;
        for (limit, expected) in [
            ("30", 30 * MINUTE),
            ("30:00", 30 * MINUTE),
            ("0:30", MINUTE),
            ("2:30:00", 2 * HOUR + 30 * MINUTE),
            ("1-12", 36 * HOUR),
            ("1-12:30", 36 * HOUR + 30 * MINUTE),
            ("1-12:30:01", 36 * HOUR + 31 * MINUTE),
            ("unlimited", u64::MAX),
            ("0", u64::MAX),
        ] {
            assert_eq!(seconds(limit), Some(expected), "{limit}");
        }
        for limit in ["", "2h", "1:2:3:4", "-3", "1-", "1 day", "12:", "1-2-3", "1-1:2:3:4", "+3"] {
            assert_eq!(seconds(limit), None, "{limit}");
        }
    }
}
