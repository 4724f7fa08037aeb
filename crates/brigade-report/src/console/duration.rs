//! Durations as text.

/// `340.000 ms`, `7.30 s`, `12 min 5 s`, `3 h 20 min`.
pub fn duration(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 1.0 => format!("{:.3} ms", 1e3 * seconds),
        seconds if seconds < 59.995 => format!("{seconds:.2} s"),
        seconds if seconds < 3599.5 => {
            let whole = seconds.round() as u64;
            format!("{} min {} s", whole / 60, whole % 60)
        }
        seconds => {
            let minutes = (seconds / 60.0).round() as u64;
            format!("{} h {} min", minutes / 60, minutes % 60)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::duration;

    #[test]
    fn durations_are_rounded_before_they_are_taken_apart() {
        for (seconds, text) in [
            (0.34, "340.000 ms"),
            (7.3, "7.30 s"),
            (59.996, "1 min 0 s"),
            (119.6, "2 min 0 s"),
            (3599.7, "1 h 0 min"),
            (7199.0, "2 h 0 min"),
        ] {
            assert_eq!(duration(seconds), text);
        }
    }
}
