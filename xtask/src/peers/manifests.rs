//! `cargo xtask check-manifests`

use std::path::PathBuf;

use anyhow::Result;

use crate::peers::hf::run_script;

/// Flags of `cargo xtask check-manifests`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Definitions that it knows what to do with:
  JobSet               config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml of kubernetes-sigs/jobset
  TrainJob and its     manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml and …_trainingruntimes.yaml
  TrainingRuntime        of kubeflow/trainer
  PyTorchJob           manifests/base/crds/kubeflow.org_pytorchjobs.yaml of kubeflow/training-operator, release 1.9
  Vertex AI's jobs     https://aiplatform.googleapis.com/$discovery/rest?version=v1, the discovery document
Jobs are rendered for Kubernetes if there is any CustomResourceDefinition, and for Vertex AI if there is the document.")]
pub struct Args {
    /// A Python that has jsonschema and pyyaml.
    #[arg(long, value_name = "PATH")]
    python: PathBuf,
    /// Files with the CustomResourceDefinitions of the versions to check against, and Vertex AI's discovery document.
    #[arg(value_name = "FILE", required = true)]
    definitions: Vec<PathBuf>,
}

const SCRIPT: &str = "crates/brigade-submit/tests/check_manifests.py";

/// Builds the command, and compares what `brigade submit --render` writes with the definitions that clusters have.
pub fn run(args: &Args) -> Result<()> {
    let definitions = args.definitions.iter().map(|file| file.as_os_str());
    run_script(&args.python, SCRIPT, definitions)
}
