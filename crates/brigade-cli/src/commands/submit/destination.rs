//! Where a job is to run, and what belongs there.

use std::path::Path;

use brigade_submit::{
    Error, Job, Lacking, Manifest, Ssh, System, missing_in_system, missing_on_hosts, shell_line,
};

/// Where a job is to run.
pub enum Destination {
    /// A system that takes jobs.
    System(Box<dyn System>),
    /// Hosts, for as long as this command runs.
    Hosts(Ssh),
}

impl Destination {
    pub fn check(&self, job: &Job) -> Result<(), Error> {
        match self {
            Self::System(system) => system.check(job),
            Self::Hosts(ssh) => ssh.check(job),
        }
    }

    /// What is needed and was not given.
    pub fn missing(&self, job: &Job) -> Vec<Error> {
        match self {
            Self::System(system) => system.missing(job),
            Self::Hosts(ssh) => ssh.missing(job).into_iter().collect(),
        }
    }

    /// What the job needs that is not there, where `folder` is the current one.
    pub fn lacking(&self, job: &Job, folder: &Path) -> Lacking {
        match self {
            Self::System(system) => missing_in_system(&**system, job, folder),
            Self::Hosts(ssh) => missing_on_hosts(ssh, job),
        }
    }

    pub fn manifests(&self, job: &Job) -> Vec<Manifest> {
        match self {
            Self::System(system) => system.manifests(job),
            Self::Hosts(ssh) => (0..job.nodes)
                .map(|node| Manifest { file: format!("node-{node}.sh"), text: ssh.script(job, node) })
                .collect(),
        }
    }

    /// After how many seconds a job is ended for good.
    pub fn time_limit(&self) -> Option<u64> {
        match self {
            Self::System(system) => system.time_limit(),
            Self::Hosts(_) => None,
        }
    }

    /// The program that submits.
    pub fn program(&self) -> &'static str {
        match self {
            Self::Hosts(_) => "ssh",
            Self::System(system) => match system.name() {
                "vertex" => "gcloud",
                "slurm" => "sbatch",
                _ => "kubectl",
            },
        }
    }

    /// How to submit the manifests in `folder` by hand, read the output and cancel the job.
    pub fn manual_steps(&self, job: &Job, folder: &Path) -> String {
        match self {
            Self::Hosts(ssh) => format!(
                "each of {} runs its script, whose first line of input is the shared token; when the input ends, its ranks save and exit\n",
                ssh.hosts.join(", ")
            ),
            Self::System(system) => {
                let manifests = system.manifests(job);
                let path = folder.join(manifests.first().map_or("", |manifest| &manifest.file));
                let commands = system.commands(job).with_manifest(&path.display().to_string()).with_id("ID");
                format!(
                    "submit:  {}\noutput:  {}\ncancel:  {}\n",
                    shell_line(&commands.submit),
                    shell_line(&commands.logs),
                    shell_line(&commands.cancel)
                )
            }
        }
    }
}
