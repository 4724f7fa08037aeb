//! One configuration.

use serde::Serialize;

use crate::columns::counted;
use crate::memory::{KeptBytes, Sharding};
use crate::schedule::PipelineScheduleKind;
use crate::unshard::ReshardPolicy;

/// Blocks whose parameters are gathered ahead under ZeRO-3, in every plan: training's default.
pub(super) const PREFETCH: usize = 1;

/// How a model is spread over the ranks. Ranks are numbered with `tp` innermost, then `dp`, then `pp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct Candidate {
    /// Tensor-parallel ranks.
    pub tp: usize,
    /// Pipeline stages.
    pub pp: usize,
    /// Data-parallel ranks.
    pub dp: usize,
    /// Replicas of what ZeRO shards (hybrid sharding): each `dp / replicate` neighbours hold all shards.
    pub replicate: usize,
    /// ZeRO's stage.
    pub zero: u8,
    /// The pipeline's schedule.
    pub schedule: PipelineScheduleKind,
    /// Chunks of a stage.
    pub chunks: usize,
    /// Sequences of a micro-batch.
    pub micro_batch: usize,
    /// Micro-batches of a rank in a step.
    pub micro_batches: usize,
    /// Which blocks are recomputed: every k-th, 0 for none.
    pub recompute_every: usize,
    /// ZeRO-3: when gathered parameters are freed.
    #[serde(serialize_with = "reshard_name")]
    pub reshard: ReshardPolicy,
    /// ZeRO-2 and 3: whether each micro-batch's gradients are reduced.
    pub reduce_each_micro_batch: bool,
    /// Whether the optimizer's state is in the host's memory.
    pub offload: bool,
}

fn reshard_name<S: serde::Serializer>(policy: &ReshardPolicy, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(match policy {
        ReshardPolicy::AfterUse => "always",
        ReshardPolicy::AfterUseUnlessNext => "default",
        ReshardPolicy::AfterBackward => "never",
        ReshardPolicy::AfterStep => "keep_gathered",
    })
}

impl Candidate {
    /// How parameters are held, gradients of a tied head sent (see [`Sharding::tied_each_micro_batch`]), and what is kept of gradients that are compressed.
    pub fn sharding(&self, tied_each_micro_batch: bool, kept: KeptBytes) -> Sharding {
        Sharding {
            zero: self.zero,
            shards: self.shards(),
            replicas: self.replicate,
            micro_batches: self.micro_batches,
            reduce_each_micro_batch: self.reduce_each_micro_batch,
            reshard: self.reshard,
            offload: self.offload,
            tied_each_micro_batch,
            kept,
        }
    }

    /// Ranks that ZeRO shards over.
    pub fn shards(&self) -> usize {
        self.dp / self.replicate.max(1)
    }

    /// Whether Brigade can run it.
    pub fn is_built(&self) -> bool {
        self.tp == 1
    }

    /// The schedule in effect: one chunk of one stage has none.
    pub fn kind(&self) -> PipelineScheduleKind {
        if self.pp * self.chunks == 1 { PipelineScheduleKind::default() } else { self.schedule }
    }

    /// In one line.
    pub fn label(&self) -> String {
        let mut label = String::new();
        if self.tp > 1 {
            label.push_str(&format!("tp {} ", self.tp));
        }
        label.push_str(&format!("pp {} dp {} zero {}", self.pp, self.dp, self.zero));
        if self.replicate > 1 {
            label.push_str(&format!(" replicate {}", self.replicate));
        }
        label.push_str(&format!(" micro-batch {}x{}", self.micro_batch, self.micro_batches));
        if self.pp > 1 {
            label.push_str(&format!(" {}", self.schedule));
            if self.chunks > 1 {
                label.push_str(&format!("/{}", self.chunks));
            }
        }
        label.push_str(&match self.recompute_every {
            0 => String::new(),
            1 => " recompute all".into(),
            k => format!(" recompute every-{k}"),
        });
        let settings = self.settings();
        if !settings.is_empty() {
            label.push_str(&format!(" {}", settings.join(" ")));
        }
        label
    }

    /// The settings that have no flag of their own and are not as by default, as `section.key=value`.
    fn settings(&self) -> Vec<String> {
        let all = self.choices().into_iter().filter(|choice| !choice.is_default);
        all.filter(|choice| choice.flag.is_none())
            .map(|choice| format!("{}={}", choice.setting, choice.value))
            .collect()
    }

    /// What is chosen besides the sizes of the mesh, of the batch and ZeRO's stage.
    fn choices(&self) -> [Choice; 10] {
        let set = |setting, value: &str, is_default| Choice {
            setting,
            flag: None,
            value: value.to_owned(),
            is_default,
        };
        let flag = |setting, flag, value, is_default| Choice { setting, flag: Some(flag), value, is_default };
        let recompute = match self.recompute_every {
            0 => "none".to_owned(),
            1 => "all".to_owned(),
            k => format!("every-{k}"),
        };
        let usual = ReshardPolicy::usual(self.pp);
        let reshard = match self.reshard {
            _ if self.zero < 3 => "default",
            policy if policy == usual => "default",
            ReshardPolicy::AfterStep | ReshardPolicy::AfterUseUnlessNext => "default",
            ReshardPolicy::AfterUse => "always",
            ReshardPolicy::AfterBackward => "never",
        };
        let keeps = self.zero == 3 && self.reshard == ReshardPolicy::AfterStep;
        let each = self.zero < 2 || self.reduce_each_micro_batch;
        let (chunks, has_stages) = (if self.pp > 1 { self.chunks } else { 1 }, self.pp > 1);
        [
            flag("mesh.replicate", "--replicate", self.replicate.to_string(), self.replicate == 1),
            flag("pipeline.schedule", "--schedule", self.kind().to_string(), !has_stages),
            flag("pipeline.chunks", "--chunks", chunks.to_string(), chunks == 1),
            flag("compute.recompute", "--recompute", recompute, self.recompute_every == 0),
            // The split is of the costs that were planned with.
            set("pipeline.balance", "cost", true),
            // What every plan gathers ahead.
            set("zero.prefetch", &PREFETCH.to_string(), true),
            set("zero.keep_gathered", if keeps { "true" } else { "false" }, !keeps),
            set("zero.reshard_after_forward", reshard, reshard == "default"),
            set("zero.reduce_every", if each { "micro_batch" } else { "step" }, each),
            set("zero.offload_optimizer", if self.offload { "true" } else { "false" }, !self.offload),
        ]
    }

    /// Sequences of a step over all ranks.
    pub fn global_batch(&self) -> usize {
        self.micro_batch * self.micro_batches * self.dp
    }

    /// That its steps are of other batches than this one, where they are: ranks may not be able to divide it.
    pub fn other_batch(&self, global_batch: usize) -> Option<String> {
        let batch = self.global_batch();
        (batch != global_batch)
            .then(|| format!("{} in a step, not {global_batch}", counted(batch, "sequence")))
    }

    /// The flags of `brigade train`.
    pub fn flags(&self) -> String {
        self.flags_over(&[])
    }

    /// The flags of `brigade train` with a configuration that has these settings, by name: also of what is as by default, where the configuration has something else.
    pub fn flags_over(&self, settings: &[String]) -> String {
        let mut flags = format!(
            "--pp {} --dp {} --zero {} --micro-batch-size {} --global-batch-size {}",
            self.pp,
            self.dp,
            self.zero,
            self.micro_batch,
            self.global_batch()
        );
        for Choice { setting, flag, value, is_default } in self.choices() {
            if !is_default || settings.iter().any(|name| name == setting) {
                match flag {
                    Some(flag) => flags.push_str(&format!(" {flag} {value}")),
                    None => flags.push_str(&format!(" --set {setting}={value}")),
                }
            }
        }
        flags
    }

    /// Everything that it chooses, as names of settings with their values.
    pub(crate) fn all_settings(&self) -> Vec<(&'static str, String)> {
        let sizes = [
            ("mesh.pp", self.pp),
            ("mesh.dp", self.dp),
            ("train.micro_batch_size", self.micro_batch),
            ("train.global_batch_size", self.global_batch()),
            ("zero.stage", usize::from(self.zero)),
        ];
        let sizes = sizes.map(|(setting, size)| (setting, size.to_string()));
        let choices = self.choices().map(|Choice { setting, value, .. }| (setting, value));
        sizes.into_iter().chain(choices).collect()
    }
}

/// One choice.
struct Choice {
    /// The setting that it is of.
    setting: &'static str,
    /// The setting's own flag.
    flag: Option<&'static str>,
    value: String,
    /// Whether a run without the flag and the setting does the same.
    is_default: bool,
}
