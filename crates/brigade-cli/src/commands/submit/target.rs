//! The flags of the systems, and which go with which.

use std::collections::BTreeMap;
use std::path::Path;

use brigade::parse_whole_number;
use brigade_submit::{
    Claim, Controller, EnvSecret, Error, HostPath, Job, Kubernetes, Lacking, Slurm, Ssh, Token, Vertex,
    missing_in_image, unknown_image,
};
use clap::{Args, ValueEnum};

use super::destination::Destination;
use crate::model_files::model_folder::hub_name;

/// What runs jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SystemName {
    /// Vertex AI, by gcloud.
    Vertex,
    /// Kubernetes with JobSet, by kubectl.
    Jobset,
    /// Kubernetes with Kubeflow Trainer's TrainJob.
    Trainjob,
    /// Kubernetes with Kubeflow's PyTorchJob.
    Pytorchjob,
    /// Slurm, by sbatch.
    Slurm,
    /// Hosts over SSH, while this command runs.
    Ssh,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Where")]
pub struct TargetArgs {
    /// The container's image (vertex, jobset, trainjob, pytorchjob).
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// File with the ranks' secret, 16 to 256 characters: gs:// on Vertex AI, a path on the nodes with Slurm [Slurm's default: each job makes one].
    #[arg(long, value_name = "FILE")]
    token_file: Option<String>,
    /// Kubernetes' secret with the ranks' secret under the key `token` [default: brigade-token].
    #[arg(long, value_name = "NAME")]
    token_secret: Option<String>,
    /// Vertex AI's region.
    #[arg(long, value_name = "REGION")]
    region: Option<String>,
    /// Google Cloud's project [default: that of gcloud].
    #[arg(long, value_name = "PROJECT")]
    project: Option<String>,
    /// Vertex AI's machine type [default: the one that comes with the GPUs].
    #[arg(long, value_name = "TYPE")]
    machine_type: Option<String>,
    /// The size of the boot disks of Vertex AI's machines, which also hold caches, in GB [default: 200].
    #[arg(long, value_name = "GB", allow_negative_numbers = true, value_parser = parse_whole_number::<u32>)]
    boot_disk_gb: Option<u32>,
    /// Use Vertex AI's spot machines, which may be preempted.
    #[arg(long)]
    spot: bool,
    /// An environment variable from a Kubernetes secret, as in HF_TOKEN=hub/token; can be given several times.
    #[arg(long, value_name = "NAME=SECRET/KEY", value_parser = env_secret)]
    env_secret: Vec<EnvSecret>,
    /// CPUs of each Kubernetes pod, as in 8 or 7500m [default: as many as are free].
    #[arg(long, value_name = "N")]
    cpus: Option<String>,
    /// Memory of each Kubernetes pod, as in 64Gi [default: as much as is free].
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
    /// Make pods that Kubernetes admits where namespaces enforce the Pod Security level `restricted`.
    #[arg(long)]
    restricted: bool,
    /// The account that the job runs as (Vertex AI, Kubernetes).
    #[arg(long, value_name = "ACCOUNT")]
    service_account: Option<String>,
    /// A secret with which Kubernetes pulls the image; can be given several times.
    #[arg(long, value_name = "NAME")]
    image_pull_secret: Vec<String>,
    /// A taint of Kubernetes' nodes that the pods tolerate, besides that of GPUs; can be given several times.
    #[arg(long, value_name = "KEY[=VALUE][:EFFECT]")]
    toleration: Vec<String>,
    /// The priority class of the Kubernetes pods.
    #[arg(long, value_name = "NAME")]
    priority_class: Option<String>,
    /// Kubernetes' namespace [default: that of kubectl's context].
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    /// A volume claim that all pods share, and the path to mount it at; can be given several times.
    #[arg(long, value_name = "CLAIM:PATH", value_parser = claim)]
    volume: Vec<Claim>,
    /// A folder of Kubernetes' nodes, and the path to mount it at; can be given several times.
    #[arg(long, value_name = "HOST:PATH", value_parser = host_path)]
    host_path: Vec<HostPath>,
    /// An annotation of Kubernetes' pods; can be given several times.
    #[arg(long, value_name = "KEY=VALUE", value_parser = variable)]
    annotation: Vec<(String, String)>,
    /// Another resource of each Kubernetes pod, as in vpc.amazonaws.com/efa=4; can be given several times.
    #[arg(long, value_name = "NAME=N", value_parser = variable)]
    resource: Vec<(String, String)>,
    /// A Linux capability for the Kubernetes containers, as in IPC_LOCK; can be given several times.
    #[arg(long, value_name = "NAME")]
    capability: Vec<String>,
    /// A label that the Kubernetes nodes must have; can be given several times.
    #[arg(long, value_name = "KEY=VALUE", value_parser = variable)]
    node_selector: Vec<(String, String)>,
    /// Keep nodes near each other: a label whose value Kubernetes' nodes must share, or Slurm's maximum number of switches.
    #[arg(long, value_name = "LABEL|N")]
    topology: Option<String>,
    /// Kueue's queue.
    #[arg(long, value_name = "QUEUE")]
    queue: Option<String>,
    /// Slurm's partition.
    #[arg(long, value_name = "NAME")]
    partition: Option<String>,
    /// Slurm's account.
    #[arg(long, value_name = "NAME")]
    account: Option<String>,
    /// The time limit of Slurm or Vertex AI, such as 1-12:00:00 [default: the partition's; Vertex AI's is 7 days].
    #[arg(long, value_name = "TIME")]
    time: Option<String>,
    /// Let other jobs run on Slurm's nodes, too: ask for CPUs and memory with --option=--cpus-per-task=N and --option=--mem=SIZE.
    #[arg(long)]
    shared_nodes: bool,
    /// Another option for sbatch, such as --option=--constraint=h100; can be given several times.
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    option: Vec<String>,
    /// Hosts for ssh, as user@host, the first with rank 0.
    #[arg(long, value_name = "HOSTS", value_delimiter = ',')]
    hosts: Vec<String>,
    /// The address at which the other hosts reach the first one [default: the name that ssh uses for it].
    #[arg(long, value_name = "ADDRESS")]
    address: Option<String>,
    /// Folder on the hosts to start in [default: where ssh starts].
    #[arg(long, value_name = "DIR")]
    folder: Option<String>,
}

fn claim(text: &str) -> Result<Claim, String> {
    let pair = text.split_once(':').map(|(name, path)| Claim { name: name.into(), path: path.into() });
    pair.ok_or_else(|| "it must be CLAIM:PATH, as data:/data".into())
}

fn host_path(text: &str) -> Result<HostPath, String> {
    let pair = text.split_once(':').map(|(host, path)| HostPath { host: host.into(), path: path.into() });
    pair.ok_or_else(|| "it must be HOST:PATH, such as /opt/net:/usr/local/net".into())
}

fn env_secret(text: &str) -> Result<EnvSecret, String> {
    let parts = text.split_once('=').and_then(|(name, value)| Some((name, value.split_once('/')?)));
    let found = parts.map(|(variable, (secret, key))| EnvSecret {
        variable: variable.into(),
        secret: secret.into(),
        key: key.into(),
    });
    found.ok_or_else(|| "it must be NAME=SECRET/KEY, as HF_TOKEN=hub/token".into())
}

/// `NAME=VALUE`
pub fn variable(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    pair.ok_or_else(|| "it must be NAME=VALUE".into())
}

impl TargetArgs {
    /// The system, with its flags.
    ///
    /// # Errors
    /// If a flag of another system is given.
    pub fn destination(&self, to: SystemName) -> Result<Destination, Error> {
        use SystemName::{
            Jobset, Pytorchjob, Slurm as SlurmName, Ssh as SshName, Trainjob, Vertex as VertexName,
        };
        let of = |given: bool, option: &'static str, systems: &'static [SystemName]| (given, option, systems);
        const KUBERNETES: &[SystemName] = &[Jobset, Trainjob, Pytorchjob];
        const CONTAINERS: &[SystemName] = &[VertexName, Jobset, Trainjob, Pytorchjob];
        let flags = [
            of(self.image.is_some(), "--image", CONTAINERS),
            of(self.token_file.is_some(), "--token-file", &[VertexName, SlurmName]),
            of(self.token_secret.is_some(), "--token-secret", KUBERNETES),
            of(self.region.is_some(), "--region", &[VertexName]),
            of(self.project.is_some(), "--project", &[VertexName]),
            of(self.machine_type.is_some(), "--machine-type", &[VertexName]),
            of(self.boot_disk_gb.is_some(), "--boot-disk-gb", &[VertexName]),
            of(self.spot, "--spot", &[VertexName]),
            of(!self.env_secret.is_empty(), "--env-secret", KUBERNETES),
            of(self.cpus.is_some(), "--cpus", KUBERNETES),
            of(self.memory.is_some(), "--memory", KUBERNETES),
            of(self.restricted, "--restricted", KUBERNETES),
            of(self.service_account.is_some(), "--service-account", CONTAINERS),
            of(!self.image_pull_secret.is_empty(), "--image-pull-secret", KUBERNETES),
            of(!self.toleration.is_empty(), "--toleration", KUBERNETES),
            of(self.priority_class.is_some(), "--priority-class", KUBERNETES),
            of(self.namespace.is_some(), "--namespace", KUBERNETES),
            of(!self.volume.is_empty(), "--volume", KUBERNETES),
            of(!self.host_path.is_empty(), "--host-path", KUBERNETES),
            of(!self.annotation.is_empty(), "--annotation", KUBERNETES),
            of(!self.resource.is_empty(), "--resource", KUBERNETES),
            of(!self.capability.is_empty(), "--capability", KUBERNETES),
            of(!self.node_selector.is_empty(), "--node-selector", KUBERNETES),
            of(self.topology.is_some(), "--topology", &[Jobset, Trainjob, Pytorchjob, SlurmName]),
            of(self.queue.is_some(), "--queue", KUBERNETES),
            of(self.partition.is_some(), "--partition", &[SlurmName]),
            of(self.account.is_some(), "--account", &[SlurmName]),
            of(self.time.is_some(), "--time", &[VertexName, SlurmName]),
            of(self.shared_nodes, "--shared-nodes", &[SlurmName]),
            of(!self.option.is_empty(), "--option", &[SlurmName]),
            of(!self.hosts.is_empty(), "--hosts", &[SshName]),
            of(self.address.is_some(), "--address", &[SshName]),
            of(self.folder.is_some(), "--folder", &[SshName]),
        ];
        if let Some((_, option, systems)) =
            flags.into_iter().find(|(given, _, systems)| *given && !systems.contains(&to))
        {
            let names: Vec<String> = systems.iter().map(|system| system.name()).collect();
            let instead = format!("it is for {}", names.join(", "));
            return Err(Error::NotOfSystem { option: option.into(), system: to.name(), instead });
        }
        Ok(match to {
            VertexName => Destination::System(Box::new(self.vertex())),
            Jobset => Destination::System(Box::new(self.kubernetes(Controller::JobSet))),
            Trainjob => Destination::System(Box::new(self.kubernetes(Controller::TrainJob))),
            Pytorchjob => Destination::System(Box::new(self.kubernetes(Controller::PyTorchJob))),
            SlurmName => Destination::System(Box::new(self.slurm()?)),
            SshName => Destination::Hosts(Ssh {
                hosts: self.hosts.clone(),
                folder: self.folder.clone(),
                address: self.address.clone(),
            }),
        })
    }

    /// What the image lacks for a job that runs on GPUs; `folder` is where its registry is asked from, if it is.
    pub fn lacking_in_image(&self, job: &Job, folder: Option<&Path>) -> Lacking {
        match (&self.image, folder) {
            (None, _) => Lacking::default(),
            (Some(image), Some(folder)) => missing_in_image(job, image, folder),
            (Some(image), None) => unknown_image(job, image),
        }
    }

    /// What a system cannot be asked before a job is submitted.
    pub fn unchecked(&self, to: SystemName, job: &Job) -> Vec<String> {
        let mut unchecked = Vec::new();
        match to {
            SystemName::Vertex => {
                unchecked.push("the quotas of vertex, which cannot be asked beforehand".into());
            }
            SystemName::Jobset | SystemName::Trainjob | SystemName::Pytorchjob => unchecked.push(
                "limit ranges and the Pod Security level of the namespace, which Kubernetes looks at when it makes the pods"
                    .into(),
            ),
            SystemName::Slurm | SystemName::Ssh => {}
        }
        if to == SystemName::Pytorchjob && self.restricted && job.nodes > 1 {
            unchecked.push(
                "whether the training operator's own init containers, in the pods of workers, satisfy --restricted: those of a stock operator do not, and such a \
                 namespace refuses the pods; the operator's option --pytorch-init-container-template-file gives them a securityContext"
                    .into(),
            );
        }
        if to == SystemName::Vertex
            && let Some(folder) = job.resumed_without_checkpoints()
        {
            unchecked.push(format!(
                "whether the settings of {folder} have a checkpoint.dir: without one, checkpoints are read and saved through the mount of the bucket, as the run did \
                 before, and not directly"
            ));
        }
        let says_kind = |option: &String| {
            ["--constraint", "-C", "--gres", "--gpus-per-node"].iter().any(|name| option.starts_with(name))
        };
        if let Some(kind) = job.gpu_kind
            && to == SystemName::Slurm
            && !self.option.iter().any(says_kind)
        {
            let (name, gpus) = (kind.name, job.gpus);
            unchecked.push(format!(
                "whether the nodes have {name}; --option=--constraint=… or --option=--gres=gpu:TYPE:{gpus} asks for them"
            ));
        }
        unchecked.extend(self.only_here(to, job));
        unchecked
    }

    /// Files that a container does not see, as far as that can be known: those with a path that depends on the folder, or that are
    /// on this machine and in nothing that the containers share.
    fn only_here(&self, to: SystemName, job: &Job) -> Option<String> {
        let is_here = |given: &str| {
            let path = Path::new(given);
            !self.is_seen(to, given) && (path.is_relative() || path.exists())
        };
        let given = job.read_paths().into_iter().filter(|(flag, given)| {
            is_here(given) && !(*flag == "--model" && hub_name(Path::new(given)).is_some())
        });
        let given: Vec<String> = given.map(|(flag, given)| format!("{flag} {given}")).collect();
        (!given.is_empty())
            .then(|| format!("{}; the containers do not see the files of this machine", given.join(" and ")))
    }

    /// The file of `--config`, if it is on this machine and the nodes do not see it there.
    pub fn config_only_here<'a>(&self, to: SystemName, job: &'a Job) -> Option<&'a Path> {
        let given = job.read_paths().into_iter().find(|(flag, _)| *flag == "--config");
        let (_, file) = given.filter(|(_, file)| !self.is_seen(to, file))?;
        Some(Path::new(file)).filter(|file| file.is_file())
    }

    /// Whether the nodes see what has this path or URL.
    fn is_seen(&self, to: SystemName, given: &str) -> bool {
        let path = Path::new(given);
        match to {
            _ if given.contains("://") => true,
            SystemName::Slurm | SystemName::Ssh => true,
            SystemName::Vertex => path.starts_with("/gcs"),
            SystemName::Jobset | SystemName::Trainjob | SystemName::Pytorchjob => {
                let claims = self.volume.iter().map(|claim| &claim.path);
                claims.chain(self.host_path.iter().map(|folder| &folder.path)).any(|of| path.starts_with(of))
            }
        }
    }

    /// Variables with the values of secrets.
    pub fn secret_variables(&self) -> Vec<&str> {
        self.env_secret.iter().map(|secret| secret.variable.as_str()).collect()
    }

    fn vertex(&self) -> Vertex {
        Vertex {
            region: self.region.clone(),
            project: self.project.clone(),
            image: self.image.clone(),
            machine_type: self.machine_type.clone(),
            token_file: self.token_file.clone(),
            boot_disk_gb: self.boot_disk_gb,
            spot: self.spot,
            service_account: self.service_account.clone(),
            time: self.time.clone(),
        }
    }

    fn kubernetes(&self, controller: Controller) -> Kubernetes {
        Kubernetes {
            controller,
            namespace: self.namespace.clone(),
            image: self.image.clone(),
            token_secret: self.token_secret.clone().unwrap_or_else(|| "brigade-token".into()),
            env_secrets: self.env_secret.clone(),
            claims: self.volume.clone(),
            host_paths: self.host_path.clone(),
            annotations: self.annotation.iter().cloned().collect(),
            resources: self.resource.iter().cloned().collect(),
            capabilities: self.capability.clone(),
            cpus: self.cpus.clone(),
            memory: self.memory.clone(),
            restricted: self.restricted,
            node_selector: self.node_selector.iter().cloned().collect::<BTreeMap<_, _>>(),
            topology: self.topology.clone(),
            queue: self.queue.clone(),
            service_account: self.service_account.clone(),
            image_pull_secrets: self.image_pull_secret.clone(),
            tolerations: self.toleration.clone(),
            priority_class: self.priority_class.clone(),
        }
    }

    fn slurm(&self) -> Result<Slurm, Error> {
        let switches = self.topology.as_ref().map(|text| {
            let number = text.parse().ok().filter(|number| *number > 0);
            let (option, given) = ("--topology".to_owned(), text.clone());
            let allowed = "with Slurm it is the maximum number of switches, at least 1".to_owned();
            number.ok_or(Error::Value { option, given, allowed })
        });
        Ok(Slurm {
            partition: self.partition.clone(),
            account: self.account.clone(),
            time: self.time.clone(),
            switches: switches.transpose()?,
            token: self.token_file.clone().map_or(Token::Random, Token::File),
            shared_nodes: self.shared_nodes,
            options: self.option.clone(),
        })
    }
}

impl SystemName {
    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}
