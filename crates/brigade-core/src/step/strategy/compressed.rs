//! Gradients that travel as codes.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use brigade_compress::{Compression, Method};
use brigade_random::{keyed, keyed_seed};
use burn::tensor::{DType, Device, Tensor, TensorData};

use crate::dist::{Collectives, Pending, PendingTensor};
use crate::error::{Error, Result};
use crate::optim::SavedState;
use crate::step::strategy::rank_sums::{Exact, InFlight, RankSums};
use crate::step::strategy::synchronous::AllReduce;
use crate::step::strategy::unit_codes::{Codes, UnitCodes};
use crate::step::strategy::{DataParallel, ReducedUnit, Reduction, ReductionState, Strategy};

/// [`Synchronous`](super::Synchronous) data parallelism that exchanges gradients in fewer bytes: see
/// [`compress`](crate::compress).
///
/// | | what is encoded |
/// |---|---|
/// | without ZeRO | what each rank sends of its gradient, and the sums |
/// | with ZeRO | what each rank sends of its gradient |
/// | with ZeRO and replicas | the same as without ZeRO, only between the replicas of a shard; inside a shard, gradients are not
/// encoded |
///
/// Between ranks that have the same elements, where [collectives are in two levels](Collectives::levels), only sums are encoded: neighbours
/// on a host first add up the gradients themselves, each a part of them, and exchange codes of these parts with the others. So codes cross the
/// network once for all neighbours, and errors are those of their sums.
///
/// Encoding errors are added to the gradients of the next update (error feedback), if the method needs it. Each rank keeps one array of
/// them. On a different number of ranks, rank `r` of `n` continues with the arrays `r`, `r + n`, …, so that their sum is the same.
///
/// A non-finite gradient makes a non-finite sum. A skipped step adds no error.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Compressed {
    /// As [`Synchronous::every`](super::Synchronous::every).
    pub every: usize,
    /// How gradients travel. [`Method::PowerSgd`] needs them whole, once an update: between replicas of shards it does nothing, and where
    /// each micro-batch is [reduced](crate::ReduceEvery) it is an error.
    pub compression: Compression,
}

impl Strategy for Compressed {
    fn synchronizes(&self, step: u64) -> bool {
        step.is_multiple_of(self.period() as u64)
    }

    fn period(&self) -> usize {
        self.every.max(1)
    }

    fn reduction(&self, units: Vec<ReducedUnit>, data: DataParallel) -> Box<dyn Reduction> {
        let sums = Coded::new(self.compression, &units, data.clone());
        Box::new(AllReduce::new(units, data, Box::new(sums)))
    }
}

/// Sums over ranks as codes.
struct Coded {
    compression: Compression,
    exact: Exact,
    over: Over,
    /// The neighbours of this rank, and the ranks at its place among others, between which codes travel; none where ranks are in one level.
    levels: Option<[Arc<dyn Collectives>; 2]>,
    units: Vec<Option<Unit>>,
    step: u64,
}

/// The ranks between which codes travel.
#[derive(Clone, Copy, PartialEq)]
enum Over {
    /// Those that a unit is divided among.
    Shards,
    /// Those that have the same elements.
    Replicas,
}

struct Unit {
    codes: Arc<Mutex<UnitCodes>>,
    /// What tells its random numbers from those of other units and other runs.
    seed: u64,
    /// Sums since the step began.
    sums: u64,
}

impl Coded {
    fn new(compression: Compression, units: &[ReducedUnit], data: DataParallel) -> Self {
        // Replicas are further away than the ranks of a shard.
        let over = match data.replicate.size() > 1 || data.shard.size() == 1 {
            true => Over::Replicas,
            false => Over::Shards,
        };
        // If the groups cannot be made, no sum can be made either.
        let levels = match over {
            Over::Replicas if compression.codec().is_some() => data.replicate.levels().ok().flatten(),
            _ => None,
        };
        let mut coded = Self { compression, exact: Exact(data), over, levels, units: Vec::new(), step: 0 };
        let group = coded.group();
        let unit = |unit: &ReducedUnit| {
            let (covered, sends_sums) = match (over, &coded.levels) {
                (Over::Shards, _) => (0..unit.elements, false),
                (Over::Replicas, None) => (unit.own.clone(), true),
                (Over::Replicas, Some([within, _])) => {
                    let part = part(unit.own.len(), &**within);
                    (unit.own.start + part.start..unit.own.start + part.end, true)
                }
            };
            let (place, seed) = ((group.rank(), group.size()), keyed_seed(coded.exact.0.seed, &unit.name));
            let codes = UnitCodes::new(compression, unit, covered, place, sends_sums, seed);
            Unit { codes: Arc::new(Mutex::new(codes)), seed, sums: 0 }
        };
        let units = units.iter().map(|reduced| reduced.is_updated.then(|| unit(reduced))).collect();
        coded.units = units;
        coded
    }

    /// The ranks between which codes travel.
    fn group(&self) -> Arc<dyn Collectives> {
        match (self.over, &self.levels) {
            (Over::Shards, _) => self.exact.0.shard.clone(),
            (Over::Replicas, Some([_, between])) => between.clone(),
            (Over::Replicas, None) => self.exact.0.replicate.clone(),
        }
    }

    /// Whether this step's gradients travel as codes over these ranks.
    fn codes(&self, over: Over) -> bool {
        self.compression.method != Method::None
            && over == self.over
            && self.step > self.compression.warmup_steps
    }

    fn codes_of(&self, unit: usize) -> Option<MutexGuard<'_, UnitCodes>> {
        self.units[unit].as_ref().map(|unit| lock(&unit.codes))
    }

    /// Starts the sum of a unit's gradient, of which `kept` are wanted in the end, and the rest is padding.
    fn sum(&mut self, number: usize, gradient: Tensor<1>, kept: Range<usize>) -> Result<InFlight> {
        let group = self.group();
        let Some(unit) = &mut self.units[number] else {
            return Err(Error::State(format!("unit {number} is not updated on this rank")));
        };
        let key = keyed(keyed(unit.seed, self.step), unit.sums);
        unit.sums += 1;
        if let Some([within, _]) = &self.levels {
            return Ok(sum_in_levels(&unit.codes, key, gradient, (within.clone(), group)));
        }
        let whole = Whole { kept, device: gradient.device() };
        let mut values = to_host(gradient)?;
        let (shared, mut codes) = (unit.codes.clone(), lock(&unit.codes));
        values.truncate(codes.count());
        let bytes = codes.in_flight_bytes();
        let sum = match codes.codes() {
            Codes::Exact(errors) => {
                errors.add_to(&mut values);
                PendingTensor::ready(whole.tensor(values))
            }
            Codes::Coded(coded) => {
                let pending = group.all_to_all_bytes(coded.encode(&values, key));
                match self.over {
                    Over::Shards => Pending::new(move || {
                        let codes = pending.wait()?;
                        let sum = lock(&shared).coded(|coded| coded.sum(&codes, key));
                        Ok(Whole { kept: 0..whole.kept.len(), ..whole }.tensor(sum))
                    }),
                    Over::Replicas => Pending::in_phases(move || {
                        let code = code_of_sum(&shared, &pending.wait()?, key);
                        let pending = group.all_gather_bytes(code);
                        Ok(Pending::new(move || {
                            let codes = pending.wait()?;
                            Ok(whole.tensor(lock(&shared).coded(|coded| coded.decode_sums(&codes, key))))
                        }))
                    }),
                }
            }
            Codes::PowerSgd(power) if power.is_busy() => {
                let why = "PowerSGD sums the gradients of a unit once a step (`ReduceEvery::Step`)";
                return Err(Error::State(why.to_owned()));
            }
            Codes::PowerSgd(power) => {
                let (ranks, device) = (group.size(), whole.device.clone());
                let pending = group.all_reduce(to_device(power.left(values), &device));
                Pending::in_phases(move || {
                    let first = to_host(pending.wait()?)?;
                    let second = lock(&shared).power_sgd(|power| power.right(&first));
                    let pending = (!second.is_empty()).then(|| group.all_reduce(to_device(second, &device)));
                    Ok(Pending::new(move || {
                        let second =
                            pending.map_or_else(|| Ok(Vec::new()), |second| to_host(second.wait()?))?;
                        Ok(whole.tensor(lock(&shared).power_sgd(|power| power.sum(&second, ranks))))
                    }))
                })
            }
        };
        Ok(InFlight { sum, bytes })
    }

    /// The same, with an error that waiting for the sum gives.
    fn start(&mut self, unit: usize, gradient: Tensor<1>, kept: Range<usize>) -> InFlight {
        self.sum(unit, gradient, kept)
            .unwrap_or_else(|error| InFlight { sum: Pending::new(move || Err(error)), bytes: 0 })
    }
}

impl RankSums for Coded {
    fn begin(&mut self, step: u64) {
        self.step = step;
        self.units.iter_mut().flatten().for_each(|unit| unit.sums = 0);
    }

    fn scatter(&mut self, unit: usize, whole: Tensor<1>) -> InFlight {
        if !self.codes(Over::Shards) {
            return self.exact.scatter(unit, whole);
        }
        let (rank, share) = (self.exact.0.shard.rank(), whole.dims()[0] / self.exact.0.shard.size());
        self.start(unit, whole, rank * share..(rank + 1) * share)
    }

    fn reduce(&mut self, unit: usize, own: Tensor<1>) -> InFlight {
        if !self.codes(Over::Replicas) {
            return self.exact.reduce(unit, own);
        }
        let all = 0..own.dims()[0];
        self.start(unit, own, all)
    }

    fn commit(&mut self, updates: bool) {
        // Before codes are used, nothing is left out, and nothing of what was before is added.
        let updates = updates && self.step > self.compression.warmup_steps;
        if let Some([_, between]) = &self.levels
            && !updates
        {
            // What was dropped is waited for by nobody, but still happens, on all ranks.
            between.flush();
        }
        self.units.iter().flatten().for_each(|unit| lock(&unit.codes).commit(updates));
    }

    fn kept_bytes(&self) -> u64 {
        self.units.iter().flatten().map(|unit| lock(&unit.codes).kept_bytes()).sum()
    }

    fn state(&self, unit: usize, share: Range<usize>) -> ReductionState {
        self.codes_of(unit).map(|codes| codes.state(share)).unwrap_or_default()
    }

    fn needs(&self, unit: usize, array: &str, own: Range<usize>) -> Range<usize> {
        self.codes_of(unit).map_or(own, |codes| codes.needs(array))
    }

    fn restore(&mut self, unit: usize, saved: &SavedState) -> Result<()> {
        self.codes_of(unit).map_or(Ok(()), |mut codes| codes.restore(saved))
    }
}

/// The part of some elements that this rank adds up over its neighbours; the last ones may be beyond the end.
fn part(elements: usize, within: &dyn Collectives) -> Range<usize> {
    let length = elements.div_ceil(within.size());
    within.rank() * length..(within.rank() + 1) * length
}

/// Sums in two levels: neighbours on a host add up the numbers themselves, each a part of them, exchange codes of the parts with the
/// others, and give each other the sums.
fn sum_in_levels(
    codes: &Arc<Mutex<UnitCodes>>,
    key: u64,
    gradient: Tensor<1>,
    (within, between): (Arc<dyn Collectives>, Arc<dyn Collectives>),
) -> InFlight {
    let (codes, device, elements) = (codes.clone(), gradient.device(), gradient.dims()[0]);
    let part = part(elements, &*within).len();
    let bytes = lock(&codes).in_flight_bytes() + (size_of::<f32>() * elements) as u64;
    let gradient = match part * within.size() - elements {
        0 => gradient,
        padding => Tensor::cat(vec![gradient, Tensor::zeros([padding], (&device, DType::F32))], 0),
    };
    let scattering = within.reduce_scatter(gradient);
    let sum = Pending::in_phases(move || {
        let mut values = to_host(scattering.wait()?)?;
        let mut own = lock(&codes);
        values.truncate(own.count());
        let exchanging = between.all_to_all_bytes(own.coded(|coded| coded.encode(&values, key)));
        drop(own);
        Ok(Pending::in_phases(move || {
            let telling = between.all_gather_bytes(code_of_sum(&codes, &exchanging.wait()?, key));
            Ok(Pending::in_phases(move || {
                let received = telling.wait()?;
                let mut sum = lock(&codes).coded(|coded| coded.decode_sums(&received, key));
                sum.resize(part, 0.0);
                let gathering = within.all_gather(to_device(sum, &device));
                Ok(Pending::new(move || {
                    let padded = gathering.wait()?;
                    Ok(if padded.dims()[0] == elements { padded } else { padded.slice(0..elements) })
                }))
            }))
        }))
    });
    InFlight { sum, bytes }
}

/// The code of the sum of what was received.
fn code_of_sum(codes: &Mutex<UnitCodes>, received: &[u8], key: u64) -> Vec<u8> {
    lock(codes).coded(|coded| {
        let sum = coded.sum(received, key);
        coded.encode_sum(sum, key)
    })
}

/// Where a sum goes.
struct Whole {
    kept: Range<usize>,
    device: Device,
}

impl Whole {
    /// A sum without its padding, as a tensor with it.
    fn tensor(&self, mut sum: Vec<f32>) -> Tensor<1> {
        sum.resize(self.kept.end.max(sum.len()), 0.0);
        sum.truncate(self.kept.end);
        sum.drain(..self.kept.start);
        to_device(sum, &self.device)
    }
}

fn to_host(tensor: Tensor<1>) -> Result<Vec<f32>> {
    tensor.try_into_vec_as::<f32>().map_err(|error| Error::Device(error.to_string()))
}

fn to_device(values: Vec<f32>, device: &Device) -> Tensor<1> {
    let length = values.len();
    Tensor::from_data(TensorData::new(values, [length]), (device, DType::F32))
}

fn lock(codes: &Mutex<UnitCodes>) -> MutexGuard<'_, UnitCodes> {
    codes.lock().unwrap_or_else(PoisonError::into_inner)
}
