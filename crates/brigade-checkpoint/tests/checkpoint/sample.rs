//! Training states of random shapes, cut into ranks' items at random.

use std::collections::BTreeMap;

use brigade_checkpoint::{
    Checkpoint, Manifest, PARAMETERS, ParameterMetadata, RankShard, Result, Scalar, StagingDir, Storage,
    TrainState, UnitMetadata, WriteItem, WriteResult, publish, write_shard,
};
use brigade_random::keyed;
use proptest::prelude::*;

/// The values of every slot: by unit and slot.
pub type Values = BTreeMap<(String, String), Vec<f32>>;

/// A state with its values.
#[derive(Clone, Debug)]
pub struct Sample {
    pub state: TrainState,
    pub values: Values,
}

impl Sample {
    /// Units of the given lengths; the values are random bits, others for another `seed`.
    pub fn new(lengths: &[usize], seed: u32) -> Self {
        let mut values = Values::new();
        let mut drawn = 0;
        let units = lengths.iter().enumerate().map(|(index, &elements)| {
            let name = format!("block.{index}");
            let slots: &[&str] =
                if index % 3 == 2 { &[PARAMETERS] } else { &[PARAMETERS, "moment_1", "moment_2"] };
            for slot in slots {
                let numbers = (0..elements).map(|_| {
                    drawn += 1;
                    f32::from_bits(keyed(seed.into(), drawn) as u32)
                });
                values.insert((name.clone(), (*slot).into()), numbers.collect());
            }
            let (left, right) = (elements / 3, elements - elements / 3);
            let parameter = |part: &str, shape: Vec<usize>, start| ParameterMetadata {
                name: format!("{name}.{part}"),
                shape,
                start,
            };
            UnitMetadata {
                elements,
                trainable: index % 3 != 2,
                parameters: vec![
                    parameter("weight", vec![right, 1], 0),
                    parameter("bias", vec![left], right),
                ],
                slots: slots.iter().map(|&slot| slot.into()).collect(),
                scalars: [("steps".into(), Scalar::Int(7)), ("beta".into(), Scalar::Float(0.1))].into(),
                name,
            }
        });
        let state = TrainState {
            position: 51,
            mesh: [("dp".into(), 4)].into(),
            settings: serde_json::json!({"learning_rate": 3e-4, "name": "x"}),
            facts: [("tokenizer".into(), "abc".into())].into(),
            counters: [("rollbacks".into(), 1)].into(),
            units: units.collect(),
        };
        Self { state, values }
    }

    /// Cuts every slot at the given fractions of 256, and deals the items to `ranks` ranks.
    pub fn cut(&self, cuts: &[u8], ranks: usize) -> Vec<RankShard> {
        let mut shards = vec![RankShard::default(); ranks];
        let mut dealt = 0;
        for ((unit, slot), values) in &self.values {
            let mut points: Vec<_> = cuts.iter().map(|&cut| usize::from(cut) * values.len() / 256).collect();
            points.extend([0, values.len()]);
            points.sort_unstable();
            for pair in points.windows(2) {
                let values = values[pair[0]..pair[1]].to_vec();
                let item = WriteItem { unit: unit.clone(), slot: slot.clone(), start: pair[0], values };
                let rank = keyed(0, dealt) as usize % ranks;
                shards[rank].items.push(item);
                dealt += 1;
            }
        }
        shards
    }

    /// Writes the files of all ranks.
    pub fn write(
        &self,
        storage: &dyn Storage,
        staging: &StagingDir,
        ranks: usize,
    ) -> Result<Vec<WriteResult>> {
        let shards = self.cut(&[40, 150], ranks);
        shards.iter().enumerate().map(|(rank, shard)| write_shard(storage, staging, rank, shard)).collect()
    }

    /// Saves the state as `ranks` ranks do.
    pub fn save(&self, storage: &dyn Storage, step: u64, ranks: usize) -> Result<Manifest> {
        let staging = StagingDir::new(step)?;
        let entries = self.write(storage, &staging, ranks)?;
        publish(storage, &staging, self.state.clone(), entries)
    }

    /// Whether a checkpoint holds this state, to the bit.
    pub fn is_in(&self, checkpoint: &Checkpoint) -> Result<bool> {
        if checkpoint.manifest().state != self.state {
            return Ok(false);
        }
        for ((unit, slot), values) in &self.values {
            let mut read = vec![0.0; values.len()];
            checkpoint.read(unit, slot, 0..values.len(), &mut read)?;
            if bits(&read) != bits(values) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// For comparing floats by their bits.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Any small state.
pub fn samples() -> impl Strategy<Value = Sample> {
    (prop::collection::vec(1usize..300, 1..5), any::<u32>())
        .prop_map(|(lengths, seed)| Sample::new(&lengths, seed))
}
