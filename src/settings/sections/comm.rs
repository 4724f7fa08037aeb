//! Settings of the communication between ranks.

use brigade_comm::{Algorithm, AlgorithmRow};
use brigade_core::compress::{Compression, CompressionError, GatherCodes, Method, Rounding};
use brigade_core::{Dtype, ReduceEvery};
use serde::{Deserialize, Serialize};

use crate::settings::{CollectivesBackend, Encryption, SettingError, Settings, SumOrder, Transport};

/// `[comm]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CommSettings {
    /// `auto`, `nccl`, `host` or `mpi`: the library that runs collectives on tensors. `flat`, `halving` and `hierarchical` are `host` with
    /// that algorithm; `mpi` is the cluster's MPI.
    pub collectives: CollectivesBackend,
    /// The algorithm of collectives in host memory by their size, where `collectives` leaves it open: the rows that `brigade doctor
    /// --network` prints. No row changes the bits.
    pub table: Vec<AlgorithmRow>,
    /// `tree` or `engine`: whether sums over ranks are made pairwise, with the same bits on every mesh, or as MPI adds them.
    pub order: SumOrder,
    /// Whether the host waits for each NCCL operation, to debug their order: slow, with the same results.
    pub synchronous: bool,
    /// `auto`, `shared_memory` or `tcp`.
    pub transport: Transport,
    /// `between_hosts` or `off`: what Brigade's own connections carry between hosts is encrypted and authenticated, unless it is off on all ranks. Tensors that
    /// are sent by NCCL or MPI are not encrypted.
    pub encryption: Encryption,
    /// The network interfaces by which ranks of different hosts send each other data, as in `["eth0", "eth1"]`: names, addresses or networks
    /// (`10.0.0.0/24`). A host's ranks take them in turns. Empty: the one by which a host reaches rank 0.
    pub interfaces: Vec<String>,
    /// The encoding of gradients between data-parallel ranks: `none`, `bf16`, `fp16`, `int8`, `int4`, `powersgd`, `topk`, `randomk` or
    /// `onebit`. All but `none` make the weights depend on the mesh.
    pub compress: Method,
    /// For `int8`, `int4` and `onebit`: how many numbers share a scale, a multiple of 8; 0 means 256, or 1024 for
    /// `onebit`.
    pub compress_block_size: usize,
    /// For `int8` and `int4`: `nearest`, with error feedback, or `stochastic`, without.
    pub compress_rounding: Rounding,
    /// For `topk` and `randomk`: the share of the numbers that is sent; for `topk` at most 0.5, as it also sends their places.
    pub compress_ratio: f64,
    /// Steps at the beginning in which gradients are not compressed (PyTorch's `start_powerSGD_iter`, DeepSpeed's `freeze_step`).
    pub compress_warmup_steps: u64,
    /// For `powersgd`: the rank of the approximation, that is, columns of the two factors of a matrix.
    pub matrix_approximation_rank: usize,
    /// With ZeRO: `none`, `int8` or `int4`, the encoding of parameters when ranks gather each other's shards (ZeRO++). Ranks compute with what the
    /// codes stand for; the optimizer's parameters, checkpoints and weights stay fp32. The number of ranks does not change the weights.
    pub compress_gathers: GatherCodes,
    /// Gradients, and what ZeRO-1 and 2 have updated, are sent together in buckets of at most this many MB, because each collective pays the network's latency
    /// (PyTorch's `bucket_cap_mb`). 0: within a host each unit by itself; between hosts, in host memory, as much as 1 Gbit/s moves in two delays,
    /// which are measured when the ranks have met. No value changes the bits of collectives in host memory.
    pub bucket_cap_mb: f64,
    /// Timeout for all ranks to start, in seconds.
    pub init_timeout_seconds: f64,
    /// Timeout of an operation within a step, and of reading the data of a step, in seconds. For the first step on a GPU it is `init_timeout_seconds`, if that is longer.
    pub train_timeout_seconds: f64,
    /// How long another host may be unreachable before its ranks count as lost, in seconds. Interruptions of up to half of that are
    /// survived; the end of a process is noticed at once.
    pub host_timeout_seconds: f64,
}

impl Default for CommSettings {
    fn default() -> Self {
        let usual = Compression::default();
        Self {
            collectives: CollectivesBackend::Auto,
            table: Vec::new(),
            order: SumOrder::Tree,
            synchronous: false,
            transport: Transport::Auto,
            encryption: Encryption::BetweenHosts,
            interfaces: Vec::new(),
            compress: usual.method,
            compress_block_size: usual.block_size,
            compress_rounding: usual.rounding,
            compress_ratio: usual.ratio,
            compress_warmup_steps: usual.warmup_steps,
            matrix_approximation_rank: usual.rank,
            compress_gathers: GatherCodes::None,
            bucket_cap_mb: 0.0,
            init_timeout_seconds: 300.0,
            train_timeout_seconds: 100.0,
            host_timeout_seconds: 30.0,
        }
    }
}

impl CommSettings {
    /// How gradients are encoded between ranks.
    pub fn compression(&self) -> Compression {
        Compression {
            method: self.compress,
            block_size: self.compress_block_size,
            rounding: self.compress_rounding,
            ratio: self.compress_ratio,
            rank: self.matrix_approximation_rank,
            warmup_steps: self.compress_warmup_steps,
        }
    }

    /// Checks the numbers of the compression by themselves.
    ///
    /// # Errors
    /// If one is out of range.
    pub fn check_compression(&self) -> Result<(), SettingError> {
        self.compression().check().map_err(|error| {
            let (option, given) = match error {
                CompressionError::BlockSize(_) => {
                    ("comm.compress_block_size", self.compress_block_size.to_string())
                }
                CompressionError::Ratio => ("comm.compress_ratio", self.compress_ratio.to_string()),
                CompressionError::Rank => {
                    ("comm.matrix_approximation_rank", self.matrix_approximation_rank.to_string())
                }
            };
            SettingError::new(option, given, error.to_string())
        })
    }
}

impl Settings {
    /// Checks the size of buckets.
    ///
    /// # Errors
    /// If it is none.
    pub(crate) fn check_buckets(&self) -> Result<(), SettingError> {
        let given = self.comm.bucket_cap_mb;
        match (0.0..=1e6).contains(&given) {
            true => Ok(()),
            false => {
                Err(SettingError::new("comm.bucket_cap_mb", given, "it must be a number of MB from 0 to 1e6"))
            }
        }
    }

    /// Checks the table of algorithms.
    ///
    /// # Errors
    /// If the collectives are others, or a row is for none that has several algorithms.
    pub(crate) fn check_table(&self) -> Result<(), SettingError> {
        let CommSettings { table, collectives, .. } = &self.comm;
        let Some(first) = table.first() else { return Ok(()) };
        let refuse = |row: &AlgorithmRow, allowed: &str| {
            let given =
                format!("{{ collective = \"{}\", algorithm = \"{}\" }}", row.collective, row.algorithm);
            Err(SettingError::new("comm.table", given, allowed))
        };
        if !matches!(collectives, CollectivesBackend::Auto | CollectivesBackend::Host) {
            let allowed = "only --collectives auto and host leave the algorithm open; leave the table out, or set one of these";
            return refuse(first, allowed);
        }
        if !self.strategy.coordinator.is_empty() || !self.strategy.listen.is_empty() {
            let allowed = "the table was not measured for worlds of separately launched workers (strategy.coordinator, strategy.listen); remove it";
            return refuse(first, allowed);
        }
        if let Some(row) = table.iter().find(|row| !AlgorithmRow::COLLECTIVES.contains(&row.collective)) {
            return refuse(row, "collective must be all_reduce, reduce_scatter, all_gather or broadcast");
        }
        match table.iter().find(|row| row.algorithm == Algorithm::Auto) {
            Some(row) => refuse(row, "algorithm must be flat, halving or hierarchical"),
            None => Ok(()),
        }
    }

    /// Checks the compression of gradients on a mesh with this many replicas of shards.
    ///
    /// # Errors
    /// If a number is out of range, or the method cannot be combined with what else is set.
    pub(crate) fn check_compression(&self, replicas: usize) -> Result<(), SettingError> {
        let Self { comm, zero, compute, .. } = self;
        comm.check_compression()?;
        if comm.compress_gathers != GatherCodes::None && zero.stage == 0 {
            let allowed = "without ZeRO no shards are gathered; set none, or --zero 1, 2 or 3";
            return Err(SettingError::new("comm.compress_gathers", comm.compress_gathers, allowed));
        }
        if comm.compress_gathers != GatherCodes::None && self.strategy.is_elastic() {
            let allowed =
                "compressed gathers cannot be combined with strategy.coordinator (--coordinator); set none";
            return Err(SettingError::new("comm.compress_gathers", comm.compress_gathers, allowed));
        }
        let refused =
            |allowed: &str| Err(SettingError::new("comm.compress (--compress)", comm.compress, allowed));
        let each = self.zero.stage >= 2 && zero.reduce_every == ReduceEvery::MicroBatch;
        match comm.compress {
            Method::None => Ok(()),
            _ if compute.reduce_dtype != Dtype::F32 => refused(
                "codes are made from fp32: set compute.reduce_dtype = \"fp32\", and --compress bf16 to send as few \
                bytes",
            ),
            Method::PowerSgd if replicas > 1 => refused(
                "it needs whole matrices, and replicas have only shards; set --replicate 1, or int8, which works on shards",
            ),
            Method::PowerSgd if each => {
                refused("it takes the gradients once per step; set zero.reduce_every = \"step\", or --zero 1")
            }
            Method::TopK if comm.compress_ratio > 0.5 => {
                let allowed = "topk sends an index with each number, so above 0.5 it sends more than without compression; set at most \
                    0.5, or --compress none or randomk";
                Err(SettingError::new("comm.compress_ratio", comm.compress_ratio, allowed))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn planned(world: usize, toml: &str) -> Result<Compression, String> {
        let settings: Settings = crate::settings::parse_defaults(toml).map_err(|error| error.to_string())?;
        let plan = settings.plan(world, 1).map_err(|error| error.to_string())?;
        assert_eq!(plan.engine.strategy.period(), settings.train.sync_every);
        Ok(plan.compression)
    }

    #[test]
    fn every_method_goes_with_every_stage_of_zero_that_it_can_be_combined_with() {
        for method in Method::ALL {
            for stage in 0..4 {
                let once = if stage > 1 { "reduce_every = \"step\"\n" } else { "" };
                let toml = format!(
                    "[comm]\ncompress = \"{method}\"\n[mesh]\npp = 2\n[zero]\nstage = {stage}\n{once}"
                );
                assert_eq!(planned(4, &toml).unwrap().method, method);
            }
        }
        let toml = "[comm]\ncompress = \"onebit\"\ncompress_block_size = 64\ncompress_rounding = \"stochastic\"\ncompress_ratio = 0.5\ncompress_warmup_steps = 40\nmatrix_approximation_rank = 2\n";
        let all = Compression {
            method: Method::OneBit,
            block_size: 64,
            rounding: Rounding::Stochastic,
            ratio: 0.5,
            rank: 2,
            warmup_steps: 40,
        };
        assert_eq!(planned(2, toml).unwrap(), all);
    }

    #[test]
    fn what_cannot_be_combined_is_refused_with_what_can() {
        for (toml, said) in [
            ("[comm]\ncompress = \"int7\"\n", "`comm.compress`: it must be none, bf16"),
            (
                "[comm]\ncompress_gathers = \"int8\"\n",
                "comm.compress_gathers = int8 is not possible: without ZeRO no shards are gathered; set none, or --zero 1, 2 or 3",
            ),
            (
                "[comm]\ncompress_block_size = 100\n",
                "comm.compress_block_size = 100 is not possible: it must be a multiple of 8 from 8 to 65536, or 0 for the method's default; the nearest is \
                104",
            ),
            (
                "[comm]\ncompress_ratio = 1.5\n",
                "comm.compress_ratio = 1.5 is not possible: it must be above 0",
            ),
            (
                "[comm]\ncompress = \"topk\"\ncompress_ratio = 0.6\n",
                "comm.compress_ratio = 0.6 is not possible: topk sends an index with each number",
            ),
            (
                "[comm]\nmatrix_approximation_rank = 0\n",
                "comm.matrix_approximation_rank = 0 is not possible: it must be from 1 to 1024",
            ),
            (
                "[comm]\ncompress = \"int8\"\n[compute]\nreduce_dtype = \"bf16\"\n",
                "comm.compress (--compress) = int8 is not possible: codes are made from fp32: set compute.reduce_dtype = \
                \"fp32\"",
            ),
            (
                "[comm]\ncompress = \"powersgd\"\n[zero]\nstage = 2\n",
                "set zero.reduce_every = \"step\", or --zero 1",
            ),
            (
                "[comm]\ncompress = \"powersgd\"\n[mesh]\nreplicate = 2\n[zero]\nstage = 1\n",
                "set --replicate 1, or int8",
            ),
        ] {
            let told = planned(4, toml).unwrap_err();
            assert!(told.contains(said), "{told}");
        }
    }
}
