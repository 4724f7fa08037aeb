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
        let Some(mut source) = self.source(part)? else { return Ok(None) };
        let state = S::state_unflatten("", &mut source, device);
        self.check_names(state.as_ref().map(flattened))?;
        Ok(state)
    }

    /// What a segment's state is read from; `None` if the optimizer had none yet.
    fn source(&self, part: Range<usize>) -> Result<Option<StateSource>> {
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
        Ok(Some(source))
    }

    /// State that an optimizer does not have (`known` is what it made of this one) belongs to another one.
    fn check_names(&self, known: Option<StateSink>) -> Result<()> {
        let is_known = |name: &String| {
            known.as_ref().is_some_and(|known| {
                known.tensors.iter().any(|(own, _)| own == name)
                    || known.scalars.iter().any(|(own, _)| own == name)
            })
        };
        let names = || self.slots.keys().chain(self.scalars.keys());
        if known.is_some() && names().all(is_known) {
            return Ok(());
        }
        let names: Vec<_> = names().map(String::as_str).collect();
        Err(Error::State(format!("the saved optimizer state ({}) is of another kind", names.join(", "))))
    }
}

/// The state that an optimizer has of some elements.
pub(crate) trait ElementState: Send {
    /// Its arrays and numbers, copied to the host.
    fn flattened(&self) -> StateSink;
}

impl<S: RecordState> ElementState for S {
    fn flattened(&self) -> StateSink {
        flattened(self)
    }
}

/// The state of one segment, and which of its elements are wanted.
pub(crate) struct SegmentState {
    pub part: Range<usize>,
    pub state: Box<dyn ElementState>,
}

/// The states of a part's segments. They have the same names and numbers, because they are stepped together.
pub(crate) struct SegmentStates {
    pub segments: Vec<SegmentState>,
    pub bytes: u64,
}

/// A state's arrays and numbers.
fn flattened<S: RecordState>(state: &S) -> StateSink {
    let mut sink = StateSink::default();
    state.state_flatten("", &mut sink);
    sink
}

/// Bytes of a state's arrays.
pub(crate) fn array_bytes(state: &dyn ElementState) -> usize {
    state.flattened().tensors.iter().map(|(_, data)| data.as_bytes().len()).sum()
}

impl FlatState for SegmentStates {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(self: Box<Self>) -> Result<SavedState> {
        let mut saved = SavedState::default();
        for SegmentState { part, state } in self.segments {
            let StateSink { tensors, scalars, .. } = state.flattened();
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
