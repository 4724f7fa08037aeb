//! What the errors of all ranks must say.

use std::time::Instant;

use brigade_comm::{Error, Result};

use crate::worlds::SOON;

/// The ranks' errors; none of them may have taken long.
pub fn errors_soon<T: std::fmt::Debug>(run: impl FnOnce() -> Vec<Result<T>>) -> Vec<Error> {
    let start = Instant::now();
    let errors = run().into_iter().map(|outcome| outcome.unwrap_err()).collect();
    assert!(start.elapsed() < SOON, "took {:?}", start.elapsed());
    errors
}

/// Whether an error says all this, be it the rank's own or one that it was told of.
pub fn says(error: &Error, words: &[&str]) -> bool {
    let text = error.to_string();
    words.iter().all(|word| text.contains(word))
}

#[track_caller]
pub fn assert_all_say(errors: &[Error], words: &[&str]) {
    for (rank, error) in errors.iter().enumerate() {
        assert!(says(error, words), "rank {rank} says: {error}");
    }
}
