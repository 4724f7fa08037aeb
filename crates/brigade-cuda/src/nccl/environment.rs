//! Settings of NCCL under which ranks could wait for ever.
//!
//! NCCL reads them from the environment and from files (`NCCL_CONF_FILE`, `~/.nccl.conf`, `/etc/nccl.conf`), whose settings it
//! puts into the environment when a process makes its first communicator. So the environment is looked at before and after.

use crate::error::Error;

const COPIES: &str =
    "makes NCCL copy in a stream that would wait for the operation that the copy is a part of";

const REFUSED: [(&str, &str); 4] = [
    ("NCCL_COMM_BLOCKING", "makes NCCL's calls wait where no deadline can end them"),
    (
        "NCCL_LAUNCH_ORDER_IMPLICIT",
        "makes operations of different groups wait for each other, in an order that is not the same on all ranks",
    ),
    ("NCCL_P2P_USE_CUDA_MEMCPY", COPIES),
    ("NCCL_SHM_USE_CUDA_MEMCPY", COPIES),
];

/// What is wrong with a setting, and what to do about it.
pub(crate) fn refusal(name: &str, value: &str) -> Option<String> {
    let (name, why) = REFUSED.iter().find(|(refused, _)| *refused == name)?;
    let is_on = !matches!(value.trim(), "" | "0");
    is_on.then(|| {
        format!(
            "{name}={value} {why}: unset it, in the environment and in NCCL's files (the one that NCCL_CONF_FILE names, \
             ~/.nccl.conf, /etc/nccl.conf)"
        )
    })
}

/// Refuses such settings.
///
/// # Errors
/// [`Error::InvalidArgument`].
pub(crate) fn check() -> Result<(), Error> {
    let found = |(name, _): &(&str, _)| refusal(name, &std::env::var(name).ok()?);
    match REFUSED.iter().find_map(found) {
        Some(reason) => Err(Error::InvalidArgument { operation: "using NCCL".to_owned(), reason }),
        None => Ok(()),
    }
}
