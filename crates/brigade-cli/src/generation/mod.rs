//! Text that a model continues.

mod chat;
mod chat_input;
mod generator;
mod prompt_round;
mod prompts;
mod sampling;
mod settings;
mod text_stream;

pub use chat::ChatSession;
pub use chat_input::{ChatInput, RankInput, StandardInput};
pub use generator::{Continuation, Generator, UnloadedModel};
pub use prompt_round::PromptRound;
pub use prompts::{Prompt, PromptContent};
pub use sampling::{SamplingConfig, TokenSampler};
pub use settings::{GenerationSettings, SamplingFlags, TokenLimit};
pub use text_stream::TextStream;
