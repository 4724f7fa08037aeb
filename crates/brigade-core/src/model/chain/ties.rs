//! Tied weights: parameters that several blocks share.

use brigade_sorted::{SortedMap, SortedSet};

use crate::error::{Error, Result};
use crate::model::chain::blocks::Blocks;

/// A parameter that shares the values of another one.
#[derive(Debug, Clone)]
pub(crate) struct Tie {
    /// (index of block, path) that reads the shared values.
    pub follower: (usize, String),
    /// (index of block, path) that owns them.
    pub owner: (usize, String),
}

/// A parameter that other blocks also read.
#[derive(Debug, Clone)]
pub(crate) struct Shared {
    /// `block.path` of the owner.
    pub name: String,
    /// The owner's block.
    pub owner: usize,
    /// The last block that reads it.
    pub last_reader: usize,
}

impl Blocks {
    /// The shared parameters, by owner.
    pub(crate) fn shared(&self, ties: &[Tie]) -> Vec<Shared> {
        let owners: SortedSet<&(usize, String)> = ties.iter().map(|tie| &tie.owner).collect();
        let shared = |owner: &(usize, String)| {
            let readers = ties.iter().filter(|tie| tie.owner == *owner).map(|tie| tie.follower.0);
            let name = format!("{}.{}", self.blocks[owner.0].name, owner.1);
            Shared { name, owner: owner.0, last_reader: readers.max().unwrap_or(owner.0) }
        };
        owners.into_iter().map(shared).collect()
    }

    pub(crate) fn resolved_ties(&self) -> Result<Vec<Tie>> {
        let specs: Vec<_> = self.blocks.iter().map(|b| b.block.specs()).collect();
        let find = |full: &str| {
            let place = self.blocks.iter().enumerate().find_map(|(index, block)| {
                let path = full.strip_prefix(&block.name)?.strip_prefix('.')?;
                specs[index].contains_key(path).then(|| (index, path.to_owned()))
            });
            place.ok_or_else(|| {
                let known: Vec<String> = self
                    .blocks
                    .iter()
                    .zip(&specs)
                    .flat_map(|(b, specs)| specs.keys().map(|path| format!("{}.{path}", b.name)))
                    .collect();
                Error::Blocks(format!(
                    "tie: there is no parameter `{full}`; the model has {}",
                    known.join(", ")
                ))
            })
        };
        let chained = self.ties.iter().find(|(_, owner)| self.ties.iter().any(|(other, _)| other == owner));
        if let Some((follower, owner)) = chained {
            return Err(Error::Blocks(format!(
                "tie: `{follower}` cannot share the values of `{owner}`, which itself shares those of another parameter; name that \
                parameter"
            )));
        }
        self.ties
            .iter()
            .map(|(follower, owner)| {
                let tie = Tie { follower: find(follower)?, owner: find(owner)? };
                let spec = |(block, path): &(usize, String)| &specs[*block][path];
                let shape = |place: &(usize, String)| &spec(place).shape;
                let (own, owners) = (shape(&tie.follower), shape(&tie.owner));
                if own != owners || tie.follower == tie.owner {
                    let is_transposed = own != owners && own.iter().rev().eq(owners);
                    let transposed = match is_transposed {
                        true => format!("; give the block of `{follower}` a parameter of shape {owners:?}, and multiply by its transpose"),
                        false => String::new(),
                    };
                    return Err(Error::Blocks(format!(
                        "tie: `{follower}` {own:?} cannot share the values of `{owner}` {owners:?}: they must be two parameters of the same shape{transposed}"
                    )));
                }
                if spec(&tie.follower).running || spec(&tie.owner).running {
                    return Err(Error::Blocks(format!(
                        "tie: `{follower}` cannot share the values of `{owner}`: running state belongs to one block"
                    )));
                }
                if spec(&tie.follower).keep_in_f32 != spec(&tie.owner).keep_in_f32 {
                    return Err(Error::Blocks(format!(
                        "tie: `{follower}` cannot share the values of `{owner}`: one of the blocks keeps them in fp32 (`keep_in_f32`), the other does not"
                    )));
                }
                Ok(tie)
            })
            .collect()
    }

    /// Gives followers the values of their owners.
    pub(crate) fn apply_ties(&mut self, ties: &[Tie]) {
        for tie in ties {
            let mut values: SortedMap<_, _> = self.blocks[tie.owner.0].block.values();
            if let Some(value) = values.remove(&tie.owner.1) {
                self.blocks[tie.follower.0].block.replace(&mut |path| {
                    (path == tie.follower.1).then(|| (value.flat.clone(), value.shape.clone()))
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::{EmbeddingConfig, LinearConfig};
    use burn::tensor::{Device, Int, Tensor};

    use crate::model::chain::Chain;

    #[test]
    fn a_head_with_the_transposed_shape_is_told_how_to_share() {
        let device = Device::default();
        let tied = Chain::new()
            .then_fn("embedding", EmbeddingConfig::new(5, 3).init(&device), |embedding, x: Tensor<2, Int>| {
                embedding.forward(x)
            })
            .then_fn("head", LinearConfig::new(3, 5).init(&device), |head, x: Tensor<3>| head.forward(x))
            .tie("head.weight", "embedding.weight");
        let error = tied.resolved_ties().unwrap_err().to_string();
        assert!(
            error.contains("`head.weight` [3, 5] cannot share the values of `embedding.weight` [5, 3]"),
            "{error}"
        );
        assert!(error.ends_with("a parameter of shape [5, 3], and multiply by its transpose"), "{error}");
    }
}
