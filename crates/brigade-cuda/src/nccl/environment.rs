//! Settings of NCCL under which ranks could wait forever.
//!
//! NCCL reads them from the environment and from files (`NCCL_CONF_FILE`, `~/.nccl.conf`, `/etc/nccl.conf`), whose settings it
//! adds to the environment when a process makes its first communicator. So the environment is checked before and after that.

use crate::error::Error;

const COPIES: &str = "makes NCCL copy on a stream that would wait for the operation that the copy belongs to";

const REFUSED: [(&str, &str); 4] = [
    ("NCCL_COMM_BLOCKING", "makes NCCL's calls block, so that no deadline can end them"),
    (
        "NCCL_LAUNCH_ORDER_IMPLICIT",
        "makes operations of different groups wait for each other, in an order that differs between ranks",
    ),
    ("NCCL_P2P_USE_CUDA_MEMCPY", COPIES),
    ("NCCL_SHM_USE_CUDA_MEMCPY", COPIES),
];

/// Why a setting is refused, and what to do about it; none if it is allowed.
pub(crate) fn refusal(name: &str, value: &str) -> Option<String> {
    let (name, why) = REFUSED.iter().find(|(refused, _)| *refused == name)?;
    let is_on = !matches!(value.trim(), "" | "0");
    is_on.then(|| {
        format!(
            "{name}={value} {why}: unset it, both in the environment and in NCCL's files (the one that \
             NCCL_CONF_FILE names, ~/.nccl.conf, /etc/nccl.conf)"
        )
    })
}

/// Checks that no refused setting is on.
///
/// # Errors
/// [`Error::InvalidArgument`].
pub(super) fn check() -> Result<(), Error> {
    let found = |(name, _): &(&str, _)| refusal(name, &std::env::var(name).ok()?);
    match REFUSED.iter().find_map(found) {
        Some(reason) => Err(Error::InvalidArgument { operation: "using NCCL".to_owned(), reason }),
        None => Ok(()),
    }
}
