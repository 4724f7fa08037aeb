//! Where a value that is not finite came from.

use burn::tensor::Tensor;

use crate::dist::{DATA, Mesh};
use crate::error::{Error, NonFiniteLocation, Result};
use crate::model::activation::{Part, Parts};

const PLACES: [&str; 3] = ["output", "loss", "gradient"];

/// A rank's search: it looks at what a pass computes, and keeps the first place that is not finite.
#[derive(Default)]
pub(crate) struct NonFiniteCheck(Option<Find>);

/// Micro-batch, place (an index into [`PLACES`]), and how far along the pass; then the block.
type Find = (usize, usize, usize, usize);

impl NonFiniteCheck {
    pub(crate) fn output(&mut self, micro_batch: usize, block: usize, output: &Parts) -> Result<()> {
        for part in &output.0 {
            if let Part::Float(flat, _) = part
                && !finite(flat)?
            {
                self.keep((micro_batch, 0, block, block));
            }
        }
        Ok(())
    }

    pub(crate) fn loss(&mut self, micro_batch: usize, block: usize, loss: &Tensor<1>) -> Result<()> {
        if !finite(loss)? {
            self.keep((micro_batch, 1, 0, block));
        }
        Ok(())
    }

    pub(crate) fn gradient<'a>(
        &mut self,
        micro_batch: usize,
        block: usize,
        gradients: impl Iterator<Item = &'a Tensor<1>>,
    ) -> Result<()> {
        for gradient in gradients {
            if !finite(gradient)? {
                self.keep((micro_batch, 2, usize::MAX - block, block));
            }
        }
        Ok(())
    }

    fn keep(&mut self, find: Find) {
        self.0 = Some(self.0.map_or(find, |first| first.min(find)));
    }

    /// What all ranks tell each other of their searches.
    pub(crate) fn to_words(&self) -> Vec<f64> {
        match self.0 {
            Some((micro_batch, place, _, block)) => {
                vec![1.0, micro_batch as f64, place as f64, block as f64]
            }
            None => vec![0.0; 4],
        }
    }
}

/// The first find of all ranks of a mesh. `one_step`: whether no earlier step has a part in the update.
pub(crate) fn first(
    all: &[Vec<f64>],
    mesh: &Mesh,
    one_step: bool,
    names: impl Fn(usize) -> String,
) -> NonFiniteLocation {
    let finds = all.iter().enumerate().filter(|(_, words)| words[0] == 1.0);
    // In the backward pass a gradient goes bad at the last block first.
    let order = |words: &[f64]| {
        let along = if words[2] == 2.0 { -words[3] } else { words[3] };
        [words[1], words[2], along]
    };
    let first = finds.min_by(|(a, left), (b, right)| {
        mesh.position(*a, &DATA).cmp(&mesh.position(*b, &DATA)).then_with(|| {
            order(left)
                .iter()
                .zip(order(right))
                .map(|(l, r)| l.total_cmp(&r))
                .fold(std::cmp::Ordering::Equal, std::cmp::Ordering::then)
        })
    });
    match first {
        Some((rank, words)) => NonFiniteLocation {
            rank: Some(rank),
            one_step,
            ranks: all.len(),
            micro_batch: words[1] as usize,
            block: names(words[3] as usize),
            place: PLACES.get(words[2] as usize).copied().unwrap_or("output"),
        },
        None => {
            let (ranks, block) = (all.len(), String::new());
            NonFiniteLocation { rank: None, one_step, ranks, micro_batch: 0, block, place: PLACES[2] }
        }
    }
}

fn finite(flat: &Tensor<1>) -> Result<bool> {
    let values = flat.clone().inner().try_into_vec_as::<f32>().map_err(|e| Error::Device(e.to_string()))?;
    Ok(values.iter().all(|value| value.is_finite()))
}
