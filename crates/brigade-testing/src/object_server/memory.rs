//! Objects in memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use brigade_random::keyed_bytes;

use super::answer::{Answer, date, decoded};
use super::{Inner, Request, locked};

#[derive(Clone)]
pub(super) struct Stored {
    pub(super) content: Arc<Vec<u8>>,
    pub(super) tag: String,
    pub(super) modified: i64,
}

pub(super) type Objects = BTreeMap<String, Stored>;

impl Inner {
    fn now(&self) -> i64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs() as i64);
        now + *locked(&self.ahead)
    }

    pub(super) fn stored(&self, content: Vec<u8>) -> Stored {
        // A hash, and the length: tags of different contents differ.
        let hash = keyed_bytes(0, &content);
        Stored {
            tag: format!("\"{hash:016x}-{}\"", content.len()),
            content: Arc::new(content),
            modified: self.now(),
        }
    }

    pub(super) fn in_memory(&self, request: &Request) -> Answer {
        let mut objects = locked(&self.objects);
        let found = objects.get(&request.name).cloned();
        match request.method.as_str() {
            "GET" if request.query.contains("list-type=2") => list(&objects, request),
            "GET" | "HEAD" => {
                found.map_or_else(|| Answer::text(404, "NoSuchKey"), |found| self.content(&found, request))
            }
            "PUT" if request.headers.contains_key("if-none-match") && found.is_some() => {
                Answer::text(412, "PreconditionFailed")
            }
            "PUT" if request.headers.contains_key("x-amz-copy-source") => {
                let source = decoded(&request.headers["x-amz-copy-source"]);
                let Some(source) = objects.get(source.trim_start_matches('/')).cloned() else {
                    return Answer::text(404, "NoSuchKey");
                };
                objects.insert(request.name.clone(), Stored { modified: self.now(), ..source });
                Answer::text(200, "<CopyObjectResult/>")
            }
            "PUT" => {
                let stored = self.stored(request.body.clone());
                let headers = vec![("ETag".to_owned(), stored.tag.clone())];
                objects.insert(request.name.clone(), stored);
                Answer { headers, ..Answer::text(200, "") }
            }
            "DELETE" => {
                objects.remove(&request.name);
                Answer::text(204, "")
            }
            "POST" if request.query == "delete" => {
                let body = String::from_utf8_lossy(&request.body).into_owned();
                let mut removed = String::new();
                for key in body.split("<Key>").skip(1).filter_map(|rest| rest.split("</Key>").next()) {
                    objects.remove(&format!("{}/{key}", request.name.trim_end_matches('/')));
                    removed.push_str(&format!("<Deleted><Key>{key}</Key></Deleted>"));
                }
                Answer::text(200, &format!("<DeleteResult>{removed}</DeleteResult>"))
            }
            _ => Answer::text(405, "MethodNotAllowed"),
        }
    }

    fn content(&self, found: &Stored, request: &Request) -> Answer {
        if request.headers.get("if-match").is_some_and(|tag| *tag != found.tag) {
            return Answer::text(412, "PreconditionFailed");
        }
        let mut headers = vec![("Accept-Ranges".to_owned(), "bytes".to_owned())];
        if self.has_tags.load(Ordering::Relaxed) {
            headers.push(("ETag".to_owned(), found.tag.clone()));
            headers.push(("Last-Modified".to_owned(), date(found.modified, "%a, %d %b %Y %H:%M:%S GMT")));
        }
        let size = found.content.len();
        let range =
            request.headers.get("range").and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
        let Some((first, last)) = range else {
            return Answer { status: 200, headers, content: found.content.to_vec(), length: None };
        };
        let first = first.parse().unwrap_or(0);
        let end = last.parse::<usize>().map_or(size, |last| size.min(last + 1));
        if first >= end {
            return Answer::text(416, "InvalidRange");
        }
        headers.push(("Content-Range".to_owned(), format!("bytes {first}-{}/{size}", end - 1)));
        Answer { status: 206, headers, content: found.content[first..end].to_vec(), length: None }
    }
}

/// `ListObjectsV2`, on one page.
fn list(objects: &Objects, request: &Request) -> Answer {
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
