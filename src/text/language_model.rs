//! Inference with a trained language model.

use std::path::Path;

use anyhow::{Context, bail};
use brigade_core::{Cache, Chain, Collectives, Dtype, Engine, PP};
use brigade_models::gpt::Targets;
use brigade_models::{CausalLm, LoadWeights, Logits, Strict, Tokens, WeightsMapping};
use burn::tensor::Device;

use super::rows::token_tensor;
use crate::run::Session;

/// A trained language model, for inference: on this process's CPU, or spread over the ranks of a session.
pub struct LanguageModel<'a> {
    place: Place<'a>,
    positions: usize,
    vocabulary: usize,
    device: Device,
}

/// Where its blocks are.
enum Place<'a> {
    Here(Box<Chain<Tokens, Logits>>),
    OnRanks(Box<Engine<Tokens, Logits, Targets>>, &'a Session),
}

/// A text that a model continues: its last tokens, and the keys and values that belong to them.
#[derive(Default)]
pub struct CachedText {
    tokens: Vec<u32>,
    cache: Cache,
}

impl CachedText {
    /// The tokens that the model sees: the text, but for those at its beginning for which there was no position left.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }
}

impl LanguageModel<'static> {
    /// Reads a model's weights: each of `weights` is a file, or the index of several. The second has adapters, if the model has any. `mapping`: the
    /// [model's](CausalLm::mapping), or one with the names that these files have.
    ///
    /// # Errors
    /// If there is no such model, or the file is damaged or belongs to another model.
    pub fn load(model: &CausalLm, weights: &[&Path], mapping: &WeightsMapping) -> anyhow::Result<Self> {
        Self::load_in(model, weights, mapping, Dtype::F32)
    }

    /// As [`load`](LanguageModel::load), computing in this number type, in which parameters then are.
    ///
    /// # Errors
    /// As [`load`](LanguageModel::load).
    pub fn load_in(
        model: &CausalLm,
        weights: &[&Path],
        mapping: &WeightsMapping,
        compute: Dtype,
    ) -> anyhow::Result<Self> {
        let device = brigade_cpu::device();
        let mut chain = model.chain(0, &device)?;
        chain.load_weights_of(weights, mapping, Strict::Parameters)?;
        chain.initialize_in(0, compute)?;
        Ok(Self::of(model, Place::Here(Box::new(chain.valid())), device))
    }
}

impl<'a> LanguageModel<'a> {
    /// As [`load`](LanguageModel::load), on the ranks of a session: each reads the weights of its pipeline stage. All of them call it; those of a pipeline call every method of
    /// what it gives together, with the same tokens, whatever the other pipelines do.
    ///
    /// # Errors
    /// As [`load`](LanguageModel::load), or if the model cannot be split so, or a rank failed.
    pub fn load_on(
        session: &'a Session,
        model: &CausalLm,
        weights: &[&Path],
        mapping: &WeightsMapping,
    ) -> anyhow::Result<Self> {
        let device = session.device();
        let mut whole = model.model(session.seed(), &device)?;
        whole.load_weights_of(weights, mapping, Strict::Parameters)?;
        let place = Place::OnRanks(Box::new(session.engine(whole)?), session);
        Ok(Self::of(model, place, device))
    }

    fn of(model: &CausalLm, place: Place<'a>, device: Device) -> Self {
        Self { place, positions: model.sequence_length(), vocabulary: model.vocabulary(), device }
    }

    /// The tokens that the model sees at once.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// Adds tokens to a text, and gives the token that `choose` takes for the next one by its logits, one for each token of the vocabulary. That token is not part of the text
    /// yet. Only the tokens that are added are computed. When the text is longer than the model's positions, the last half of those is seen from there on, or else as many of the
    /// added tokens as there are positions.
    ///
    /// On several ranks, `choose` is called on those that have the logits.
    ///
    /// # Errors
    /// If `added` is empty or has a token outside the model's vocabulary, if `choose` fails, or if the device or a rank fails.
    pub fn next_token(
        &mut self,
        text: &mut CachedText,
        added: &[u32],
        choose: impl FnOnce(&[f32]) -> anyhow::Result<u32>,
    ) -> anyhow::Result<u32> {
        if let Some(token) = added.iter().find(|token| **token as usize >= self.vocabulary) {
            bail!("token {token} is outside the model's vocabulary of {}", self.vocabulary);
        }
        let seen = text.tokens.len();
        text.tokens.extend(added);
        let mut added = added.len();
        if seen + added > self.positions {
            added = added.clamp((self.positions / 2).max(1), self.positions);
            let tokens = text.tokens.split_off(text.tokens.len() - added);
            *text = CachedText { tokens, cache: Cache::default() };
        }
        let last = added.checked_sub(1).context("a model needs at least one token to continue")?;
        let new = &text.tokens[text.tokens.len() - added..];
        let input = token_tensor(new.iter(), [1, added], &self.device).into();
        let logits = match &mut self.place {
            Place::Here(chain) => Some(chain.predict_cached(input, &mut text.cache)?),
            Place::OnRanks(engine, session) => {
                session.heartbeat.send("generating text");
                engine.predict_cached(input, &mut text.cache)?
            }
        };
        let chosen = logits.map(|logits| {
            let logits = logits.rows(last, 1).try_into_vec_as::<f32>();
            choose(&logits.context("cannot read the model's logits")?)
        });
        let chosen = chosen.transpose()?;
        match &self.place {
            Place::Here(_) => chosen.context("a model without a last block"),
            Place::OnRanks(_, session) => agreed(&*session.groups().over(&[PP]), chosen),
        }
    }
}

/// What the first of a pipeline's ranks has that has anything.
fn agreed(pipeline: &dyn Collectives, own: Option<u32>) -> anyhow::Result<u32> {
    let all = pipeline.all_gather_scalars(vec![own.map_or(-1.0, f64::from)]).wait()?;
    let found = all.into_iter().flatten().find(|token| *token >= 0.0);
    found.map(|token| token as u32).context("no rank has the model's last block")
}
