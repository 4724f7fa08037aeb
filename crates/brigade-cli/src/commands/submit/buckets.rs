//! Whether the buckets that a job names are there, as far as this machine may know.

use std::collections::BTreeMap;
use std::time::Duration;

use brigade_store::{Access, Location, access, are_credentials_set};
use brigade_submit::Job;

use super::Buckets;
use crate::config::Config;

/// How long a store may take to answer.
const DEADLINE: Duration = Duration::from_secs(10);

/// Asks for each bucket in the words of the job's command, and in its settings as far as they are known here.
///
/// # Errors
/// Where one does not exist.
pub fn look(job: &Job, config: Option<&Config>) -> anyhow::Result<Buckets> {
    let mut found = Buckets::default();
    for (root, (url, location)) in named(job, config) {
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

/// The first URL in each bucket.
fn named(job: &Job, config: Option<&Config>) -> BTreeMap<String, (String, Location)> {
    let words = job.args.iter().flat_map(|word| word.split(['=', ',', '\'', '"', '[', ']', '{', '}', ' ']));
    let parts = words.chain(config.into_iter().flat_map(configured));
    let urls = parts.filter(|part| part.starts_with("s3://") || part.starts_with("gs://"));
    let mut named = BTreeMap::new();
    // What is no URL is refused by what reads it.
    for (url, location) in urls.filter_map(|url| Some((url, Location::parse(fixed(url)).ok()?))) {
        named.entry(location.root().to_owned()).or_insert_with(|| (url.to_owned(), location));
    }
    named
}

/// What settings name that may be in a bucket.
fn configured(config: &Config) -> impl Iterator<Item = &str> {
    let texts = config.data.urls().map(|(_, url)| url.as_str());
    texts.chain([config.settings.checkpoint.dir.as_str()])
}

/// A pattern up to the folder in which it begins to differ.
fn fixed(url: &str) -> &str {
    match url.find('*') {
        Some(at) => &url[..=url[..at].rfind('/').unwrap_or(at - 1)],
        None => url,
    }
}

#[cfg(test)]
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
