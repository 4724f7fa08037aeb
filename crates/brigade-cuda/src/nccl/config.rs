//! How communicators are made.

use std::ffi::c_int;

use cudarc::nccl::sys::ncclConfig_t;

/// A configuration that leaves all to NCCL, except that calls do not block. It is what
/// `NCCL_CONFIG_INITIALIZER` of 2.30 makes. An older NCCL reads the part that it knows; a newer one takes its
/// own defaults for what is not there.
///
/// With `blocks`, its kernels take at most so many blocks of the GPU.
pub(crate) fn config(blocks: Option<u32>) -> ncclConfig_t {
    const UNDEFINED: c_int = c_int::MIN;
    ncclConfig_t {
        size: size_of::<ncclConfig_t>(),
        magic: 0xcafe_beef,
        version: 23_000,
        blocking: 0,
        cgaClusterSize: UNDEFINED,
        minCTAs: UNDEFINED,
        maxCTAs: blocks.and_then(|blocks| c_int::try_from(blocks).ok()).unwrap_or(UNDEFINED),
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
