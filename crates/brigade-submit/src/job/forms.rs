//! Names of jobs, buckets and images.

use crate::error::{Error, Result};

/// A job's name after the folder of its results: lowercase letters, digits and `-`.
pub fn job_name(out: &str) -> String {
    let last = out.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let letters = last.chars().map(|letter| match letter.to_ascii_lowercase() {
        letter if letter.is_ascii_alphanumeric() => letter,
        _ => '-',
    });
    let name: String = letters.collect();
    let name = name.trim_matches('-');
    match name.starts_with(|first: char| first.is_ascii_lowercase()) {
        true => name.to_owned(),
        false => format!("run-{name}").trim_end_matches('-').to_owned(),
    }
}

/// Checks a name that becomes part of host names; `most` is its greatest length.
pub(crate) fn dns_label(option: &str, name: &str, most: usize) -> Result<()> {
    let inner = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
    let is_label = name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.chars().all(inner)
        && !name.ends_with('-');
    if is_label && name.len() <= most {
        return Ok(());
    }
    let allowed = format!(
        "Kubernetes requires a lowercase letter first, then lowercase letters, digits and -, no - at the end, and at most {most} characters (its \
        pods add to the name)"
    );
    Err(Error::value(option, name, allowed))
}

/// The bucket and the path of `gs://bucket/path` or `s3://bucket/path`; `None` for anything but a bucket's
/// URL.
pub(crate) fn bucket_path<'a>(option: &str, given: &'a str) -> Result<Option<(&'a str, &'a str)>> {
    let Some((scheme, rest)) = given.split_once("://") else { return Ok(None) };
    let wrong = |allowed: &str| Err(Error::value(option, given, allowed));
    if !matches!(scheme, "gs" | "s3") {
        return wrong("it must be a folder, gs://BUCKET/PATH or s3://BUCKET/PATH");
    }
    let (bucket, path) = rest.split_once('/').unwrap_or((rest, ""));
    let inner =
        |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || "-._".contains(letter);
    let ends = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    let is_name = (3..=222).contains(&bucket.len())
        && bucket.chars().all(inner)
        && bucket.starts_with(ends)
        && bucket.ends_with(ends);
    if !is_name || (scheme == "s3" && (bucket.len() > 63 || bucket.contains('_'))) {
        return wrong(
            "a bucket's name has 3 to 63 lowercase letters, digits, - and ., with a letter or digit at both \
            ends",
        );
    }
    let path = path.trim_end_matches('/');
    if path.is_empty() || path.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return wrong(
            "a path in the bucket is needed after its name, as in gs://BUCKET/runs/a, with no empty part in it",
        );
    }
    Ok(Some((bucket, path)))
}

/// Checks the reference of an image, `[HOST[:PORT]/]NAME[:TAG][@DIGEST]`.
pub(crate) fn image(given: Option<&str>) -> Result<&str> {
    let Some(given) = given else {
        let why = "the nodes start a container; cargo xtask image makes one to push";
        return Err(Error::Missing { option: "--image".into(), why: why.into() });
    };
    let (name, digest) = given.split_once('@').map_or((given, None), |(name, digest)| (name, Some(digest)));
    let last = name.rsplit('/').next().unwrap_or_default();
    let name = last.split_once(':').map_or(name, |(bare, _)| &name[..name.len() - (last.len() - bare.len())]);
    let part =
        |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || "-._".contains(letter);
    let mut parts = name.split('/');
    // The first may be a host with a port.
    let host = parts.next().unwrap_or_default();
    let is_part = |text: &str| !text.is_empty() && text.chars().all(part);
    let is_host =
        !host.is_empty() && host.chars().all(|letter| part(letter.to_ascii_lowercase()) || letter == ':');
    let is_digest =
        digest.is_none_or(|digest| digest.strip_prefix("sha256:").is_some_and(|hex| hex.len() == 64));
    if is_host && parts.all(is_part) && is_digest {
        return Ok(given);
    }
    Err(Error::value(
        "--image",
        given,
        "it must be lowercase, as in europe-docker.pkg.dev/project/repository/brigade:1",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (out, name) in
            [("runs/Llama_7B", "llama-7b"), ("gs://b/x/", "x"), ("/gcs/b/7b", "run-7b"), ("/", "run")]
        {
            assert_eq!(job_name(out), name);
            dns_label("--name", name, 20).unwrap();
        }
        for name in ["", "A", "a_b", "a-", "-a", "7b", "ä", &"a".repeat(21)] {
            let message = dns_label("--name", name, 20).unwrap_err().to_string();
            assert!(
                message.starts_with(&format!("--name {name} is not possible: Kubernetes requires")),
                "{message}"
            );
        }
    }

    #[test]
    fn buckets() {
        assert_eq!(bucket_path("--out", "gs://bu.ck-et/runs/a/").unwrap(), Some(("bu.ck-et", "runs/a")));
        assert_eq!(bucket_path("--out", "runs/a").unwrap(), None);
        for wrong in [
            "gs://",
            "gs://ab/x",
            "gs://Bucket/x",
            "gs://bucket",
            "gs://bucket/",
            "s3://a_b_c/x",
            "gs://b b/x",
            "http://bucket/x",
            "gs://bucket/a//b",
            "gs://bucket/../x",
        ] {
            assert!(bucket_path("--out", wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn images() {
        let digest = format!("ghcr.io/a/b@sha256:{}", "0".repeat(64));
        for right in
            ["brigade", "brigade:1", "localhost:5000/a/b:T.1", "europe-docker.pkg.dev/p/r/b", &digest]
        {
            image(Some(right)).unwrap();
        }
        for wrong in ["", "a b", "ghcr.io/A/b", "a//b", "a@sha256:0"] {
            assert!(image(Some(wrong)).is_err(), "{wrong}");
        }
        assert!(image(None).unwrap_err().to_string().starts_with("--image is needed"));
    }
}
