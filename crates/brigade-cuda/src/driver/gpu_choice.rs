//! Which GPU a rank takes.

use std::collections::HashMap;

use crate::error::Error;

/// The index, among the visible GPUs, of the one that a rank takes: its local rank. If exactly one is visible it is that one,
/// because some launchers show each rank only its own; [`shared_gpu`] finds out whether ranks share it.
///
/// # Errors
/// [`Error::TooFewGpus`] if none is visible, or if several are and none is left for this rank.
pub fn gpu_for(local_rank: usize, local_size: usize, visible: usize) -> Result<usize, Error> {
    match visible {
        _ if local_rank < visible => Ok(local_rank),
        1 => Ok(0),
        _ => Err(Error::TooFewGpus { local_rank, local_size, visible, visibility: visibility() }),
    }
}

/// Checks that each rank of a node gets a GPU of its own. To be called where all GPUs of the node are visible.
///
/// # Errors
/// [`Error::TooFewGpus`], for the first rank that gets none.
pub fn check_gpu_count(ranks: usize, visible: usize) -> Result<(), Error> {
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

/// The first two ranks that have the same GPU, and its UUID. UUIDs are unique in the world; host names would not do, since
/// containers on one host each have their own. Element r of `uuids` belongs to rank r's GPU.
pub fn shared_gpu(uuids: &[String]) -> Option<(usize, usize, String)> {
    let mut seen = HashMap::new();
    let mut ranks = uuids.iter().enumerate();
    ranks.find_map(|(rank, uuid)| seen.insert(uuid, rank).map(|first| (first, rank, uuid.clone())))
}

/// The setting that says which GPUs are visible, for messages.
pub(super) fn visibility() -> String {
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
    fn a_launcher_checks_the_number_of_gpus() {
        assert_eq!((check_gpu_count(1, 1), check_gpu_count(2, 4)), (Ok(()), Ok(())));
        for visible in [1, 3] {
            let text = check_gpu_count(4, visible).unwrap_err().to_string();
            let said = [format!("local rank {visible} of 4"), format!("{visible} GPU")];
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
        assert!(
            message.starts_with("local rank 3 of 4 has no GPU: 2 GPUs are visible on this node ("),
            "{message}"
        );
        assert!(message.contains("CUDA_VISIBLE_DEVICES") && message.contains("at most 2 ranks"), "{message}");
        assert!(message.ends_with("or let ranks share them with --collectives host"), "{message}");
        let message = gpu_for(0, 1, 0).unwrap_err().to_string();
        assert!(message.contains("0 GPUs are visible") && message.contains("nvidia-smi"), "{message}");
        assert!(!message.contains("at most"), "{message}");
    }

    #[test]
    fn shared_gpus_are_found_by_uuid() {
        let found =
            |uuids: &[&str]| shared_gpu(&uuids.iter().map(|uuid| (*uuid).to_owned()).collect::<Vec<_>>());
        assert_eq!((found(&[]), found(&["1", "3", "2"])), (None, None));
        let (first, second, uuid) = found(&["1", "2", "3", "2", "1"]).unwrap();
        assert_eq!((first, second, uuid.as_str()), (1, 3, "2"));
        let message = Error::SharedGpu { first, second, uuid }.to_string();
        assert!(message.starts_with("ranks 1 and 3 both run on GPU 2,"), "{message}");
        assert!(message.contains("--collectives host"), "{message}");
    }
}
