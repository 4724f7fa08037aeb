//! The streams on which Burn computes.

use burn::tensor::StreamId;
use burn_cubecl::cubecl::cuda::CudaRuntime;
use cubecl_runtime::runtime::Runtime;
use cubecl_server::stream::WriteScoped;
use cudarc::driver::sys::CUstream;

use crate::Error;

/// What hands Burn's operations to the driver.
pub(crate) type Server = <CudaRuntime as Runtime>::Server;

/// The driver's stream of a thread that computes. Its slot is filled by the first operation of that thread.
///
/// # Errors
/// [`Error::Compute`] if it has not computed anything yet.
pub(crate) fn burn_stream(server: &mut Server, stream: StreamId) -> Result<CUstream, Error> {
    let found = server.write_streams().try_stream_mut(&stream).map(|found| found.sys);
    found.ok_or_else(|| Error::Compute { reason: format!("Burn has no stream for {stream:?}") })
}
