//! What the server answers: objects and lists.

use super::Request;
use super::memory::Objects;

/// What a server says.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) content: Vec<u8>,
    /// What it says of the content's length, if that is not here: the answer to `HEAD`.
    pub(super) length: Option<u64>,
}

impl Answer {
    /// A header, by its name in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// A status with a text.
    pub(crate) fn text(status: u16, text: &str) -> Self {
        Self { status, headers: Vec::new(), content: text.as_bytes().to_vec(), length: None }
    }
}

/// `ListObjectsV2`, on one page.
pub(super) fn list(objects: &Objects, request: &Request) -> Answer {
    let parameter = |name: &str| {
        let pairs = request.query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.filter(|(key, _)| *key == name).map(|(_, value)| decoded(value)).next().unwrap_or_default()
    };
    let (prefix, delimiter) = (parameter("prefix"), parameter("delimiter"));
    let bucket = format!("{}/", request.name.trim_end_matches('/'));
    let (mut contents, mut folders) = (String::new(), Vec::new());
    for (name, stored) in objects {
        let Some(key) = name.strip_prefix(&bucket).filter(|key| key.starts_with(&prefix)) else { continue };
        let rest = &key[prefix.len()..];
        if let Some((folder, _)) = rest.split_once('/').filter(|_| delimiter == "/") {
            folders.push(format!("{prefix}{folder}/"));
            continue;
        }
        contents.push_str(&format!(
            "<Contents><Key>{key}</Key><LastModified>{}</LastModified><ETag>{}</ETag><Size>{}</Size></Contents>",
            date(stored.modified, "%Y-%m-%dT%H:%M:%S.000Z"),
            stored.tag.replace('"', "&quot;"),
            stored.content.len()
        ));
    }
    folders.dedup();
    for folder in folders {
        contents.push_str(&format!("<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>"));
    }
    Answer::text(
        200,
        &format!("<ListBucketResult><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>"),
    )
}

/// Text without percent-encoding.
pub(super) fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits =
            after.get(..2).filter(|_| *first == b'%').and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A Unix time as text.
pub(super) fn date(time: i64, format: &str) -> String {
    chrono::DateTime::from_timestamp(time, 0).unwrap_or_default().format(format).to_string()
}
