//! Models by name, from a server on the loopback device.

#![allow(clippy::unwrap_used)]

mod downloads;
mod names;
mod server;

use std::path::PathBuf;
use std::time::Duration;

use brigade_hf::HfError;
use brigade_hf::hub::{Hub, ModelName};
use tempfile::TempDir;

/// A hub at this address with an empty cache.
fn hub(endpoint: &str) -> (Hub, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let hub = Hub {
        cache: folder.path().join("hub"),
        endpoint: endpoint.to_owned(),
        token: None,
        offline: false,
        timeout: Duration::from_secs(20),
        retries: 2,
        retry_pause: Duration::from_millis(1),
    };
    (hub, folder)
}

fn name(text: &str) -> ModelName {
    text.parse().unwrap()
}

/// Downloads the model.
fn folder(hub: &Hub) -> Result<PathBuf, HfError> {
    hub.folder(&name("org/model"), &mut |_| ()).map(|found| found.path)
}

fn message(hub: &Hub) -> String {
    folder(hub).unwrap_err().to_string()
}
