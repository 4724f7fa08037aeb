//! An optimizer's state as named arrays over a flat buffer and named numbers, however it is split into segments.

use std::ops::Range;

use brigade_checkpoint::Scalar;
use brigade_sorted::SortedMap;
use burn::optim::{RecordState, StateSink, StateSource};
use burn::tensor::{Device, TensorData};

use crate::error::{Error, Result};

/// The state of one unit's optimizer at one moment, to be read later.
pub trait FlatState: Send {
    /// Bytes of the arrays.
    fn bytes(&self) -> u64;

    /// The arrays, with one value per element of the buffer, and the numbers, copied to the host; both are empty if there is no
    /// state yet.
    ///
    /// # Errors
    /// If the optimizer's state has something other than arrays over the elements and numbers that can be saved.
    fn read(self: Box<Self>) -> Result<SavedState>;
}

/// A saved state: arrays over the elements of one rank's part of a unit, and numbers.
#[derive(Debug, Clone, Default)]
pub struct SavedState {
    /// The arrays by name.
    pub slots: SortedMap<String, Vec<f32>>,
    /// The numbers by name.
    pub scalars: SortedMap<String, Scalar>,
}

impl SavedState {
    /// The state of one segment of the part; `None` if the optimizer had none yet.
    pub(crate) fn segment<S: RecordState>(&self, part: Range<usize>, device: &Device) -> Result<Option<S>> {
        if self.slots.is_empty() && self.scalars.is_empty() {
            return Ok(None);
        }
        let number = |scalar: &Scalar| match *scalar {
            Scalar::Int(value) => burn_pack::Scalar::Int(value),
            Scalar::Float(value) => burn_pack::Scalar::Float(value),
        };
        let scalars = self.scalars.iter().map(|(name, scalar)| (name.clone(), number(scalar)));
        let mut source = StateSource::new(scalars.collect());
        for (name, values) in &self.slots {
            let values = values.get(part.clone()).ok_or_else(|| {
                Error::State(format!(
                    "`{name}` has {} values, not the {} of this part",
                    values.len(),
                    part.end
                ))
            })?;
            source.insert_tensor(name.clone(), TensorData::new(values.to_vec(), [values.len()]));
        }
        let state = S::state_unflatten("", &mut source, device);
        let names = || {
            let names: Vec<_> = self.slots.keys().chain(self.scalars.keys()).map(String::as_str).collect();
            names.join(", ")
        };
        // State that this optimizer does not have belongs to another one.
        let known = state.as_ref().map(flattened);
        let is_known = |name: &String| {
            known.as_ref().is_some_and(|known| {
                known.tensors.iter().any(|(own, _)| own == name)
                    || known.scalars.iter().any(|(own, _)| own == name)
            })
        };
        match state {
            Some(state) if self.slots.keys().chain(self.scalars.keys()).all(is_known) => Ok(Some(state)),
            _ => Err(Error::State(format!("the saved optimizer state ({}) is of another kind", names()))),
        }
    }
}

/// The state of one segment, and which of its elements are wanted.
pub(crate) struct SegmentState<S> {
    pub part: Range<usize>,
    pub state: S,
}

/// The states of a part's segments. They have the same names and numbers, because they are stepped together.
pub(crate) struct SegmentStates<S> {
    pub segments: Vec<SegmentState<S>>,
    pub bytes: u64,
}

pub(crate) fn flattened<S: RecordState>(state: &S) -> StateSink {
    let mut sink = StateSink::default();
    state.state_flatten("", &mut sink);
    sink
}

impl<S: RecordState> FlatState for SegmentStates<S> {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(self: Box<Self>) -> Result<SavedState> {
        let mut saved = SavedState::default();
        for SegmentState { part, state } in self.segments {
            let StateSink { tensors, scalars, .. } = flattened(&state);
            for (name, data) in tensors {
                let values = data.as_slice::<f32>().map_err(|error| {
                    Error::State(format!("`{name}` of the optimizer's state cannot be saved: {error:?}"))
                })?;
                let values = values.get(part.clone()).ok_or_else(|| {
                    Error::State(format!(
                        "`{name}` of the optimizer's state is not an array over the elements"
                    ))
                })?;
                saved.slots.entry(name).or_default().extend_from_slice(values);
            }
            saved.scalars = scalars.into_iter().map(number).collect::<Result<_>>()?;
        }
        Ok(saved)
    }
}

fn number((name, scalar): (String, burn_pack::Scalar)) -> Result<(String, Scalar)> {
    let saved = match scalar {
        burn_pack::Scalar::Int(value) => Some(Scalar::Int(value)),
        burn_pack::Scalar::UInt(value) => i64::try_from(value).ok().map(Scalar::Int),
        burn_pack::Scalar::Float(value) => Some(Scalar::Float(value)),
        burn_pack::Scalar::Bool(_) => None,
    };
    let saved = saved.ok_or_else(|| {
        Error::State(format!("`{name}` = {scalar:?} of the optimizer's state cannot be saved"))
    });
    Ok((name, saved?))
}
