//! A connection: requests are read, and answered as the plan says.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use super::answer::{Answer, decoded};
use super::{Fault, Inner, Request, locked};

/// What a slow server reads or writes at once.
const PIECE: usize = 16 << 10;

impl Inner {
    pub(super) fn serve(&self, stream: TcpStream) -> std::io::Result<()> {
        stream.set_nodelay(true)?;
        let mut reader = BufReader::new(stream.try_clone()?);
        while let Some((request, fault)) = self.read(&mut reader)? {
            let range = request.headers.get("range").cloned().unwrap_or_default();
            locked(&self.log)
                .push(format!("{} {} {range}", request.method, request.name).trim_end().to_owned());
            let answer = match fault {
                Fault::Status(status) => Answer::text(status, "the test says so"),
                Fault::LostRequest => return Ok(()),
                _ => self.answer(&request),
            };
            if fault == Fault::LostAnswer {
                return Ok(());
            }
            if !self.write(&stream, &request, answer, fault)? {
                return Ok(());
            }
        }
        Ok(())
    }

    fn answer(&self, request: &Request) -> Answer {
        match &self.upstream {
            Some(upstream) => upstream.forward(request),
            None => self.in_memory(request),
        }
    }

    /// The next request, and what becomes of it.
    fn read(&self, reader: &mut BufReader<TcpStream>) -> std::io::Result<Option<(Request, Fault)>> {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let mut words = line.split_whitespace();
        let method = words.next().unwrap_or_default().to_owned();
        let target = words.next().unwrap_or_default();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let (name, query, target) =
            (decoded(path.trim_start_matches('/')), query.to_owned(), target.to_owned());
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
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        let mut request = Request { number, method, name, query, target, headers, body: Vec::new() };
        let fault = (locked(&self.plan))(&request);
        request.body.resize(length, 0);
        match fault {
            Fault::SlowUpload(pause) => {
                for piece in request.body.chunks_mut(PIECE) {
                    reader.read_exact(piece)?;
                    thread::sleep(Duration::from_millis(pause));
                }
            }
            _ => reader.read_exact(&mut request.body)?,
        }
        Ok(Some((request, fault)))
    }

    /// Whether the connection can be used again.
    fn write(
        &self,
        mut stream: &TcpStream,
        request: &Request,
        answer: Answer,
        fault: Fault,
    ) -> std::io::Result<bool> {
        let Answer { status, headers, content, length } = answer;
        let length = length.unwrap_or(content.len() as u64);
        let mut head = format!("HTTP/1.1 {status} Status\r\nContent-Length: {length}\r\n");
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
                for piece in content.chunks(PIECE) {
                    stream.write_all(piece)?;
                    thread::sleep(Duration::from_millis(pause));
                }
            }
            _ => stream.write_all(&content)?,
        }
        Ok(true)
    }
}
