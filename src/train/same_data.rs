//! Whether ranks have the same data.

use std::panic::AssertUnwindSafe;

use brigade_comm::Group;
use brigade_core::Activation;
use burn::tensor::Device;

use crate::training_setup::Training;

/// A note for the first lines of a run, if some ranks read other samples under the same numbers than rank 0: the first, the one in the middle and the last are compared. All ranks call it.
///
/// # Errors
/// If the samples cannot be read, or a rank failed.
pub(super) fn note_on_samples<I: Activation + Clone, O: Activation, T: 'static>(
    group: &Group,
    training: &Training<I, O, T>,
    device: &Device,
) -> anyhow::Result<Option<String>> {
    if group.size() == 1 {
        return Ok(None);
    }
    // A data set for whole micro-batches may refuse so few, on all ranks alike.
    let read = std::panic::catch_unwind(AssertUnwindSafe(|| training.spread_samples(device)));
    let digest = match read {
        Ok(read) => match read? {
            Some(batch) => batch.input_digest()?,
            None => return Ok(None),
        },
        Err(_) => 0,
    };
    let mut digests = vec![0_i64; group.size()];
    digests[group.rank()] = digest.cast_signed();
    group.all_gather_in_place(&mut digests)?;
    Ok(note(&digests))
}

fn note(digests: &[i64]) -> Option<String> {
    let first = digests.first()?;
    let others = digests.iter().enumerate().filter(|(_, digest)| *digest != first);
    let others: Vec<String> = others.map(|(rank, _)| rank.to_string()).collect();
    let (s, reads) = if others.len() == 1 { ("", "reads") } else { ("s", "read") };
    (!others.is_empty()).then(|| {
        format!(
            "note: rank{s} {} {reads} different samples from rank 0 under the same numbers; Brigade divides samples among ranks by their number, so all ranks must have the whole dataset in the \
             same order (shuffle with a fixed seed, and give no rank a part of its own)",
            others.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_with_other_samples_are_named() {
        assert_eq!(note(&[7, 7, 7]), None);
        assert!(
            note(&[7, 7, 8]).is_some_and(|note| note.starts_with("note: rank 2 reads different samples"))
        );
        assert!(
            note(&[7, 1, 7, 8])
                .is_some_and(|note| note.starts_with("note: ranks 1, 3 read different samples"))
        );
    }
}
