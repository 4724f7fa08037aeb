//! The arguments of an operation, and the checks that need no other rank.

use crate::op::call::{Call, OpType};
use crate::op::dtype::{DType, ReduceOp};

/// One operation of a rank, without its buffer. Ranks count within the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpArgs {
    /// The operation.
    pub op_type: OpType,
    /// The type of the buffer's elements.
    pub dtype: DType,
    /// The reduction, for an all-reduce and a reduce-scatter.
    pub reduce: Option<ReduceOp>,
    /// The root, for a broadcast and a gather.
    pub root: Option<usize>,
    /// The other rank, for a send and both kinds of receive.
    pub peer: Option<usize>,
    /// The largest message that a [`OpType::RecvMessage`] takes, in bytes.
    pub limit: usize,
}

impl OpArgs {
    /// An operation without reduction, root and peer.
    pub fn new(op_type: OpType, dtype: DType) -> Self {
        Self { op_type, dtype, reduce: None, root: None, peer: None, limit: 0 }
    }

    /// The call that the other ranks must agree with, on a buffer of this many bytes of rank `rank` of a group whose members
    /// have these world ranks; its sequence number is still to be filled in.
    ///
    /// # Errors
    /// What is wrong, in words, if no group could run it.
    pub fn call(&self, bytes: usize, rank: usize, members: &[usize]) -> Result<Call, String> {
        let Self { op_type, dtype, reduce, root, peer, limit } = *self;
        let bytes = if op_type == OpType::RecvMessage { limit } else { bytes };
        let size = members.len();
        let sliced =
            matches!(op_type, OpType::ReduceScatter | OpType::AllGather | OpType::Gather | OpType::AllToAll);
        let unit = dtype.size() * if sliced { size } else { 1 };
        if !bytes.is_multiple_of(unit) {
            let shape = if sliced { format!(" in {size} equal slices") } else { String::new() };
            return Err(format!("{bytes} bytes are given, but {dtype}{shape} needs a multiple of {unit}"));
        }
        let is_reduced = matches!(op_type, OpType::AllReduce | OpType::ReduceScatter);
        let has_root = matches!(op_type, OpType::Broadcast | OpType::Gather);
        for (what, given, needed) in [
            ("a reduction", reduce.is_some(), is_reduced),
            ("a root", root.is_some(), has_root),
            ("a peer", peer.is_some(), op_type.is_transfer()),
        ] {
            if given != needed {
                return Err(match needed {
                    true => format!("{what} is needed, but none is given"),
                    false => format!("{what} is given, but none is allowed"),
                });
            }
        }
        let s = if size == 1 { "" } else { "s" };
        match (root, peer) {
            (Some(root), _) if root >= size => {
                Err(format!("root {root} is given, but the group has {size} rank{s}"))
            }
            (_, Some(peer)) if peer >= size => {
                Err(format!("peer {peer} is given, but the group has {size} rank{s}"))
            }
            (_, Some(peer)) if peer == rank => {
                Err(format!("peer {peer} is given, which is the caller itself"))
            }
            _ => Ok(Call {
                operation: op_type,
                sequence: 0,
                dtype,
                reduce,
                root: root.map(|root| members[root]),
                bytes: bytes as u64,
            }),
        }
    }
}
