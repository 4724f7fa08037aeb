//! The ways to train together that are compared.

use crate::bench::runner::FOLDER;

/// Ranks of every run.
pub const RANKS: usize = 4;
/// Tokens of a step: one sequence of each rank.
pub const TOKENS: usize = RANKS * 128;
/// Steps from one meeting of workers to the next.
pub const PERIOD: usize = 50;
/// Where the text's tokens are, from which both sides read.
pub const CACHE: &str = "tokens";

/// One of Brigade's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Method {
    pub name: &'static str,
    /// Of `brigade train`.
    pub flags: &'static str,
    /// Steps from one record to the next.
    pub period: usize,
    /// Whether its losses are those of plain training, to the bit.
    pub is_exact: bool,
    /// Whether it is for hosts of several ranks alone.
    pub is_for_hosts: bool,
}

const fn exact(name: &'static str, flags: &'static str) -> Method {
    Method { name, flags, period: 1, is_exact: true, is_for_hosts: false }
}

const fn coded(name: &'static str, flags: &'static str) -> Method {
    Method { name, flags, period: 1, is_exact: false, is_for_hosts: false }
}

/// Codes between the hosts of two ranks, which first add up among themselves.
const fn in_levels(name: &'static str, flags: &'static str) -> Method {
    Method { is_for_hosts: true, ..coded(name, flags) }
}

const fn local(name: &'static str, flags: &'static str) -> Method {
    Method { name, flags, period: PERIOD, is_exact: false, is_for_hosts: false }
}

/// Plain training, which is the first of [`METHODS`].
pub const PLAIN: &str = "sync";

pub const METHODS: [Method; 16] = [
    exact(PLAIN, ""),
    exact("flat", "--collectives flat"),
    exact("unencrypted", "--set comm.encryption=off"),
    coded("bf16", "--compress bf16"),
    coded("fp16", "--compress fp16"),
    coded("int8", "--compress int8"),
    coded("int4", "--compress int4"),
    in_levels("bf16-levels", "--compress bf16 --zero 1 --replicate 2"),
    in_levels("int8-levels", "--compress int8 --zero 1 --replicate 2"),
    coded("powersgd", "--compress powersgd"),
    coded("topk", "--compress topk"),
    coded("onebit", "--compress onebit"),
    local("local-sgd", "--strategy local-sgd --workers 4 --inner-steps 50"),
    local("diloco", "--strategy diloco --workers 4 --inner-steps 50"),
    local("streaming", "--strategy diloco --workers 4 --inner-steps 50 --fragments 4 --overlap-steps 10"),
    local(
        "streaming-int8",
        "--strategy diloco --workers 4 --inner-steps 50 --fragments 4 --overlap-steps 10 --set strategy.outer_dtype=int8",
    ),
];

impl Method {
    /// What its rows are called.
    pub fn label(&self) -> String {
        if self.name == PLAIN { "synchronous".to_owned() } else { format!("`{}`", self.flags) }
    }

    /// `brigade train` on hosts of this many ranks. Its results go to the folder of `run`.
    pub fn line(&self, run: &str, ranks: usize, steps: usize, seed: u64) -> String {
        let flags = if self.flags.is_empty() { String::new() } else { format!("{} ", self.flags) };
        format!(
            "brigade train --config configs/gpt-tiny.toml --nproc-per-node {ranks} --global-batch-size 4 --micro-batch-size 1 --steps {steps} --seed {seed} \
             --set schedule.name=constant --set data.cache_dir={FOLDER}/{CACHE} --checkpoint-every 0 --quiet {flags}--out {FOLDER}/{run}"
        )
    }
}

/// One of PyTorch's, by the name that `--hook` of `benches/peers/torch_bench.py` takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hook {
    pub name: &'static str,
    pub label: &'static str,
    pub period: usize,
}

/// DDP without a hook is the first.
pub const HOOKS: [Hook; 4] = [
    Hook { name: "none", label: "PyTorch DDP", period: 1 },
    Hook { name: "fp16", label: "PyTorch DDP, fp16 hook", period: 1 },
    Hook { name: "powersgd", label: "PyTorch DDP, PowerSGD hook", period: 1 },
    Hook { name: "local-sgd", label: "PyTorch post-local-SGD", period: PERIOD },
];

/// PyTorch's training of the same model on hosts of this many ranks, with some hooks one after the other.
pub fn peer_line(hooks: &str, tokens: &str, ranks: usize, steps: usize) -> String {
    format!(
        "torchrun --nproc-per-node {ranks} benches/peers/torch_bench.py --mode ddp --tied --vocab 4096 --seq 128 --dim 128 --layers 4 --heads 4 --batch 4 \
         --steps {steps} --tokens {tokens} --hook {hooks}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_say_what_is_trained() {
        let plain = METHODS[0].line("a", 2, 30, 0);
        assert!(
            plain.contains("--nproc-per-node 2") && plain.ends_with("--quiet --out runs/bench/a"),
            "{plain}"
        );
        let diloco = METHODS[13];
        assert!(diloco.line("b", 1, 150, 2).contains("--seed 2") && diloco.period == 50);
        assert!(
            diloco.line("b", 1, 150, 2).ends_with(&format!("--quiet {} --out runs/bench/b", diloco.flags))
        );
        assert!(METHODS.iter().all(|method| 400 % method.period == 0));
    }
}
