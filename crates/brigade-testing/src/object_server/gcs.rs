//! Google Cloud Storage's XML API, before an emulator that has all of the JSON API and a part of the other.
//!
//! `fake-gcs-server` lists and reads objects by the XML API, and writes and deletes them by the JSON API alone. It heeds the condition of a
//! write in uploads of the kind `multipart`, of one request with the object's properties.

use std::io;

use super::Request;
use super::answer::Answer;
use super::upstream::Upstream;

/// The host by which the emulator tells the XML API.
const HOST: (&str, &str) = ("host", "storage.googleapis.com");

const BOUNDARY: &str = "a-line-that-is-in-no-object-5d8f2c";

pub(super) fn forward(upstream: &Upstream, request: &Request) -> io::Result<Answer> {
    let path = request.target.split('?').next().unwrap_or_default();
    let (bucket, object) = path.trim_start_matches('/').split_once('/').unwrap_or_default();
    match request.method.as_str() {
        "PUT" if request.query.is_empty() => write(upstream, bucket, object, request),
        "DELETE" if request.query.is_empty() => {
            upstream.ask("DELETE", &format!("/storage/v1/b/{bucket}/o/{object}"), &[], &[])
        }
        "GET" | "HEAD" => {
            let mut there = request.clone();
            there.headers.insert(HOST.0.into(), HOST.1.into());
            upstream.as_it_is(&there)
        }
        _ => Ok(Answer::text(501, "the emulator has no uploads in parts")),
    }
}

/// An object's names are percent-encoded.
fn write(upstream: &Upstream, bucket: &str, object: &str, request: &Request) -> io::Result<Answer> {
    let condition = match request.header("x-goog-if-generation-match") {
        Some(generation) => format!("&ifGenerationMatch={generation}"),
        None => String::new(),
    };
    let target = format!("/upload/storage/v1/b/{bucket}/o?uploadType=multipart&name={object}{condition}");
    let before = format!(
        "--{BOUNDARY}\r\nContent-Type: application/json\r\n\r\n{{}}\r\n--{BOUNDARY}\r\nContent-Type: {}\r\n\r\n",
        request.header("content-type").unwrap_or("application/octet-stream")
    );
    let after = format!("\r\n--{BOUNDARY}--\r\n");
    let body = [before.as_bytes(), &request.body, after.as_bytes()].concat();
    let kind = format!("multipart/related; boundary={BOUNDARY}");
    let mut answer = upstream.ask("POST", &target, &[("content-type", &kind)], &body)?;
    if answer.status == 200 {
        let json = String::from_utf8_lossy(&answer.content).into_owned();
        let field = |name: &str| {
            let (_, rest) = json.split_once(&format!("\"{name}\":\""))?;
            Some(rest.split('"').next().unwrap_or_default().to_owned())
        };
        // The emulator's tag of an object; the first `etag` may be that of its access list.
        let tag = field("md5Hash").unwrap_or_default();
        answer.headers.push(("ETag".into(), format!("\"{tag}\"")));
        answer.headers.extend(field("generation").map(|value| ("x-goog-generation".into(), value)));
        answer.content.clear();
    }
    Ok(answer)
}
