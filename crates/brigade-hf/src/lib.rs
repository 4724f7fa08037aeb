//! Model folders as Hugging Face's libraries read and write them: configurations, tensor names, chat templates.
//!
//! A [`ConfigFile`] has the contents of `config.json`, as one plain struct for all decoders ([`DecoderConfig`]) and one for all
//! encoders ([`EncoderConfig`]): the families are special cases of them. [`Config::tensors`] lists the contents of their weight
//! files.
//!
//! [`weights`] finds the files of weights in a folder, and compares their tensors with those of the model.
//!
//! [`TokenizerConfig`] has the special tokens and the templates that accompany a `tokenizer.json`; [`chat`] makes texts of chats by
//! them, says which parts of a text the assistant said, and which tokens of a record are learned.
//!
//! [`hub`] finds models by name in the cache that Hugging Face's libraries share, and downloads them.
//!
//! # Invariants
//! - **No field that may change what a model computes is ignored.** A field that a family does not know is an error that names it,
//!   unless it is null, false or empty, or known to be harmless.
//! - **A field that is absent has the value that `transformers` 5.23 gives it**, which is not always that of null.
//! - **Written values read back unchanged**; the rest of a file that was read stays as it was.
//!
//! This crate knows neither tensors nor ranks.

#[cfg(feature = "chat")]
pub mod chat;
pub mod config;
mod differences;
mod error;
pub mod hub;
mod templates;
mod tensors;
#[cfg(feature = "chat")]
mod tokenizer;
pub mod weights;

pub use config::{Config, ConfigFile, DecoderConfig, EncoderConfig, Family, Task};
pub use error::HfError;
pub use templates::additional_templates;
pub use tensors::TensorShape;
#[cfg(feature = "chat")]
pub use tokenizer::{AddedToken, TokenizerConfig};
