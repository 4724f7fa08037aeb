//! Settings of the device that a rank computes on, and of the collectives' backend.

use brigade_comm::Algorithm;
use brigade_core::{Dtype, ReduceEvery};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use toml::Table;

use crate::settings::{SettingError, Settings, StrategyName, TiedGradients};

/// The backend that a rank computes on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Backend {
    /// The best backend that the program was built for: CUDA, else wgpu, else the CPU. It does not depend on the machine.
    #[default]
    Auto,
    /// CPU cores, one per rank.
    Cpu,
    /// NVIDIA GPUs, one per rank.
    Cuda,
    /// GPUs of any vendor, through Vulkan; Linux only.
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

    /// The names of the backends that this program was built for.
    pub(crate) fn built() -> String {
        let built = [Self::Cpu, Self::Cuda, Self::Wgpu].into_iter().filter(|backend| backend.is_built());
        built.map(Self::name).collect::<Vec<_>>().join(", ")
    }

    /// The backend that `auto` stands for in this program.
    pub fn resolved(self) -> Self {
        let best = || [Self::Cuda, Self::Wgpu].into_iter().find(|backend| backend.is_built());
        if self == Self::Auto { best().unwrap_or(Self::Cpu) } else { self }
    }

    /// The number type that `auto` stands for: bf16 where hardware multiplies it faster.
    pub(crate) fn default_dtype(self) -> Dtype {
        if self.resolved() == Self::Cuda { Dtype::Bf16 } else { Dtype::F32 }
    }

    /// The collectives' backend that `auto` stands for. Parameter servers answer in order of arrival, which NCCL cannot.
    fn collectives(self, strategy: StrategyName) -> CollectivesBackend {
        match self.resolved() == Self::Cuda && strategy != StrategyName::AsyncServer {
            true => CollectivesBackend::Nccl,
            false => CollectivesBackend::Host,
        }
    }
}

/// The number type of parameters and activations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ComputeDtype {
    /// bf16 on CUDA, fp32 elsewhere.
    #[default]
    Auto,
    /// 32 bits.
    #[serde(rename = "fp32", alias = "f32")]
    F32,
    /// bfloat16; masters and the optimizer stay fp32.
    Bf16,
}

/// The library that runs the collectives over tensors, as PyTorch's backend of a process group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum CollectivesBackend {
    /// NCCL on CUDA, but for parameter servers; else `host`.
    #[default]
    Auto,
    /// NCCL, directly between GPUs.
    Nccl,
    /// Brigade's own collectives in host memory, hierarchical where that makes no difference to the bits, else flat; several
    /// ranks may then share a GPU.
    Host,
    /// Host-memory collectives, all-to-all exchange: every rank with every other, whatever their hosts.
    Flat,
    /// Host-memory collectives, by recursive halving and doubling: fewer messages, in more rounds.
    Halving,
    /// Host-memory collectives, within each host first and last and between hosts in between, so that each byte crosses the network once per
    /// host; also where hosts have a number of ranks that is not a power of two, which changes the last bits.
    Hierarchical,
    /// The cluster's MPI, through host memory, in programs with the feature `mpi`; `mpirun` or `srun` starts the ranks.
    Mpi,
}

/// In which order sums over ranks are made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SumOrder {
    /// Pairwise by rank, so that meshes have the same bits.
    #[default]
    Tree,
    /// As the library of the collectives adds.
    Engine,
}

impl CollectivesBackend {
    /// Who talks to whom in the collectives in host memory.
    pub(crate) fn algorithm(self) -> Algorithm {
        match self {
            Self::Auto | Self::Nccl | Self::Host | Self::Mpi => Algorithm::Auto,
            Self::Flat => Algorithm::Flat,
            Self::Halving => Algorithm::Halving,
            Self::Hierarchical => Algorithm::Hierarchical,
        }
    }
}

/// The settings that are `auto` in a configuration with a resolved backend, and what they stand for: section, key and value.
pub(crate) fn auto_values(config: &Table) -> Vec<(&'static str, &'static str, &'static str)> {
    let value = |section: &str, key: &str| config.get(section)?.get(key)?.as_str();
    let backend = value("compute", "backend").and_then(|name| Backend::from_str(name, false).ok());
    let Some(backend) = backend else { return Vec::new() };
    let dtype = match backend.default_dtype() {
        Dtype::F32 => "fp32",
        Dtype::Bf16 => "bf16",
    };
    let given = value("comm", "collectives").and_then(|name| CollectivesBackend::from_str(name, false).ok());
    let strategy = value("strategy", "name").and_then(|name| StrategyName::from_str(name, false).ok());
    let auto = backend.collectives(strategy.unwrap_or_default());
    let own = given.filter(|given| *given != CollectivesBackend::Auto).unwrap_or(auto);
    let collectives = if auto == CollectivesBackend::Nccl { "nccl" } else { "host" };
    let tied = match TiedGradients::Auto.with(own) {
        ReduceEvery::MicroBatch => "micro_batch",
        ReduceEvery::Step => "step",
    };
    let all = [
        ("compute", "dtype", dtype),
        ("comm", "collectives", collectives),
        ("pipeline", "tied_gradients", tied),
    ];
    all.into_iter().filter(|(section, key, _)| value(section, key) == Some("auto")).collect()
}

/// Replaces each `auto` in a configuration by what it stands for.
pub(crate) fn resolve_auto(mut config: Table) -> Table {
    for (section, key, value) in auto_values(&config) {
        if let Some(slot) = config.get_mut(section).and_then(|section| section.get_mut(key)) {
            *slot = value.into();
        }
    }
    config
}

impl Settings {
    /// Replaces values that would mean something else in another program or folder: the backend and paths. Settings that follow
    /// from the backend stay `auto`, so that a run that resumes on another backend gets that backend's values.
    pub fn resolve(&mut self) {
        self.compute.backend = self.compute.backend.resolved();
        self.checkpoint.resolve();
    }

    /// The collectives' backend, resolved: NCCL, MPI or host memory.
    pub fn collectives(&self) -> CollectivesBackend {
        match self.comm.collectives {
            CollectivesBackend::Auto => self.compute.backend.collectives(self.strategy.name),
            given @ (CollectivesBackend::Nccl | CollectivesBackend::Mpi) => given,
            _ => CollectivesBackend::Host,
        }
    }

    /// Checks that the program was built for the backend, and that the backend has the collectives.
    pub(crate) fn check_backend(&self) -> Result<(), SettingError> {
        let backend = self.compute.backend;
        if !backend.is_built() {
            let allowed = format!(
                "this program was built for {}; build it with the feature `{1}` (`cargo xtask train --backend {1}` does)",
                Backend::built(),
                backend.name()
            );
            return Err(SettingError::new("compute.backend (--backend)", backend.name(), allowed));
        }
        if self.comm.collectives == CollectivesBackend::Nccl && backend.resolved() != Backend::Cuda {
            let allowed = format!(
                "NCCL works on CUDA tensors; on {} it must be host or auto, or one of flat, halving and hierarchical",
                backend.resolved().name()
            );
            return Err(SettingError::new("comm.collectives (--collectives)", "nccl", allowed));
        }
        let is_mpi = self.comm.collectives == CollectivesBackend::Mpi;
        if is_mpi && !cfg!(feature = "mpi") {
            let allowed = "this program was built without MPI; build it with the feature `mpi` (`cargo build --release -p \
                           brigade-cli --features mpi`, which needs the MPI's `mpicc`), or set host, which needs no extra software";
            return Err(SettingError::new("comm.collectives (--collectives)", "mpi", allowed));
        }
        if self.comm.order == SumOrder::Engine && !is_mpi {
            let allowed =
                "only comm.collectives (--collectives) = mpi has an order of its own; it must be tree";
            return Err(SettingError::new("comm.order", "engine", allowed));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::settings::{StandardFlags, config_to_toml, merge_config};

    /// The settings of a run with these of `--backend` and `--set`, over the configuration of an earlier one.
    fn run(before: Option<&Settings>, backend: Backend, sets: &[&str]) -> Settings {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), before.map_or(String::new(), |before| config_to_toml(before).unwrap()))
            .unwrap();
        let sets: Vec<String> = sets.iter().map(ToString::to_string).collect();
        let mut settings = merge_config(&Settings::default(), &[file.path()], &sets).unwrap();
        StandardFlags { backend: Some(backend), ..StandardFlags::default() }.apply(&mut settings).unwrap();
        settings
    }

    fn meaning(settings: &Settings) -> (Dtype, CollectivesBackend) {
        (settings.compute.resolved_dtype(), settings.collectives())
    }

    const ON_CUDA: (Dtype, CollectivesBackend) = (Dtype::Bf16, CollectivesBackend::Nccl);
    const ELSEWHERE: (Dtype, CollectivesBackend) = (Dtype::F32, CollectivesBackend::Host);

    #[test]
    fn auto_is_what_the_backend_does_best() {
        assert_eq!(meaning(&run(None, Backend::Cpu, &[])), ELSEWHERE);
        assert_eq!(meaning(&run(None, Backend::Wgpu, &[])), ELSEWHERE);
        let cuda = run(None, Backend::Cuda, &[]);
        assert_eq!(meaning(&cuda), ON_CUDA);
        assert_eq!(cuda.compute.reduce_dtype, Dtype::F32);
        assert_ne!(run(None, Backend::Auto, &[]).compute.backend, Backend::Auto);
    }

    #[test]
    fn auto_follows_the_backend_that_a_run_resumes_on() {
        let (cpu, cuda) = (run(None, Backend::Cpu, &[]), run(None, Backend::Cuda, &[]));
        assert_eq!(meaning(&run(Some(&cpu), Backend::Cuda, &[])), ON_CUDA);
        let on_cpu = run(Some(&cuda), Backend::Cpu, &[]);
        assert_eq!(meaning(&on_cpu), ELSEWHERE);
        on_cpu.check_backend().unwrap();
    }

    #[test]
    fn auto_is_host_where_servers_answer_workers() {
        let servers = run(None, Backend::Cuda, &["strategy.name=async-server"]);
        assert_eq!(meaning(&servers), (Dtype::Bf16, CollectivesBackend::Host));
        servers.async_server().unwrap();
        let text = config_to_toml(&servers).unwrap();
        assert!(text.contains("\n# comm.collectives: auto is host on cuda\n"), "{text}");
        let given = run(None, Backend::Cuda, &["strategy.name=async-server", "comm.collectives=nccl"]);
        let message = given.async_server().err().unwrap().to_string();
        assert!(message.contains("(--collectives) = nccl") && message.contains("host or auto"), "{message}");
    }

    #[test]
    fn chosen_values_stay_and_are_checked() {
        let host = run(None, Backend::Cpu, &["compute.dtype=f32", "comm.collectives=host"]);
        assert_eq!(meaning(&run(Some(&host), Backend::Cuda, &[])), ELSEWHERE);
        let nccl = run(None, Backend::Cuda, &["comm.collectives=nccl", "compute.dtype=bf16"]);
        let on_cpu = run(Some(&nccl), Backend::Cpu, &[]);
        assert_eq!(meaning(&on_cpu), ON_CUDA);
        let message = on_cpu.check_backend().unwrap_err().to_string();
        assert!(message.contains("(--collectives) = nccl") && message.contains("host or auto"), "{message}");
        let given = run(Some(&nccl), Backend::Cpu, &["comm.collectives=auto"]);
        assert_eq!(meaning(&given), (Dtype::Bf16, CollectivesBackend::Host));
        given.check_backend().unwrap();
    }

    #[test]
    fn a_configuration_explains_auto() {
        for (backend, dtype, collectives, tied) in
            [(Backend::Cpu, "fp32", "host", "micro_batch"), (Backend::Cuda, "bf16", "nccl", "step")]
        {
            let text = config_to_toml(&run(None, backend, &[])).unwrap();
            let all = [
                ("compute.dtype", dtype),
                ("comm.collectives", collectives),
                ("pipeline.tied_gradients", tied),
            ];
            for (key, value) in all {
                let line = format!("\n# {key}: auto is {value} on {}\n", backend.name());
                assert!(text.contains(&line), "{line:?} is not in {text}");
            }
            let config = resolve_auto(text.parse().unwrap());
            assert_eq!(config["compute"]["dtype"].as_str(), Some(dtype));
            assert_eq!(config["comm"]["collectives"].as_str(), Some(collectives));
            assert_eq!(config["pipeline"]["tied_gradients"].as_str(), Some(tied));
        }
        let given = ["compute.dtype=f32", "comm.collectives=host", "pipeline.tied_gradients=step"];
        let text = config_to_toml(&run(None, Backend::Cuda, &given)).unwrap();
        assert!(!text.contains("auto is"), "{text}");
    }

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn a_missing_backend_is_an_error_that_lists_the_others() {
        let message = run(None, Backend::Cuda, &[]).check_backend().unwrap_err().to_string();
        let start = "compute.backend (--backend) = cuda is not possible: this program was built for cpu";
        assert!(message.starts_with(start) && message.contains("feature `cuda`"), "{message}");
    }
}
