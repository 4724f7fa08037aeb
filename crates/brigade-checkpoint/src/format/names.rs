//! Names of folders and files.

/// The file that describes a checkpoint. It is the last file that is written.
pub const MANIFEST: &str = "manifest.json";

/// The manifest's checksum, one line as `b3sum` writes and checks it.
pub const MANIFEST_HASH: &str = "manifest.blake3";

/// `step-00000050`: the folder of a step.
pub(crate) fn step_folder(step: u64) -> String {
    format!("step-{step:08}")
}

/// The step of a folder that [`step_folder`] made.
pub(crate) fn folder_step(name: &str) -> Option<u64> {
    let step = name.strip_prefix("step-")?.parse().ok()?;
    (step_folder(step) == name).then_some(step)
}

/// `rank-00003.safetensors`: the file of a rank.
pub fn rank_file(rank: usize) -> String {
    format!("rank-{rank:05}.safetensors")
}

/// `frozen-00003.safetensors`: the file of those of a rank's values that training does not change.
pub fn frozen_file(rank: usize) -> String {
    format!("frozen-{rank:05}.safetensors")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_steps_have_one_spelling() {
        assert_eq!(folder_step("step-00000050"), Some(50));
        assert_eq!(folder_step(&step_folder(u64::MAX)), Some(u64::MAX));
        for other in
            ["step-50", "step-000000050", "step-+0000050", ".step-00000050", "step-00000050.old", "step-"]
        {
            assert_eq!(folder_step(other), None, "{other}");
        }
    }
}
