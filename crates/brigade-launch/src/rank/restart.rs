//! How often the ranks were restarted.

use crate::{
    error::{Error, Result},
    parse::count,
};

/// How often the ranks were restarted before, according to the launcher.
pub const RESTART_VARIABLE: &str = "BRIGADE_RESTART_COUNT";

/// The most restarts that `--max-restarts` allows.
pub const MAX_RESTARTS: u32 = 1_000_000;

/// How often the ranks of this world were restarted before: 0 at the first start, and in a rank that
/// something other than Brigade's launcher started. All ranks of a world get the same number, on all nodes;
/// torchrun's `TORCHELASTIC_RESTART_COUNT` may differ between nodes and is not read.
///
/// # Errors
/// If `BRIGADE_RESTART_COUNT` is not a number up to [`MAX_RESTARTS`].
pub fn restart_count() -> Result<u32> {
    read(&|name| std::env::var(name).ok())
}

pub(crate) fn read(env: &dyn Fn(&str) -> Option<String>) -> Result<u32> {
    let Some(text) = env(RESTART_VARIABLE).filter(|text| !text.is_empty()) else { return Ok(0) };
    let number = count(&text, 0, MAX_RESTARTS as usize).map_err(|range| format!("it must be {range}"));
    match number {
        Ok(number) => Ok(u32::try_from(number).unwrap_or(MAX_RESTARTS)),
        Err(allowed) => Err(Error::variable(RESTART_VARIABLE, &text, allowed)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_number_or_names_the_variable() {
        let with = |text: &str| read(&|_| Some(text.to_owned()));
        assert_eq!((with("").unwrap(), with("3").unwrap()), (0, 3));
        for text in ["-1", "3x", "1000001", "99999999999999999999"] {
            let message = with(text).unwrap_err().to_string();
            assert!(message.contains(RESTART_VARIABLE) && message.contains("1000000"), "{message}");
        }
    }
}
