//! Numbers of things in words, and values.

use indicatif::HumanCount;

/// A number of things by the name of one: "1 rank", "2,048 ranks", "3 batches".
pub fn counted(count: usize, name: &str) -> String {
    let plural = match count {
        1 => "",
        _ if name.ends_with("ch") => "es",
        _ => "s",
    };
    format!("{} {name}{plural}", HumanCount(count as u64))
}

/// With four decimals, like the loss; where these would show nothing of a number, as a power of ten.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        0.0 | 0.001..1e9 => format!("{value:.4}"),
        _ => format!("{value:.4e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_not_many() {
        assert_eq!(counted(0, "file"), "0 files");
        assert_eq!(counted(1, "file"), "1 file");
        assert_eq!(counted(1, "batch"), "1 batch");
        assert_eq!(counted(2048, "batch"), "2,048 batches");
    }
}
