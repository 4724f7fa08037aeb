//! The `brigade` command.
fn main() {}
