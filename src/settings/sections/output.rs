//! Settings of results.

use std::net::SocketAddr;
use std::path::PathBuf;

use brigade_models::ShardSize;
use serde::{Deserialize, Serialize};

use crate::object_results;
use crate::settings::SettingError;

const DIR: &str = "output.dir (--out)";

/// Copies are made once a day at least.
const MAX_SECONDS: f64 = 86_400.0;

/// `[output]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OutputSettings {
    /// The run's folder; empty makes a new one under `runs/`. A URL (`gs://bucket/run`, `s3://bucket/run`) is where the files of a run are
    /// copied to while it works in a folder of the cache (`BRIGADE_CACHE_DIR`); its checkpoints go there, too.
    pub dir: PathBuf,
    /// Seconds between two times that changed files are copied to `dir`, if it is a URL; they are copied at the end in any case.
    pub copy_every_seconds: f64,
    /// Whether earlier results may be replaced (`--overwrite`). It is never part of a configuration file.
    #[serde(skip)]
    pub overwrite: bool,
    /// Steps between lines of output when there is no terminal.
    pub log_every: u64,
    /// Peak TFLOP/s of one device, for MFU; 0 looks it up by the device's name.
    pub peak_tflops: f64,
    /// The most bytes of tensors per file of the run's weights, as in `5GB`, `500MB` or `2GiB`: larger weights are split into several
    /// files with an index, as in `transformers`.
    pub max_shard_size: ShardSize,
    /// Where rank 0 serves the last step to Prometheus, at `/metrics`: a port on its machine only (`9090`), or an address and a port
    /// (`0.0.0.0:9090`). Empty: off.
    pub metrics_addr: String,
    /// A command, as a list of words, that the launcher of node 0 (or rank 0, if another launcher started it) runs when the run ends, with a JSON object on its standard
    /// input: `event` (`finished`, `failed`, `preempted` or `interrupted`), `run`, `reason`, `exit_code`, `time`. Empty: none.
    pub notify: Vec<String>,
}

impl Default for OutputSettings {
    fn default() -> Self {
        Self {
            dir: PathBuf::new(),
            copy_every_seconds: 30.0,
            overwrite: false,
            log_every: 10,
            peak_tflops: 0.0,
            max_shard_size: ShardSize::default(),
            metrics_addr: String::new(),
            notify: Vec::new(),
        }
    }
}

impl OutputSettings {
    /// Refuses secrets in `notify`, since settings are in the run's folder and its checkpoints.
    ///
    /// # Errors
    /// If there is one.
    pub(crate) fn check_notify(&self) -> Result<(), SettingError> {
        match brigade_launch::secret_in_command(&self.notify) {
            Some((at, what)) => Err(SettingError::new(
                "output.notify",
                format!("[…], whose word {} holds a secret ({what})", at + 1),
                "settings are saved with the run and its checkpoints; give a script, or curl --config FILE, with the secret in a file of its own",
            )),
            None => Ok(()),
        }
    }

    /// Checks what does not depend on other settings.
    ///
    /// # Errors
    /// If the folder is a URL that files cannot be copied to, the peak is not a number, or below 0, or there is no such address.
    pub fn check(&self) -> Result<(), SettingError> {
        if let Some(url) = self.url() {
            object_results::check_url(&url).map_err(|why| SettingError::new(DIR, &url, why))?;
            self.folder()?;
        }
        if !(1.0..=MAX_SECONDS).contains(&self.copy_every_seconds) {
            let allowed = format!("it must be from 1 to {MAX_SECONDS} seconds");
            return Err(SettingError::new("output.copy_every_seconds", self.copy_every_seconds, allowed));
        }
        self.metrics_address()?;
        if self.peak_tflops.is_finite() && self.peak_tflops >= 0.0 {
            return Ok(());
        }
        let allowed = "it must be a number of at least 0, the peak TFLOP/s of one device; 0 looks it up by the device's name";
        Err(SettingError::new("output.peak_tflops (--peak-tflops)", self.peak_tflops, allowed))
    }

    /// Refuses a folder that a configuration, which is text, cannot name.
    ///
    /// # Errors
    /// If its path is not valid UTF-8.
    pub(crate) fn check_is_text(&self) -> Result<(), SettingError> {
        match self.dir.to_str() {
            Some(_) => Ok(()),
            None => Err(SettingError::new(
                DIR,
                self.dir.display(),
                "its path must be valid UTF-8, since the run's configuration names it",
            )),
        }
    }

    /// The URL that the run's files are copied to, if its folder is one.
    pub fn url(&self) -> Option<String> {
        object_results::is_url(&self.dir).then(|| self.dir.to_string_lossy().trim_end_matches('/').to_owned())
    }

    /// The folder on this machine that the run writes into; empty if a new one is to be made.
    ///
    /// # Errors
    /// If `dir` is a URL, and the environment names no folder for caches.
    pub fn folder(&self) -> Result<PathBuf, SettingError> {
        let Some(url) = self.url() else { return Ok(self.dir.clone()) };
        object_results::local_folder(&url).map_err(|why| SettingError::new(DIR, &url, why))
    }

    /// Where the last step is served to Prometheus.
    pub(crate) fn metrics_address(&self) -> Result<Option<SocketAddr>, SettingError> {
        let given = self.metrics_addr.trim();
        let address = (!given.is_empty()).then(|| brigade_report::metrics_address(given)).transpose();
        address.map_err(|allowed| SettingError::new("output.metrics_addr (--metrics-addr)", given, allowed))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn of(dir: &str) -> OutputSettings {
        OutputSettings { dir: dir.into(), ..OutputSettings::default() }
    }

    #[test]
    fn a_folder_that_is_no_text_is_refused() {
        use std::os::unix::ffi::OsStringExt;
        of("runs/a").check_is_text().unwrap();
        let dir = std::ffi::OsString::from_vec(b"caf\xe9".to_vec()).into();
        let message = OutputSettings { dir, ..of("") }.check_is_text().unwrap_err().to_string();
        assert!(message.starts_with("output.dir (--out) = caf") && message.contains("UTF-8"), "{message}");
    }

    #[test]
    fn results_go_into_a_folder() {
        for dir in ["", "runs/a", "/runs/a:b", "gs:"] {
            of(dir).check().unwrap();
            assert_eq!((of(dir).url(), of(dir).folder().unwrap()), (None, PathBuf::from(dir)));
        }
    }

    #[cfg(feature = "object-store")]
    #[test]
    fn results_go_to_a_bucket() {
        let bucket = of("gs://bucket/a/");
        bucket.check().unwrap();
        assert_eq!(bucket.url().unwrap(), "gs://bucket/a");
        assert!(bucket.folder().unwrap().ends_with("runs/gs/bucket/a"));
        for (wrong, why) in [
            ("gs://bucket", "a path in the bucket is needed, as in gs://bucket/runs/a"),
            ("https://host/a", "files there can only be read"),
            ("ftp://host/a", "the scheme \"ftp\" is unknown"),
        ] {
            let message = of(wrong).check().unwrap_err().to_string();
            assert!(
                message.starts_with(&format!("output.dir (--out) = {wrong} is not possible: ")),
                "{message}"
            );
            assert!(message.contains(why), "{message}");
        }
    }

    #[cfg(not(feature = "object-store"))]
    #[test]
    fn a_bucket_needs_object_stores() {
        let message = of("gs://bucket/a").check().unwrap_err().to_string();
        assert!(
            message.starts_with(
                "output.dir (--out) = gs://bucket/a is not possible: this build has no object stores"
            ),
            "{message}"
        );
    }

    #[test]
    fn copies_are_made_every_second_at_most() {
        for wrong in [0.0, -1.0, f64::NAN, 1e9] {
            let output = OutputSettings { copy_every_seconds: wrong, ..OutputSettings::default() };
            let message = output.check().unwrap_err().to_string();
            assert!(message.starts_with("output.copy_every_seconds = "), "{message}");
        }
    }

    #[test]
    fn the_peak_of_a_device_is_a_number_or_from_the_table() {
        let of = |peak_tflops: f64| OutputSettings { peak_tflops, ..OutputSettings::default() }.check();
        assert!([0.0, 0.5, 989.4].into_iter().all(|peak| of(peak).is_ok()));
        for wrong in [-1.0, f64::NAN, f64::INFINITY] {
            let message = of(wrong).unwrap_err().to_string();
            let start = format!("output.peak_tflops (--peak-tflops) = {wrong} is not possible: it must be");
            assert!(message.starts_with(&start), "{message}");
        }
    }
}
