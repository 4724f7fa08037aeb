//! URLs of objects and prefixes.

use std::fmt;

use object_store::path::Path;
use url::Url;

use crate::{Error, Result};

/// What a store is spoken to by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// `s3://bucket/…`
    S3,
    /// `gs://bucket/…`
    Gs,
    /// `https://host/…` or `http://host/…`: single files, which can only be read.
    Http,
    /// `file:///folder/…`
    File,
}

/// A URL without anything secret.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Location {
    scheme: Scheme,
    url: Url,
    path: Path,
}

impl Location {
    /// Checks a URL.
    ///
    /// # Errors
    /// [`Error::Url`] for another scheme, no bucket or host, a user or password, a query (with which URLs are signed) or a fragment.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = |message: String| Error::Url { url: without_secrets(text), message };
        let url: Url = text.parse().map_err(|error| wrong(format!("it is not a URL: {error}")))?;
        let scheme = match url.scheme() {
            "s3" => Scheme::S3,
            "gs" => Scheme::Gs,
            "http" | "https" => Scheme::Http,
            "file" => Scheme::File,
            other => {
                let known = "gs://, s3:// and https://";
                return Err(wrong(format!("the scheme {other:?} is unknown; it must be one of {known}")));
            }
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err(wrong(format!("it has a user or a password, {SECRETS}")));
        }
        if url.query().is_some() {
            let encoded = "a ? that is part of a name is written %3F";
            return Err(wrong(format!("it has a query, which signed URLs use, {SECRETS}; {encoded}")));
        }
        if url.fragment().is_some() {
            return Err(wrong("it has a fragment; a # that is part of a name is written %23".into()));
        }
        let host = url.host_str().unwrap_or_default();
        match scheme {
            Scheme::File if !host.is_empty() => return Err(wrong("it is not on this host".into())),
            Scheme::File => {}
            _ if host.is_empty() => return Err(wrong("it names no bucket or host".into())),
            _ => {}
        }
        let path = Path::from_url_path(url.path()).map_err(|error| wrong(error.to_string()))?;
        Ok(Self { scheme, url, path })
    }

    /// What it is spoken to by.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The name of the object or prefix in its bucket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The URL up to the bucket or host: `s3://bucket`.
    pub fn root(&self) -> &str {
        &self.url[..url::Position::BeforePath]
    }

    /// Whether it ends in a slash, and so can only be a prefix.
    pub(crate) fn is_prefix(&self) -> bool {
        self.path.as_ref().is_empty() || self.url.path().ends_with('/')
    }

    pub(crate) fn as_url(&self) -> &Url {
        &self.url
    }
}

const SECRETS: &str =
    "and would be written into configurations and logs; credentials come from the environment";

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_ref() {
            "" => write!(f, "{}", self.root()),
            path => write!(f, "{}/{path}", self.root()),
        }
    }
}

/// The URL without what may be secret in it.
fn without_secrets(text: &str) -> String {
    let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
    let end = rest.find(['?', '#']).unwrap_or(rest.len());
    let (shown, more) = rest.split_at(end);
    let (authority, path) = shown.split_at(shown.find('/').unwrap_or(shown.len()));
    let host = authority.rsplit('@').next().unwrap_or_default();
    let hidden = if more.is_empty() { "" } else { "?…" };
    format!("{scheme}://{host}{path}{hidden}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_with_secrets_are_refused_and_not_repeated() {
        for given in [
            "https://user:hunter2@host/a.txt",
            "https://hunter2@host/a.txt",
            "s3://bucket/a.jsonl?X-Amz-Signature=hunter2",
            "gs://hunter2:hunter2@bucket/x",
            "https://host/a.txt#hunter2",
            "ftp://user:hunter2@host/a",
            "https://user:hunter2@/a?hunter2",
        ] {
            let error = Location::parse(given).unwrap_err().to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
        let error = Location::parse("https://user:hunter2@host/a.txt").unwrap_err().to_string();
        assert!(error.starts_with("https://host/a.txt: it has a user or a password"), "{error}");
    }

    #[test]
    fn what_is_no_url_of_a_store_is_refused() {
        for (given, said) in [
            ("ftp://host/a", "the scheme \"ftp\" is unknown; it must be one of gs://, s3:// and https://"),
            ("s3://", "bucket"),
            ("s3:///a", "bucket"),
            ("file://host/a", "it is not on this host"),
            ("s3://bucket/a//b", "empty"),
        ] {
            let error = Location::parse(given).unwrap_err().to_string();
            assert!(error.contains(said), "{given}: {error}");
        }
    }

    #[test]
    fn names_are_decoded() {
        let location = Location::parse("s3://bucket/a%20b/c%23d.txt").unwrap();
        assert_eq!((location.root(), location.path().as_ref()), ("s3://bucket", "a b/c#d.txt"));
        assert_eq!(location.to_string(), "s3://bucket/a b/c#d.txt");
        assert_eq!(Location::parse("file:///a/b").unwrap().to_string(), "file:///a/b");
        assert_eq!(Location::parse("http://127.0.0.1:80/a/").unwrap().root(), "http://127.0.0.1");
    }
}
