//! Settings of where a rank computes, and by what tensors travel.

use brigade_core::Float;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use toml::Table;

use super::{SettingError, Settings};

/// What a rank computes on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Backend {
    /// What the program was built for: CUDA if it can, else wgpu, else the CPU. What the machine has plays no part.
    #[default]
    Auto,
    /// Cores of the CPU, one a rank.
    Cpu,
    /// NVIDIA GPUs, one a rank.
    Cuda,
    /// GPUs of any make, through Vulkan: ranks need Linux.
    Wgpu,
}

impl Backend {
    /// Its name in settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
            Self::Wgpu => "wgpu",
        }
    }

    /// Whether this program was built for it.
    pub fn is_built(self) -> bool {
        match self {
            Self::Auto | Self::Cpu => true,
            Self::Cuda => cfg!(feature = "cuda"),
            Self::Wgpu => cfg!(feature = "wgpu"),
        }
    }

    /// The names of those that this program was built for.
    pub(crate) fn built() -> String {
        let built = [Self::Cpu, Self::Cuda, Self::Wgpu].into_iter().filter(|backend| backend.is_built());
        built.map(Self::name).collect::<Vec<_>>().join(", ")
    }

    /// What `auto` is in this program.
    pub fn resolved(self) -> Self {
        let best = || [Self::Cuda, Self::Wgpu].into_iter().find(|backend| backend.is_built());
        if self == Self::Auto { best().unwrap_or(Self::Cpu) } else { self }
    }

    /// The number type of parameters and activations where none was chosen: bf16 where hardware multiplies it faster.
    pub(super) fn float(self) -> Float {
        if self.resolved() == Self::Cuda { Float::Bf16 } else { Float::F32 }
    }

    /// By what tensors travel where nothing was chosen.
    fn collectives(self) -> CollectivesKind {
        if self.resolved() == Self::Cuda { CollectivesKind::Nccl } else { CollectivesKind::Host }
    }
}

/// The number type of parameters and activations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ComputeType {
    /// bf16 on CUDA, f32 elsewhere.
    #[default]
    Auto,
    /// 32 bits.
    F32,
    /// bfloat16; masters and the optimizer stay f32.
    Bf16,
}

/// By what tensors travel between ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum CollectivesKind {
    /// NCCL on CUDA, host memory elsewhere.
    #[default]
    Auto,
    /// NCCL, from device memory to device memory.
    Nccl,
    /// Through host memory: several ranks may then share a GPU.
    Host,
}

/// What `auto` stands for in a configuration that holds its backend: section, key and value of each such setting.
pub(super) fn automatic(config: &Table) -> Vec<(&'static str, &'static str, &'static str)> {
    let value = |section: &str, key: &str| config.get(section)?.get(key)?.as_str();
    let backend = value("compute", "backend").and_then(|name| Backend::from_str(name, false).ok());
    let Some(backend) = backend else { return Vec::new() };
    let dtype = match backend.float() {
        Float::F32 => "f32",
        Float::Bf16 => "bf16",
    };
    let collectives = if backend.collectives() == CollectivesKind::Nccl { "nccl" } else { "host" };
    let all = [("compute", "dtype", dtype), ("comm", "collectives", collectives)];
    all.into_iter().filter(|(section, key, _)| value(section, key) == Some("auto")).collect()
}

/// A configuration in which each `auto` is replaced by what it stands for.
pub(crate) fn settled(mut config: Table) -> Table {
    for (section, key, value) in automatic(&config) {
        if let Some(slot) = config.get_mut(section).and_then(|section| section.get_mut(key)) {
            *slot = value.into();
        }
    }
    config
}

impl Settings {
    /// Replaces what could mean something else to another program or in another folder: the backend and paths. What follows
    /// from the backend stays `auto`, and so follows the one that a run goes on on.
    pub(crate) fn resolve(&mut self) {
        self.compute.backend = self.compute.backend.resolved();
        self.checkpoint.resolve();
    }

    /// By what tensors travel: NCCL or host memory.
    pub fn collectives(&self) -> CollectivesKind {
        match self.comm.collectives {
            CollectivesKind::Auto => self.compute.backend.collectives(),
            chosen => chosen,
        }
    }

    /// Checks that the program has the backend, and the backend the collectives.
    pub(crate) fn check_backend(&self) -> Result<(), SettingError> {
        let backend = self.compute.backend;
        if !backend.is_built() {
            let allowed = format!(
                "this program is built for {}; build it with the feature `{1}` (`cargo xtask train --backend {1}` does)",
                Backend::built(),
                backend.name()
            );
            return Err(SettingError::new("compute.backend (--backend)", backend.name(), allowed));
        }
        if self.comm.collectives == CollectivesKind::Nccl && backend.resolved() != Backend::Cuda {
            let allowed =
                format!("NCCL moves CUDA tensors; on {} it must be host or auto", backend.resolved().name());
            return Err(SettingError::new("comm.collectives (--collectives)", "nccl", allowed));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::settings::{StandardFlags, layered, resolved};

    /// The settings of a run with these of `--backend` and `--set`, over the configuration of an earlier one.
    fn run(before: Option<&Settings>, backend: Backend, sets: &[&str]) -> Settings {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), before.map_or(String::new(), |before| resolved(before).unwrap()))
            .unwrap();
        let sets: Vec<String> = sets.iter().map(ToString::to_string).collect();
        let mut settings = layered(&Settings::default(), &[file.path()], &sets).unwrap();
        StandardFlags { backend: Some(backend), ..StandardFlags::default() }.apply(&mut settings);
        settings
    }

    fn meaning(settings: &Settings) -> (Float, CollectivesKind) {
        (settings.compute.float(), settings.collectives())
    }

    const ON_CUDA: (Float, CollectivesKind) = (Float::Bf16, CollectivesKind::Nccl);
    const ELSEWHERE: (Float, CollectivesKind) = (Float::F32, CollectivesKind::Host);

    #[test]
    fn auto_is_what_the_backend_does_best() {
        assert_eq!(meaning(&run(None, Backend::Cpu, &[])), ELSEWHERE);
        assert_eq!(meaning(&run(None, Backend::Wgpu, &[])), ELSEWHERE);
        let cuda = run(None, Backend::Cuda, &[]);
        assert_eq!(meaning(&cuda), ON_CUDA);
        assert_eq!(cuda.compute.reduce_dtype, Float::F32);
        assert_ne!(run(None, Backend::Auto, &[]).compute.backend, Backend::Auto);
    }

    #[test]
    fn auto_follows_the_backend_that_a_run_goes_on_on() {
        let (cpu, cuda) = (run(None, Backend::Cpu, &[]), run(None, Backend::Cuda, &[]));
        assert_eq!(meaning(&run(Some(&cpu), Backend::Cuda, &[])), ON_CUDA);
        let on_cpu = run(Some(&cuda), Backend::Cpu, &[]);
        assert_eq!(meaning(&on_cpu), ELSEWHERE);
        on_cpu.check_backend().unwrap();
    }

    #[test]
    fn what_was_chosen_stays_and_is_checked() {
        let host = run(None, Backend::Cpu, &["compute.dtype=f32", "comm.collectives=host"]);
        assert_eq!(meaning(&run(Some(&host), Backend::Cuda, &[])), ELSEWHERE);
        let nccl = run(None, Backend::Cuda, &["comm.collectives=nccl", "compute.dtype=bf16"]);
        let on_cpu = run(Some(&nccl), Backend::Cpu, &[]);
        assert_eq!(meaning(&on_cpu), ON_CUDA);
        let message = on_cpu.check_backend().unwrap_err().to_string();
        assert!(message.contains("(--collectives) = nccl") && message.contains("host or auto"), "{message}");
        let given = run(Some(&nccl), Backend::Cpu, &["comm.collectives=auto"]);
        assert_eq!(meaning(&given), (Float::Bf16, CollectivesKind::Host));
        given.check_backend().unwrap();
    }

    #[test]
    fn a_configuration_says_what_auto_stands_for() {
        for (backend, dtype, collectives) in [(Backend::Cpu, "f32", "host"), (Backend::Cuda, "bf16", "nccl")]
        {
            let text = resolved(&run(None, backend, &[])).unwrap();
            for (key, value) in [("compute.dtype", dtype), ("comm.collectives", collectives)] {
                let line = format!("\n# {key}: auto is {value} on {}\n", backend.name());
                assert!(text.contains(&line), "{line:?} is not in {text}");
            }
            let config = settled(text.parse().unwrap());
            assert_eq!(config["compute"]["dtype"].as_str(), Some(dtype));
            assert_eq!(config["comm"]["collectives"].as_str(), Some(collectives));
        }
        let text =
            resolved(&run(None, Backend::Cuda, &["compute.dtype=f32", "comm.collectives=host"])).unwrap();
        assert!(!text.contains("auto is"), "{text}");
    }

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn a_backend_that_is_missing_is_told_with_those_that_are_there() {
        let message = run(None, Backend::Cuda, &[]).check_backend().unwrap_err().to_string();
        let start = "compute.backend (--backend) = cuda is not possible: this program is built for cpu";
        assert!(message.starts_with(start) && message.contains("feature `cuda`"), "{message}");
    }
}
