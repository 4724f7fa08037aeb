//! Vertex AI: a `CustomJob` in a container of one's own.
//!
//! As Google's documentation says, a worker whose container fails, or whose machine is maintained or preempted, is started again, up to five times, unless the error is one that Vertex AI
//! holds to be permanent: code 75 has no rule of its own. Each worker finds its place in `CLUSTER_SPEC`.

use std::ops::RangeInclusive;

use serde::Serialize;

use super::{Commands, JobState, Manifest, System, google, no_parents, not_elastic, time, words};
use crate::error::{Error, Result};
use crate::job::{Job, bucket_path, image, needed_image};
use crate::machines::{GpuKind, has_gpus, unknown_shape};

/// Vertex AI, and what it must know of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Vertex {
    /// The region, as `europe-west4`.
    pub region: Option<String>,
    /// The project, where it is not that of `gcloud`'s configuration.
    pub project: Option<String>,
    /// The container's image.
    pub image: Option<String>,
    /// The machine type, where it does not follow from the GPUs.
    pub machine_type: Option<String>,
    /// A file with the token: `gs://bucket/path`.
    pub token_file: Option<String>,
    /// After how long the job is ended, as `sbatch --time` takes it.
    pub time: Option<String>,
    /// The size of the machines' boot disks, in GB, where it is not the usual one.
    pub boot_disk_gb: Option<u32>,
    /// Whether machines may be taken away, for less money.
    pub spot: bool,
    /// The account that the job runs as.
    pub service_account: Option<String>,
}

/// The part of a `CustomJob` that `gcloud ai custom-jobs create --config` reads.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct CustomJobSpec {
    worker_pool_specs: Vec<WorkerPoolSpec>,
    scheduling: Scheduling,
    #[serde(skip_serializing_if = "Option::is_none")]
    service_account: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct WorkerPoolSpec {
    machine_spec: MachineSpec,
    /// A number of 64 bits, which the API has as text.
    replica_count: String,
    container_spec: ContainerSpec,
    disk_spec: DiskSpec,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct MachineSpec {
    machine_type: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    accelerator_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    accelerator_count: Option<usize>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct ContainerSpec {
    image_uri: String,
    command: Vec<String>,
    args: Vec<String>,
    env: Vec<EnvVar>,
}

#[derive(Debug, Clone, Serialize)]
struct EnvVar {
    name: String,
    value: String,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct DiskSpec {
    /// Its type is the default of the machine: not all machines have the same types.
    boot_disk_size_gb: u32,
}

#[derive(Debug, Serialize)]
struct Scheduling {
    strategy: &'static str,
    /// Seconds, with an s after them.
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout: Option<String>,
}

/// After how many seconds Vertex AI ends a job that says nothing of it.
const USUAL_LIMIT: u64 = 7 * 24 * 3600;

/// Options that may be needed, and what for.
const REGION: (&str, &str) = ("--region", "where the job runs, such as europe-west4");
const GPU_KIND: (&str, &str) = ("--gpu-kind", "Vertex AI needs the kind of GPU");
const MACHINE_TYPE: (&str, &str) =
    ("--machine-type", "Vertex AI needs the machine type; or give --gpu-kind and --gpus, which determine it");
const TOKEN_FILE: (&str, &str) = (
    "--token-file",
    "the machines of a job share no secret yet: put 32 random characters into a file in a bucket that only the job's account can read, and give gs://BUCKET/PATH",
);

fn needed((option, why): (&str, &str)) -> Error {
    Error::Missing { option: option.into(), why: why.into() }
}

/// A boot disk, which also holds the image and the container's caches; and the sizes that Vertex AI offers.
const BOOT_DISK_GB: u32 = 200;
const BOOT_DISKS_GB: RangeInclusive<u32> = 100..=64_000;

impl Vertex {
    fn located(&self, job: &Job, command: &[&str]) -> Vec<String> {
        let region = self.region.as_deref().unwrap_or_default();
        let mut all = words(&["gcloud", "ai", "custom-jobs"]);
        all.extend(words(command));
        all.push(format!("--region={region}"));
        all.extend(self.project.as_ref().map(|project| format!("--project={project}")));
        if command[0] == "create" {
            all.extend([
                format!("--display-name={}", job.name),
                "--config={manifest}".into(),
                "--format=value(name)".into(),
            ]);
        }
        all
    }

    /// The seconds of `--time`.
    fn limit(&self) -> Result<Option<u64>> {
        let Some(given) = &self.time else { return Ok(None) };
        match time::limit(given)? {
            u64::MAX => {
                Err(Error::value("--time", given, "Vertex AI runs no job without a limit; give DAYS-HOURS"))
            }
            seconds => Ok(Some(seconds)),
        }
    }

    fn machine(&self, job: &Job) -> Result<MachineSpec> {
        let machine = self.machine_type.as_deref();
        let shape = job.gpu_kind.map(|kind| kind.vertex_shape(job.gpus, machine)).transpose()?;
        let machine_type = machine.or_else(|| Some(shape?.machines[0]));
        let Some(machine_type) = machine_type else { return Err(needed(MACHINE_TYPE)) };
        let wrong = |allowed: String| Err(Error::value("--machine-type", machine_type, allowed));
        match (shape, job.gpu_kind) {
            _ if !google::is_machine_type(machine_type) => {
                return wrong("it must be a machine type of Google Cloud, such as n1-standard-16".into());
            }
            _ if let Some(known) = unknown_shape(machine_type) => {
                return wrong(format!("Vertex AI offers {known}"));
            }
            (Some(shape), Some(kind)) if !shape.fits(machine_type) => {
                let machines = kind.machines_with(job.gpus);
                return wrong(format!("Vertex AI offers {} {} in {machines}", job.gpus, kind.name));
            }
            (None, _) if let Some((kind, gpus)) = GpuKind::built_into(machine_type) => {
                return wrong(format!(
                    "it has GPUs: give --gpus {gpus} --gpu-kind {}, or a machine without GPUs, such as n1-standard-16",
                    kind.to_ascii_lowercase()
                ));
            }
            (None, _) if let Some(allowed) = has_gpus(machine_type) => return wrong(allowed),
            _ => {}
        }
        Ok(MachineSpec {
            machine_type: machine_type.to_owned(),
            accelerator_count: shape.map(|_| job.gpus),
            accelerator_type: shape.map(|shape| shape.accelerator.to_owned()),
        })
    }
}

/// Where a bucket appears in the containers.
fn mounted(bucket: &str, path: &str) -> String {
    format!("/gcs/{bucket}/{path}")
}

/// The path in the containers of a file or a folder, if it is given as `gs://`.
fn in_bucket(option: &str, given: &str) -> Result<Option<String>> {
    match bucket_path(option, given)? {
        Some((bucket, path)) if given.starts_with("gs://") => Ok(Some(mounted(bucket, path))),
        Some(_) => Err(Error::value(option, given, "Vertex AI uses Google Cloud buckets: gs://BUCKET/PATH")),
        None => Ok(None),
    }
}

/// The URL of what the containers have at this path, or of this URL.
fn url(given: &str) -> Option<String> {
    match given.strip_prefix("/gcs/") {
        Some(path) => Some(format!("gs://{path}")),
        None => given.starts_with("gs://").then(|| given.to_owned()),
    }
}

/// The path in the containers of a file or a folder that all machines must share.
fn shared(option: &str, given: &str) -> Result<String> {
    no_parents(option, given)?;
    match in_bucket(option, given)? {
        Some(path) => Ok(path),
        None if given.starts_with("/gcs/") => Ok(given.to_owned()),
        None => Err(Error::value(
            option,
            given,
            "the machines of a job only share buckets: give gs://BUCKET/PATH",
        )),
    }
}

/// A job, with its buckets as the containers see them.
fn in_containers(job: &Job) -> Job {
    let mut placed = job.clone();
    for (flag, given) in job.paths() {
        if let Ok(Some(path)) = in_bucket(flag, given) {
            placed = placed.with(flag, path);
        }
        if let Some(url) = url(given).filter(|_| flag == "--out") {
            placed = placed.with_checkpoints(format!("{}/checkpoints", url.trim_end_matches('/')));
        }
    }
    placed.escaped()
}

impl System for Vertex {
    fn name(&self) -> &'static str {
        "vertex"
    }

    fn missing(&self, job: &Job) -> Vec<Error> {
        let mut all = Vec::from_iter(needed_image(self.image.as_deref()));
        let mut need = |is_missing: bool, option| all.extend(is_missing.then(|| needed(option)));
        need(self.region.as_deref().is_none_or(str::is_empty), REGION);
        need(job.gpus > 0 && job.gpu_kind.is_none(), GPU_KIND);
        need(job.gpus == 0 && self.machine_type.is_none(), MACHINE_TYPE);
        need(job.nodes > 1 && self.token_file.is_none(), TOKEN_FILE);
        all
    }

    fn check(&self, job: &Job) -> Result<()> {
        not_elastic(job, "Vertex AI")?;
        if let Some(missing) = self.missing(job).into_iter().next() {
            return Err(missing);
        }
        image(self.image.as_deref())?;
        self.region.as_deref().map_or(Ok(()), google::region)?;
        self.project.as_deref().map_or(Ok(()), google::project)?;
        self.service_account.as_deref().map_or(Ok(()), google::service_account)?;
        if job.name.is_empty() || job.name.len() > 128 {
            return Err(Error::value("--name", &job.name, "Vertex AI requires 1 to 128 characters"));
        }
        if let Some(given) = self.boot_disk_gb.filter(|given| !BOOT_DISKS_GB.contains(given)) {
            let allowed =
                format!("Vertex AI offers disks of {} to {} GB", BOOT_DISKS_GB.start(), BOOT_DISKS_GB.end());
            return Err(Error::value("--boot-disk-gb", given, allowed));
        }
        self.machine(job)?;
        self.limit()?;
        if let Some(file) = &self.token_file {
            shared("--token-file", file)?;
        }
        if let Some((flag, folder)) = job.results() {
            shared(flag, folder)?;
        }
        if let Some((setting, place)) = job.checkpoints()
            && bucket_path(setting, place)?.is_none()
        {
            shared(setting, place)?;
        }
        job.paths().into_iter().try_for_each(|(flag, path)| in_bucket(flag, path).map(|_| ()))
    }

    fn manifests(&self, job: &Job) -> Vec<Manifest> {
        let job = in_containers(job);
        let mut env = job.environment(None);
        if let Some(file) = &self.token_file {
            let path = shared("--token-file", file).unwrap_or_else(|_| file.clone());
            env.insert("BRIGADE_TOKEN_FILE".into(), path);
        }
        let mut command = job.command(&[job.launcher_restarts(), job.patience()].concat());
        let args = command.split_off(1);
        let pool = |count: usize| {
            Some(WorkerPoolSpec {
                machine_spec: self.machine(&job).ok()?,
                replica_count: count.to_string(),
                container_spec: ContainerSpec {
                    image_uri: self.image.clone().unwrap_or_default(),
                    command: command.clone(),
                    args: args.clone(),
                    env: env
                        .iter()
                        .map(|(name, value)| EnvVar { name: name.clone(), value: value.clone() })
                        .collect(),
                },
                disk_spec: DiskSpec { boot_disk_size_gb: self.boot_disk_gb.unwrap_or(BOOT_DISK_GB) },
            })
        };
        // The first pool has one machine always.
        let pools = [1, job.nodes - 1].into_iter().filter(|count| *count > 0).filter_map(pool).collect();
        let strategy = if self.spot { "SPOT" } else { "STANDARD" };
        let timeout = self.limit().ok().flatten().map(|seconds| format!("{seconds}s"));
        let spec = CustomJobSpec {
            worker_pool_specs: pools,
            scheduling: Scheduling { strategy, timeout },
            service_account: self.service_account.clone(),
        };
        vec![Manifest::json("vertex.json", &spec)]
    }

    fn commands(&self, job: &Job) -> Commands {
        Commands {
            check: None,
            submit: self.located(job, &["create"]),
            logs: self.located(job, &["stream-logs", "{id}"]),
            logs_have_times: false,
            state: self.located(job, &["describe", "{id}", "--format=value(state)"]),
            waiting: None,
            cancel: self.located(job, &["cancel", "{id}"]),
        }
    }

    fn time_limit(&self) -> Option<u64> {
        Some(self.limit().ok().flatten().unwrap_or(USUAL_LIMIT))
    }

    fn waits_for(&self, state: &str, _: &str) -> Option<String> {
        let state = state.trim();
        matches!(state, "JOB_STATE_QUEUED" | "JOB_STATE_PENDING").then(|| state.to_owned())
    }

    fn state_of(&self, text: &str) -> JobState {
        match text.trim() {
            "JOB_STATE_SUCCEEDED" => JobState::Done,
            "JOB_STATE_FAILED" | "JOB_STATE_EXPIRED" | "JOB_STATE_PARTIALLY_SUCCEEDED" => JobState::Failed,
            "JOB_STATE_CANCELLED" => JobState::Cancelled,
            _ => JobState::Active,
        }
    }
}
