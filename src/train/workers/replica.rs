//! The state of a worker's ranks, given to those of workers that join.

use anyhow::{Context, bail};
use brigade_checkpoint::{UnitMetadata, WriteItem};
use brigade_core::{BoxError, Collectives, StateReader};
use brigade_launch::workers::Quorum;
use brigade_sorted::SortedMap;
use burn::tensor::{Device, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use super::world::{Listeners, OuterWorld, forming, forming_after_outer_step};
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
                bail!("the state that another worker sent is shorter than announced");
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
            format!("the state that another worker sent lacks `{slot}` of `{unit}` from element {start} on")
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
    let (wait, what) = match own {
        Some(_) => (forming(session), "giving the state to workers that join"),
        None => (forming_after_outer_step(session), "waiting for the state of the other workers"),
    };
    session.heartbeat.send(what);
    let place = (&*quorum.transfer, listeners.transfer.take());
    let world = OuterWorld::of(session, quorum.id, &workers, place, wait)?;
    let (group, device) = (world.workers(), session.device());
    let own = own.map(Replica::into_parts).transpose()?;
    let received = broadcast(&*group, &device, own, PIECE, &|| session.heartbeat.send(what))?;
    world.shut_down();
    received.map(|(header, values)| Replica::from_parts(&header, values)).transpose()
}

/// Numbers that are sent in one operation: 25 MB, which a slow network carries within its deadline.
const PIECE: usize = 25_000_000 / size_of::<f32>();

/// Gives what the first rank of a group has to the others, in pieces of so many numbers; `begin_piece` is called before each.
fn broadcast(
    group: &dyn Collectives,
    device: &Device,
    own: Option<(Vec<u8>, Vec<f32>)>,
    piece: usize,
    begin_piece: &dyn Fn(),
) -> anyhow::Result<Option<(Vec<u8>, Vec<f32>)>> {
    let is_first = own.is_some();
    let (header, values) = own.unwrap_or_default();
    let sizes = group.all_gather_scalars(vec![header.len() as f64, values.len() as f64]).wait()?;
    let [header_length, length] = [0, 1].map(|part| sizes[0][part] as usize);
    let send = |part: Vec<f32>, length: usize| -> anyhow::Result<Vec<f32>> {
        let mut received = Vec::new();
        for start in (0..length).step_by(piece) {
            begin_piece();
            let count = piece.min(length - start);
            let values = if is_first { part[start..start + count].to_vec() } else { vec![0.0; count] };
            let tensor = Tensor::<1>::from_data(TensorData::new(values, [count]), device);
            let sent = group.broadcast(tensor, 0).wait()?;
            if !is_first {
                received.extend(sent.try_into_vec_as::<f32>()?);
            }
        }
        Ok(received)
    };
    let header = send(header.iter().map(|byte| f32::from(*byte)).collect(), header_length)?;
    let values = send(values, length)?;
    let header = header.into_iter().map(|byte| byte as u8).collect();
    Ok((!is_first).then_some((header, values)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::thread;

    use brigade_comm::{Timeouts, threads};
    use brigade_core::{Mesh, WORKERS};

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

    #[test]
    fn a_state_that_is_sent_in_pieces_arrives_whole() {
        for length in [0usize, 1, 7, 8, 14, 15] {
            let values: Vec<f32> = (0..length).map(|value| value as f32).collect();
            let own = (b"{}".to_vec(), values);
            let pieces = AtomicUsize::new(0);
            let mesh = Mesh::new(3, [(WORKERS, 3)]).unwrap();
            let rank = |world: brigade_comm::Group| {
                let own = (world.rank() == 0).then(|| own.clone());
                let groups = brigade_cpu::groups(&world, mesh.clone()).unwrap();
                let count = || {
                    pieces.fetch_add(1, Relaxed);
                };
                broadcast(&*groups.over(&[WORKERS]), &brigade_cpu::device(), own, 7, &count).unwrap()
            };
            let rank = &rank;
            let received: Vec<_> = thread::scope(|scope| {
                let worlds = threads(3, Timeouts::default());
                let ranks: Vec<_> =
                    worlds.into_iter().map(|world| scope.spawn(move || rank(world))).collect();
                ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
            });
            assert_eq!(received, [None, Some(own.clone()), Some(own)], "{length}");
            // And one for the header, on each rank.
            assert_eq!(pieces.into_inner(), 3 * (1 + length.div_ceil(7)), "{length}");
        }
    }
}
