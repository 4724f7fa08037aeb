//! Building blocks for engines in other crates, besides the trait [`ProcessGroup`]: the arithmetic of sums, the headers by
//! which ranks compare their calls, the counts, and who is in a group that a split makes. With these, it keeps the [crate's
//! invariants](crate).

use crate::op::call::Call;
use crate::op::dtype::{DType, ReduceOp};
use crate::op::plan::Plan;
use crate::op::plan::layout::Layout;
use crate::op::view::View;
use crate::process_group::work::OwnedBuffer;
use crate::process_group::{OpBuffer, ProcessGroup, Work, split};
use crate::{HostBuffer, Result};

pub use crate::op::header::{HEADER_BYTES, decode as decode_header, encode as encode_header};
pub use crate::op::stats::Counters;

/// A buffer for [`ProcessGroup::start`], and the handle that waits for it.
pub fn owned<B: HostBuffer>(buffer: B) -> (Box<dyn OpBuffer>, Work<B>) {
    OwnedBuffer::sized(buffer)
}

/// Reduces `own` and the contributions of all other ranks into `own`, in the order that the crate promises. `others` are in rank
/// order without this rank, which stands at index `rank` among all.
///
/// # Panics
/// If the slices differ in length.
pub fn reduce(dtype: DType, op: ReduceOp, rank: usize, own: &mut [u8], others: &[&[u8]]) {
    assert!(others.iter().all(|other| other.len() == own.len()));
    let others: Vec<View<'_>> = others.iter().map(|other| (*other).into()).collect();
    crate::op::reduce::reduce(dtype, op, rank, own, &others);
}

/// The bytes that [`Stats`](crate::Stats) count for a collective of a group of `size` ranks on its rank `rank`: those that every
/// algorithm has to send, if all ranks send about equally much. `root` is a rank of the group, and 0 where there is none.
pub fn payload(call: &Call, size: usize, rank: usize, root: usize) -> u64 {
    Plan::new(call, &Layout::on_one_host(size), rank, root).payload()
}

/// Makes ranks agree on a split of `group`, whose members have these world ranks, by one all-gather. Gives the ranks of `group` that
/// are in the caller's new one, in their order there.
///
/// # Errors
/// The outer one if the all-gather fails; the inner one says which ranks disagree on the group's name.
pub fn agree_on_split(
    group: &dyn ProcessGroup,
    members: &[usize],
    name: &str,
    color: u32,
    key: u32,
) -> Result<std::result::Result<Vec<usize>, String>> {
    let (rank, size) = (group.rank(), group.size());
    let mut rows = vec![0; 3 * size];
    rows[3 * rank..3 * (rank + 1)].copy_from_slice(&split::row(name, color, key));
    let rows = group.all_gather(rows, DType::I64).wait()?;
    Ok(split::chosen(rows.as_chunks().0, rank, members, name))
}
