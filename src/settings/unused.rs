//! Settings that are given and that nothing uses.

use brigade_core::compress::Method;
use brigade_core::{LearningRateScaling, LrSchedulerKind, PP};

use super::{
    CheckpointSettings, CommSettings, OnNonFinite, OptimizerSettings, PipelineSettings, RunPlan,
    ScheduleSettings, Settings, StrategyName, StrategySettings, TrainSettings, ZeroSettings,
};

impl Settings {
    /// Notes on settings that are not what they are by default, and have no effect beside the others.
    pub(crate) fn notes_on_unused(&self, plan: &RunPlan) -> Vec<String> {
        let (optimizer, compress) = (&self.optimizer, self.comm.compress);
        let has_peers = plan.data_ranks() > 1 || plan.workers() > 1;
        let sections = [
            (
                "a run without pipeline stages (--pp 1)".to_owned(),
                self.pipeline.unused(plan.mesh.size(PP) > 1),
            ),
            (
                "a run with one data-parallel rank".to_owned(),
                unused([("comm.compress (--compress)", has_peers, compress == Method::None)]),
            ),
            (format!("zero.stage = {}", self.zero.stage), self.zero.unused()),
            ("this strategy".to_owned(), self.strategy.unused()),
            ("this schedule.name".to_owned(), self.schedule.unused()),
            (
                "a run that stops at the first non-finite step (train.on_nonfinite = stop)".to_owned(),
                self.train.unused_of_nonfinite(),
            ),
            (
                "a run without early stopping (train.early_stopping_patience = 0)".to_owned(),
                self.train.unused_of_early_stopping(),
            ),
            ("a run with checkpoint.keep_best = false".to_owned(), self.checkpoint.unused_of_best()),
            (format!("optimizer.name = {}", optimizer.name), optimizer.unused()),
            ("sgd without momentum (optimizer.momentum = 0)".to_owned(), optimizer.unused_of_momentum()),
            (
                "a learning rate that is not scaled (optimizer.learning_rate_scaling = none)".to_owned(),
                optimizer.unused_of_scaling(),
            ),
            ("a run without readers (train.readers = 0)".to_owned(), self.train.unused_of_readers()),
            (format!("comm.compress = {compress}"), self.comm.unused()),
        ];
        sections.into_iter().filter_map(|(what, names)| note(&what, &names)).collect()
    }
}

/// A note on settings, if there are any, that this does not use.
fn note(what: &str, names: &[&str]) -> Option<String> {
    (!names.is_empty()).then(|| format!("note: {what} does not use {}", names.join(", ")))
}

/// The names of settings that are used, or are as by default, left out.
fn unused<const N: usize>(settings: [(&'static str, bool, bool); N]) -> Vec<&'static str> {
    let settings = settings.into_iter().filter(|(_, is_used, is_usual)| !is_used && !is_usual);
    settings.map(|(name, ..)| name).collect()
}

impl ZeroSettings {
    fn unused(&self) -> Vec<&'static str> {
        let (usual, shards_parameters) = (Self::default(), self.stage == 3);
        unused([
            ("zero.prefetch", shards_parameters, self.prefetch == usual.prefetch),
            (
                "zero.reshard_after_forward",
                shards_parameters,
                self.reshard_after_forward == usual.reshard_after_forward,
            ),
            ("zero.keep_gathered", shards_parameters, self.keep_gathered == usual.keep_gathered),
            ("zero.reduce_every", self.stage >= 2, self.reduce_every == usual.reduce_every),
        ])
    }
}

impl ScheduleSettings {
    fn unused(&self) -> Vec<&'static str> {
        let (usual, falls) = (Self::default(), self.name != LrSchedulerKind::Constant);
        unused([
            ("schedule.min_ratio", falls, self.min_ratio == usual.min_ratio),
            (
                "schedule.decay_steps",
                self.name == LrSchedulerKind::Wsd,
                self.decay_steps == usual.decay_steps,
            ),
        ])
    }
}

impl TrainSettings {
    fn unused_of_readers(&self) -> Vec<&'static str> {
        unused([("train.read_ahead", self.readers > 0, self.read_ahead == Self::default().read_ahead)])
    }

    fn unused_of_nonfinite(&self) -> Vec<&'static str> {
        let (usual, goes_on) = (Self::default(), self.on_nonfinite != OnNonFinite::Stop);
        unused([("train.nonfinite_limit", goes_on, self.nonfinite_limit == usual.nonfinite_limit)])
    }

    fn unused_of_early_stopping(&self) -> Vec<&'static str> {
        let (usual, stops) = (Self::default(), self.early_stopping_patience > 0);
        unused([
            ("train.early_stopping_metric", stops, self.early_stopping_metric == usual.early_stopping_metric),
            ("train.early_stopping_mode", stops, self.early_stopping_mode == usual.early_stopping_mode),
            (
                "train.early_stopping_min_delta",
                stops,
                self.early_stopping_min_delta == usual.early_stopping_min_delta,
            ),
        ])
    }

    /// Notes on settings of validations, in a run that has no data to validate on.
    pub(crate) fn notes_without_validation(&self) -> Option<String> {
        let usual = Self::default();
        let names = unused([
            ("train.validate_every", false, self.validate_every == usual.validate_every),
            ("train.validation_samples", false, self.validation_samples == usual.validation_samples),
        ]);
        note("a run without data to validate on", &names)
    }

    /// Notes on what compares validations, in a run that trains by itself and validates only at its end.
    pub(crate) fn notes_on_one_validation(&self, keeps_best: bool) -> Vec<String> {
        let compared = [
            (self.early_stopping_patience > 0, "early stopping compares validations"),
            (keeps_best, "the best checkpoint is that of the best validation"),
        ];
        let used = compared.into_iter().filter(|(is_set, _)| *is_set && self.validate_every == 0);
        used.map(|(_, what)| format!("note: {what}, and train.validate_every = 0 validates only at the end"))
            .collect()
    }
}

impl CheckpointSettings {
    fn unused_of_best(&self) -> Vec<&'static str> {
        let usual = Self::default();
        unused([
            ("checkpoint.best_metric", self.keep_best, self.best_metric == usual.best_metric),
            ("checkpoint.best_mode", self.keep_best, self.best_mode == usual.best_mode),
        ])
    }
}

impl PipelineSettings {
    fn unused(&self, has_stages: bool) -> Vec<&'static str> {
        let usual = Self::default();
        unused([
            ("pipeline.schedule (--schedule)", has_stages, self.schedule == usual.schedule),
            ("pipeline.balance", has_stages || self.chunks > 1, self.balance == usual.balance),
            ("pipeline.tied_gradients", has_stages, self.tied_gradients == usual.tied_gradients),
        ])
    }
}

impl StrategySettings {
    fn unused(&self) -> Vec<&'static str> {
        let usual = Self::default();
        let has_steps = self.has_workers() || self.rounds().is_some();
        let diloco = self.name == StrategyName::Diloco;
        unused([
            ("strategy.inner_steps (--inner-steps)", has_steps, self.inner_steps == usual.inner_steps),
            ("strategy.outer_dtype", diloco, self.outer_dtype == usual.outer_dtype),
            ("strategy.outer_learning_rate", diloco, self.outer_learning_rate == usual.outer_learning_rate),
            ("strategy.outer_momentum", diloco, self.outer_momentum == usual.outer_momentum),
            ("strategy.outer_nesterov", diloco, self.outer_nesterov == usual.outer_nesterov),
            (
                "strategy.outer_mixing",
                diloco && self.overlap_steps > 0,
                self.outer_mixing == usual.outer_mixing,
            ),
        ])
    }
}

impl OptimizerSettings {
    fn unused_of_momentum(&self) -> Vec<&'static str> {
        let (usual, is_used) = (Self::default(), self.name != "sgd" || self.momentum > 0.0);
        unused([
            ("optimizer.dampening", is_used, self.dampening == usual.dampening),
            ("optimizer.nesterov", is_used, self.nesterov == usual.nesterov),
        ])
    }

    fn unused_of_scaling(&self) -> Vec<&'static str> {
        let is_scaled = self.learning_rate_scaling != LearningRateScaling::None;
        unused([("optimizer.base_batch_size", is_scaled, self.base_batch_size == 0)])
    }

    /// Those that a program's own optimizer does not use.
    pub(crate) fn unused_beside_own(&self) -> Vec<&'static str> {
        let usual = Self::default();
        let mut names = unused([
            ("optimizer.name", false, self.name == usual.name),
            (
                "optimizer.weight_decay",
                false,
                self.weight_decay == usual.weight_decay
                    || self.weight_decay == 0.0 && self.name != usual.name,
            ),
        ]);
        names.extend(self.unused_of(|_| false));
        names
    }

    fn unused(&self) -> Vec<&'static str> {
        self.unused_of(|names| names.contains(&self.name.as_str()))
    }

    /// Those that an optimizer does not use which is one of some names or not.
    fn unused_of(&self, is: impl Fn(&[&str]) -> bool) -> Vec<&'static str> {
        let usual = Self::default();
        let (moments, sgd) = (is(&["adamw", "adam", "lion", "adan"]), is(&["sgd"]));
        let has_variance = is(&["adamw", "adam", "rmsprop", "adagrad", "adan"]);
        unused([
            ("optimizer.beta1", moments, self.beta1 == usual.beta1),
            ("optimizer.beta2", moments, self.beta2 == usual.beta2),
            ("optimizer.beta3", is(&["adan"]), self.beta3 == usual.beta3),
            ("optimizer.epsilon", has_variance, self.epsilon == usual.epsilon),
            ("optimizer.momentum", sgd || is(&["rmsprop"]), self.momentum == usual.momentum),
            ("optimizer.dampening", sgd, self.dampening == usual.dampening),
            ("optimizer.nesterov", sgd, self.nesterov == usual.nesterov),
            ("optimizer.amsgrad", is(&["adamw", "adam"]), self.amsgrad == usual.amsgrad),
            (
                "optimizer.cautious_weight_decay",
                is(&["adamw"]),
                self.cautious_weight_decay == usual.cautious_weight_decay,
            ),
            ("optimizer.alpha", is(&["rmsprop"]), self.alpha == usual.alpha),
            ("optimizer.centered", is(&["rmsprop"]), self.centered == usual.centered),
            ("optimizer.lr_decay", is(&["adagrad"]), self.lr_decay == usual.lr_decay),
            ("optimizer.no_prox", is(&["adan"]), self.no_prox == usual.no_prox),
        ])
    }
}

impl CommSettings {
    fn unused(&self) -> Vec<&'static str> {
        let usual = Self::default();
        let is = |methods: &[Method]| methods.contains(&self.compress);
        let (integers, shares) = (is(&[Method::Int8, Method::Int4]), is(&[Method::TopK, Method::RandomK]));
        unused([
            (
                "comm.compress_block_size",
                integers || is(&[Method::OneBit]),
                self.compress_block_size == usual.compress_block_size,
            ),
            ("comm.compress_rounding", integers, self.compress_rounding == usual.compress_rounding),
            ("comm.compress_ratio", shares, self.compress_ratio == usual.compress_ratio),
            (
                "comm.compress_warmup_steps",
                !is(&[Method::None]),
                self.compress_warmup_steps == usual.compress_warmup_steps,
            ),
            (
                "comm.matrix_approximation_rank",
                is(&[Method::PowerSgd]),
                self.matrix_approximation_rank == usual.matrix_approximation_rank,
            ),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_optimizer_of_the_programs_own_uses_learning_rates_alone() {
        let names = |toml: &str| {
            let settings: Settings = crate::settings::parse_defaults(toml).unwrap();
            settings.optimizer.unused_beside_own().join(", ")
        };
        for (toml, expected) in [
            ("", ""),
            (
                "learning_rate = 0.1\nlearning_rate_scaling = \"sqrt\"\nbase_batch_size = 64\nlayer_decay = 0.9",
                "",
            ),
            ("beta2 = 0.999\nnesterov = true", "optimizer.beta2, optimizer.nesterov"),
            ("name = \"sgd\"\nweight_decay = 0.01", "optimizer.name, optimizer.weight_decay"),
            ("name = \"sgd\"\nweight_decay = 0", "optimizer.name"),
        ] {
            assert_eq!(names(&format!("[optimizer]\n{toml}")), expected, "{toml}");
        }
    }

    #[test]
    fn what_has_no_effect_is_named_with_what_ignores_it() {
        let notes = |toml: &str| {
            let settings: Settings = crate::settings::parse_defaults(toml).unwrap();
            settings.notes_on_unused(&settings.plan(2, 1).unwrap())
        };
        for (toml, expected) in [
            ("", ""),
            ("[optimizer]\nname = \"sgd\"\nmomentum = 0.9\nnesterov = true", ""),
            (
                "[optimizer]\nname = \"sgd\"\nmomentum = 0.0\nnesterov = true",
                "note: sgd without momentum (optimizer.momentum = 0) does not use optimizer.nesterov",
            ),
            (
                "[optimizer]\nbase_batch_size = 256",
                "note: a learning rate that is not scaled (optimizer.learning_rate_scaling = none) does not use optimizer.base_batch_size",
            ),
            (
                "[train]\nreaders = 0\nread_ahead = 9",
                "note: a run without readers (train.readers = 0) does not use train.read_ahead",
            ),
            ("[optimizer]\nnesterov = true", "note: optimizer.name = adamw does not use optimizer.nesterov"),
            (
                "[optimizer]\nname = \"lion\"\nepsilon = 1e-6\nlr_decay = 0.1",
                "note: optimizer.name = lion does not use optimizer.epsilon, optimizer.lr_decay",
            ),
            (
                "[zero]\nstage = 1\nkeep_gathered = true\nreduce_every = \"step\"",
                "note: zero.stage = 1 does not use zero.keep_gathered, zero.reduce_every",
            ),
            ("[zero]\nstage = 3\nkeep_gathered = true\nreduce_every = \"step\"", ""),
            (
                "[schedule]\nname = \"constant\"\nmin_ratio = 0.5\ndecay_steps = 5000",
                "note: this schedule.name does not use schedule.min_ratio, schedule.decay_steps",
            ),
            (
                "[train]\nnonfinite_limit = 5",
                "note: a run that stops at the first non-finite step (train.on_nonfinite = stop) does not use train.nonfinite_limit",
            ),
            ("[comm]\ncompress_ratio = 0.5", "note: comm.compress = none does not use comm.compress_ratio"),
            ("[comm]\ncompress = \"topk\"\ncompress_ratio = 0.5", ""),
            (
                "[pipeline]\nschedule = \"gpipe\"",
                "note: a run without pipeline stages (--pp 1) does not use pipeline.schedule (--schedule)",
            ),
            (
                "[mesh]\npp = 2\n[comm]\ncompress = \"int8\"",
                "note: a run with one data-parallel rank does not use comm.compress (--compress)",
            ),
            (
                "[train]\nearly_stopping_metric = \"accuracy\"\n[checkpoint]\nbest_mode = \"max\"",
                "note: a run without early stopping (train.early_stopping_patience = 0) does not use \
                 train.early_stopping_metric; note: a run with checkpoint.keep_best = false does not use checkpoint.best_mode",
            ),
            ("[train]\nearly_stopping_patience = 1\nearly_stopping_min_delta = 0.5", ""),
            ("[strategy]\nouter_momentum = 0.5", "note: this strategy does not use strategy.outer_momentum"),
        ] {
            assert_eq!(notes(toml).join("; "), expected, "{toml}");
        }
    }
}
