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

/// Steps with which post-local SGD begins, of all ranks together.
pub const SYNCHRONOUS_STEPS: usize = 100;

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
    /// Whether two runs have the same losses.
    pub repeats: bool,
    /// Whether it is for hosts of several ranks alone.
    pub is_for_hosts: bool,
    /// Steps of plain training with which it begins. Where there are some, only its losses are measured: the others are as fast as without them.
    pub synchronous_steps: usize,
}

const fn coded(name: &'static str, flags: &'static str) -> Method {
    Method {
        name,
        flags,
        period: 1,
        is_exact: false,
        repeats: true,
        is_for_hosts: false,
        synchronous_steps: 0,
    }
}

const fn exact(name: &'static str, flags: &'static str) -> Method {
    Method { is_exact: true, ..coded(name, flags) }
}

/// Codes between the hosts of two ranks, which first add up among themselves.
const fn in_levels(name: &'static str, flags: &'static str) -> Method {
    Method { is_for_hosts: true, ..coded(name, flags) }
}

const fn local(name: &'static str, flags: &'static str) -> Method {
    Method { period: PERIOD, ..coded(name, flags) }
}

/// Plain training, which is the first of [`METHODS`].
pub const PLAIN: &str = "sync";

pub const METHODS: [Method; 20] = [
    exact(PLAIN, ""),
    exact("flat", "--collectives flat"),
    exact("halving", "--collectives halving"),
    exact("unencrypted", "--set comm.encryption=off"),
    coded("bf16", "--compress bf16"),
    coded("fp16", "--compress fp16"),
    coded("int8", "--compress int8"),
    coded("int4", "--compress int4"),
    in_levels("bf16-levels", "--compress bf16 --zero 1 --replicate 2"),
    in_levels("int8-levels", "--compress int8 --zero 1 --replicate 2"),
    // The first two steps are not compressed, as with PyTorch's hook.
    coded("powersgd", "--compress powersgd --set comm.compress_warmup_steps=2"),
    coded("topk", "--compress topk"),
    coded("randomk", "--compress randomk"),
    coded("onebit", "--compress onebit"),
    local("local-sgd", "--strategy local-sgd --workers 4 --inner-steps 50"),
    Method {
        synchronous_steps: SYNCHRONOUS_STEPS,
        ..local("post-local-sgd", "--strategy local-sgd --workers 4 --inner-steps 50")
    },
    local("diloco", "--strategy diloco --workers 4 --inner-steps 50"),
    local("streaming", "--strategy diloco --workers 4 --inner-steps 50 --fragments 4 --overlap-steps 10"),
    local(
        "streaming-int8",
        "--strategy diloco --workers 4 --inner-steps 50 --fragments 4 --overlap-steps 10 --set strategy.outer_dtype=int8",
    ),
    // Two of the ranks are workers.
    Method {
        repeats: false,
        ..local("async-server", "--strategy async-server --servers 2 --staleness 4 --inner-steps 50")
    },
];

impl Method {
    /// What its rows are called.
    pub fn label(&self) -> String {
        match self.synchronous_steps {
            _ if self.name == PLAIN => "synchronous".to_owned(),
            0 => format!("`{}`", self.flags),
            steps => format!("{steps} synchronous steps, then `{}`", self.flags),
        }
    }

    /// Whether its losses depend on how many ranks a host has, whose sums travel as codes.
    pub fn depends_on_hosts(&self) -> bool {
        self.flags.starts_with("--compress") && !self.is_for_hosts && self.name != "powersgd"
    }

    /// Whether it is measured on hosts of this many ranks.
    pub fn is_timed(&self, ranks: usize) -> bool {
        self.synchronous_steps == 0 && (ranks > 1 || !self.is_for_hosts)
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
    /// Whether it is measured on networks; if not, only its losses are.
    pub is_timed: bool,
}

/// DDP without a hook is the first.
pub const HOOKS: [Hook; 5] = [
    Hook { name: "none", label: "PyTorch DDP", period: 1, is_timed: true },
    Hook { name: "fp16", label: "PyTorch DDP, fp16 hook", period: 1, is_timed: true },
    Hook { name: "powersgd", label: "PyTorch DDP, PowerSGD hook", period: 1, is_timed: true },
    Hook { name: "local-sgd", label: "PyTorch local SGD", period: PERIOD, is_timed: true },
    Hook {
        name: "post-local-sgd",
        label: "PyTorch post-local SGD, 100 synchronous steps",
        period: PERIOD,
        is_timed: false,
    },
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
        let named = |name: &str| METHODS.into_iter().find(|method| method.name == name).unwrap();
        let diloco = named("diloco");
        assert!(diloco.line("b", 1, 150, 2).contains("--seed 2") && diloco.period == 50);
        assert!(
            diloco.line("b", 1, 150, 2).ends_with(&format!("--quiet {} --out runs/bench/b", diloco.flags))
        );
        assert!(METHODS.iter().all(|method| 400 % method.period == 0));
        let after = named("post-local-sgd");
        assert!(after.label().starts_with("100 synchronous steps, then `--strategy local-sgd"));
        assert!(HOOKS[4].label.contains(&format!("{SYNCHRONOUS_STEPS} synchronous steps")));
        assert!(SYNCHRONOUS_STEPS.is_multiple_of(PERIOD));
    }

    #[test]
    fn what_is_measured_depends_on_the_hosts() {
        let timed = |ranks| METHODS.iter().filter(|method| method.is_timed(ranks)).count();
        assert_eq!((timed(2), timed(1)), (METHODS.len() - 1, METHODS.len() - 3));
    }
}
