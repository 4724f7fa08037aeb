//! `brigade train` where all goes well, and input that it refuses.

mod backends;
mod equality;
mod folders;
mod results;
mod wrong_input;
