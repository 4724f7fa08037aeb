//! The smallest HTTP server: one page, read by few.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use super::text::text;
use crate::{
    error::{Error, Result},
    record::StepRecord,
};

/// A client that takes longer is left.
const PATIENCE: Duration = Duration::from_secs(2);

const POLL: Duration = Duration::from_millis(50);

/// More than any request has.
const MAX_BYTES: usize = 8192;

/// The address of `--metrics-addr`: a port of the loopback address, or an address and a port.
///
/// # Errors
/// If it is neither; the text says what is allowed.
pub fn metrics_address(given: &str) -> Result<SocketAddr, String> {
    let port = given.parse().map(|port: u16| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    let address = port.or_else(|_| given.parse()).ok().filter(|address: &SocketAddr| address.port() > 0);
    address.ok_or_else(|| {
        "it must be a port for this machine only, as in 9090, or ADDRESS:PORT, as in 0.0.0.0:9090 for \
        everybody"
            .into()
    })
}

/// Refuses an address that could not be taken now.
///
/// # Errors
/// If it cannot be taken.
pub fn check_metrics_address(address: SocketAddr) -> Result<()> {
    TcpListener::bind(address).map(drop).map_err(|source| Error::Listen { address, source })
}

/// Answers `GET /metrics` with the last step, on a thread of its own.
#[derive(Debug)]
pub struct MetricsServer {
    address: SocketAddr,
    page: Arc<Mutex<String>>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    tokens: u64,
}

impl MetricsServer {
    /// Begins to answer.
    ///
    /// # Errors
    /// If the address cannot be taken.
    pub fn start(address: SocketAddr) -> Result<Self> {
        let failed = |source| Error::Listen { address, source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let (page, ends) = (Arc::new(Mutex::new(String::new())), Arc::new(AtomicBool::new(false)));
        let (shown, ended) = (Arc::clone(&page), Arc::clone(&ends));
        let serve = move || {
            while !ended.load(Ordering::Relaxed) {
                match listener.accept() {
                    // A client that has gone away does not concern the run.
                    Ok((stream, _)) => drop(answer(stream, &shown)),
                    Err(_) => thread::sleep(POLL),
                }
            }
        };
        let thread = thread::Builder::new().name("metrics".into()).spawn(serve).map_err(failed)?;
        Ok(Self { address, page, ends, thread: Some(thread), tokens: 0 })
    }

    /// Where it answers.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Shows a step from now on.
    pub(crate) fn show(&mut self, record: &StepRecord, total_steps: u64, restarts: u32) {
        self.tokens += record.tokens;
        let text = text(record, total_steps, self.tokens, restarts);
        *self.page.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn answer(mut stream: TcpStream, page: &Mutex<String>) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let (begin, mut request, mut bytes) = (Instant::now(), Vec::new(), [0; 1024]);
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        if request.len() > MAX_BYTES || begin.elapsed() > PATIENCE {
            return Err(ErrorKind::InvalidData.into());
        }
        match stream.read(&mut bytes)? {
            0 => return Ok(()),
            read => request.extend_from_slice(&bytes[..read]),
        }
    }
    let is_asked = [&b"GET /metrics "[..], b"GET /metrics?"].iter().any(|start| request.starts_with(start));
    let (status, text) = match is_asked {
        true => ("200 OK", page.lock().unwrap_or_else(PoisonError::into_inner).clone()),
        false => ("404 Not Found", "GET /metrics\n".to_owned()),
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}",
        text.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

    fn get(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn the_last_step_is_there_for_who_asks() {
        let mut server = MetricsServer::start(ANY_PORT).unwrap();
        assert!(server.address().ip().is_loopback());
        let metrics = [("accuracy".to_owned(), 0.5), ("a\"b".to_owned(), f64::NAN)].into();
        let record =
            StepRecord { step: 7, loss: f64::INFINITY, tokens: 32, metrics, ..StepRecord::default() };
        server.show(&record, 9, 1);
        server.show(&record, 9, 1);
        // One that says nothing holds nobody up for long.
        let _silent = TcpStream::connect(server.address()).unwrap();
        let answer = get(server.address(), "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(
            head.starts_with("HTTP/1.1 200 OK\r\n")
                && head.contains(&format!("Content-Length: {}", body.len()))
        );
        for line in [
            "# TYPE brigade_step gauge",
            "brigade_step 7",
            "brigade_total_steps 9",
            "brigade_loss +Inf",
            "brigade_restarts 1",
            "# TYPE brigade_targets_total counter",
            "brigade_targets_total 64",
            "brigade_metric{name=\"accuracy\"} 0.5",
            "brigade_metric{name=\"a\\\"b\"} NaN",
        ] {
            assert!(body.lines().any(|there| there == line), "{line}: {body}");
        }
        assert!(!body.contains("brigade_mfu_ratio"), "nothing that is not known: {body}");
        assert!(get(server.address(), "GET / HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 404"));
    }

    #[test]
    fn addresses() {
        assert_eq!(metrics_address("9090").unwrap().to_string(), "127.0.0.1:9090");
        assert_eq!(metrics_address("0.0.0.0:9090").unwrap().to_string(), "0.0.0.0:9090");
        for wrong in ["", "all", ":9090", "host:9090", "70000", "0", "0.0.0.0:0"] {
            assert!(metrics_address(wrong).unwrap_err().contains("ADDRESS:PORT"), "{wrong}");
        }
        let held = MetricsServer::start(ANY_PORT).unwrap();
        let message = MetricsServer::start(held.address()).unwrap_err().to_string();
        assert_eq!(check_metrics_address(held.address()).unwrap_err().to_string(), message);
        assert!(
            message.starts_with(&format!(
                "cannot listen on output.metrics_addr (--metrics-addr) {}",
                held.address()
            )),
            "{message}"
        );
    }
}
