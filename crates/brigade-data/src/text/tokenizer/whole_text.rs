//! Texts with what a tokenizer puts around them.

/// One text, or two, with the special tokens around them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WholeText {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Of each token, whether it belongs to the second text.
    pub of_second: Vec<bool>,
    /// How many tokens were cut, as they did not fit.
    pub cut: usize,
}
