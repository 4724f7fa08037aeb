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

/// The bucket and the path of `gs://bucket/path` or `s3://bucket/path`; `None` for anything but a bucket's
/// URL.
pub(crate) fn bucket_path<'a>(option: &str, given: &'a str) -> Result<Option<(&'a str, &'a str)>> {
    let Some((scheme, rest)) = given.split_once("://") else { return Ok(None) };
    let wrong = |allowed: &str| Err(Error::value(option, given, allowed));
    if !matches!(scheme, "gs" | "s3") {
        return wrong("it must be a path, gs://BUCKET/PATH or s3://BUCKET/PATH");
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
        return wrong("a path without empty parts must follow the bucket's name, such as gs://BUCKET/runs/a");
    }
    if path.contains(['?', '#', '%']) {
        return wrong("its path must have no ?, # and %, which mean something else in a URL than in a path");
    }
    Ok(Some((bucket, path)))
}

/// That an image is needed, where none was given.
pub(crate) fn needed_image(given: Option<&str>) -> Option<Error> {
    let why = "the nodes start a container; cargo xtask image makes one to push";
    given.is_none().then(|| Error::Missing { option: "--image".into(), why: why.into() })
}

/// Checks the reference of an image, `[HOST[:PORT]/]NAME[:TAG][@DIGEST]`.
pub(crate) fn image(given: Option<&str>) -> Result<&str> {
    if let Some(error) = needed_image(given) {
        return Err(error);
    }
    let given = given.unwrap_or_default();
    if is_image(given) {
        return Ok(given);
    }
    Err(Error::value(
        "--image",
        given,
        "it must be [HOST[:PORT]/]NAME[:TAG][@sha256:DIGEST] in lowercase, as \
         europe-docker.pkg.dev/project/repository/brigade:1, with a tag of at most 128 letters, digits, _, . and -, and a digest of 64 \
         hexadecimal digits",
    ))
}

fn is_image(given: &str) -> bool {
    let (path, digest) = cut(given, '@');
    let mut parts: Vec<&str> = path.split('/').collect();
    let (name, tag) = cut(parts.pop().unwrap_or_default(), ':');
    let mut folders = parts.into_iter();
    // The first may be a host with a port.
    let host = folders.next();
    let is_host = |host: &str| {
        let (name, port) = cut(host, ':');
        is_part(host) || (is_domain(&name.to_ascii_lowercase()) && port.is_none_or(is_port))
    };
    host.is_none_or(is_host)
        && folders.all(is_part)
        && is_part(name)
        && tag.is_none_or(is_tag)
        && digest.is_none_or(is_digest)
}

/// Whether all is lowercase letters and digits, with one ., one or two _, or any number of - between them.
fn is_part(part: &str) -> bool {
    let is_plain = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    let is_separator = |between: &str| {
        matches!(between, "" | "." | "_" | "__") || between.chars().all(|letter| letter == '-')
    };
    part.starts_with(is_plain) && part.ends_with(is_plain) && part.split(is_plain).all(is_separator)
}

fn is_domain(name: &str) -> bool {
    let is_plain = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    let inner = |letter: char| is_plain(letter) || letter == '-';
    let is_label =
        |label: &str| label.starts_with(is_plain) && label.ends_with(is_plain) && label.chars().all(inner);
    name.split('.').all(is_label)
}

fn is_port(port: &str) -> bool {
    port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0)
}

fn is_tag(tag: &str) -> bool {
    let inner = |letter: char| letter.is_ascii_alphanumeric() || "_.-".contains(letter);
    (1..=128).contains(&tag.len()) && tag.chars().all(inner) && !tag.starts_with(['.', '-'])
}

fn is_digest(digest: &str) -> bool {
    let is_hex = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f');
    digest.strip_prefix("sha256:").is_some_and(|hex| hex.len() == 64 && hex.bytes().all(is_hex))
}

/// What stands before and after the first of these letters.
fn cut(text: &str, at: char) -> (&str, Option<&str>) {
    text.split_once(at).map_or((text, None), |(before, after)| (before, Some(after)))
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
            "gs://bucket/a b?c#d%20",
            "gs://bucket/a%20b",
        ] {
            assert!(bucket_path("--out", wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn images() {
        let digest = format!("ghcr.io/a/b@sha256:{}", "0".repeat(64));
        for right in [
            "brigade",
            "brigade:1",
            "localhost:5000/a/b:T.1",
            "Host/a:_b",
            "a__b/c--d.e_f",
            "europe-docker.pkg.dev/p/r/b",
            &digest,
        ] {
            image(Some(right)).unwrap();
        }
        let letters = format!("a@sha256:{}", "g".repeat(64));
        let long = format!("a:{}", "1".repeat(129));
        let tags =
            ["a:", "a:b c", "a:.1", "a:-1", "a:1:2", "a:ä", &long, "a:1@", &letters, "a@sha256:0", "a@b@c"];
        let names =
            ["", "a b", "ghcr.io/A/b", "a//b", "/a", "a/", "h:x/a", "h:/a", "h:+1/a", "h:65536/a", ":1/a"];
        let parts = ["gcr.io/p/-a", "gcr.io/p/a..b", "a-", "a/_b/c", "a___b", "a-.b/c:1/d", "a_b:80/c"];
        for wrong in tags.into_iter().chain(names).chain(parts) {
            let message = image(Some(wrong)).unwrap_err().to_string();
            assert!(message.contains("[HOST[:PORT]/]NAME[:TAG][@sha256:DIGEST]"), "{message}");
        }
        assert!(image(None).unwrap_err().to_string().starts_with("--image is needed"));
    }
}
