//! `cargo xtask check-manifests`

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::backend::Backend;
use crate::cargo;

/// Flags of `cargo xtask check-manifests`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
CustomResourceDefinitions that it knows what to do with:
  JobSet               config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml of kubernetes-sigs/jobset
  TrainJob and its     manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml and …_trainingruntimes.yaml
  TrainingRuntime        of kubeflow/trainer
  PyTorchJob           manifests/base/crds/kubeflow.org_pytorchjobs.yaml of kubeflow/training-operator, release 1.9")]
pub struct Args {
    /// A Python that has jsonschema and pyyaml.
    #[arg(long, value_name = "PATH")]
    python: PathBuf,
    /// Files with the CustomResourceDefinitions of the versions to check against.
    #[arg(value_name = "FILE", required = true)]
    definitions: Vec<PathBuf>,
}

const SCRIPT: &str = "crates/brigade-submit/tests/check_manifests.py";

/// Builds the command, and compares what `brigade submit --render` writes with the schemas that clusters have.
pub fn run(args: &Args) -> Result<()> {
    let brigade = Backend::Cpu.build("release")?;
    let mut command = Command::new(&args.python);
    command.arg(cargo::root().join(SCRIPT)).arg("--brigade").arg(&brigade).args(&args.definitions);
    let status = command.status();
    let status = status.with_context(|| format!("--python {}: cannot start it", args.python.display()))?;
    match status.success() {
        true => Ok(()),
        false => bail!("{SCRIPT} ended with {status}"),
    }
}
