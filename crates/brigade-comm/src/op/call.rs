//! What a rank called.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::op::dtype::{DType, ReduceOp};

/// The operations of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum OpType {
    /// Everybody gets the reduction of everybody's buffer.
    AllReduce = 1,
    /// Every rank gets its slice of the reduction.
    ReduceScatter = 2,
    /// Everybody gets everybody's slice.
    AllGather = 3,
    /// The root gets everybody's slice.
    Gather = 4,
    /// Everybody gets the root's buffer.
    Broadcast = 5,
    /// Rank i's slice j becomes rank j's slice i.
    AllToAll = 6,
    /// Everybody waits for everybody.
    Barrier = 7,
    /// A buffer to one peer.
    Send = 8,
    /// A buffer from one peer.
    Recv = 9,
    /// A buffer from one peer, whose size comes with it.
    RecvMessage = 10,
}

impl OpType {
    /// Every operation, in wire order.
    pub const ALL: [OpType; 10] = [
        OpType::AllReduce,
        OpType::ReduceScatter,
        OpType::AllGather,
        OpType::Gather,
        OpType::Broadcast,
        OpType::AllToAll,
        OpType::Barrier,
        OpType::Send,
        OpType::Recv,
        OpType::RecvMessage,
    ];

    /// The name in snake case, as in `all_reduce`.
    pub const fn name(self) -> &'static str {
        match self {
            OpType::AllReduce => "all_reduce",
            OpType::ReduceScatter => "reduce_scatter",
            OpType::AllGather => "all_gather",
            OpType::Gather => "gather",
            OpType::Broadcast => "broadcast",
            OpType::AllToAll => "all_to_all",
            OpType::Barrier => "barrier",
            OpType::Send => "send",
            OpType::Recv => "recv",
            OpType::RecvMessage => "recv_message",
        }
    }

    /// Whether it is between two ranks alone.
    pub const fn is_transfer(self) -> bool {
        matches!(self, OpType::Send) || self.is_receive()
    }

    /// Whether it takes what a peer sends.
    pub const fn is_receive(self) -> bool {
        matches!(self, OpType::Recv | OpType::RecvMessage)
    }
}

impl fmt::Display for OpType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One call of an operation: what all members of a group must agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// The operation.
    pub operation: OpType,
    /// Its number: among the collectives of its group, or among the transfers of its pair and direction, from 0.
    pub sequence: u64,
    /// The type of its elements.
    pub dtype: DType,
    /// The reduction, where there is one.
    pub reduce: Option<ReduceOp>,
    /// The world rank of the root, where there is one.
    pub root: Option<usize>,
    /// The size of the whole buffer in bytes; of a `recv_message`, the largest that it takes.
    pub bytes: u64,
}

impl Call {
    /// Whether a peer that called `theirs` takes part in this call.
    pub fn accepts(&self, theirs: &Call) -> bool {
        let bytes = match self.operation {
            OpType::RecvMessage => self.bytes.min(theirs.bytes),
            _ => self.bytes,
        };
        let operation = if self.operation.is_receive() { OpType::Send } else { self.operation };
        *theirs == Call { operation, bytes, ..*self }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} #{} (", self.operation, self.sequence)?;
        if let Some(reduce) = self.reduce {
            write!(f, "{reduce}, ")?;
        }
        if let Some(root) = self.root {
            write!(f, "root {root}, ")?;
        }
        let bound = if self.operation == OpType::RecvMessage { "at most " } else { "" };
        write!(f, "{}, {bound}{} bytes)", self.dtype, self.bytes)
    }
}
