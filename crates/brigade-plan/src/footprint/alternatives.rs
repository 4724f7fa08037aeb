//! Other settings for the same training that hold less.

use super::configuration::Configuration;
use super::sizes::{BoundaryTensor, SavedActivations};
use crate::split::balanced;

/// Other settings for the same training: the same model, ranks and global batch, and so the same weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Alternative {
    /// The flags to add or change, such as `--zero 1 --recompute all`.
    pub flags: String,
    /// What follows from them.
    pub configuration: Configuration,
}

/// What the blocks take for a micro-batch: the tensors between them, and what each needs inside.
pub type Activations = (Vec<Vec<BoundaryTensor>>, Vec<SavedActivations>);

impl Configuration {
    /// Settings that hold less, those that cost little time first: each alone, then several together. `micro_batch_size` is that of
    /// this configuration, `costs` those of the blocks. `activations` gives what the blocks take for a smaller
    /// micro-batch; none leaves such alternatives out.
    pub fn alternatives(
        &self,
        micro_batch_size: usize,
        costs: &[f64],
        activations: impl Fn(usize) -> Option<Activations>,
    ) -> Vec<Alternative> {
        let smaller = |size: usize| {
            let (boundary_activations, saved_activations) = activations(size)?;
            let micro_batches = self.micro_batches * (micro_batch_size / size);
            Some(Self { boundary_activations, saved_activations, micro_batches, ..self.clone() })
        };
        let halves = std::iter::successors(Some(micro_batch_size), |size| {
            (size.is_multiple_of(2) && *size > 1).then(|| size / 2)
        });
        let smaller =
            halves.skip(1).filter_map(|size| Some((format!("--micro-batch-size {size}"), smaller(size)?)));
        let smaller: Vec<(String, Self)> = smaller.collect();
        let zero = |stage: u8, from: &Self| {
            let holds_less = from.dp > 1 && stage > from.zero_stage;
            holds_less.then(|| (format!("--zero {stage}"), Self { zero_stage: stage, ..from.clone() }))
        };
        let recompute = |from: &Self| {
            (from.recompute_every != 1)
                .then(|| ("--recompute all".to_owned(), Self { recompute_every: 1, ..from.clone() }))
        };
        let stages = |from: &Self| {
            let (pp, dp) = (2 * from.pp, from.dp / 2);
            let split = balanced(costs, pp * from.chunks).ok().filter(|_| from.dp.is_multiple_of(2))?;
            let micro_batches = 2 * from.micro_batches;
            let flags = format!("--pp {pp} --dp {}", dp * from.replicas);
            Some((flags, Self { pp, dp, split, micro_batches, ..from.clone() }))
        };
        let mut all = Vec::new();
        all.extend(zero(1, self));
        all.extend(smaller.first().cloned());
        all.extend(recompute(self));
        all.extend([2, 3].into_iter().filter_map(|stage| zero(stage, self)));
        all.extend(smaller.iter().skip(1).cloned());
        all.extend(stages(self));
        // All that there is, one after the other.
        let mut together = smaller.last().cloned().unwrap_or_else(|| (String::new(), self.clone()));
        for step in 0..3 {
            let from = &together.1;
            let next = match step {
                0 => recompute(from),
                1 => zero(3, from),
                _ => stages(from),
            };
            if let Some((flags, configuration)) = next {
                let flags = format!("{} {flags}", together.0).trim().to_owned();
                together = (flags, configuration);
                all.push(together.clone());
            }
        }
        let alternative = |(flags, configuration)| Alternative { flags, configuration };
        let mut all: Vec<_> = all.into_iter().map(alternative).collect();
        let mut seen = brigade_sorted::SortedSet::new();
        all.retain(|alternative| seen.insert(alternative.flags.clone()));
        all
    }
}
