//! What Kubernetes does not allow.

use std::path::{Component, Path};

use super::names::{
    BYTES, LABEL, dns_label, dns_subdomain, job_name, label_key, label_value, quantity, secret_key,
};
use super::pod::{SECRETS, SHARED};
use super::types::Toleration;
use super::{Claim, EnvSecret, HostPath, Kubernetes};
use crate::error::{Error, Result};
use crate::job::{Job, bucket_path, check_variable, image};
use crate::systems::{no_buckets, no_parents};

/// What paths of folders must be besides absolute.
const OF_FOLDERS: &str = ", not / itself, without .. and :";

fn is_folder(path: &str) -> bool {
    let folder = Path::new(path);
    let leaves = folder.components().any(|part| part == Component::ParentDir);
    folder.is_absolute() && folder != Path::new("/") && !leaves && !path.contains(':')
}

impl Kubernetes {
    pub(super) fn check_names(&self, job: &Job) -> Result<()> {
        image(self.image.as_deref())?;
        job_name(&job.name, LABEL - self.added(job.nodes))?;
        dns_subdomain("--token-secret", &self.token_secret, &self.token_secret)?;
        if let Some(namespace) = &self.namespace {
            dns_label("--namespace", namespace)?;
        }
        if let Some(account) = &self.service_account {
            dns_subdomain("--service-account", account, account)?;
        }
        for name in &self.image_pull_secrets {
            dns_subdomain("--image-pull-secret", name, name)?;
        }
        if let Some(name) = &self.priority_class {
            dns_subdomain("--priority-class", name, name)?;
        }
        for given in &self.tolerations {
            let option = "--toleration";
            let Toleration { key, value, effect, .. } = Toleration::parse(given);
            label_key(option, given, &key)?;
            label_value(option, given, value.as_deref().unwrap_or_default())?;
            if let Some(effect) = effect
                && !["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect.as_str())
            {
                let allowed = "it must be KEY[=VALUE][:EFFECT], with the effect NoSchedule, PreferNoSchedule or NoExecute";
                return Err(Error::value(option, given, allowed));
            }
        }
        for (key, value) in &self.node_selector {
            let given = format!("{key}={value}");
            label_key("--node-selector", &given, key)?;
            label_value("--node-selector", &given, value)?;
        }
        if let Some(key) = &self.topology {
            label_key("--topology", key, key)?;
        }
        match &self.queue {
            Some(queue) if queue.is_empty() => {
                Err(Error::value("--queue", queue, "it must be the name of a queue of Kueue"))
            }
            Some(queue) => label_value("--queue", queue, queue),
            None => Ok(()),
        }
    }

    pub(super) fn check_env_secrets(&self, job: &Job) -> Result<()> {
        for (at, EnvSecret { variable, secret, key }) in self.env_secrets.iter().enumerate() {
            let option = "--env-secret";
            check_variable(option, variable)?;
            let given = format!("{variable}={secret}/{key}");
            dns_subdomain(option, &given, secret)?;
            secret_key(option, &given, key)?;
            let earlier = self.env_secrets[..at].iter().any(|earlier| earlier.variable == *variable);
            if earlier || job.env.contains_key(variable) {
                let allowed = format!("{variable} is given twice; each variable has one value");
                return Err(Error::value(option, given, allowed));
            }
        }
        Ok(())
    }

    pub(super) fn check_resources(&self) -> Result<()> {
        if let Some(cpus) = &self.cpus {
            quantity("--cpus", cpus, cpus, &["", "m"], "a number of CPUs, such as 8, 7.5 or 7500m")?;
        }
        if let Some(memory) = &self.memory {
            quantity("--memory", memory, memory, &BYTES, "a number of bytes, such as 64Gi or 64G")?;
        }
        Ok(())
    }

    pub(super) fn check_volumes(&self, job: &Job) -> Result<()> {
        let claims = self.claims.iter().map(|Claim { name, path }| ("--volume", name, path));
        let folders = self.host_paths.iter().map(|HostPath { host, path }| ("--host-path", host, path));
        let mounts: Vec<_> = claims.chain(folders).collect();
        for (at, (option, source, path)) in mounts.iter().enumerate() {
            let given = format!("{source}:{path}");
            let wrong = |allowed: String| Err(Error::value(option, &given, allowed));
            let shape = match *option {
                "--volume" => {
                    dns_subdomain(option, &given, source)?;
                    "CLAIM:PATH with an absolute path"
                }
                _ if !is_folder(source) => {
                    return wrong(format!("it must be HOST:PATH with absolute paths{OF_FOLDERS}"));
                }
                _ => "HOST:PATH with absolute paths",
            };
            if !is_folder(path) {
                return wrong(format!("it must be {shape}{OF_FOLDERS}"));
            }
            let folder = Path::new(path);
            if folder.starts_with(SHARED) || folder.starts_with(SECRETS) {
                return wrong(format!("the pods have something else at {SHARED} and {SECRETS}"));
            }
            if let Some((other, ..)) = mounts[..at].iter().find(|(.., earlier)| Path::new(earlier) == folder)
            {
                return wrong(format!(
                    "another {other} is mounted at {path}, too; each needs a path of its own"
                ));
            }
        }
        no_buckets(job, "of a volume that the pods share (--volume CLAIM:PATH)")?;
        let Some((flag, folder)) = job.results() else { return Ok(()) };
        self.check_kept(flag, folder)?;
        job.checkpoints().map_or(Ok(()), |(setting, place)| self.check_kept(setting, place))
    }

    /// Refuses a folder that is gone when its pod ends.
    fn check_kept(&self, option: &str, folder: &str) -> Result<()> {
        if bucket_path(option, folder)?.is_some() {
            return Ok(());
        }
        no_parents(option, folder)?;
        if self.claims.iter().any(|claim| Path::new(folder).starts_with(&claim.path)) {
            return Ok(());
        }
        let allowed = "no --volume CLAIM:PATH contains it, so what a pod writes there would be lost when the pod ends; give a folder of one, or gs://BUCKET/PATH or s3://BUCKET/PATH";
        Err(Error::value(option, folder, allowed))
    }
}
