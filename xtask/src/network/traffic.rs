//! What hosts send, over time.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow};
use serde_json::{Value, json};

/// Between two readings.
const PAUSE: Duration = Duration::from_millis(10);

/// A thread that writes down what hosts send.
pub struct Recorder {
    file: PathBuf,
    stop: Sender<()>,
    thread: JoinHandle<Result<()>>,
}

/// Begins to write to `file` what comes in at each of these interfaces, whose other ends are the hosts'.
pub fn record(file: &Path, ports: Vec<String>) -> Result<Recorder> {
    let mut out =
        BufWriter::new(File::create(file).with_context(|| format!("cannot write {}", file.display()))?);
    let (stop, stopped) = channel();
    let thread = std::thread::spawn(move || {
        loop {
            let ended = !matches!(stopped.recv_timeout(PAUSE), Err(RecvTimeoutError::Timeout));
            let table = std::fs::read_to_string("/proc/self/net/dev")?;
            let bytes = ports
                .iter()
                .map(|port| received(&table, port).with_context(|| format!("no counters of {port}")));
            let bytes = bytes.collect::<Result<Vec<u64>>>()?;
            let time = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
            writeln!(out, "{}", json!({ "time": time, "bytes": bytes }))?;
            if ended {
                return Ok(out.flush()?);
            }
        }
    });
    Ok(Recorder { file: file.to_owned(), stop, thread })
}

impl Recorder {
    /// Writes the last line.
    pub fn finish(self) -> Result<()> {
        drop(self.stop);
        let end = self.thread.join().unwrap_or_else(|_| Err(anyhow!("the thread that counts panicked")));
        end.with_context(|| format!("cannot write {}", self.file.display()))
    }
}

/// The bytes that came in at an interface, of a table like `/proc/net/dev`.
fn received(table: &str, interface: &str) -> Option<u64> {
    table.lines().find_map(|line| {
        let (name, counters) = line.split_once(':')?;
        (name.trim() == interface).then(|| counters.split_whitespace().next()?.parse().ok())?
    })
}

/// What was recorded: the bytes of all hosts together, in the order of time.
pub struct Traffic(Vec<(f64, f64)>);

impl Traffic {
    /// Of the lines of a file.
    pub fn of(lines: &[Value]) -> Self {
        let sum = |bytes: &Vec<Value>| bytes.iter().filter_map(Value::as_f64).sum();
        let reading = |line: &Value| Some((line["time"].as_f64()?, line["bytes"].as_array().map(sum)?));
        Self(lines.iter().filter_map(reading).collect())
    }

    /// The bytes that had been sent at a time, as of the first reading after it; none after the last.
    pub fn at(&self, time: f64) -> Option<f64> {
        let first = self.0.partition_point(|(read, _)| *read < time);
        Some(self.0.get(first)?.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_their_interface() {
        let table =
            "Inter-|   Receive\n face |bytes    packets\n    lo: 7 1 0\n port1: 1234 5 0\n port10:99 1\n";
        assert_eq!(
            ["port1", "port10", "port2"].map(|port| received(table, port)),
            [Some(1234), Some(99), None]
        );
    }

    #[test]
    fn bytes_are_those_of_the_first_reading_after_a_time() {
        let line = |time, bytes: [u64; 2]| json!({ "time": time, "bytes": bytes });
        let traffic = Traffic::of(&[line(1.0, [1, 0]), line(2.0, [5, 5]), json!({}), line(3.0, [9, 20])]);
        assert_eq!(
            [0.5, 1.0, 1.5, 3.0, 3.5].map(|time| traffic.at(time)),
            [Some(1.0), Some(1.0), Some(10.0), Some(29.0), None]
        );
    }
}
