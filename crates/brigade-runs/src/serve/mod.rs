//! The pages of runs in progress, over HTTP, with changes as server-sent events.

mod access;
mod answers;
mod views;
mod watched;

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::get;

use crate::error::{Error, Result};

pub use access::Access;
use watched::Watched;

/// Serves the pages of a run, or of the runs in a folder.
///
/// - `/`: the page of the run, or a table of all runs; `/parts`, `/events`: the numbers of the table, and that they changed.
/// - `/run/NAME`: the page of one run; `/run/NAME/parts`, `/run/NAME/events` likewise.
///
/// Nothing else can be reached: names are compared with those of the runs that are there.
pub struct Server {
    watched: Arc<Watched>,
    access: Arc<Access>,
}

impl Server {
    /// A server that is ready to run.
    ///
    /// # Errors
    /// If the folder has no runs and is not the folder of one.
    pub fn new(folder: &Path, access: Access) -> Result<Self> {
        Ok(Self { watched: Arc::new(Watched::new(folder)?), access: Arc::new(access) })
    }

    /// Answers until the process ends.
    ///
    /// # Errors
    /// If the listener fails.
    pub fn run(self, listener: TcpListener) -> Result<()> {
        listener.set_nonblocking(true).map_err(Error::Server)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let pages = Router::new()
            .route("/", get(answers::front))
            .route("/parts", get(answers::runs_parts))
            .route("/events", get(answers::runs_events))
            .route("/run/{name}", get(answers::run))
            .route("/run/{name}/parts", get(answers::run_parts))
            .route("/run/{name}/events", get(answers::run_events))
            .with_state(self.watched)
            .layer(from_fn_with_state(self.access, access::check));
        let serving = async {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            axum::serve(listener, pages).await
        };
        runtime.map_err(Error::Server)?.block_on(serving).map_err(Error::Server)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::time::Duration;

    use brigade_report::{METRICS_FILE, StepRecord};

    use super::*;

    #[test]
    fn a_page_that_takes_long_holds_up_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let record = StepRecord { step: 1, step_seconds: 1.0, ..StepRecord::default() };
        for name in ["a", "b"] {
            fs::create_dir(folder.path().join(name)).unwrap();
            let line = serde_json::to_string(&record).unwrap();
            fs::write(folder.path().join(name).join(METRICS_FILE), line + "\n").unwrap();
        }
        let server = Server::new(folder.path(), Access::Loopback).unwrap();
        let views = server.watched.run("a").unwrap().unwrap().1;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || server.run(listener));
        let ask = |path: &str| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
            stream
        };
        let answer = |mut stream: TcpStream| {
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            text
        };
        // As while it is made.
        let making = views.lock().unwrap();
        let slow = [ask("/run/a"), ask("/run/a/parts")];
        for path in ["/run/b", "/", "/parts", "/run/b/parts"] {
            assert!(answer(ask(path)).starts_with("HTTP/1.1 200"), "{path}");
        }
        drop(making);
        for stream in slow {
            assert!(answer(stream).starts_with("HTTP/1.1 200"));
        }
    }
}
