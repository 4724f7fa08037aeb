//! Makes a failing input smaller.

/// How often a smaller input is tried where a try is cheap.
pub const MAX_TRIES: usize = 2000;

/// Removes ranges, halving their size, as long as `fails` says that the rest still does; then makes bytes zeros. Tries
/// at most `most` inputs.
pub fn minimise(input: &[u8], most: usize, mut fails: impl FnMut(&[u8]) -> bool) -> Vec<u8> {
    let mut tries = 0;
    let mut still_fails = |bytes: &[u8]| {
        tries += 1;
        tries <= most && fails(bytes)
    };
    let mut best = input.to_vec();
    let mut size = best.len().div_ceil(2);
    while size > 0 {
        let mut at = 0;
        while at < best.len() {
            let end = (at + size).min(best.len());
            let without = [&best[..at], &best[end..]].concat();
            if still_fails(&without) {
                best = without;
            } else {
                at = end;
            }
        }
        size /= 2;
    }
    for at in 0..best.len() {
        let byte = std::mem::replace(&mut best[at], b'0');
        if byte != b'0' && !still_fails(&best) {
            best[at] = byte;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_matter_goes() {
        let input: Vec<u8> = (0..=255).collect();
        let fails = |bytes: &[u8]| bytes.contains(&7) && bytes.contains(&200) && bytes.len() > 2;
        assert_eq!(minimise(&input, MAX_TRIES, fails), [7, 200, b'0']);
        assert_eq!(minimise(&input, MAX_TRIES, |_| false), input);
        assert!(minimise(&input, MAX_TRIES, |_| true).is_empty());
    }
}
