//! Values of the flags of `brigade plan`.

use brigade::plan::cluster::Dtype;
use brigade::plan::time::PlannedAlgorithm;

/// A number of tokens, with K, M or G for 1024, 1024² or 1024³.
pub fn tokens(text: &str) -> Result<usize, String> {
    let wrong = || {
        "it must be a whole number of tokens, as in 1048576 or 1M (K, M and G are powers of 1024)".to_owned()
    };
    let (number, unit) = match text.chars().last().map(|letter| letter.to_ascii_uppercase()) {
        Some('K') => (&text[..text.len() - 1], 1 << 10),
        Some('M') => (&text[..text.len() - 1], 1 << 20),
        Some('G') => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    let number: usize = number.parse().map_err(|_| wrong())?;
    number.checked_mul(unit).ok_or_else(wrong)
}

/// `3=1.3`: a rank, and how many times longer it takes.
pub fn slow_rank(text: &str) -> Result<(usize, f64), String> {
    let wrong = || "it must be RANK=TIMES, as in 3=1.3 for a rank that takes 1.3 times as long".to_owned();
    let (rank, times) = text.split_once('=').ok_or_else(wrong)?;
    Ok((rank.parse().map_err(|_| wrong())?, times.parse().map_err(|_| wrong())?))
}

/// A number type.
pub fn dtype(text: &str) -> Result<Dtype, String> {
    let all = [Dtype::Bf16, Dtype::Fp16, Dtype::F32];
    let name = if text == "f32" { "fp32" } else { text };
    all.into_iter().find(|dtype| dtype.name() == name).ok_or_else(|| "it must be bf16, fp16 or fp32".into())
}

/// A number type of sums.
pub fn reduce_dtype(text: &str) -> Result<Dtype, String> {
    dtype(text).ok().filter(|dtype| *dtype != Dtype::Fp16).ok_or_else(|| "it must be fp32 or bf16".into())
}

/// The algorithm of collectives.
pub fn algorithm(text: &str) -> Result<PlannedAlgorithm, String> {
    let all = PlannedAlgorithm::ALL.into_iter().chain([PlannedAlgorithm::Auto]);
    let found = all.into_iter().find(|algorithm| algorithm.name() == text);
    found.ok_or_else(|| "it must be auto, ring, tree, hierarchical, flat or halving".into())
}

/// The blocks that are recomputed.
pub fn recompute(text: &str) -> Result<usize, String> {
    match text {
        "none" => Ok(0),
        "all" => Ok(1),
        _ => {
            let every = text.strip_prefix("every-").and_then(|k| k.parse().ok()).filter(|k| *k > 0);
            every.ok_or_else(|| "it must be none, all, or every-K for every K-th block, as in every-2".into())
        }
    }
}

/// Chunks of an interleaved schedule.
pub fn chunks(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|chunks| *chunks >= 2)
        .ok_or_else(|| "it must be a whole number from 2 on".into())
}

/// A number of things of which there must be one.
pub fn at_least_1(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number >= 1);
    number.ok_or_else(|| "it must be a whole number of at least 1".into())
}

/// A stage of ZeRO.
pub fn zero(text: &str) -> Result<u8, String> {
    text.parse().ok().filter(|stage| *stage <= 3).ok_or_else(|| "it must be 0, 1, 2 or 3".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values() {
        assert_eq!(tokens("1M"), Ok(1 << 20));
        assert_eq!(tokens("4096"), Ok(4096));
        assert!(tokens("").is_err() && tokens("1.5M").is_err() && tokens("99999999999G").is_err());
        assert_eq!(slow_rank("3=1.3"), Ok((3, 1.3)));
        assert!(slow_rank("3").is_err() && slow_rank("a=1").is_err());
        assert_eq!((recompute("none"), recompute("all"), recompute("every-3")), (Ok(0), Ok(1), Ok(3)));
        assert_eq!((chunks("5"), at_least_1("1")), (Ok(5), Ok(1)));
        assert!(chunks("1").is_err() && at_least_1("0").is_err() && at_least_1("-1").is_err());
        assert!(recompute("every-0").is_err() && zero("4").is_err() && dtype("int8").is_err());
        assert_eq!((reduce_dtype("bf16"), reduce_dtype("fp32")), (Ok(Dtype::Bf16), Ok(Dtype::F32)));
        assert_eq!(reduce_dtype("fp16"), Err("it must be fp32 or bf16".into()));
        assert_eq!(algorithm("tree"), Ok(PlannedAlgorithm::Tree));
        assert!(algorithm("star").unwrap_err().contains("flat or halving"));
    }
}
