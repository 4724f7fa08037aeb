//! Parameters that are gathered as codes.

use std::sync::Arc;

use brigade_compress::{Codec, GatherCodes, Quantizer};
use brigade_kernels::cast;
use brigade_plan::CHUNK;
use burn::tensor::{DType, FloatDType, Tensor, TensorData};

use crate::dist::{Collectives, Pending, PendingTensor};
use crate::error::{Error, Result};
use crate::sharding::store::ParameterStore;
use crate::sharding::unit::Unit;

/// Shards begin with a chunk, so blocks are the same whatever the number of ranks.
const _: () = assert!(CHUNK.is_multiple_of(GatherCodes::BLOCK));

/// The key of random numbers, which rounding to nearest does without.
const NO_KEY: u64 = 0;

impl ParameterStore {
    /// What makes the codes that a unit is gathered as, if there are any.
    pub(super) fn gather_codec(&self, unit: &Unit) -> Option<Quantizer> {
        let gathers = self.zero.shards_parameters() || self.zero.shards_optimizer() && unit.trainable;
        if gathers && !unit.running && !unit.keep_in_f32 { self.zero.gather_codes.codec() } else { None }
    }

    /// Starts to gather a unit from the own elements of all, in the type of its blocks.
    pub(super) fn gather(&self, unit: usize, own: Tensor<1>) -> PendingTensor {
        let shard = match self.unshards_on_use() {
            true => &self.groups.shard_at_once,
            false => &self.groups.shard,
        };
        match self.gather_codec(&self.units[unit].unit) {
            None if shard.size() == 1 => Pending::ready(own),
            None => shard.all_gather(own),
            Some(codec) => {
                gathered(codec, own, shard).unwrap_or_else(|error| Pending::new(move || Err(error)))
            }
        }
    }

    /// Whole values of a unit as a gather gives them.
    pub(super) fn as_gathered(&self, unit: &Unit, whole: Tensor<1>) -> Result<Tensor<1>> {
        let Some(codec) = self.gather_codec(unit) else { return Ok(whole) };
        let (device, dtype, count) = (whole.device(), FloatDType::from(whole.dtype()), whole.dims()[0]);
        let code = encoded(codec, whole)?;
        Ok(cast(Tensor::from_data(decoded(codec, &code, count), (&device, DType::F32)), dtype))
    }
}

fn gathered(codec: Quantizer, own: Tensor<1>, ranks: &Arc<dyn Collectives>) -> Result<PendingTensor> {
    let (device, dtype) = (own.device(), FloatDType::from(own.dtype()));
    let count = own.dims()[0] * ranks.size();
    let pending = ranks.all_gather_bytes(encoded(codec, own)?);
    Ok(Pending::new(move || {
        let values = decoded(codec, &pending.wait()?, count);
        Ok(cast(Tensor::from_data(values, (&device, DType::F32)), dtype))
    }))
}

/// The code of some values, and of zeros up to the end of a block.
fn encoded(codec: Quantizer, values: Tensor<1>) -> Result<Vec<u8>> {
    let values = cast(values, FloatDType::F32).try_into_vec_as::<f32>();
    let mut values = values.map_err(|error| Error::Device(error.to_string()))?;
    values.resize(values.len().next_multiple_of(GatherCodes::BLOCK), 0.0);
    let mut code = vec![0; codec.bytes(values.len())];
    codec.encode(&values, NO_KEY, &mut code);
    Ok(code)
}

fn decoded(codec: Quantizer, code: &[u8], count: usize) -> TensorData {
    let mut values = vec![0.0f32; count.next_multiple_of(GatherCodes::BLOCK)];
    codec.decode(code, NO_KEY, &mut values);
    values.truncate(count);
    TensorData::new(values, [count])
}
