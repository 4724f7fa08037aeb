//! A small server on the loopback device that speaks the hub's API.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use serde_json::json;
use sha1::Sha1;
use sha2::{Digest, Sha256};

pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// What goes wrong with one request.
#[derive(Debug, Clone, Copy)]
pub enum Fault {
    /// The connection ends after this many bytes of the answer.
    Cut(usize),
    /// Another status.
    Status(u16),
    /// All bytes, whatever was asked for.
    WithoutRange,
    /// The bytes are others.
    Damaged,
    /// Nothing for so long.
    Silent(Duration),
}

/// A request that came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub path: String,
    pub start: usize,
    pub token: Option<String>,
}

#[derive(Default)]
pub struct State {
    /// Contents by name. Those that end in `.safetensors` are large files, kept by another server.
    pub files: BTreeMap<String, Vec<u8>>,
    /// By the end of a path, what goes wrong with the next requests.
    pub faults: Vec<(String, VecDeque<Fault>)>,
    pub requests: Vec<Request>,
    /// What it says in place of its list of files.
    pub list: Option<serde_json::Value>,
    /// The commit of the branch, where it is no longer [`COMMIT`].
    pub head: String,
    /// Who must ask.
    pub token: Option<String>,
}

pub struct Server {
    pub endpoint: String,
    state: Arc<Mutex<State>>,
}

impl Server {
    /// Starts one, with a model of these files.
    pub fn start(files: &[(&str, &[u8])]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let files = files.iter().map(|(name, content)| ((*name).to_owned(), content.to_vec())).collect();
        let state = Arc::new(Mutex::new(State { files, ..State::default() }));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                thread::spawn(move || answer(stream, port, &shared));
            }
        });
        Self { endpoint: format!("http://127.0.0.1:{port}"), state }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Makes the next requests for a path with this end go wrong.
    pub fn fail(&self, end: &str, faults: impl IntoIterator<Item = Fault>) {
        self.state().faults.push((end.to_owned(), faults.into_iter().collect()));
    }

    /// The requests since the last call.
    pub fn requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.state().requests)
    }
}

pub fn sha256(content: &[u8]) -> String {
    hexadecimal(&Sha256::digest(content))
}

/// As `git hash-object` prints it.
pub fn git_sha1(content: &[u8]) -> String {
    let head = format!("blob {}\0", content.len());
    hexadecimal(&Sha1::new().chain_update(head).chain_update(content).finalize())
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        _ = write!(text, "{byte:02x}");
        text
    })
}

/// What the hub says of a file.
fn described((name, content): (&String, &Vec<u8>)) -> serde_json::Value {
    let blob = git_sha1(content);
    match name.ends_with(".safetensors") {
        false => json!({ "rfilename": name, "size": content.len(), "blobId": blob }),
        true => {
            let lfs = json!({ "sha256": sha256(content), "size": content.len(), "pointerSize": 134 });
            json!({ "rfilename": name, "size": content.len(), "blobId": blob, "lfs": lfs })
        }
    }
}

fn answer(stream: TcpStream, port: u16, state: &Mutex<State>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    if reader.read_line(&mut line).unwrap_or(0) == 0 {
        return;
    }
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let (mut start, mut token) = (0, None);
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).unwrap();
        let Some((name, value)) = header.trim().split_once(": ") else { break };
        match name.to_lowercase().as_str() {
            "range" => start = value.trim_start_matches("bytes=").trim_end_matches('-').parse().unwrap(),
            "authorization" => token = Some(value.to_owned()),
            _ => {}
        }
    }
    let fault = {
        let mut state = state.lock().unwrap();
        state.requests.push(Request { path: path.clone(), start, token: token.clone() });
        let faults =
            state.faults.iter_mut().find(|(end, faults)| path.ends_with(end.as_str()) && !faults.is_empty());
        faults.and_then(|(_, faults)| faults.pop_front())
    };
    if let Some(Fault::Silent(time)) = fault {
        thread::sleep(time);
    }
    respond(stream, port, state, &path, start, token, fault);
}

fn respond(
    mut stream: TcpStream,
    port: u16,
    state: &Mutex<State>,
    path: &str,
    start: usize,
    token: Option<String>,
    fault: Option<Fault>,
) {
    let state = state.lock().unwrap();
    let from_other_server = path.starts_with("/large/");
    let named = state.files.keys().filter(|name| path.ends_with(&format!("/{name}")));
    let name = named.max_by_key(|name| name.len()).map(String::as_str).unwrap_or_default();
    let closed =
        state.token.as_ref().is_some_and(|needed| token.as_deref() != Some(&format!("Bearer {needed}")));
    let (mut status, mut location, mut body) = (200, String::new(), Vec::new());
    if let Some(Fault::Status(other)) = fault {
        status = other;
    } else if closed && !from_other_server {
        status = 401;
    } else if path.starts_with("/api/models/org/model/revision/") && !path.contains("absent") {
        let head = if path.contains(COMMIT) || state.head.is_empty() { COMMIT } else { &state.head };
        let list = json!({ "sha": head, "siblings": state.files.iter().map(described).collect::<Vec<_>>() });
        body = state.list.clone().unwrap_or(list).to_string().into_bytes();
    } else if let Some(content) = state.files.get(name) {
        if name.ends_with(".safetensors") && !from_other_server {
            (status, location) = (302, format!("Location: http://localhost:{port}/large/{name}\r\n"));
        } else {
            body.clone_from(content);
        }
    } else {
        status = 404;
    }
    drop(state);
    if let Some(Fault::Damaged) = fault {
        body[0] ^= 1;
    }
    let mut range = String::new();
    if status == 200 && start > 0 && !matches!(fault, Some(Fault::WithoutRange)) {
        (status, range) =
            (206, format!("Content-Range: bytes {start}-{}/{}\r\n", body.len() - 1, body.len()));
        body.drain(..start);
    }
    let head = format!(
        "HTTP/1.1 {status} X\r\n{location}{range}Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    if let Some(Fault::Cut(length)) = fault {
        body.truncate(length);
    }
    _ = stream
        .write_all(head.as_bytes())
        .and_then(|()| stream.write_all(&body))
        .and_then(|()| stream.flush());
}
