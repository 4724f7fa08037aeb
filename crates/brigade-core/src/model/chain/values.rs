//! The values of a chain's parameters: where they come from, and how they are read.

use std::ops::Range;
use std::sync::Arc;

use brigade_kernels::cast;
use brigade_random::keyed_seed;
use brigade_sorted::SortedMap;
use burn::tensor::{DType, Device, Tensor, TensorData};

use crate::error::{BoxError, Error, Result};
use crate::model::block::NamedBlock;
use crate::model::chain::blocks::{Blocks, Source};
use crate::model::chain::ties::Tie;
use crate::model::parameters::ParamValue;
use crate::model::parameters::precision::Dtype;

/// A whole parameter with its name, on the host.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedTensor {
    /// `block.path`, as in `layers.0.attention.qkv.weight`.
    pub name: String,
    /// Values and shape.
    pub data: TensorData,
}

impl Blocks {
    /// Gives every parameter without a value one: from the source of [`load`](Self::load), or else its
    /// initial value, see [`crate::initialize`].
    ///
    /// # Errors
    /// If the list of blocks or a tie is wrong, or values cannot be loaded.
    pub fn initialize(&mut self, seed: u64) -> Result<()> {
        self.initialize_in(seed, Dtype::F32)
    }

    /// As [`initialize`](Self::initialize), with values in this number type, but for those that a block [keeps in fp32](crate::Block::keep_in_f32): for inference. No more
    /// than one block's values are in memory in fp32.
    ///
    /// # Errors
    /// As [`initialize`](Self::initialize).
    pub fn initialize_in(&mut self, seed: u64, compute: Dtype) -> Result<()> {
        self.check_names()?;
        let ties = self.resolved_ties()?;
        for index in 0..self.blocks.len() {
            self.initialize_block(index, seed, &|_| true)?;
            if compute != Dtype::F32 {
                self.cast_block(index, compute);
            }
        }
        self.source = None;
        self.apply_ties(&ties);
        Ok(())
    }

    fn cast_block(&mut self, index: usize, compute: Dtype) {
        let block = &mut self.blocks[index].block;
        let (specs, mut values) = (block.specs(), block.values());
        block.replace(&mut |path| {
            let ParamValue { flat, shape } = values.remove(path)?;
            let is_kept = specs.get(path).is_some_and(|spec| spec.keep_in_f32 || spec.running);
            (!is_kept).then(|| (cast(flat, compute.dtype()), shape))
        });
    }

    /// Adds a source of parameters' values, which are loaded when first needed, block by block: the closure
    /// returns the values, flattened in row-major order, for a full name (`block.path`) and shape, or none to
    /// leave the parameter to the source that was added before, or unchanged. It is not called for followers of ties.
    ///
    /// Existing values are replaced when [`initialize`](Self::initialize) is called or training begins.
    pub fn load(
        &mut self,
        values: impl Fn(&str, &[usize]) -> Result<Option<Vec<f32>>, BoxError> + Send + Sync + 'static,
    ) {
        self.load_ranges(move |name, shape, range| {
            let Some(mut found) = values(name, shape)? else { return Ok(None) };
            found.truncate(range.end);
            Ok(Some(found.split_off(range.start.min(found.len()))))
        });
    }

    /// Like [`load`](Self::load), with a closure that returns the values in a range of the flattened parameter: those that this rank holds if
    /// ZeRO-3 shards parameters, and else all.
    pub fn load_ranges(
        &mut self,
        values: impl Fn(&str, &[usize], Range<usize>) -> Result<Option<Vec<f32>>, BoxError>
        + Send
        + Sync
        + 'static,
    ) {
        self.source = Some(match self.source.take() {
            None => Arc::new(values),
            Some(before) => Arc::new(move |name: &str, shape: &[usize], range: Range<usize>| {
                match values(name, shape, range.clone())? {
                    None => before(name, shape, range),
                    found => Ok(found),
                }
            }),
        });
    }

    /// Describes the source that [`load`](Self::load) added last: its name, for messages, and a digest of its content. Training only begins if all
    /// ranks have the same sources: see [`Engine::new`](crate::Engine::new).
    pub fn compare_loaded(&mut self, name: impl Into<String>, digest: u64) {
        let name = name.into();
        self.loaded = Some(match self.loaded.take() {
            None => (name, digest),
            Some((before, of_before)) => {
                (format!("{before} and {name}"), keyed_seed(of_before, &format!("{digest:016x}")))
            }
        });
    }

    /// All values that this rank needs have been loaded.
    pub(crate) fn finish_loading(&mut self, is_part: bool) {
        (self.source, self.is_part) = (None, is_part);
    }

    /// Gives those parameters of one block their values whose paths are wanted. Others are left empty.
    pub(crate) fn initialize_block(
        &mut self,
        index: usize,
        seed: u64,
        is_wanted: &dyn Fn(&str) -> bool,
    ) -> Result<()> {
        let followers = self.followers();
        let NamedBlock { name, block } = &mut self.blocks[index];
        if let Some(device) = block.device() {
            let (shapes, device, mut failed) = (block.shapes(), device.inner(), None);
            block.replace(&mut |path| {
                let (full, shape) = (format!("{name}.{path}"), shapes.get(path)?);
                if !is_wanted(path) {
                    return Some((Tensor::empty([0], &device), vec![0; shape.len()]));
                }
                let source = self.source.as_ref().filter(|_| !followers.contains(&full))?;
                match source_values(source, &full, shape, 0..shape.iter().product()) {
                    Ok(found) => found.map(|found| {
                        let length = found.len();
                        (Tensor::from_data(TensorData::new(found, [length]), &device), shape.clone())
                    }),
                    Err(error) => {
                        failed.get_or_insert(error);
                        None
                    }
                }
            });
            if let Some(error) = failed {
                return Err(error);
            }
        }
        block.initialize(seed, name);
        Ok(())
    }

    /// Whether a parameter gets its values from where [`load`](Self::load) said.
    pub(crate) fn loads(&self, name: &str, shape: &[usize]) -> Result<bool> {
        let first = 0..shape.iter().product::<usize>().min(1);
        Ok(self.loaded_values(name, shape, first)?.is_some())
    }

    /// A range of a parameter's values from where [`load`](Self::load) said; none where it is not loaded.
    pub(crate) fn loaded_values(
        &self,
        name: &str,
        shape: &[usize],
        range: Range<usize>,
    ) -> Result<Option<Vec<f32>>> {
        match &self.source {
            Some(source) => source_values(source, name, shape, range),
            None => Ok(None),
        }
    }

    /// All parameters but followers of ties, on the host, in the order of blocks and paths.
    ///
    /// # Errors
    /// If a tensor cannot be read from its device, or a tie is wrong.
    pub fn tensors(&self) -> Result<Vec<NamedTensor>> {
        self.check_whole()?;
        let ties = self.resolved_ties()?;
        let mut tensors = Vec::new();
        for (index, NamedBlock { name, block }) in self.blocks.iter().enumerate() {
            for (path, value) in block.values() {
                if !ties.iter().any(|tie| tie.follower == (index, path.clone())) {
                    tensors.push(NamedTensor {
                        name: format!("{name}.{path}"),
                        data: to_host(value.flat, &value.shape)?,
                    });
                }
            }
        }
        Ok(tensors)
    }

    /// A copy for inference, as of [`valid`](crate::Chain::valid), whose parameters have these values; followers of `ties` have their
    /// owners'.
    pub(crate) fn with_values(
        &self,
        mut values: SortedMap<String, TensorData>,
        ties: &[Tie],
        device: &Device,
    ) -> Self {
        let mut chain = self.without_autodiff();
        for NamedBlock { name, block } in &mut chain.blocks {
            block.replace(&mut |path| {
                let data = values.remove(&format!("{name}.{path}"))?;
                let (bytes, shape, dtype) = data.into_parts();
                let flat = TensorData::from_bytes(bytes, [shape.num_elements()], dtype);
                Some((Tensor::from_data(flat, (device, DType::F32)), shape.to_vec()))
            });
        }
        chain.apply_ties(ties);
        chain.finish_loading(false);
        chain
    }

    /// Checks that all values are here.
    pub(super) fn check_whole(&self) -> Result<()> {
        let missing = match self.source {
            Some(_) => "the model's values are not loaded yet; call `initialize` first",
            None if self.is_part => {
                "this rank holds a part of the model, other ranks the rest (pipeline stages, ZeRO-3); the run's file of weights has all"
            }
            None => return Ok(()),
        };
        Err(Error::Model(missing.into()))
    }
}

/// The values from a source, checked to have the length of the range.
fn source_values(
    source: &Arc<Source>,
    name: &str,
    shape: &[usize],
    range: Range<usize>,
) -> Result<Option<Vec<f32>>> {
    let count = range.len();
    match source(name, shape, range).map_err(Error::Load)? {
        Some(found) if found.len() != count => Err(Error::Load(
            format!("`{name}` {shape:?}: {} values were given in place of {count}", found.len()).into(),
        )),
        found => Ok(found),
    }
}

/// Copies a flattened tensor to the host under its shape.
pub(crate) fn to_host(flat: Tensor<1>, shape: &[usize]) -> Result<TensorData> {
    let values = flat.try_into_vec_as::<f32>().map_err(|error| Error::Device(error.to_string()))?;
    Ok(TensorData::new(values, shape.to_vec()))
}
