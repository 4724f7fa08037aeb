//! How an operation that cannot continue becomes the failure of the world.

use crate::error::Error;
use crate::link::error::LinkError;
use crate::op::call::Call;
use crate::progress::operation::in_flight_op::InFlightOp;
use crate::progress::operation::stop::{Stop, StopReason};
use crate::progress::progress_engine::ProgressEngine;

impl ProgressEngine {
    /// Raises the failure of an operation whose deadline has passed, after finding out which rank caused it.
    pub(crate) fn expire(&self, operation: &dyn InFlightOp) {
        let rank = self.spec.world_rank();
        let diagnosis = self.context.connector.diagnose(rank);
        let (absent, stalled) = operation.missing();
        let error = Error::Timeout {
            group: self.spec.name.clone(),
            rank,
            call: Box::new(*operation.call()),
            waited: self.context.timeout.now(),
            absent: self.spec.members(&absent),
            stalled: self.spec.members(&stalled),
            diagnosis: Box::new(diagnosis),
        };
        self.fault().raise(rank, error);
    }

    /// Raises the failure of an operation that a peer stopped.
    pub(crate) fn give_up(&self, call: Call, Stop { peer, reason }: Stop) {
        let rank = self.spec.world_rank();
        let (peer, group) = (self.spec.members[peer], self.spec.name.clone());
        let call = Box::new(call);
        match reason {
            StopReason::OtherCall(theirs) => {
                self.fault().raise(rank, Error::Mismatch { group, rank, peer, ours: call, theirs });
            }
            StopReason::NoMemory(theirs, reason) => {
                let ours = call;
                self.fault().raise(rank, Error::NoMemory { group, rank, peer, ours, theirs, reason });
            }
            StopReason::Header(reason) => {
                self.fault().raise(rank, Error::Protocol { group, rank, peer, call, reason });
            }
            StopReason::Link(LinkError::Corrupt(reason)) => {
                let reason = reason.into();
                self.fault().raise(rank, Error::Protocol { group, rank, peer, call, reason });
            }
            StopReason::Link(LinkError::Closed) => {
                self.explain(rank, Error::PeerLeft { group, rank, peer, call });
            }
            StopReason::Link(LinkError::Broken(reason)) => {
                self.explain(rank, Error::Protocol { group, rank, peer, call, reason });
            }
        }
    }

    /// Raises the failure of a connection that ended, unless the reason becomes known. Rank 0 passes on failures; if it is
    /// unresponsive, the peer has most likely ended because of it.
    fn explain(&self, rank: usize, error: Error) {
        let fault = self.fault();
        if !fault.is_explained() {
            let error = match self.context.connector.unresponsive_rank_0() {
                Some(hub) => Error::HeldUp { peer: rank, root: vec![hub], reason: error.to_string() },
                None => error,
            };
            fault.raise(rank, error);
        }
    }
}
