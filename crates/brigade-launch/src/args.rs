//! The standard flags of a program that starts or joins a world.

use std::{path::PathBuf, str::FromStr, time::Duration};

use brigade_comm::{MAX_WORLD_SIZE, allowed_world_size};

use crate::{
    endpoint::{DEFAULT_MASTER_PORT, DEFAULT_RDZV_PORT, Endpoint},
    error::{Error, Result},
    node_count::NodeCount,
    parse::{count, node_count, node_timeout, port, seconds},
    rank::restart::MAX_RESTARTS,
};

/// How many ranks to start on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NprocPerNode {
    /// One rank for each core that this process may use (`auto` and `cpu`).
    PerCore,
    /// This many ranks, 1 to [`MAX_WORLD_SIZE`].
    Count(usize),
}

impl NprocPerNode {
    /// The number of ranks on this machine.
    pub fn resolve(self) -> usize {
        match self {
            Self::PerCore => std::thread::available_parallelism().map_or(1, |n| n.get().min(MAX_WORLD_SIZE)),
            Self::Count(n) => n,
        }
    }
}

impl FromStr for NprocPerNode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" | "cpu" => Ok(Self::PerCore),
            "gpu" => Err("ranks per GPU are not supported; use auto, cpu or a number".into()),
            _ => count(text, 1, MAX_WORLD_SIZE)
                .map(Self::Count)
                .map_err(|range| format!("use auto, cpu or {range}; {}", allowed_world_size())),
        }
    }
}

fn restarts(text: &str) -> Result<u32, String> {
    let number = count(text, 0, MAX_RESTARTS as usize)?;
    u32::try_from(number).map_err(|error| error.to_string())
}

/// The standard flags, spelled as torchrun's. Flatten it into a command with `#[command(flatten)]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "World")]
pub struct LaunchArgs {
    /// Ranks to start on this node: a number, or `auto`/`cpu` for one per core.
    #[arg(long, alias = "nproc_per_node", value_name = "N|auto|cpu", allow_negative_numbers = true)]
    pub nproc_per_node: Option<NprocPerNode>,
    /// Nodes of the world; start the same command on each with its own --node-rank. MIN:MAX makes the world elastic: it
    /// continues without lost nodes, down to MIN, and accepts nodes that come later, up to MAX.
    #[arg(long, value_name = "N|MIN:MAX", allow_negative_numbers = true, value_parser = node_count)]
    pub nnodes: Option<NodeCount>,
    /// How long an elastic world with MIN nodes waits for more before it starts, at first and after losing a node
    /// [default: 30]. Node 0's value applies.
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = seconds)]
    pub last_call: Option<Duration>,
    /// The least time that the ranks of an elastic world run before they are restarted with a node that came later
    /// [default: 60]. Node 0's value applies.
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = seconds)]
    pub resize_interval: Option<Duration>,
    /// This node's number, from 0.
    #[arg(long, alias = "node_rank", value_name = "I", allow_negative_numbers = true, value_parser = |text: &str| count(text, 0, MAX_WORLD_SIZE - 1))]
    pub node_rank: Option<usize>,
    /// Where rank 0 (on node 0) waits for the others [default port: 29400].
    #[arg(long, alias = "rdzv_endpoint", value_name = "HOST:PORT", conflicts_with_all = ["master_addr", "master_port"])]
    pub rdzv_endpoint: Option<Endpoint>,
    /// The host of --rdzv-endpoint, as torchrun also spells it.
    #[arg(long, alias = "master_addr", value_name = "HOST")]
    pub master_addr: Option<String>,
    /// The port that belongs to --master-addr [default: 29500].
    #[arg(long, alias = "master_port", value_name = "PORT", allow_negative_numbers = true, value_parser = port)]
    pub master_port: Option<u16>,
    /// Start a world on this machine alone, ignoring the environment.
    #[arg(long, conflicts_with_all = ["nnodes", "node_rank", "rdzv_endpoint", "master_addr", "master_port"])]
    pub standalone: bool,
    /// Restart the ranks of all nodes when one fails, up to N times [default: 0]. Node 0's value applies.
    #[arg(long, alias = "max_restarts", value_name = "N", allow_negative_numbers = true, value_parser = restarts)]
    pub max_restarts: Option<u32>,
    /// Kill a rank that has sent no heartbeat for this long, and fail; 0 for never [default: 600].
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = seconds)]
    pub heartbeat_timeout: Option<Duration>,
    /// How long another node may be unreachable before it counts as lost; interruptions of up to half of that are survived [default: 30].
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = node_timeout)]
    pub host_timeout: Option<Duration>,
    /// How long the launchers of several nodes wait for each other, at the start and for one that is lost [default: 300, or
    /// comm.init_timeout_seconds].
    #[arg(long, alias = "rdzv_timeout", value_name = "SECONDS", allow_negative_numbers = true, value_parser = node_timeout)]
    pub rdzv_timeout: Option<Duration>,
    /// How long ranks may take to save a checkpoint after SIGTERM or SIGUSR1 [default: 30].
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = seconds)]
    pub preemption_grace: Option<Duration>,
    /// Folder of the ranks' logs: rank-0.log, rank-1.log, ...
    #[arg(long, alias = "log_dir", value_name = "DIR")]
    pub log_dir: Option<PathBuf>,
    /// Also print the output of the other ranks, with the rank on each line.
    #[arg(long)]
    pub tee: bool,
}

impl LaunchArgs {
    /// The name of a flag that describes the world, if one is given. Such a flag overrides the environment.
    pub(crate) fn topology_flag(&self) -> Option<&'static str> {
        [
            (self.standalone, "--standalone"),
            (self.nnodes.is_some(), "--nnodes"),
            (self.node_rank.is_some(), "--node-rank"),
            (self.rdzv_endpoint.is_some(), "--rdzv-endpoint"),
            (self.master_addr.is_some(), "--master-addr"),
            (self.master_port.is_some(), "--master-port"),
        ]
        .into_iter()
        .find_map(|(given, name)| given.then_some(name))
    }

    /// Where rank 0 waits, if a flag says so.
    pub(crate) fn endpoint(&self) -> Result<Option<Endpoint>> {
        let bad = |option, value: String, allowed| Error::Flag { option, value, allowed };
        match (&self.rdzv_endpoint, &self.master_addr, self.master_port) {
            (Some(given), None, None) => Ok(Some(given.clone())),
            (Some(given), _, _) => Err(bad(
                "--rdzv-endpoint",
                given.to_string(),
                format!(
                    "give either this flag or --master-addr and --master-port (default port \
                    {DEFAULT_RDZV_PORT})"
                ),
            )),
            (None, None, None) => Ok(None),
            (None, host, port) => {
                let (host, port) =
                    (host.as_deref().unwrap_or("127.0.0.1"), port.unwrap_or(DEFAULT_MASTER_PORT));
                Endpoint::new(host, port)
                    .map(Some)
                    .map_err(|allowed| bad("--master-addr", host.into(), allowed))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        world: LaunchArgs,
    }

    fn parse(line: &str) -> Result<LaunchArgs, String> {
        let words = std::iter::once("program").chain(line.split_whitespace());
        Program::try_parse_from(words).map(|program| program.world).map_err(|error| error.to_string())
    }

    #[test]
    fn reads_torchrun_spellings() {
        let args =
            parse("--nproc-per-node auto --nnodes 2:4 --node-rank 1 --rdzv-endpoint head --tee").unwrap();
        assert_eq!(args.nproc_per_node, Some(NprocPerNode::PerCore));
        assert_eq!((args.node_rank, args.tee), (Some(1), true));
        let nodes = |line| parse(line).unwrap().nnodes.unwrap();
        assert_eq!((args.nnodes, nodes("--nnodes 3")), (Some(NodeCount { least: 2, most: 4 }), 3.into()));
        assert_eq!([nodes("--nnodes 2:2"), nodes("--nnodes 1:3")].map(|n| n.to_string()), ["2", "1:3"]);
        assert_eq!(args.endpoint().unwrap().unwrap().to_string(), "head:29400");
        let args = parse("--nproc-per-node 4 --master-addr head").unwrap();
        assert_eq!(args.nproc_per_node.unwrap().resolve(), 4);
        assert_eq!(args.endpoint().unwrap().unwrap().to_string(), "head:29500");
        assert!(NprocPerNode::PerCore.resolve() >= 1);
        let args = parse("--max-restarts 3 --heartbeat-timeout 0 --preemption-grace 2.5").unwrap();
        assert_eq!((args.max_restarts, args.heartbeat_timeout), (Some(3), Some(Duration::ZERO)));
        assert_eq!(args.preemption_grace, Some(Duration::from_millis(2500)));
    }

    #[test]
    fn refuses_what_makes_no_sense_and_says_what_does() {
        for (line, said) in [
            ("--nproc-per-node 0", "1 to 1024"),
            ("--nproc-per-node gpu", "not supported"),
            ("--nnodes 4:2", "4 is more than 2"),
            ("--nnodes 2:", "1 to 1024"),
            ("--nnodes 70000", "1 to 1024"),
            ("--master-port 0", "1 to 65535"),
            ("--rdzv-endpoint a:b", "1 to 65535"),
            ("--standalone --nnodes 2", "--standalone"),
            ("--max-restarts=-1", "--max-restarts"),
            ("--max-restarts 1000001", "0 to 1000000"),
            ("--heartbeat-timeout 1e300", "number of seconds"),
            ("--preemption-grace .", "number of seconds"),
            ("--host-timeout 0.5", "seconds from 1 to 1000000"),
            ("--rdzv-timeout 0", "seconds from 1 to 1000000"),
            ("--rdzv-endpoint a:1 --master-port 2", "--rdzv-endpoint"),
        ] {
            let message = parse(line).unwrap_err();
            assert!(message.contains(said), "{line}: {message}");
        }
    }
}
