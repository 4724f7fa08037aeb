//! The folder of a model: one that is given, or that of a model on the hub.

use std::path::{Path, PathBuf};

use anyhow::Context;
use brigade::report::{ByteProgress, ConsoleMode};
use brigade_hf::hub::{Hub, ModelName, Progress};

/// The folder, as an absolute path. Where there is none, `organization/name` is a model on the hub, which is downloaded if it is not in the cache.
pub fn model_folder(given: &Path) -> anyhow::Result<PathBuf> {
    let name = given.to_str().filter(|text| text.contains('/') && !given.exists());
    let Some(name) = name.and_then(|text| text.parse::<ModelName>().ok()) else {
        return std::path::absolute(given).with_context(|| format!("the path {given:?}"));
    };
    let mut file: Option<(String, u64, ByteProgress)> = None;
    let mut show = |now: Progress<'_>| match &mut file {
        Some((name, bytes, bar)) if name == now.file => {
            bar.advance(now.bytes.saturating_sub(*bytes));
            *bytes = now.bytes;
        }
        shown => {
            let bar = ByteProgress::start(ConsoleMode::Auto, now.of, format!("downloading {}", now.file));
            bar.advance(now.bytes);
            if let Some((_, _, bar)) = shown.replace((now.file.to_owned(), now.bytes, bar)) {
                bar.finish();
            }
        }
    };
    let found = Hub::from_env()?.folder(&name, &mut show);
    if let Some((_, _, bar)) = file {
        bar.finish();
    }
    found.with_context(|| format!("--model {name}: it is neither a folder nor a known model"))
}
