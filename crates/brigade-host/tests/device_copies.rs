//! How often values cross between a device and the host, and through which memory. Flex stands for the device: it keeps the
//! memory that it is given, so that what an operation made a tensor of can be looked at.

#![allow(clippy::unwrap_used)]

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::slice::{from_raw_parts, from_raw_parts_mut};

use brigade_conformance::on_ranks;
use brigade_core::{Collectives, Part};
use brigade_host::{DeviceCopies, HostCollectives, MemorySpace};
use burn::tensor::{Bytes, DType, Device, Tensor, TensorData};
use cubecl_environment::bytes::{
    AccessError, AccessPolicy, AllocationController, AllocationProperty, Reader, Writer,
};

const RANKS: usize = 3;
/// Elements of each rank's share.
const SHARE: usize = 1000;

/// Memory that says it is pinned, as a driver's.
struct Pinned(Bytes);

impl AllocationController for Pinned {
    fn alloc_align(&self) -> usize {
        64
    }

    fn property(&self) -> AllocationProperty {
        AllocationProperty::Pinned
    }

    unsafe fn memory_mut(&mut self, _: AccessPolicy) -> Result<&mut [MaybeUninit<u8>], AccessError> {
        let bytes = self.0.write(Writer::new())?;
        // SAFETY: both have one layout, and the caller writes initialized bytes only.
        Ok(unsafe { from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len()) })
    }

    fn memory(&self, _: AccessPolicy) -> Result<&[MaybeUninit<u8>], AccessError> {
        let bytes = self.0.read(Reader::new())?;
        // SAFETY: both have one layout.
        Ok(unsafe { from_raw_parts(bytes.as_ptr().cast(), bytes.len()) })
    }
}

thread_local! {
    /// Bytes of the buffers that this rank asked for.
    static ASKED: Cell<usize> = const { Cell::new(0) };
}

fn pinned(bytes: usize) -> Bytes {
    let memory = Box::new(Pinned(Bytes::from_bytes_vec(vec![0; bytes])));
    // SAFETY: all bytes of a `Vec` are initialized.
    unsafe { Bytes::from_controller(memory, bytes) }
}

/// A device that is read into pinned memory, and that provides buffers of it on request.
const DEVICE: MemorySpace = MemorySpace::Device {
    buffer: |_, bytes| {
        ASKED.set(ASKED.get() + bytes);
        pinned(bytes)
    },
};

/// A tensor of one rank, in memory that a device would be read into, and its address.
fn tensor(elements: usize) -> (Tensor<1>, usize) {
    let bytes = pinned(4 * elements);
    let address = bytes.as_ptr().addr();
    let data = TensorData::from_bytes(bytes, [elements], DType::F32);
    (Tensor::from_data(data, &Device::flex()), address)
}

/// What an operation did.
struct Seen {
    copied: DeviceCopies,
    /// Bytes of the buffers that the memory_space was asked for.
    asked: usize,
    /// Address of the given tensor and of the result.
    addresses: (usize, usize),
    property: AllocationProperty,
}

fn seen(
    collectives: &HostCollectives,
    elements: usize,
    run: impl Fn(&HostCollectives, Tensor<1>) -> Tensor<1>,
) -> Seen {
    let (before, asked) = (collectives.device_copies(), ASKED.get());
    let (given, address) = tensor(elements);
    let data = run(collectives, given).into_data();
    let after = collectives.device_copies();
    let less = |after: (u64, u64), before: (u64, u64)| (after.0 - before.0, after.1 - before.1);
    let copied = DeviceCopies {
        device_to_host: less(after.device_to_host, before.device_to_host),
        host_to_device: less(after.host_to_device, before.host_to_device),
    };
    let addresses = (address, data.as_bytes().as_ptr().addr());
    Seen { copied, asked: ASKED.get() - asked, addresses, property: data.bytes().property() }
}

type Run = fn(&HostCollectives, Tensor<1>) -> Tensor<1>;

const ALL_REDUCE: Run = |ranks, given| ranks.all_reduce(given).wait().unwrap();
const REDUCE_SCATTER: Run = |ranks, given| ranks.reduce_scatter(given).wait().unwrap();
const ALL_GATHER: Run = |ranks, given| ranks.all_gather(given).wait().unwrap();
const BROADCAST: Run = |ranks, given| ranks.broadcast(given, 1).wait().unwrap();

/// To the next rank, and what comes from the one before.
const MESSAGE: Run = |ranks, given| {
    let (rank, size) = (ranks.rank(), ranks.size());
    let shape = given.dims().to_vec();
    let sent = ranks.send(vec![None, Some(Part::Float(given, shape))], (rank + 1) % size);
    let received = ranks.receive((rank + size - 1) % size, &Device::flex()).wait().unwrap();
    sent.wait().unwrap();
    let Ok([None, Some(Part::Float(flat, _))]) = <[_; 2]>::try_from(received) else { panic!("two parts") };
    flat
};

/// Each operation, with the elements that it is given and the elements of its result.
const OPERATIONS: [(&str, Run, usize, usize); 5] = [
    ("all_reduce", ALL_REDUCE, 777, 777),
    ("reduce_scatter", REDUCE_SCATTER, RANKS * SHARE, SHARE),
    ("all_gather", ALL_GATHER, SHARE, RANKS * SHARE),
    ("broadcast", BROADCAST, 777, 777),
    ("send and receive", MESSAGE, 777, 777),
];

#[test]
fn values_are_copied_once_each_way() {
    for memory_space in [MemorySpace::Host, DEVICE] {
        on_ranks(RANKS, |group| {
            let collectives = HostCollectives::new(group, memory_space);
            for (name, run, given, gets) in OPERATIONS {
                let expected = DeviceCopies {
                    device_to_host: (1, 4 * given as u64),
                    host_to_device: (1, 4 * gets as u64),
                };
                assert_eq!(seen(&collectives, given, run).copied, expected, "{name} with {memory_space:?}");
            }
        });
    }
}

#[test]
fn every_part_of_a_message_is_copied_once() {
    on_ranks(2, |group| {
        let collectives = HostCollectives::new(group, DEVICE);
        let peer = 1 - collectives.rank();
        let parts = [500, 0, 7].map(|elements| Some(Part::Float(tensor(elements).0, vec![elements])));
        let sent = collectives.send(parts.to_vec(), peer);
        drop(collectives.receive(peer, &Device::flex()).wait().unwrap());
        sent.wait().unwrap();
        assert_eq!(
            collectives.device_copies(),
            DeviceCopies { device_to_host: (3, 4 * 507), host_to_device: (3, 4 * 507) }
        );
    });
}

/// What a device is read into is pinned, and so is what it is written from, but for messages.
#[test]
fn results_go_up_from_pinned_memory() {
    on_ranks(RANKS, |group| {
        let rank = group.rank();
        let collectives = HostCollectives::new(group, DEVICE);
        for (name, run, given, gets) in OPERATIONS {
            let Seen { asked, addresses: (address, result), property, .. } = seen(&collectives, given, run);
            let (buffer, place, memory) = match name {
                "reduce_scatter" => (0, Some(address + rank * 4 * SHARE), AllocationProperty::Pinned),
                "all_gather" => (4 * gets, None, AllocationProperty::Pinned),
                "send and receive" => (0, None, AllocationProperty::Native),
                _ => (0, Some(address), AllocationProperty::Pinned),
            };
            assert_eq!((asked, property), (buffer, memory), "{name}");
            assert!(place.is_none_or(|place| place == result), "{name} copied what it was read into");
        }
    });
}

#[test]
fn host_memory_is_moved_in_and_out() {
    on_ranks(RANKS, |group| {
        let collectives = HostCollectives::new(group, MemorySpace::Host);
        for (name, run, given, _) in [OPERATIONS[0], OPERATIONS[3]] {
            let (address, result) = seen(&collectives, given, run).addresses;
            assert_eq!(address, result, "{name} copied");
        }
        // A share of its own keeps nothing else alive.
        let share = seen(&collectives, RANKS * SHARE, REDUCE_SCATTER);
        assert_eq!(share.property, AllocationProperty::Native);
    });
    on_ranks(1, |group| {
        let collectives = HostCollectives::new(group, MemorySpace::Host);
        let (address, result) = seen(&collectives, SHARE, REDUCE_SCATTER).addresses;
        assert_eq!(address, result, "the share of a rank that is alone is all");
    });
}
