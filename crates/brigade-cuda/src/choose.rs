//! Which GPU a rank takes.

use std::collections::HashMap;

use crate::error::Error;

/// The index, among the visible GPUs, of the one that a rank takes: its local rank. Where exactly one is
/// visible it is that one, because some launchers show each rank only its own; whether ranks share it is
/// found by [`shared`].
///
/// # Errors
/// [`Error::TooFewGpus`] if more than one, but fewer than the node's ranks are visible and none is left for this rank;
/// also if none is.
pub fn gpu_for(local_rank: usize, local_size: usize, visible: usize) -> Result<usize, Error> {
    match visible {
        _ if local_rank < visible => Ok(local_rank),
        1 => Ok(0),
        _ => Err(Error::TooFewGpus { local_rank, local_size, visible, visibility: visibility() }),
    }
}

/// Checks, where all GPUs of a node are seen, that each of its ranks gets one of its own.
///
/// # Errors
/// [`Error::TooFewGpus`], for the first rank that gets none.
pub fn enough_for(ranks: usize, visible: usize) -> Result<(), Error> {
    match visible < ranks {
        true => Err(Error::TooFewGpus {
            local_rank: visible,
            local_size: ranks,
            visible,
            visibility: visibility(),
        }),
        false => Ok(()),
    }
}

/// The first two ranks with the same GPU of the same host, and that GPU's uuid and host. Element r of `gpus`
/// is rank r's (host, uuid).
pub fn shared(gpus: &[(String, String)]) -> Option<(usize, usize, String, String)> {
    let mut seen = HashMap::new();
    for (rank, gpu) in gpus.iter().enumerate() {
        if let Some(first) = seen.insert(gpu, rank) {
            return Some((first, rank, gpu.1.clone(), gpu.0.clone()));
        }
    }
    None
}

/// The setting that says which GPUs are visible, for messages.
pub(crate) fn visibility() -> String {
    match std::env::var("CUDA_VISIBLE_DEVICES") {
        Ok(value) => format!("CUDA_VISIBLE_DEVICES={value}"),
        Err(_) => "CUDA_VISIBLE_DEVICES is not set".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_launcher_counts_the_gpus_that_it_sees() {
        assert_eq!((enough_for(1, 1), enough_for(2, 4)), (Ok(()), Ok(())));
        for visible in [1, 3] {
            let text = enough_for(4, visible).unwrap_err().to_string();
            let said = [format!("local rank {visible} of 4"), format!("shows {visible} GPU")];
            assert!(said.iter().all(|part| text.contains(part)), "{text}");
        }
    }

    #[test]
    fn a_rank_takes_the_gpu_of_its_local_rank() {
        for rank in 0..4 {
            assert_eq!(gpu_for(rank, 4, 4), Ok(rank));
            assert_eq!(gpu_for(rank, 4, 8), Ok(rank));
        }
        assert_eq!(gpu_for(0, 1, 1), Ok(0));
    }

    #[test]
    fn the_only_visible_gpu_is_taken() {
        assert_eq!(gpu_for(3, 4, 1), Ok(0));
    }

    #[test]
    fn too_few_gpus_say_what_is_visible() {
        assert_eq!(gpu_for(1, 3, 2), Ok(1));
        let message = gpu_for(3, 4, 2).unwrap_err().to_string();
        assert!(message.starts_with("local rank 3 of 4 has no GPU: this node shows 2 GPUs ("), "{message}");
        assert!(message.contains("CUDA_VISIBLE_DEVICES") && message.contains("at most 2 ranks"), "{message}");
        assert!(message.ends_with("or let ranks share them by --collectives host"), "{message}");
        let message = gpu_for(0, 1, 0).unwrap_err().to_string();
        assert!(message.contains("shows 0 GPUs") && message.contains("nvidia-smi"), "{message}");
        assert!(!message.contains("at most"), "{message}");
    }

    #[test]
    fn shared_gpus_are_found_by_host_and_uuid() {
        let gpu = |host: &str, uuid: &str| (host.to_owned(), uuid.to_owned());
        assert_eq!(shared(&[]), None);
        assert_eq!(shared(&[gpu("a", "1"), gpu("b", "1"), gpu("a", "2")]), None);
        let found = shared(&[gpu("a", "1"), gpu("b", "2"), gpu("b", "1"), gpu("b", "2"), gpu("a", "1")]);
        assert_eq!(found, Some((1, 3, "2".to_owned(), "b".to_owned())));
        let (first, second, uuid, host) = found.unwrap();
        let message = Error::SharedGpu { first, second, uuid, host }.to_string();
        assert!(message.starts_with("ranks 1 and 3 both run on GPU 2 of host b;"), "{message}");
        assert!(message.contains("--collectives host"), "{message}");
    }
}
