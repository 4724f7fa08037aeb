//! The pages of runs in progress, over HTTP, with changes as server-sent events.

mod access;
mod answers;
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
