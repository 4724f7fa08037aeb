//! What is printed and saved.

use std::path::{Path, PathBuf};
use std::{fs, io};

use super::memory::Used;
use super::{Failure, Outcome};

/// The folder of failing inputs.
pub fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("failures")
}

/// The table's first line. Columns are of fixed width, as lines are printed while later targets still run.
pub fn heading() -> String {
    format!(
        "{:<12} {:>10} {:>8} {:>9} {:>12} {:>12} {:>12}",
        "target", "inputs", "parsed", "seconds", "largest", "peak", "total"
    )
}

/// A target's line: memory in bytes, the most of any input.
pub fn line(name: &str, outcome: &Outcome) -> String {
    let Outcome { inputs, parsed, seconds, used: Used { largest, peak, total }, .. } = outcome;
    let parsed = format!("{:.1} %", parsed * 100.0);
    format!("{name:<12} {inputs:>10} {parsed:>8} {seconds:>9.1} {largest:>12} {peak:>12} {total:>12}")
}

/// Writes a failing input to `folder`, as `<target>-<hash>`, and gives a message with the fault and the command that repeats it.
///
/// # Errors
/// If it cannot be written.
pub fn save_failure(
    folder: &Path,
    target: &str,
    Failure { number, input, fault }: &Failure,
) -> io::Result<String> {
    let name = format!("{target}-{}", &blake3::hash(input).to_hex()[..16]);
    fs::create_dir_all(folder)?;
    fs::write(folder.join(&name), input)?;
    Ok(format!(
        "{target}: input {number} fails: {fault}\n  {} bytes, repeat with\n  \
         cargo xtask fuzz --target {target} --file fuzz/failures/{name}",
        input.len()
    ))
}
