//! Requests that are passed on to another server.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::answer::Answer;
use super::{Request, gcs};

/// A server on the loopback device.
#[derive(Clone, Copy)]
pub(crate) struct Upstream {
    address: SocketAddr,
    /// Whether it is an emulator of Google Cloud Storage, see [`gcs`].
    is_gcs: bool,
}

/// How long the server may be silent.
const DEADLINE: Duration = Duration::from_secs(60);

/// What is of one connection alone, or made anew.
const NOT_PASSED_ON: [&str; 5] =
    ["connection", "content-length", "transfer-encoding", "keep-alive", "expect"];

impl Upstream {
    pub(crate) fn s3(address: SocketAddr) -> Self {
        Self { address, is_gcs: false }
    }

    pub(crate) fn gcs(address: SocketAddr) -> Self {
        Self { address, is_gcs: true }
    }

    pub(super) fn forward(&self, request: &Request) -> Answer {
        let answer = match self.is_gcs {
            true => gcs::forward(self, request),
            false => self.as_it_is(request),
        };
        answer.unwrap_or_else(|error| Answer::text(502, &format!("the server does not answer: {error}")))
    }

    /// Passes a request on, except for what is of its connection.
    pub(super) fn as_it_is(&self, request: &Request) -> io::Result<Answer> {
        let headers = request.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let headers: Vec<_> = headers.filter(|(name, _)| !NOT_PASSED_ON.contains(name)).collect();
        self.ask(&request.method, &request.target, &headers, &request.body)
    }

    /// Makes a request on a connection of its own.
    pub(crate) fn ask(
        &self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> io::Result<Answer> {
        let stream = TcpStream::connect_timeout(&self.address, DEADLINE)?;
        stream.set_read_timeout(Some(DEADLINE))?;
        stream.set_write_timeout(Some(DEADLINE))?;
        stream.set_nodelay(true)?;
        let mut head = format!("{method} {target} HTTP/1.1\r\nConnection: close\r\n");
        if !headers.iter().any(|(name, _)| *name == "host") {
            head.push_str(&format!("Host: {}\r\n", self.address));
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
        (&stream).write_all(head.as_bytes())?;
        (&stream).write_all(body)?;
        answer(BufReader::new(stream), method == "HEAD")
    }
}

fn answer(mut reader: impl BufRead, is_head: bool) -> io::Result<Answer> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let status = line.split_whitespace().nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| io::Error::other(format!("no status: {line:?}")))?;
    let mut answer = Answer::text(status, "");
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        answer.headers.push((name.to_owned(), value.trim().to_owned()));
    }
    let length = answer.header("content-length").and_then(|length| length.parse().ok());
    let is_chunked = answer.header("transfer-encoding").is_some_and(|value| value == "chunked");
    answer.headers.retain(|(name, _)| !NOT_PASSED_ON.contains(&name.to_ascii_lowercase().as_str()));
    match length {
        _ if is_head => answer.length = length,
        Some(length) => {
            let read = reader.take(length).read_to_end(&mut answer.content)?;
            if read as u64 != length {
                return Err(io::Error::other(format!("{read} of {length} bytes")));
            }
        }
        None if is_chunked => chunks(&mut reader, &mut answer.content)?,
        None => drop(reader.read_to_end(&mut answer.content)?),
    }
    Ok(answer)
}

fn chunks(reader: &mut impl BufRead, content: &mut Vec<u8>) -> io::Result<()> {
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let length = u64::from_str_radix(line.trim_end(), 16).map_err(io::Error::other)?;
        let read = reader.take(length).read_to_end(content)?;
        if read as u64 != length {
            return Err(io::Error::other("a chunk is cut"));
        }
        reader.read_line(&mut line)?;
        if length == 0 {
            return Ok(());
        }
    }
}
