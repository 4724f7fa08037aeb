//! The configuration that communicators are made with.

use std::ffi::c_int;

use cudarc::nccl::sys::ncclConfig_t;

/// A configuration that leaves everything to NCCL, except that calls do not block. It equals `NCCL_CONFIG_INITIALIZER` of 2.30. An
/// older NCCL reads the part that it knows; a newer one uses its own defaults for the rest.
///
/// With `max_ctas`, kernels use at most that many thread blocks of the GPU.
pub(super) fn config(max_ctas: Option<u32>) -> ncclConfig_t {
    const UNDEFINED: c_int = c_int::MIN;
    ncclConfig_t {
        size: size_of::<ncclConfig_t>(),
        magic: 0xcafe_beef,
        version: 23_000,
        blocking: 0,
        cgaClusterSize: UNDEFINED,
        minCTAs: UNDEFINED,
        maxCTAs: max_ctas.and_then(|max| c_int::try_from(max).ok()).unwrap_or(UNDEFINED),
        netName: std::ptr::null(),
        splitShare: UNDEFINED,
        trafficClass: UNDEFINED,
        commName: std::ptr::null(),
        collnetEnable: UNDEFINED,
        CTAPolicy: UNDEFINED,
        shrinkShare: UNDEFINED,
        nvlsCTAs: UNDEFINED,
        nChannelsPerNetPeer: UNDEFINED,
        nvlinkCentricSched: UNDEFINED,
        graphUsageMode: UNDEFINED,
        numRmaCtx: UNDEFINED,
        maxP2pPeers: UNDEFINED,
    }
}
