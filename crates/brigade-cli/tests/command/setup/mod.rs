//! What the tests share: a folder with text, the command's processes, and runs to compare.

pub mod place;
pub mod processes;
pub mod runs;
pub mod safetensors;
