//! A server of objects on the loopback device, which can be faulty; or a proxy before another one.

mod answer;
mod connection;
mod gcs;
mod memory;
mod upstream;

use std::collections::BTreeMap;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

pub(crate) use answer::Answer;
use memory::Objects;
pub(crate) use upstream::Upstream;

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing: it is answered.
    None,
    /// It is answered by a status, as 503.
    Status(u16),
    /// The connection is closed after this many bytes of the content.
    Cut(usize),
    /// No byte comes after this many of the content, while the connection stays open.
    Silent(usize),
    /// The content comes in pieces of 16 KiB, with a pause of this many milliseconds after each.
    Slow(u64),
    /// The content of the request is read in pieces of 16 KiB, with a pause of this many milliseconds after each.
    SlowUpload(u64),
    /// The connection is closed without an answer, and nothing is done.
    LostRequest,
    /// It is carried out, and then the connection is closed without an answer.
    LostAnswer,
}

/// Files by name, over HTTP/1.1: `GET` and `HEAD` with ranges and `If-Match`; and as far as tests need it the protocol of S3, where the first part
/// of a name is the bucket: `PUT` (also `If-None-Match: *`), `DELETE`, lists. Signatures are not checked.
pub struct ObjectServer {
    inner: Arc<Inner>,
    port: u16,
}

struct Inner {
    objects: Mutex<Objects>,
    /// What requests are passed on to, instead of the objects.
    upstream: Option<Upstream>,
    plan: Mutex<Plan>,
    requests: AtomicUsize,
    /// Bytes of contents that were sent.
    sent: AtomicUsize,
    log: Mutex<Vec<String>>,
    has_tags: AtomicBool,
    ended: AtomicBool,
    /// What the server's clock is ahead of the machine's, in seconds.
    ahead: Mutex<i64>,
}

type Plan = Box<dyn FnMut(&Request) -> Fault + Send>;

/// What a client asks for.
#[derive(Debug, Clone)]
pub struct Request {
    /// Its number, from 0.
    pub number: usize,
    /// `GET`, `HEAD`, `PUT`, …
    pub method: String,
    /// The object's name.
    pub name: String,
    query: String,
    /// Path and query as they came.
    target: String,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl Request {
    /// A header, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ObjectServer {
    /// A server without objects, on a free port. It ends when this is dropped.
    pub fn start() -> std::io::Result<Self> {
        Self::with(None)
    }

    /// A proxy before a server, whose objects are not those of the methods here.
    pub(crate) fn before(upstream: Upstream) -> std::io::Result<Self> {
        Self::with(Some(upstream))
    }

    fn with(upstream: Option<Upstream>) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let inner = Arc::new(Inner {
            objects: Mutex::default(),
            upstream,
            plan: Mutex::new(Box::new(|_| Fault::None)),
            requests: AtomicUsize::new(0),
            sent: AtomicUsize::new(0),
            log: Mutex::default(),
            has_tags: AtomicBool::new(true),
            ended: AtomicBool::new(false),
            ahead: Mutex::new(0),
        });
        let serving = Arc::clone(&inner);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if serving.ended.load(Ordering::Relaxed) {
                    return;
                }
                let inner = Arc::clone(&serving);
                // A client that goes away is no failure.
                thread::spawn(move || drop(inner.serve(stream)));
            }
        });
        Ok(Self { inner, port })
    }

    /// The URL of an object over plain HTTP.
    pub fn url(&self, name: &str) -> String {
        format!("http://127.0.0.1:{}/{name}", self.port)
    }

    /// The environment in which a client finds it as S3, with a secret that must appear nowhere.
    pub fn s3_environment(&self) -> [(&'static str, String); 5] {
        [
            ("AWS_ENDPOINT", format!("http://127.0.0.1:{}", self.port)),
            ("AWS_ALLOW_HTTP", "true".into()),
            ("AWS_REGION", "us-east-1".into()),
            ("AWS_ACCESS_KEY_ID", "AKIDTESTING".into()),
            ("AWS_SECRET_ACCESS_KEY", "a-secret-that-is-shown-nowhere".into()),
        ]
    }

    /// Adds or replaces an object.
    pub fn put(&self, name: &str, content: impl Into<Vec<u8>>) {
        let stored = self.inner.stored(content.into());
        locked(&self.inner.objects).insert(name.into(), stored);
    }

    /// The content of an object.
    pub fn get(&self, name: &str) -> Option<Vec<u8>> {
        locked(&self.inner.objects).get(name).map(|stored| stored.content.to_vec())
    }

    /// Removes an object.
    pub fn remove(&self, name: &str) {
        locked(&self.inner.objects).remove(name);
    }

    /// The names of all objects.
    pub fn names(&self) -> Vec<String> {
        locked(&self.inner.objects).keys().cloned().collect()
    }

    /// What becomes of each request from now on.
    pub fn plan(&self, plan: impl FnMut(&Request) -> Fault + Send + 'static) {
        *locked(&self.inner.plan) = Box::new(plan);
    }

    /// From now on, without ETags and times of changes.
    pub fn without_tags(&self) {
        self.inner.has_tags.store(false, Ordering::Relaxed);
    }

    /// Sets its clock, in seconds ahead of the machine's.
    pub fn set_clock_ahead(&self, seconds: i64) {
        *locked(&self.inner.ahead) = seconds;
    }

    /// How many requests have come.
    pub fn requests(&self) -> usize {
        self.inner.requests.load(Ordering::Relaxed)
    }

    /// How many bytes of contents were sent.
    pub fn sent(&self) -> usize {
        self.inner.sent.load(Ordering::Relaxed)
    }

    /// All requests so far: method, name and range.
    pub fn log(&self) -> Vec<String> {
        locked(&self.inner.log).clone()
    }
}

impl Drop for ObjectServer {
    fn drop(&mut self) {
        self.inner.ended.store(true, Ordering::Relaxed);
        drop(TcpStream::connect(("127.0.0.1", self.port)));
    }
}
