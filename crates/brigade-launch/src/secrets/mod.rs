//! Secrets where others would see them: by their form, and by the name of what they are given to.

mod forms;
mod names;

pub use forms::{looks_like_secret, secret_in_command};
pub use names::is_secret_name;
