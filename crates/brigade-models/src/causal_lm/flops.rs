//! What a token takes to train.

use brigade_core::ParameterCounts;

use super::{CausalLm, Kind};

impl CausalLm {
    /// FLOPs of forward and backward per token: 6 for each parameter but those of tables that are only looked up, and `12 · layers · width · length` of attention, as
    /// the PaLM paper counts them (Chowdhery et al., 2022); the length of a layer with a window is at most that. A frozen parameter has no gradient and counts 4 times, and what comes
    /// before all that is trained has no backward pass: 2 for a parameter, a third of attention. `blocks`: what the model's blocks have.
    pub fn flops_per_target(&self, blocks: &[ParameterCounts]) -> f64 {
        let length = self.sequence_length();
        let (table, is_tied, width) = match &self.kind {
            Kind::Gpt2(config, _) => (config.vocabulary * config.width, config.tied_head, config.width),
            Kind::Decoder(config) => {
                (config.vocab_size * config.hidden_size, config.tied_embeddings, config.query_size())
            }
        };
        let seen = |layer: usize| match &self.kind {
            Kind::Gpt2(..) => length,
            Kind::Decoder(config) => config.layers[layer].window.unwrap_or(length).min(length),
        };
        let first_trained = blocks.iter().position(|counts| counts.trained > 0).unwrap_or(blocks.len());
        let of = |(block, counts): (usize, &ParameterCounts)| {
            let mut counts = *counts;
            if block + 1 == blocks.len() && is_tied {
                // The table multiplies here, with the embedding's values.
                let count = if blocks[0].trained > 0 { &mut counts.trained } else { &mut counts.frozen };
                *count += table;
            }
            let is_layer = block > 0 && block + 1 < blocks.len();
            let attention = if is_layer { 4 * width * seen(block - 1) } else { 0 };
            match block < first_trained {
                true => 2 * counts.frozen + attention,
                false => 6 * counts.trained + 4 * counts.frozen + 3 * attention,
            }
        };
        // The first block looks tables up.
        blocks.iter().enumerate().skip(1).map(of).sum::<usize>() as f64
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::gpt::{Gelu, GptConfig};

    const WIDTH: usize = 12;
    const LENGTH: usize = 16;
    const ATTENTION: usize = 12 * WIDTH * LENGTH;
    const LAYER: usize = 12 * WIDTH * WIDTH + 13 * WIDTH;

    fn gpt(tied_head: bool) -> CausalLm {
        CausalLm::from(GptConfig {
            vocabulary: 40,
            sequence_length: LENGTH,
            width: WIDTH,
            layers: 3,
            heads: 3,
            tied_head,
            activation: Gelu::Gelu,
            dropout: 0.0,
            initializer_range: 0.02,
        })
    }

    #[test]
    fn all_that_is_trained_counts_six_times_but_for_tables() {
        for tied_head in [true, false] {
            let model = gpt(tied_head);
            let chain = model.chain(0, &Device::flex()).unwrap();
            let looked_up = LENGTH * WIDTH + if tied_head { 0 } else { 40 * WIDTH };
            let expected = 6 * (chain.parameters() - looked_up) + 3 * ATTENTION;
            assert_eq!(model.flops_per_target(&chain.parameter_counts()), expected as f64);
        }
    }

    #[test]
    fn what_is_frozen_counts_less_and_least_before_all_that_is_trained() {
        let model = gpt(true);
        let mut counts = model.chain(0, &Device::flex()).unwrap().parameter_counts();
        let freeze = |counts: &mut ParameterCounts| {
            *counts = ParameterCounts { trained: 0, frozen: counts.trained };
        };
        let table = 40 * WIDTH;
        let head = 2 * WIDTH;
        // The second layer: what comes before it runs forward alone.
        for block in [0, 1, 3] {
            freeze(&mut counts[block]);
        }
        let expected = (2 * LAYER + ATTENTION / 3)
            + (6 * LAYER + ATTENTION)
            + (4 * LAYER + ATTENTION)
            + (6 * head + 4 * table);
        assert_eq!(model.flops_per_target(&counts), expected as f64);
        freeze(&mut counts[2]);
        let expected = 3 * (2 * LAYER + ATTENTION / 3) + (6 * head + 4 * table);
        assert_eq!(model.flops_per_target(&counts), expected as f64);
    }
}
