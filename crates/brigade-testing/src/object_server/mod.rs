//! A server of objects on the loopback device, which can be unwell.

mod answer;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use answer::{Answer, date, decoded, list};

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
}

/// Files by name, over HTTP/1.1: `GET` and `HEAD` with ranges and `If-Match`; and as far as tests need it the protocol of S3, where the first part
/// of a name is the bucket: `PUT` (also `If-None-Match: *`), `DELETE`, lists. Signatures are not checked.
pub struct ObjectServer {
    inner: Arc<Inner>,
    port: u16,
}

struct Inner {
    objects: Mutex<BTreeMap<String, Stored>>,
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

#[derive(Clone)]
struct Stored {
    content: Arc<Vec<u8>>,
    tag: String,
    modified: i64,
}

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
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let inner = Arc::new(Inner {
            objects: Mutex::default(),
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

impl Inner {
    fn now(&self) -> i64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs() as i64);
        now + *locked(&self.ahead)
    }

    fn stored(&self, content: Vec<u8>) -> Stored {
        // FNV-1a, and the length: tags of different contents differ.
        let hash = content.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
        });
        Stored {
            tag: format!("\"{hash:016x}-{}\"", content.len()),
            content: Arc::new(content),
            modified: self.now(),
        }
    }

    fn serve(&self, stream: TcpStream) -> std::io::Result<()> {
        stream.set_nodelay(true)?;
        let mut reader = BufReader::new(stream.try_clone()?);
        while let Some(request) = self.read(&mut reader)? {
            let fault = (locked(&self.plan))(&request);
            let range = request.headers.get("range").cloned().unwrap_or_default();
            locked(&self.log)
                .push(format!("{} {} {range}", request.method, request.name).trim_end().to_owned());
            let answer = match fault {
                Fault::Status(status) => Answer::text(status, "the test says so"),
                _ => self.answer(&request),
            };
            if !self.write(&stream, &request, answer, fault)? {
                return Ok(());
            }
        }
        Ok(())
    }

    fn read(&self, reader: &mut BufReader<TcpStream>) -> std::io::Result<Option<Request>> {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let mut words = line.split_whitespace();
        let method = words.next().unwrap_or_default().to_owned();
        let target = words.next().unwrap_or_default();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let (name, query) = (decoded(path.trim_start_matches('/')), query.to_owned());
        let mut headers = BTreeMap::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            match line.trim_end().split_once(':') {
                Some((key, value)) => drop(headers.insert(key.to_ascii_lowercase(), value.trim().to_owned())),
                None => break,
            }
        }
        let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        Ok(Some(Request { number, method, name, query, headers, body }))
    }

    fn answer(&self, request: &Request) -> Answer {
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
            "PUT" => {
                let stored = self.stored(request.body.clone());
                let headers = vec![("ETag", stored.tag.clone())];
                objects.insert(request.name.clone(), stored);
                Answer { status: 200, headers, content: Vec::new() }
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
        let mut headers = vec![("Accept-Ranges", "bytes".to_owned())];
        if self.has_tags.load(Ordering::Relaxed) {
            headers.push(("ETag", found.tag.clone()));
            headers.push(("Last-Modified", date(found.modified, "%a, %d %b %Y %H:%M:%S GMT")));
        }
        let size = found.content.len();
        let range =
            request.headers.get("range").and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
        let Some((first, last)) = range else {
            return Answer { status: 200, headers, content: found.content.to_vec() };
        };
        let first = first.parse().unwrap_or(0);
        let end = last.parse::<usize>().map_or(size, |last| size.min(last + 1));
        if first >= end {
            return Answer::text(416, "InvalidRange");
        }
        headers.push(("Content-Range", format!("bytes {first}-{}/{size}", end - 1)));
        Answer { status: 206, headers, content: found.content[first..end].to_vec() }
    }

    /// Whether the connection can be used again.
    fn write(
        &self,
        mut stream: &TcpStream,
        request: &Request,
        answer: Answer,
        fault: Fault,
    ) -> std::io::Result<bool> {
        let Answer { status, headers, content } = answer;
        let mut head = format!("HTTP/1.1 {status} Status\r\nContent-Length: {}\r\n", content.len());
        headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
        stream.write_all(format!("{head}\r\n").as_bytes())?;
        if request.method == "HEAD" {
            return Ok(true);
        }
        if !matches!(fault, Fault::Cut(_) | Fault::Silent(_)) {
            self.sent.fetch_add(content.len(), Ordering::Relaxed);
        }
        match fault {
            Fault::Cut(bytes) | Fault::Silent(bytes) => {
                let some = &content[..bytes.min(content.len())];
                self.sent.fetch_add(some.len(), Ordering::Relaxed);
                stream.write_all(some)?;
                if matches!(fault, Fault::Silent(_)) {
                    // Until the client gives up.
                    let _ = stream.read(&mut [0]);
                }
                let _ = stream.shutdown(std::net::Shutdown::Both);
                return Ok(false);
            }
            Fault::Slow(pause) => {
                for piece in content.chunks(16 << 10) {
                    stream.write_all(piece)?;
                    thread::sleep(Duration::from_millis(pause));
                }
            }
            Fault::None | Fault::Status(_) => stream.write_all(&content)?,
        }
        Ok(true)
    }
}
