//! Sentences of a small grammar. Whether somebody likes something, dislikes it, or neither, is to be found out: "not" turns it
//! around, but only before the verb.

use burn::prelude::*;

pub const TRAIN: usize = 4096;
pub const TEST: usize = 512;
pub const LENGTH: usize = 8;
pub const CLASSES: usize = 3;

#[rustfmt::skip]
pub const WORDS: [&str; 25] = [
    "the", "a",
    "dog", "cat", "bird", "teacher", "child", "baker",
    "not", "really", "often", "always",
    "likes", "loves", "adores", "hates", "dislikes", "fears", "sees", "meets", "hears",
    "old", "small", "friendly", "tall",
];

/// A sentence and its class, by its number.
fn sentence(number: usize) -> ([usize; LENGTH], usize) {
    let mut state = number as u64;
    let mut draw = |from: usize, count: usize| {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        from + (x ^ (x >> 31)) as usize % count
    };
    let someone = [draw(0, 2), draw(21, 4), draw(2, 6)];
    let (before, verb, after) = (draw(8, 4), draw(12, 9), draw(8, 4));
    let something = [draw(0, 2), draw(2, 6)];
    let class = match ((verb - 12) / 3, before) {
        (0, 8) => 1,
        (1, 8) => 0,
        (kind, _) => kind,
    };
    ([someone[0], someone[1], someone[2], before, verb, after, something[0], something[1]], class)
}

/// Tokens `[sentences, LENGTH]` and classes of the sentences with these numbers.
pub fn train(numbers: &[usize], device: &Device) -> (Tensor<2, Int>, Tensor<1, Int>) {
    let (sentences, classes): (Vec<_>, Vec<_>) = numbers.iter().map(|number| sentence(*number)).unzip();
    let tokens: Vec<i64> = sentences.iter().flatten().map(|word| *word as i64).collect();
    let classes: Vec<i64> = classes.into_iter().map(|class| class as i64).collect();
    let tokens = Tensor::<1, Int>::from_data(&tokens[..], device).reshape([-1, LENGTH as i64]);
    (tokens, Tensor::from_data(&classes[..], device))
}

/// The same of the sentences to test with, which are others.
pub fn test(numbers: &[usize], device: &Device) -> (Tensor<2, Int>, Tensor<1, Int>) {
    let numbers: Vec<usize> = numbers.iter().map(|number| TRAIN + number).collect();
    train(&numbers, device)
}
