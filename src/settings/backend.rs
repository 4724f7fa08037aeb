//! Settings of where a rank computes, and by what tensors travel.

use brigade_core::Float;
use serde::{Deserialize, Serialize};

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
    /// Any adapter of Vulkan, Metal or DX12.
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

    /// What `auto` is in this program.
    pub fn resolved(self) -> Self {
        let best = || [Self::Cuda, Self::Wgpu].into_iter().find(|backend| backend.is_built());
        if self == Self::Auto { best().unwrap_or(Self::Cpu) } else { self }
    }

    /// The number type of parameters and activations where none was chosen: bf16 where hardware multiplies it faster.
    pub(super) fn float(self) -> Float {
        if self == Self::Cuda { Float::Bf16 } else { Float::F32 }
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

impl Settings {
    /// Replaces each `auto` by what it means in this program, so that a run's folder says what was.
    pub(crate) fn resolve(&mut self) {
        self.compute.backend = self.compute.backend.resolved();
        let backend = self.compute.backend;
        if self.compute.dtype == ComputeType::Auto {
            self.compute.dtype = match backend.float() {
                Float::F32 => ComputeType::F32,
                Float::Bf16 => ComputeType::Bf16,
            };
        }
        if self.comm.collectives == CollectivesKind::Auto {
            self.comm.collectives =
                if backend == Backend::Cuda { CollectivesKind::Nccl } else { CollectivesKind::Host };
        }
        self.checkpoint.resolve();
    }

    /// Checks that the program has the backend, and the backend the collectives.
    pub(crate) fn check_backend(&self) -> Result<(), SettingError> {
        let backend = self.compute.backend;
        if !backend.is_built() {
            let allowed = format!(
                "this program was not built for it; build it with the feature `{0}` (`cargo xtask train --backend {0}` does)",
                backend.name()
            );
            return Err(SettingError::new("compute.backend (--backend)", backend.name(), allowed));
        }
        if self.comm.collectives == CollectivesKind::Nccl && backend.resolved() != Backend::Cuda {
            let allowed =
                format!("NCCL moves CUDA tensors; on {} it must be host", backend.resolved().name());
            return Err(SettingError::new("comm.collectives (--collectives)", "nccl", allowed));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(backend: Backend) -> Settings {
        let mut settings = Settings::default();
        settings.compute.backend = backend;
        settings.resolve();
        settings
    }

    #[test]
    fn auto_becomes_what_the_backend_does_best() {
        let cpu = resolved(Backend::Cpu);
        assert_eq!((cpu.compute.dtype, cpu.comm.collectives), (ComputeType::F32, CollectivesKind::Host));
        let cuda = resolved(Backend::Cuda);
        assert_eq!((cuda.compute.dtype, cuda.comm.collectives), (ComputeType::Bf16, CollectivesKind::Nccl));
        assert_eq!(cuda.compute.float(), Float::Bf16);
        assert_eq!(cuda.compute.reduce_dtype, Float::F32);
        let wgpu = resolved(Backend::Wgpu);
        assert_eq!((wgpu.compute.dtype, wgpu.comm.collectives), (ComputeType::F32, CollectivesKind::Host));
        assert_ne!(resolved(Backend::Auto).compute.backend, Backend::Auto);
    }

    #[test]
    fn what_was_chosen_stays() {
        let mut settings = Settings::default();
        settings.compute.backend = Backend::Cuda;
        settings.compute.dtype = ComputeType::F32;
        settings.comm.collectives = CollectivesKind::Host;
        settings.resolve();
        assert_eq!(
            (settings.compute.dtype, settings.comm.collectives),
            (ComputeType::F32, CollectivesKind::Host)
        );
    }
}
