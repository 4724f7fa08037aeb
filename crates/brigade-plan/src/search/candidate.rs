//! One configuration.

use serde::Serialize;

use crate::columns::counted;
use crate::memory::Sharding;
use crate::schedule::PipelineScheduleKind;
use crate::unshard::ReshardPolicy;

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
    /// How parameters are held.
    pub fn sharding(&self) -> Sharding {
        Sharding {
            zero: self.zero,
            shards: self.shards(),
            micro_batches: self.micro_batches,
            reduce_each_micro_batch: self.reduce_each_micro_batch,
            reshard: self.reshard,
            offload: self.offload,
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

    /// The settings that have no flag of their own, as `section.key=value`.
    pub fn settings(&self) -> Vec<String> {
        let mut settings = Vec::new();
        if self.zero == 3 {
            let usual =
                if self.pp == 1 { ReshardPolicy::AfterUseUnlessNext } else { ReshardPolicy::AfterBackward };
            let set = match self.reshard {
                policy if policy == usual => None,
                ReshardPolicy::AfterStep => Some("zero.keep_gathered=true"),
                ReshardPolicy::AfterUse => Some("zero.reshard_after_forward=always"),
                ReshardPolicy::AfterBackward => Some("zero.reshard_after_forward=never"),
                ReshardPolicy::AfterUseUnlessNext => Some("zero.reshard_after_forward=default"),
            };
            settings.extend(set.map(str::to_owned));
        }
        if self.zero >= 2 && !self.reduce_each_micro_batch {
            settings.push("zero.reduce_every=step".into());
        }
        if self.offload {
            settings.push("zero.offload_optimizer=true".into());
        }
        settings
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
        let mut flags = format!(
            "--pp {} --dp {} --zero {} --micro-batch-size {} --global-batch-size {}",
            self.pp,
            self.dp,
            self.zero,
            self.micro_batch,
            self.global_batch()
        );
        if self.replicate > 1 {
            flags.push_str(&format!(" --replicate {}", self.replicate));
        }
        if self.pp > 1 {
            flags.push_str(&format!(" --schedule {}", self.schedule));
            if self.chunks > 1 {
                flags.push_str(&format!(" --chunks {}", self.chunks));
            }
        }
        match self.recompute_every {
            0 => {}
            1 => flags.push_str(" --recompute all"),
            k => flags.push_str(&format!(" --recompute every-{k}")),
        }
        for setting in self.settings() {
            flags.push_str(&format!(" --set {setting}"));
        }
        flags
    }
}
