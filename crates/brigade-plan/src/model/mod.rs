//! What a plan knows of a model: the sizes of its blocks.

mod experts;
mod file;
mod hugging_face;
mod other_families;
mod trained;
mod unknown;

pub use file::is_only_for_plans;
pub use other_families::OTHER_FAMILIES;
pub use trained::TrainedCount;

use serde::Serialize;
use thiserror::Error;

/// A transformer as a list of blocks: embedding, layers, head.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelShape {
    /// Where it comes from.
    pub name: String,
    /// Rows of the table of embeddings, and logits of a token.
    pub vocabulary: usize,
    /// Numbers of a token between layers.
    pub hidden: usize,
    /// Numbers of a token within an MLP; of a mixture of experts, within all that it passes.
    pub intermediate: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Numbers of a head.
    pub head_dim: usize,
    /// For each layer, how many tokens a token sees at most; none where it sees the whole sequence.
    pub windows: Vec<Option<usize>>,
    /// Whether an MLP has a gate.
    pub gated: bool,
    /// Whether a token sees only those before it.
    pub causal: bool,
    /// Whether the head is the table of embeddings.
    pub tied: bool,
    /// Parameters of the embedding, with learned positions.
    pub embedding_parameters: u64,
    /// Parameters of one layer.
    pub layer_parameters: u64,
    /// Parameters of one layer that a token does not use: those of the experts that are not chosen for it.
    pub idle_parameters: u64,
    /// Parameters of the head but for a tied table: the last norm, and the matrix that gives logits.
    pub head_parameters: u64,
    /// The longest sequence that it can take; 0 where it does not say.
    pub most_positions: usize,
    /// Logits of a sequence, where it predicts labels of texts instead of tokens.
    pub labels: Option<usize>,
    /// By block, how many parameters are trained, and how many are not; empty where all are.
    pub counts: Vec<TrainedCount>,
    /// What of its file was not known, and how it is counted then.
    pub note: Option<String>,
}

/// A model that cannot be planned.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum ModelError {
    /// A size that cannot be.
    #[error("{file}: {field} = {value} is not possible: {allowed}")]
    Size {
        /// The file.
        file: String,
        /// The field.
        field: String,
        /// Its value.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// A file that cannot be read as a model.
    #[error("{file}: {problem}")]
    File {
        /// The file.
        file: String,
        /// What is wrong with it.
        problem: String,
    },
}

/// The most that a size may be.
const MOST: usize = 1 << 31;

/// The most parameters that a model may have: a thousand times those of the largest, and few enough to count bytes with.
const MAX_PARAMETERS: u128 = 1 << 50;

/// As deep as a plan can look at in a few seconds.
const MAX_LAYERS: usize = 512;

impl ModelShape {
    /// A decoder of Llama's form, whose matrices have no biases.
    ///
    /// ```
    /// use brigade_plan::model::ModelShape;
    /// let model = ModelShape::llama("8.86B", 32, 4096, 32, 32, 14336, 131_072, false);
    /// assert_eq!(model.parameters() / 10_000_000, 885);
    /// ```
    #[expect(clippy::too_many_arguments, reason = "x")]
    pub fn llama(
        name: &str,
        layers: usize,
        hidden: usize,
        heads: usize,
        kv_heads: usize,
        intermediate: usize,
        vocabulary: usize,
        tied: bool,
    ) -> Self {
        let head_dim = hidden / heads.max(1);
        let [h, f, v, kv] = [hidden, intermediate, vocabulary, kv_heads * head_dim].map(|size| size as u64);
        Self {
            name: name.to_owned(),
            vocabulary,
            hidden,
            intermediate,
            heads,
            kv_heads,
            head_dim,
            windows: vec![None; layers],
            gated: true,
            causal: true,
            tied,
            embedding_parameters: v * h,
            layer_parameters: 2 * h * h + 2 * h * kv + 3 * h * f + 2 * h,
            idle_parameters: 0,
            head_parameters: h + if tied { 0 } else { v * h },
            most_positions: 0,
            labels: None,
            counts: Vec::new(),
            note: None,
        }
    }

    /// A decoder of GPT-2's form: biases, learned positions, an MLP of four times the width.
    pub fn gpt(
        name: &str,
        layers: usize,
        hidden: usize,
        heads: usize,
        vocabulary: usize,
        positions: usize,
    ) -> Self {
        let mut shape = Self::llama(name, layers, hidden, heads, heads, 4 * hidden, vocabulary, true);
        let [h, v, positions] = [hidden, vocabulary, positions].map(|size| size as u64);
        shape.gated = false;
        shape.embedding_parameters = (v + positions) * h;
        shape.layer_parameters = 12 * h * h + 13 * h;
        shape.head_parameters = 2 * h;
        shape.most_positions = positions as usize;
        shape
    }

    /// The same with learned positions for sequences of another length.
    pub fn with_positions(mut self, positions: usize) -> Self {
        let table = self.embedding_parameters - (self.most_positions * self.hidden) as u64;
        self.embedding_parameters = table + positions as u64 * self.hidden as u64;
        self.most_positions = positions;
        self
    }

    /// Logits of so many sequences of so many tokens.
    pub fn logits(&self, sequences: usize, sequence_length: usize) -> u64 {
        match self.labels {
            Some(labels) => sequences as u64 * labels as u64,
            None => (sequences * sequence_length) as u64 * self.vocabulary as u64,
        }
    }

    /// The same with a head of its own in place of the table of embeddings.
    pub fn untied(mut self) -> Self {
        self.head_parameters += self.tied_parameters();
        self.tied = false;
        self
    }

    /// Number of layers.
    pub fn layers(&self) -> usize {
        self.windows.len()
    }

    /// Number of blocks: embedding, layers, head.
    pub fn blocks(&self) -> usize {
        self.layers() + 2
    }

    /// Parameters of a block of its own, in the order of the blocks. A tied table is the embedding's.
    pub fn block_parameters(&self, block: usize) -> u64 {
        if let Some(TrainedCount { trained, frozen }) = self.counts.get(block) {
            return trained + frozen;
        }
        match block {
            0 => self.embedding_parameters,
            block if block + 1 == self.blocks() => self.head_parameters,
            _ => self.layer_parameters,
        }
    }

    /// Elements of the table that the head reads of the embedding; 0 where it has its own.
    pub fn tied_parameters(&self) -> u64 {
        if self.tied { self.vocabulary as u64 * self.hidden as u64 } else { 0 }
    }

    /// All parameters; a tied table counts once.
    pub fn parameters(&self) -> u64 {
        (0..self.blocks()).map(|block| self.block_parameters(block)).sum()
    }

    /// Parameters that multiply every token: all but the embedding and the experts that are not chosen for it, but with the table where the head is tied
    /// to it.
    pub fn multiplying_parameters(&self) -> u64 {
        let idle = self.idle_parameters * self.layers() as u64;
        self.parameters() - self.block_parameters(0) - idle + self.tied_parameters()
    }

    /// Numbers of all queries of a token.
    pub fn query_size(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Numbers of all keys, or values, of a token.
    pub fn key_size(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// The tokens that a token of a layer sees, on average.
    pub fn context(&self, layer: usize, sequence_length: usize) -> f64 {
        let window =
            self.windows.get(layer).copied().flatten().unwrap_or(sequence_length).min(sequence_length);
        let (window, length) = (window as f64, sequence_length as f64);
        if self.causal {
            // The first `window` tokens see those before them, the others `window`.
            window - window * (window - 1.0) / (2.0 * length)
        } else {
            window
        }
    }

    /// Checks that no size is 0, or too large to count with.
    ///
    /// # Errors
    /// If one is.
    pub fn check(self, file: &str) -> Result<Self, ModelError> {
        let sizes = [
            ("vocabulary", self.vocabulary),
            ("width", self.hidden),
            ("intermediate", self.intermediate),
            ("heads", self.heads),
            ("kv_heads", self.kv_heads),
            ("head_dim", self.head_dim),
            ("layers", self.layers()),
        ];
        for (field, value) in sizes {
            if !(1..MOST).contains(&value) {
                return Err(wrong(file, field, value, &format!("a whole number from 1 to {}", MOST - 1)));
            }
        }
        if self.layers() > MAX_LAYERS {
            return Err(wrong(file, "layers", self.layers(), &format!("at most {MAX_LAYERS}")));
        }
        let [before, layer, after] =
            [self.embedding_parameters, self.layer_parameters, self.head_parameters].map(u128::from);
        let parameters = before + layer * self.layers() as u128 + after;
        if parameters > MAX_PARAMETERS {
            return Err(wrong(file, "parameters", parameters, &format!("at most {MAX_PARAMETERS}")));
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(wrong(
                file,
                "kv_heads",
                self.kv_heads,
                &format!("a divisor of the {} heads", self.heads),
            ));
        }
        Ok(self)
    }
}

fn wrong(file: &str, field: &str, value: impl ToString, allowed: &str) -> ModelError {
    let (file, field) = (file.to_owned(), field.to_owned());
    ModelError::Size { file, field, value: value.to_string(), allowed: allowed.to_owned() }
}
