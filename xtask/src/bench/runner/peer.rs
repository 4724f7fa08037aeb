//! The Python in which PyTorch and DeepSpeed run.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::cargo;

/// Prints the versions as JSON. Reads the packages' metadata, because importing them takes seconds.
const PROBE: &str = r#"
import importlib.metadata, json, platform, sys
def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
print(json.dumps(dict(executable=sys.executable, python=platform.python_version(),
                      torch=version("torch"), deepspeed=version("deepspeed"),
                      transformers=version("transformers"), peft=version("peft"))))
"#;

/// What Brigade is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Torch,
    DeepSpeed,
    /// For adapters with `peft`.
    Transformers,
}

/// A Python that has torch, and perhaps other packages: their versions.
#[derive(Debug, PartialEq, Eq)]
pub struct Peer {
    executable: PathBuf,
    pub python: String,
    pub torch: String,
    pub deepspeed: Option<String>,
    pub transformers: Option<String>,
    pub peft: Option<String>,
}

impl Peer {
    /// The given Python, or the one of `benches/peers/README.md`, or the system's.
    ///
    /// # Errors
    /// If one is given that has no torch. Without one, it is no error that there is none.
    pub fn find(given: Option<&Path>) -> Result<Option<Self>> {
        if let Some(python) = given {
            // Not resolved: the link in a virtual environment is what selects it.
            let python =
                std::path::absolute(python).with_context(|| format!("--peer-python {}", python.display()))?;
            let Some(answer) = probe(&python) else {
                bail!("--peer-python {} does not run as Python", python.display());
            };
            return match Self::read(&answer) {
                Some(peer) => Ok(Some(peer)),
                None => bail!("--peer-python {} has no torch; see benches/peers/README.md", python.display()),
            };
        }
        let candidates = [cargo::root().join(".venv-torch/bin/python"), PathBuf::from("python3")];
        Ok(candidates.iter().filter_map(|python| probe(python)).find_map(|answer| Self::read(&answer)))
    }

    fn read(answer: &str) -> Option<Self> {
        let answer: Value = serde_json::from_str(answer.trim()).ok()?;
        let text = |field: &str| answer[field].as_str().map(str::to_owned);
        Some(Self {
            executable: text("executable")?.into(),
            python: text("python")?,
            torch: text("torch")?,
            deepspeed: text("deepspeed"),
            transformers: text("transformers"),
            peft: text("peft"),
        })
    }

    pub fn has(&self, kind: Kind) -> bool {
        match kind {
            Kind::Torch => true,
            Kind::DeepSpeed => self.deepspeed.is_some(),
            Kind::Transformers => self.transformers.is_some(),
        }
    }

    /// `python` or a program beside it, in the environment that `benches/peers/README.md` sets up.
    pub fn command(&self, program: &str) -> Command {
        let mut command = match program {
            "python" => Command::new(&self.executable),
            other => Command::new(other),
        };
        let mut path = self.executable.parent().map(Path::as_os_str).unwrap_or_default().to_owned();
        if let Some(rest) = std::env::var_os("PATH") {
            path.push(":");
            path.push(rest);
        }
        command.env("PATH", path).env("OMP_NUM_THREADS", "1").env("DS_ACCELERATOR", "cpu");
        command
    }
}

fn probe(python: &Path) -> Option<String> {
    let output = Command::new(python).args(["-c", PROBE]).stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(torch: &str, deepspeed: &str) -> String {
        format!(
            r#"{{"executable": "/venv/bin/python", "python": "3.11.9", "torch": {torch}, "deepspeed": {deepspeed}}}"#
        )
    }

    #[test]
    fn a_python_without_torch_is_no_peer() {
        assert_eq!(Peer::read(&answer("null", "null")), None);
        assert_eq!(Peer::read("Python 2.7"), None);
        let peer = Peer::read(&answer(r#""2.11.0""#, "null")).unwrap();
        assert!(peer.has(Kind::Torch) && !peer.has(Kind::DeepSpeed));
        assert!(Peer::read(&answer(r#""2.11.0""#, r#""0.19.8""#)).unwrap().has(Kind::DeepSpeed));
    }

    #[test]
    fn programs_beside_python_come_first() {
        let peer = Peer::read(&answer(r#""2.11.0""#, "null")).unwrap();
        assert_eq!(peer.command("python").get_program(), "/venv/bin/python");
        let command = peer.command("torchrun");
        let path = command.get_envs().find(|(name, _)| *name == "PATH").unwrap().1.unwrap();
        assert!(path.to_string_lossy().starts_with("/venv/bin:"));
    }

    #[test]
    fn a_given_python_must_be_one() {
        let error = Peer::find(Some(Path::new("/no/such/python"))).unwrap_err().to_string();
        assert_eq!(error, "--peer-python /no/such/python does not run as Python");
        let error = Peer::find(Some(Path::new("/bin/true"))).unwrap_err().to_string();
        assert!(error.contains("has no torch"), "{error}");
    }
}
