//! Footprints against the tables, against counts by hand, and by their properties.

mod by_hand;
mod properties;
mod texts;

use super::{BoundaryTensor, Configuration, Footprint, StageFootprint, UnitSize};

/// Blocks of this many elements each, on one stage.
fn blocks(elements: &[usize]) -> Configuration {
    let unit = |(home, elements): (usize, &usize)| UnitSize::trained(*elements, vec![home]);
    Configuration {
        units: elements.iter().enumerate().map(unit).collect(),
        split: vec![elements.len()],
        ..Configuration::default()
    }
}

fn stages(configuration: &Configuration) -> Vec<StageFootprint> {
    Footprint::of(configuration).unwrap().stages
}

fn only(configuration: &Configuration) -> StageFootprint {
    let [stage] = stages(configuration).try_into().unwrap();
    stage
}

/// The tensor between the layers of a transformer: 2 sequences of 8 tokens of width 16, in fp32.
fn hidden() -> BoundaryTensor {
    BoundaryTensor { bytes: 4 * 2 * 8 * 16, dimensions: 3, has_gradient: true }
}

fn tokens() -> BoundaryTensor {
    BoundaryTensor { bytes: 4 * 2 * 8, dimensions: 2, has_gradient: false }
}

/// Embedding, layers and head, whose weight is the embedding's, over two stages.
fn tied() -> Configuration {
    let mut configuration = blocks(&[1000, 5000, 5000, 5000, 5000, 100]);
    configuration.units.insert(1, UnitSize::trained(4096, vec![0, 5]));
    Configuration {
        boundary_activations: vec![
            vec![tokens()],
            vec![hidden()],
            vec![hidden()],
            vec![hidden()],
            vec![hidden()],
            vec![hidden()],
        ],
        pp: 2,
        dp: 2,
        split: vec![3, 3],
        micro_batches: 4,
        ..configuration
    }
}
