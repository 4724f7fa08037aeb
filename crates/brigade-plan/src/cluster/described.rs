//! Devices that a file describes: of a kind, or of none.

use super::file::Description;
use super::kinds::{kind, names, unknown};
use super::spec::meant;
use super::{Cluster, ClusterError};

impl Description {
    /// One node with one of the devices, before the file's numbers are laid over it.
    ///
    /// # Errors
    /// If it is of no kind, and the file leaves out what its kind would say; or if a processor has the name of a GPU, or the other way round.
    pub fn one_device(&self, file: &str) -> Result<Cluster, ClusterError> {
        let problem = |problem: String| ClusterError::File { file: file.to_owned(), problem };
        let known = self.kind.as_deref().and_then(kind);
        let Some(name) = self.name.as_ref().or(self.kind.as_ref()) else {
            return Err(problem(format!(
                "`kind` supplies the values missing from the file; kinds are {}. A device of any other kind needs `name` and {}",
                names(),
                NEEDED.map(|(fields, _)| fields).join(", ")
            )));
        };
        let mut cluster = match known {
            Some(cluster) => cluster,
            None => {
                let missing: Vec<&str> = NEEDED
                    .iter()
                    .filter(|(_, is_there)| !is_there(self))
                    .map(|(fields, _)| *fields)
                    .collect();
                if !missing.is_empty() {
                    let why = match &self.kind {
                        Some(kind) => format!("there is no kind {kind}; {}", meant(kind)),
                        None => format!("{name} has no `kind`"),
                    };
                    return Err(problem(format!(
                        "{why}; without a known kind, {} must be given",
                        missing.join(", ")
                    )));
                }
                unknown(name)
            }
        };
        if let Some(name) = &self.name
            && name.starts_with("CPU") != cluster.is_cpu()
        {
            return Err(problem(format!(
                "name = {name} is not possible: names of processors begin with CPU, and names of other devices do not"
            )));
        }
        if self.name.is_some() {
            cluster.device.name.clone_from(name);
        }
        Ok(cluster)
    }
}

type IsGiven = fn(&Description) -> bool;

/// What a file says of a device of no kind, and whether it does.
const NEEDED: [(&str, IsGiven); 5] = [
    ("memory_gib", |file| file.memory_gib.is_some()),
    ("bf16_tflops (or tf32_tflops or fp32_tflops)", |file| {
        file.bf16_tflops.or(file.tf32_tflops).or(file.fp32_tflops).is_some()
    }),
    ("memory_gb_per_second", |file| file.memory_gb_per_second.is_some()),
    ("intra_node_gb_per_second", |file| file.intra_node_gb_per_second.is_some()),
    ("inter_node_gb_per_second", |file| file.inter_node_gb_per_second.is_some()),
];
