//! Prompts of a file, as many at a time as there are pipelines.

use brigade::Session;

/// After how many tokens pipelines that continue prompts at the same time synchronise.
const TOKENS_BETWEEN: usize = 8;

/// What a pipeline tells the others.
const DONE: &str = "done";

/// The prompts that pipelines continue at the same time. A pipeline whose text ends early waits for the others, which may have thousands of tokens to go: they all synchronise
/// every few tokens, so that no wait is longer than it takes to compute these, and each one sends heartbeats.
pub struct PromptRound<'a> {
    session: &'a Session,
    tokens: usize,
}

impl<'a> PromptRound<'a> {
    /// All ranks begin it together.
    pub fn begin(session: &'a Session) -> Self {
        Self { session, tokens: 0 }
    }

    /// After each token, on all ranks of a pipeline.
    ///
    /// # Errors
    /// If a rank failed.
    pub fn count_token(&mut self) -> anyhow::Result<()> {
        self.tokens += 1;
        if self.tokens.is_multiple_of(TOKENS_BETWEEN) {
            self.session.all_gather_text("")?;
        }
        Ok(())
    }

    /// Waits for the other pipelines, and gives the texts of all in their order.
    ///
    /// # Errors
    /// If a text has more than 16 MiB, or a rank failed.
    pub fn finish(self, text: &str) -> anyhow::Result<Vec<String>> {
        loop {
            self.session.send_heartbeat("waiting for the texts of other pipelines");
            if self.session.all_gather_text(DONE)?.iter().all(|said| said == DONE) {
                return self.session.all_gather_text(text);
            }
        }
    }
}
