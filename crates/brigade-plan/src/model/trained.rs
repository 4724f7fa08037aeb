//! Models of which only a part is trained: adapters, or what is not frozen.

use serde::Serialize;

use super::ModelShape;

/// How many parameters of a block are trained, and how many are not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct TrainedCount {
    /// Those that are trained.
    pub trained: u64,
    /// Those that are frozen.
    pub frozen: u64,
}

impl ModelShape {
    /// The same with these parameters in its blocks, in order, adapters included. Blocks beyond the model's are parts of its head.
    ///
    /// ```
    /// use brigade_plan::model::{ModelShape, TrainedCount};
    /// let model = ModelShape::gpt("small", 2, 64, 2, 256, 64);
    /// let frozen = (0..4).map(|block| TrainedCount { trained: 0, frozen: model.block_parameters(block) });
    /// let head_alone = frozen.chain([TrainedCount { trained: 64, frozen: 0 }]);
    /// let model = model.clone().with_trained(head_alone);
    /// assert_eq!((model.trained_parameters(3), model.trained_parameters(2)), (64, 0));
    /// ```
    pub fn with_trained(mut self, blocks: impl IntoIterator<Item = TrainedCount>) -> Self {
        let mut own = vec![TrainedCount::default(); self.blocks()];
        let last = own.len() - 1;
        for (block, TrainedCount { trained, frozen }) in blocks.into_iter().enumerate() {
            own[block.min(last)].trained += trained;
            own[block.min(last)].frozen += frozen;
        }
        if own.iter().any(|count| count.frozen > 0) {
            self.counts = own;
        }
        self
    }

    /// Parameters of a block of its own that are trained: they have gradients, state of the optimizer and masters.
    pub fn trained_parameters(&self, block: usize) -> u64 {
        self.counts.get(block).map_or_else(|| self.block_parameters(block), |count| count.trained)
    }

    /// All parameters that are trained.
    pub fn all_trained_parameters(&self) -> u64 {
        (0..self.blocks()).map(|block| self.trained_parameters(block)).sum()
    }

    /// Whether the table of embeddings is trained, which a tied head reads, too.
    pub fn trains_table(&self) -> bool {
        self.trained_parameters(0) > 0
    }

    /// The first block with a parameter that is trained. What comes before it has no backward.
    pub fn first_trained(&self) -> usize {
        self.counts.iter().position(|count| count.trained > 0).unwrap_or(self.counts.len())
    }

    /// The share of a block's parameters whose gradients are computed.
    pub fn trained_share(&self, block: usize) -> f64 {
        match self.counts.get(block) {
            Some(count) if count.frozen > 0 => count.trained as f64 / (count.trained + count.frozen) as f64,
            _ => 1.0,
        }
    }

    /// FLOPs of a token by the formula that MFU is defined with, `6 N + 12 L h s`: `N` counts the head but not the embedding, and attention
    /// as if every token saw all others, or in a layer with a window as many as that has. A frozen parameter has no gradient and counts 4 times; what comes before all that
    /// is trained runs forward alone, a parameter 2 times and attention a third.
    pub fn flops_per_token(&self, sequence_length: usize) -> f64 {
        let (last, first_trained) = (self.blocks() - 1, self.first_trained());
        let of = |block: usize| {
            let (mut all, mut trained) = (self.block_parameters(block), self.trained_parameters(block));
            let mut attention = 0.0;
            if block == last {
                all += self.tied_parameters();
                trained += if self.trains_table() { self.tied_parameters() } else { 0 };
            } else {
                // Of a mixture of experts, all are trained.
                (all, trained) = (all - self.idle_parameters, trained - self.idle_parameters.min(trained));
                let seen = self.windows[block - 1].unwrap_or(sequence_length).min(sequence_length);
                attention = 4.0 * self.query_size() as f64 * seen as f64;
            }
            match block < first_trained {
                true => 2.0 * all as f64 + attention,
                false => 4.0 * all as f64 + 2.0 * trained as f64 + 3.0 * attention,
            }
        };
        // The first block looks rows up.
        (1..=last).map(of).sum()
    }
}
