//! Whether the buckets that a job names are there, as far as this machine may know.

#[cfg(feature = "object-store")]
use std::collections::BTreeMap;
#[cfg(not(feature = "object-store"))]
use std::collections::BTreeSet;
#[cfg(feature = "object-store")]
use std::time::Duration;

#[cfg(feature = "object-store")]
use brigade_store::{Access, Location, Scheme, access, are_credentials_set};
use brigade_submit::Job;

use super::StoreChecks;
use crate::config::Config;

/// How long a store may take to answer.
#[cfg(feature = "object-store")]
const DEADLINE: Duration = Duration::from_secs(10);

/// Asks for each bucket in the words of the job's command, and in its settings as far as they are known here. `secrets`: the job's variables whose values
/// are the cluster's.
///
/// # Errors
/// Where one does not exist.
#[cfg(feature = "object-store")]
pub fn look(job: &Job, secrets: &[&str], config: Option<&Config>) -> anyhow::Result<StoreChecks> {
    let mut found = StoreChecks::default();
    for (root, (url, location)) in named(job, config) {
        // Nobody here may know that store.
        if let Some(variable) = other_store(job, secrets, location.scheme()) {
            found.unknown.push(format!(
                "{root} is not checked: with the job's {variable} it may be in a different store from the one that this machine reaches"
            ));
            continue;
        }
        // Metadata servers are not asked: outside a cloud, nobody would answer.
        if !are_credentials_set(location.scheme()) {
            found
                .unknown
                .push(format!("{root} is not checked: there are no credentials for it on this machine"));
            continue;
        }
        match access(&location, DEADLINE) {
            Ok(Access::Listed) => {}
            Ok(Access::NoBucket) => anyhow::bail!("{url} is not possible: the bucket does not exist"),
            Ok(Access::NoRight(said)) => {
                found.missing.push(format!("the right to {url}, for this machine at least: {said}"));
            }
            Err(error) => found.unknown.push(format!("{root} is not checked: {error}")),
        }
    }
    Ok(found)
}

/// Names each bucket: this program cannot ask for them.
///
/// # Errors
/// None.
#[cfg(not(feature = "object-store"))]
pub fn look(job: &Job, _: &[&str], config: Option<&Config>) -> anyhow::Result<StoreChecks> {
    let root = |url: &str| url.splitn(4, '/').take(3).collect::<Vec<_>>().join("/");
    let roots: BTreeSet<String> = urls(job, config).map(root).collect();
    let line =
        |root| format!("{root} is not checked: this brigade was built without the feature object-store");
    Ok(StoreChecks { unknown: roots.into_iter().map(line).collect(), ..StoreChecks::default() })
}

/// A variable by which the job reaches the stores of a scheme otherwise than this machine.
#[cfg(feature = "object-store")]
fn other_store<'a>(job: &'a Job, secrets: &[&'a str], scheme: Scheme) -> Option<&'a str> {
    let beginning = match scheme {
        Scheme::S3 => "AWS_",
        Scheme::Gs => "GOOGLE_",
        Scheme::Http | Scheme::File => return None,
    };
    let is_other = |name: &str, value: &str| std::env::var(name).ok().as_deref() != Some(value);
    let given = job.env.iter().filter(|(name, value)| is_other(name, value)).map(|(name, _)| name.as_str());
    given.chain(secrets.iter().copied()).find(|name| name.to_ascii_uppercase().starts_with(beginning))
}

/// The first URL in each bucket.
#[cfg(feature = "object-store")]
fn named(job: &Job, config: Option<&Config>) -> BTreeMap<String, (String, Location)> {
    let mut named = BTreeMap::new();
    // What is no URL is refused by what reads it.
    for (url, location) in urls(job, config).filter_map(|url| Some((url, Location::parse(fixed(url)).ok()?)))
    {
        named.entry(location.root().to_owned()).or_insert_with(|| (url.to_owned(), location));
    }
    named
}

/// The URLs of buckets in a job and its settings.
fn urls<'a>(job: &'a Job, config: Option<&'a Config>) -> impl Iterator<Item = &'a str> {
    let words = job.args.iter().flat_map(|word| word.split(['=', ',', '\'', '"', '[', ']', '{', '}', ' ']));
    let parts = words.chain(config.into_iter().flat_map(configured));
    parts.filter(|part| part.starts_with("s3://") || part.starts_with("gs://"))
}

/// What settings name that may be in a bucket.
fn configured(config: &Config) -> impl Iterator<Item = &str> {
    let texts = config.data.urls().map(|(_, url)| url.as_str());
    texts.chain([config.settings.checkpoint.dir.as_str()])
}

/// A pattern up to the folder in which it begins to differ.
#[cfg(feature = "object-store")]
fn fixed(url: &str) -> &str {
    match url.find('*') {
        Some(at) => &url[..=url[..at].rfind('/').unwrap_or(at - 1)],
        None => url,
    }
}

#[cfg(all(test, feature = "object-store"))]
mod tests {
    use super::*;

    #[test]
    fn every_bucket_is_named_once() {
        let words = "train --data s3://text/a/*.txt --set data.source=[{path='gs://other/x',weight=2}] --out gs://runs/a \
                     --set checkpoint.dir=gs://runs/b";
        let job = Job { args: words.split_whitespace().map(str::to_owned).collect(), ..job() };
        let named = named(&job, None);
        let shown: Vec<_> =
            named.values().map(|(url, location)| (url.as_str(), location.to_string())).collect();
        assert_eq!(
            shown,
            [
                ("gs://other/x", "gs://other/x".to_owned()),
                ("gs://runs/a", "gs://runs/a".to_owned()),
                ("s3://text/a/*.txt", "s3://text/a".to_owned())
            ]
        );
    }

    #[test]
    fn buckets_of_the_settings_count_too() {
        let sets = ["data.sources=['gs://text/a']", "checkpoint.dir='s3://saved/b'"].map(str::to_owned);
        let config = Config::read(&[], &sets).unwrap();
        let named = named(&job(), Some(&config));
        let roots: Vec<&str> = named.values().map(|(url, _)| url.as_str()).collect();
        assert_eq!(roots, ["gs://text/a", "s3://saved/b"]);
    }

    #[test]
    fn a_store_of_the_jobs_own_is_not_looked_for_here() {
        let with = |name: &str| Job { env: [(name.to_owned(), "mine".to_owned())].into(), ..job() };
        let endpoint = with("AWS_ENDPOINT");
        assert_eq!(other_store(&endpoint, &[], Scheme::S3), Some("AWS_ENDPOINT"));
        assert_eq!(other_store(&endpoint, &[], Scheme::Gs), None);
        assert_eq!(
            other_store(&job(), &["HF_TOKEN", "AWS_ACCESS_KEY_ID"], Scheme::S3),
            Some("AWS_ACCESS_KEY_ID")
        );
        assert_eq!(other_store(&with("google_base_url"), &[], Scheme::Gs), Some("google_base_url"));
        let words = ["train", "--data", "s3://text/a/*.txt", "--out", "gs://runs/a"].map(str::to_owned);
        let job = Job { args: words.to_vec(), ..endpoint };
        let found = look(&job, &["GOOGLE_SERVICE_ACCOUNT"], None).unwrap();
        assert_eq!(found.missing, [""; 0]);
        for (line, said) in found.unknown.iter().zip([
            "gs://runs is not checked: with the job's GOOGLE_SERVICE_ACCOUNT it may be in a different store",
            "s3://text is not checked: with the job's AWS_ENDPOINT it may be",
        ]) {
            assert!(line.starts_with(said), "{line}");
        }
    }

    fn job() -> Job {
        Job {
            name: "a".into(),
            nodes: 1,
            least_nodes: None,
            gpus: 0,
            gpu_kind: None,
            program: "brigade".into(),
            args: Vec::new(),
            env: BTreeMap::new(),
            checkpoint_dir: None,
            grace_seconds: 300,
            max_restarts: 3,
        }
    }
}
