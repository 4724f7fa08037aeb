//! What a container's image was built for, as far as its registry says.

use std::path::Path;

use serde_json::Value;

use super::process::{missing_program, output};
use crate::job::Job;
use crate::systems::{Lacking, words};

/// The label of images of `cargo xtask image`.
const LABEL: &str = "dev.brigade.backend";

/// Whether an image lacks the backend that a job trains with, by its label. `skopeo` asks the registry, in `folder`; where it is not installed, or the image has no such
/// label, nobody knows.
pub fn missing_in_image(job: &Job, image: &str, folder: &Path) -> Lacking {
    let Some(wanted) = job.backend().filter(|_| missing_program("skopeo").is_none()) else {
        return unknown_image(job, image);
    };
    match output(&words(&["skopeo", "inspect", &format!("docker://{image}")]), folder) {
        Ok(printed) => match label(&printed) {
            Some(found) if found == wanted => Lacking::default(),
            Some(found) => {
                let missing = format!(
                    "an image with the backend {wanted}: {image} was built for {found}, as its label {LABEL} says; cargo xtask image --backend {wanted} builds one"
                );
                Lacking { missing: vec![missing], ..Lacking::default() }
            }
            None => unknown_image(job, image),
        },
        Err(error) => {
            let mut lacking = unknown_image(job, image);
            lacking.unknown.iter_mut().for_each(|line| line.push_str(&format!(": {error}")));
            lacking
        }
    }
}

/// The same where nobody is asked.
pub fn unknown_image(job: &Job, image: &str) -> Lacking {
    let wanted = job.backend().unwrap_or("cuda");
    let unknown = format!(
        "whether {image} has the backend {wanted}: one of cargo xtask image --backend {wanted} has, and says so in its label {LABEL} (skopeo inspect docker://{image})"
    );
    let unknown = if job.gpus > 0 { vec![unknown] } else { Vec::new() };
    Lacking { unknown, ..Lacking::default() }
}

/// The label in what `skopeo inspect` prints.
fn label(printed: &str) -> Option<String> {
    let printed: Value = serde_json::from_str(printed).ok()?;
    printed["Labels"][LABEL].as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_label_is_where_skopeo_prints_it() {
        let printed =
            r#"{ "Name": "host/a", "Labels": { "other": "1", "dev.brigade.backend": "cpu" }, "Env": [] }"#;
        assert_eq!(label(printed).as_deref(), Some("cpu"));
        for printed in [r#"{ "Labels": null }"#, r#"{ "Labels": {} }"#, "{}", "[]", "", "text"] {
            assert_eq!(label(printed), None, "{printed}");
        }
    }
}
