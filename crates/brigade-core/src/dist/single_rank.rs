//! The group of a rank that is alone.

use burn::tensor::{Device, Tensor};

use crate::dist::collectives::{Collectives, Message, Traffic};
use crate::dist::pending::{Pending, PendingTensor, PendingValues};
use crate::error::{Error, Result};

/// A group of one rank: every collective is the identity.
#[derive(Debug, Clone, Copy, Default)]
pub struct SingleRankGroup;

impl Collectives for SingleRankGroup {
    fn rank(&self) -> usize {
        0
    }
    fn size(&self) -> usize {
        1
    }
    fn all_reduce(&self, tensor: Tensor<1>) -> PendingTensor {
        PendingTensor::ready(tensor)
    }
    fn reduce_scatter(&self, tensor: Tensor<1>) -> PendingTensor {
        PendingTensor::ready(tensor)
    }
    fn all_gather(&self, tensor: Tensor<1>) -> PendingTensor {
        PendingTensor::ready(tensor)
    }
    fn broadcast(&self, tensor: Tensor<1>, _root: usize) -> PendingTensor {
        PendingTensor::ready(tensor)
    }
    fn send(&self, _message: Message, to: usize) -> Pending<()> {
        Pending::new(move || Err(alone(to)))
    }
    fn receive(&self, from: usize, _device: &Device) -> Pending<Message> {
        Pending::new(move || Err(alone(from)))
    }
    fn all_gather_scalars(&self, values: Vec<f64>) -> PendingValues {
        Pending::ready(vec![values])
    }
    fn all_to_all_bytes(&self, bytes: Vec<u8>) -> Pending<Vec<u8>> {
        Pending::ready(bytes)
    }
    fn all_gather_bytes(&self, bytes: Vec<u8>) -> Pending<Vec<u8>> {
        Pending::ready(bytes)
    }
    fn barrier(&self) -> Result<()> {
        Ok(())
    }
    fn traffic(&self) -> Traffic {
        Traffic::new()
    }
}

fn alone(peer: usize) -> Error {
    Error::collective(format!("a group of one rank has no peer {peer} to exchange messages with"))
}
