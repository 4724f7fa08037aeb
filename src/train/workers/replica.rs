//! The state of a worker's ranks, given to those of workers that join.

use anyhow::{Context, bail};
use brigade_checkpoint::{UnitMetadata, WriteItem};
use brigade_core::{BoxError, Collectives, StateReader};
use brigade_launch::workers::Quorum;
use brigade_sorted::SortedMap;
use burn::tensor::{Device, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use super::world::{Listeners, OuterWorld};
use crate::checkpoint::RunProgress;
use crate::run::Session;

/// What a rank of a worker has, for the rank at the same position in another one.
pub(crate) struct Replica {
    pub progress: RunProgress,
    units: Vec<UnitMetadata>,
    items: Vec<WriteItem>,
}

/// All of it but the values, which follow in the order of the items.
#[derive(Serialize, Deserialize)]
struct Header {
    step: u64,
    position: u64,
    counters: SortedMap<String, u64>,
    units: Vec<UnitMetadata>,
    /// Unit, array, first element, number of elements.
    items: Vec<(String, String, usize, usize)>,
}

impl Replica {
    pub(crate) fn new(progress: RunProgress, (units, items): (Vec<UnitMetadata>, Vec<WriteItem>)) -> Self {
        Self { progress, units, items }
    }

    fn into_parts(self) -> anyhow::Result<(Vec<u8>, Vec<f32>)> {
        let Self { progress, units, items } = self;
        let named =
            items.iter().map(|item| (item.unit.clone(), item.slot.clone(), item.start, item.values.len()));
        let header = Header {
            step: progress.step,
            position: progress.position,
            counters: progress.counters(),
            units,
            items: named.collect(),
        };
        let values = items.into_iter().flat_map(|item| item.values).collect();
        Ok((serde_json::to_vec(&header)?, values))
    }

    fn from_parts(header: &[u8], mut values: Vec<f32>) -> anyhow::Result<Self> {
        let header: Header = serde_json::from_slice(header).context("reading another worker's state")?;
        let mut items = Vec::new();
        for (unit, slot, start, length) in header.items.into_iter().rev() {
            let Some(first) = values.len().checked_sub(length) else {
                bail!("another worker's state is shorter than it says");
            };
            items.push(WriteItem { unit, slot, start, values: values.split_off(first) });
        }
        let progress = RunProgress::from_counters(header.step, header.position, &header.counters);
        Ok(Self { progress, units: header.units, items })
    }
}

impl StateReader for Replica {
    fn units(&self) -> &[UnitMetadata] {
        &self.units
    }

    fn read(&mut self, unit: &str, slot: &str, start: usize, values: &mut [f32]) -> Result<(), BoxError> {
        let holds = |item: &&WriteItem| {
            let end = item.start + item.values.len();
            item.unit == unit && item.slot == slot && item.start <= start && start + values.len() <= end
        };
        let item = self.items.iter().find(holds).ok_or_else(|| {
            format!("`{slot}` of `{unit}` is not in another worker's state from element {start} on")
        })?;
        values.copy_from_slice(&item.values[start - item.start..][..values.len()]);
        Ok(())
    }
}

/// Gives the state of the first participant's ranks to those of the workers that join; returns it there. The ranks of the first participant and
/// of the workers that join call it together.
///
/// # Errors
/// If one of them was lost.
pub(crate) fn transfer_state(
    session: &Session,
    quorum: &Quorum,
    listeners: &mut Listeners,
    own: Option<Replica>,
) -> anyhow::Result<Option<Replica>> {
    let workers: Vec<usize> = quorum.participants.iter().take(1).chain(&quorum.recovering).copied().collect();
    let world = OuterWorld::of(session, quorum.id, &workers, &quorum.transfer, listeners.transfer.take())?;
    let (group, device) = (world.workers(), session.device());
    let received = broadcast(&*group, &device, own.map(Replica::into_parts).transpose()?)?;
    world.shut_down();
    received.map(|(header, values)| Replica::from_parts(&header, values)).transpose()
}

/// Gives what the first rank of a group has to the others.
fn broadcast(
    group: &dyn Collectives,
    device: &Device,
    own: Option<(Vec<u8>, Vec<f32>)>,
) -> anyhow::Result<Option<(Vec<u8>, Vec<f32>)>> {
    let is_first = own.is_some();
    let (header, values) = own.unwrap_or_default();
    let sizes = group.all_gather_scalars(vec![header.len() as f64, values.len() as f64]).wait()?;
    let [header_length, length] = [0, 1].map(|part| sizes[0][part] as usize);
    let send = |mut part: Vec<f32>, length: usize| -> anyhow::Result<Vec<f32>> {
        if length == 0 {
            return Ok(part);
        }
        part.resize(length, 0.0);
        let tensor = Tensor::<1>::from_data(TensorData::new(part, [length]), device);
        let got = group.broadcast(tensor, 0).wait()?;
        Ok(got.try_into_vec_as::<f32>()?)
    };
    let header = send(header.iter().map(|byte| f32::from(*byte)).collect(), header_length)?;
    let values = send(values, length)?;
    let header = header.into_iter().map(|byte| byte as u8).collect();
    Ok((!is_first).then_some((header, values)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_state_is_read_as_it_was_sent() {
        let unit = |name: &str| UnitMetadata {
            name: name.into(),
            elements: 4,
            trainable: true,
            parameters: Vec::new(),
            slots: vec!["param".into()],
            scalars: SortedMap::new(),
        };
        let item = |unit: &str, start, values: &[f32]| WriteItem {
            unit: unit.into(),
            slot: "param".into(),
            start,
            values: values.to_vec(),
        };
        let progress = RunProgress { step: 7, position: 9, loss: 0.25, ..RunProgress::default() };
        let items = vec![item("a", 0, &[1.0, -0.0, f32::NAN]), item("b", 2, &[f32::MIN_POSITIVE, 5.0])];
        let sent = Replica::new(progress.clone(), (vec![unit("a"), unit("b")], items));
        let (header, values) = sent.into_parts().unwrap();
        let mut got = Replica::from_parts(&header, values.clone()).unwrap();
        assert_eq!(got.progress, progress);
        assert_eq!(got.units().len(), 2);
        let mut read = [0.0; 2];
        got.read("a", "param", 1, &mut read).unwrap();
        assert_eq!(read.map(f32::to_bits), [-0.0, f32::NAN].map(f32::to_bits));
        got.read("b", "param", 2, &mut read).unwrap();
        assert_eq!(read, [f32::MIN_POSITIVE, 5.0]);
        let missing = got.read("b", "param", 1, &mut read).unwrap_err().to_string();
        assert!(missing.contains("from element 1 on"), "{missing}");
        assert!(Replica::from_parts(&header, values[1..].to_vec()).is_err());
    }
}
