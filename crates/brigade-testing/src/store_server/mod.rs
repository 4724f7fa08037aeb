//! Servers of others for S3 and Google Cloud Storage, each behind a proxy that can be faulty.

mod process;
mod s3;

use std::path::PathBuf;
use std::process::Command;

use crate::object_server::{Answer, ObjectServer, Upstream};
use process::Process;
use s3::Keys;

/// Says which Python has the servers; `cargo xtask test-stores` sets it.
pub const STORES_PYTHON: &str = "BRIGADE_STORES_PYTHON";

/// A bucket with all rights.
pub const BUCKET: &str = "brigade-runs";

/// A bucket that may be listed and read, but not written.
pub const READ_ONLY: &str = "brigade-read-only";

/// A bucket without any right.
pub const FORBIDDEN: &str = "brigade-forbidden";

/// The name of a bucket that is not there.
pub const ABSENT: &str = "brigade-absent";

/// The file of Google's credentials.
const ACCOUNT: &str = "account.json";

/// A protocol of object stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// S3, by `moto`, which checks signatures and rights.
    S3,
    /// Google Cloud Storage, by `fake-gcs-server`, which checks neither. Its buckets have no uploads in parts.
    Gcs,
}

impl Protocol {
    /// Both.
    pub const ALL: [Self; 2] = [Self::S3, Self::Gcs];
}

/// A running server with four names of buckets, of which one is not there. It ends when this is dropped.
pub struct StoreServer {
    protocol: Protocol,
    proxy: ObjectServer,
    upstream: Upstream,
    keys: Keys,
    /// Of its credentials, on disk.
    folder: tempfile::TempDir,
    _process: Process,
}

impl StoreServer {
    /// Starts a server on a free port, with these objects by bucket and name.
    ///
    /// # Panics
    /// If it does not start, or without [`STORES_PYTHON`].
    pub fn start(protocol: Protocol, objects: &[(&str, &str, &[u8])]) -> Self {
        let python = std::env::var_os(STORES_PYTHON).map(PathBuf::from);
        let python =
            python.unwrap_or_else(|| panic!("{STORES_PYTHON} is not set; run `cargo xtask test-stores`"));
        let folder = tempfile::tempdir().expect("a temporary folder");
        let program = match protocol {
            Protocol::S3 => python,
            Protocol::Gcs => process::emulator(&python),
        };
        let (process, address) = Process::start(|port| {
            let mut command = Command::new(&program);
            let port = port.to_string();
            match protocol {
                Protocol::S3 => command.args(["-m", "moto.server", "-H", "127.0.0.1", "-p", &port]),
                Protocol::Gcs => command
                    .args(["-scheme", "http", "-backend", "memory", "-port", &port])
                    .args(["-host", "127.0.0.1", "-log-level", "error"]),
            };
            command
        });
        let upstream = match protocol {
            Protocol::S3 => Upstream::s3(address),
            Protocol::Gcs => Upstream::gcs(address),
        };
        for bucket in [BUCKET, READ_ONLY, FORBIDDEN] {
            let made = match protocol {
                Protocol::S3 => upstream.ask("PUT", &format!("/{bucket}"), &[], &[]),
                Protocol::Gcs => {
                    let body = format!("{{\"name\":\"{bucket}\"}}");
                    let json = [("content-type", "application/json")];
                    upstream.ask("POST", "/storage/v1/b?project=tests", &json, body.as_bytes())
                }
            };
            succeeded("making a bucket", made);
        }
        let keys = match protocol {
            Protocol::S3 => s3::make_user(&upstream),
            Protocol::Gcs => {
                Keys { id: "an-id-of-a-key".into(), secret: "a-key-that-is-shown-nowhere".into() }
            }
        };
        let proxy = ObjectServer::before(upstream).expect("a port for the proxy");
        let account = format!(
            "{{\"type\":\"service_account\",\"private_key\":\"{}\",\"private_key_id\":\"{}\",\
             \"client_email\":\"tests@example.com\",\"disable_oauth\":true,\"gcs_base_url\":\"{}\"}}",
            keys.secret,
            keys.id,
            proxy.url("").trim_end_matches('/')
        );
        std::fs::write(folder.path().join(ACCOUNT), account).expect("a file in a temporary folder");
        let server = Self { protocol, proxy, upstream, keys, folder, _process: process };
        server.unchecked(|| {
            objects.iter().for_each(|(bucket, name, content)| server.write(bucket, name, content))
        });
        server
    }

    /// What is between a client and the server.
    pub fn proxy(&self) -> &ObjectServer {
        &self.proxy
    }

    /// The URL of an object or a prefix.
    pub fn url(&self, bucket: &str, name: &str) -> String {
        let scheme = match self.protocol {
            Protocol::S3 => "s3",
            Protocol::Gcs => "gs",
        };
        format!("{scheme}://{bucket}/{name}")
    }

    /// The environment in which a client finds the server.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let url = self.proxy.url("");
        let url = url.trim_end_matches('/');
        match self.protocol {
            Protocol::S3 => vec![
                ("AWS_ENDPOINT", url.into()),
                ("AWS_ALLOW_HTTP", "true".into()),
                ("AWS_REGION", "us-east-1".into()),
                ("AWS_ACCESS_KEY_ID", self.keys.id.clone()),
                ("AWS_SECRET_ACCESS_KEY", self.keys.secret.clone()),
            ],
            Protocol::Gcs => {
                let account = self.folder.path().join(ACCOUNT);
                vec![
                    ("GOOGLE_SERVICE_ACCOUNT", account.display().to_string()),
                    ("GOOGLE_ALLOW_HTTP", "true".into()),
                ]
            }
        }
    }

    /// Puts [`Self::environment`] into that of this process.
    ///
    /// # Safety
    /// No other thread may use the environment meanwhile, so the caller is the only test of its process.
    pub unsafe fn enter(&self) {
        for (name, value) in self.environment() {
            // SAFETY: the caller says so.
            unsafe { std::env::set_var(name, value) };
        }
    }

    /// What must appear nowhere: in no message, no log, no file and no object.
    pub fn secrets(&self) -> [&str; 2] {
        [&self.keys.id, &self.keys.secret]
    }

    /// Adds or replaces an object, while no client asks for anything.
    pub fn put(&self, bucket: &str, name: &str, content: &[u8]) {
        self.unchecked(|| self.write(bucket, name, content));
    }

    /// All objects of a bucket, while no client asks for anything.
    pub fn objects(&self, bucket: &str) -> Vec<(String, Vec<u8>)> {
        let read = |target: String| {
            let host: &[(&str, &str)] = match self.protocol {
                Protocol::S3 => &[s3::UNCHECKED],
                Protocol::Gcs => &[("host", "storage.googleapis.com")],
            };
            succeeded("reading", self.upstream.ask("GET", &target, host, &[])).content
        };
        self.unchecked(|| {
            let list = String::from_utf8_lossy(&read(format!("/{bucket}?list-type=2"))).into_owned();
            assert!(!list.contains("<IsTruncated>true"), "{list}");
            let names = list.split("<Key>").skip(1).filter_map(|rest| rest.split("</Key>").next());
            names.map(|name| (name.to_owned(), read(format!("/{bucket}/{name}")))).collect()
        })
    }

    /// Does something for which the server checks no signature.
    fn unchecked<T>(&self, work: impl FnOnce() -> T) -> T {
        match self.protocol {
            Protocol::S3 => s3::unchecked(&self.upstream, work),
            Protocol::Gcs => work(),
        }
    }

    fn write(&self, bucket: &str, name: &str, content: &[u8]) {
        let answer = match self.protocol {
            Protocol::S3 => self.upstream.ask("PUT", &format!("/{bucket}/{name}"), &[s3::UNCHECKED], content),
            Protocol::Gcs => {
                let name = name.replace('/', "%2F");
                let target = format!("/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}");
                self.upstream.ask("POST", &target, &[], content)
            }
        };
        succeeded("writing", answer);
    }
}

fn succeeded(what: &str, answer: std::io::Result<Answer>) -> Answer {
    let answer = answer.unwrap_or_else(|error| panic!("{what}: {error}"));
    let text = || String::from_utf8_lossy(&answer.content).into_owned();
    assert!((200..300).contains(&answer.status), "{what}: {} {}", answer.status, text());
    answer
}
