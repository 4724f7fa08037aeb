//! Why runs are slow, and why more ranks do not make them as much faster: pure functions of what runs recorded.
//!
//! - `profile`: the time of a usual step of a run, in parts that add up.
//! - `diagnosis`: sentences on what takes that time, each with what changing it would bring.
//! - `laws`: Amdahl's and Gustafson's laws and a model of communication, fitted to runs on different numbers of ranks.
//! - `compared`: such runs beside each other.

mod compared;
mod diagnosis;
mod json;
mod laws;
mod nccl;
mod pipeline;
mod profile;
mod spent;
mod text;

pub use compared::{GapPart, Point, Scaling, ScalingKind, scaling};
pub use diagnosis::{Cause, Finding, diagnose, too_few_steps};
pub use laws::{CommunicationModel, Law, amdahl, communication, gustafson};
pub use nccl::not_told_apart;
pub use profile::Profile;
pub use spent::Spent;
pub(crate) use text::sentence;
