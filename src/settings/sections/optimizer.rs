//! The optimizer's settings.

use brigade_core::{LearningRateScaling, OptimizerFactory, ParameterGroup};
use brigade_kernels::{AdamWConfig, LionConfig, SgdConfig};
use burn::optim::{AdaGradConfig, AdamConfig, AdanConfig, RmsPropConfig, decay::WeightDecayConfig};
use serde::{Deserialize, Serialize, Serializer};

use crate::settings::SettingError;

/// `[optimizer]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerSettings {
    /// `adamw`, `adam`, `sgd`, `lion`, `rmsprop`, `adagrad` or `adan`.
    pub name: String,
    /// Peak learning rate, at `base_batch_size` if it is scaled with the batch.
    pub learning_rate: f64,
    /// `none`, `linear` or `sqrt`: how the learning rate scales with the global batch size.
    pub learning_rate_scaling: LearningRateScaling,
    /// The global batch size that `learning_rate` was tuned for; 0 is the run's own.
    pub base_batch_size: usize,
    /// Weight decay; biases and norms have none. SGD, Adam, RMSprop and AdaGrad, which add it to the gradient, have none unless a configuration gives it.
    #[serde(serialize_with = "shortest")]
    pub weight_decay: f32,
    /// First momentum coefficient (AdamW, Adam, Lion, Adan).
    #[serde(serialize_with = "shortest")]
    pub beta1: f32,
    /// Second momentum coefficient (AdamW, Adam, Lion, Adan).
    #[serde(serialize_with = "shortest")]
    pub beta2: f32,
    /// Third momentum coefficient (Adan).
    #[serde(serialize_with = "shortest")]
    pub beta3: f32,
    /// Added to the denominator (all but SGD and Lion).
    #[serde(serialize_with = "shortest")]
    pub epsilon: f32,
    /// Momentum (SGD, RMSprop); 0 turns it off.
    pub momentum: f64,
    /// Dampening: how much less a gradient counts in the momentum, from 0 to 1 (SGD).
    pub dampening: f64,
    /// Nesterov momentum (SGD).
    pub nesterov: bool,
    /// Uses the largest second moment so far instead of the current one (AdamW, Adam).
    pub amsgrad: bool,
    /// Weight decay only where it points in the direction of the update (AdamW).
    pub cautious_weight_decay: bool,
    /// Smoothing of the squared gradients (RMSprop).
    #[serde(serialize_with = "shortest")]
    pub alpha: f32,
    /// Divides by an estimate of the gradients' variance (RMSprop).
    pub centered: bool,
    /// How fast the learning rate falls with the number of updates (AdaGrad).
    pub lr_decay: f64,
    /// Decoupled weight decay instead of proximal (Adan).
    pub no_prox: bool,
    /// Layer-wise decay: the learning rate of a block is multiplied by this once for each block after it, so layer `i` of `n` has
    /// `learning_rate · layer_decay^(n - i)`, and the head the full rate; 1 turns it off. It also applies to the learning rates of
    /// groups.
    pub layer_decay: f64,
    /// Parameters that are trained differently: each group has a `pattern` of names (`*` stands for any text) and any of
    /// `learning_rate`, `weight_decay` and `frozen`. The first pattern that matches a name counts.
    pub groups: Vec<OptimizerGroup>,
}

impl Default for OptimizerSettings {
    fn default() -> Self {
        Self {
            name: "adamw".into(),
            learning_rate: 1e-3,
            learning_rate_scaling: LearningRateScaling::None,
            base_batch_size: 0,
            weight_decay: 0.1,
            beta1: 0.9,
            beta2: 0.95,
            beta3: 0.99,
            epsilon: 1e-8,
            momentum: 0.9,
            dampening: 0.0,
            nesterov: false,
            amsgrad: false,
            cautious_weight_decay: false,
            alpha: 0.99,
            centered: false,
            lr_decay: 0.0,
            no_prox: false,
            layer_decay: 1.0,
            groups: Vec::new(),
        }
    }
}

/// `[[optimizer.groups]]`: parameters that are trained differently from the rest. As in PyTorch's groups, whatever a group leaves
/// out is as for all parameters.
///
/// ```
/// use brigade::OptimizerGroup;
/// let embeddings = OptimizerGroup::matching("embedding.*").learning_rate(1e-4).weight_decay(0.0);
/// let backbone = OptimizerGroup::matching("encoder.*").frozen();
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptimizerGroup {
    /// The names (`block.path`) of the parameters: `*` stands for any text, dots included, `?` for one character, `[ab]` for
    /// one of these, and `0-11` between dots for one of these numbers. A parameter belongs to the first group that matches.
    pub pattern: String,
    /// Peak learning rate, in place of `optimizer.learning_rate`; schedule and scaling apply to it as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learning_rate: Option<f64>,
    /// Weight decay, in place of `optimizer.weight_decay`; biases and norms have none.
    #[serde(default, skip_serializing_if = "Option::is_none", serialize_with = "shortest_if_given")]
    pub weight_decay: Option<f32>,
    /// Whether the parameters are left as they are.
    #[serde(default)]
    pub frozen: bool,
}

/// A number of 32 bits with the digits that it was given with: TOML's numbers have 64, and would show what rounding has made of it.
fn shortest<S: Serializer>(value: &f32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(value.to_string().parse().unwrap_or(f64::from(*value)))
}

fn shortest_if_given<S: Serializer>(value: &Option<f32>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => shortest(value, serializer),
        None => serializer.serialize_none(),
    }
}

impl OptimizerGroup {
    /// Parameters with these names, trained like the rest.
    pub fn matching(pattern: impl Into<String>) -> Self {
        Self { pattern: pattern.into(), ..Self::default() }
    }

    /// With another peak learning rate.
    pub fn learning_rate(self, learning_rate: f64) -> Self {
        Self { learning_rate: Some(learning_rate), ..self }
    }

    /// With another weight decay.
    pub fn weight_decay(self, weight_decay: f32) -> Self {
        Self { weight_decay: Some(weight_decay), ..self }
    }

    /// Not trained.
    pub fn frozen(self) -> Self {
        Self { frozen: true, ..self }
    }
}

impl OptimizerSettings {
    /// The parameter groups with these settings, from a configuration or a program.
    ///
    /// # Errors
    /// If a group's learning rate is not a number, or has nothing to be relative to.
    pub(crate) fn parameter_groups(
        &self,
        groups: &[OptimizerGroup],
    ) -> Result<Vec<ParameterGroup>, SettingError> {
        let group = |group: &OptimizerGroup| {
            let learning_rate = group.learning_rate.unwrap_or(self.learning_rate);
            let refused =
                |allowed: String| SettingError::new("optimizer.groups.learning_rate", learning_rate, allowed);
            if !(learning_rate.is_finite() && learning_rate >= 0.0) {
                return Err(refused(format!("that of `{}` must be a number of at least 0", group.pattern)));
            }
            if self.learning_rate == 0.0 && learning_rate > 0.0 {
                return Err(refused(format!(
                    "that of `{}` is a multiple of optimizer.learning_rate, which is 0; set optimizer.learning_rate, and 0 for a group of \
                    the rest",
                    group.pattern
                )));
            }
            let factor =
                if learning_rate == self.learning_rate { 1.0 } else { learning_rate / self.learning_rate };
            Ok(ParameterGroup {
                learning_rate_factor: factor,
                weight_decay: group.weight_decay,
                frozen: group.frozen,
                ..ParameterGroup::matching(&group.pattern)
            })
        };
        groups.iter().map(group).collect()
    }

    /// Bytes of its state for each trained parameter, as 8 of AdamW.
    ///
    /// # Errors
    /// As [`factory`](Self::factory).
    pub fn state_bytes_per_parameter(&self) -> Result<usize, SettingError> {
        Ok(self.factory()?.state_bytes_per_value(&brigade_cpu::device()))
    }

    /// The optimizer.
    ///
    /// # Errors
    /// If it is not an elementwise optimizer; for well-known ones the message says why.
    pub fn factory(&self) -> Result<OptimizerFactory, SettingError> {
        let decay = self.weight_decay;
        let l2 = |decay: f32| (decay > 0.0).then(|| WeightDecayConfig::new(decay));
        Ok(match self.name.as_str() {
            "adamw" => {
                let adamw = AdamWConfig {
                    beta_1: self.beta1,
                    beta_2: self.beta2,
                    epsilon: self.epsilon,
                    weight_decay: decay,
                    cautious_weight_decay: self.cautious_weight_decay,
                    amsgrad: self.amsgrad,
                };
                OptimizerFactory::with_weight_decay(decay, move |weight_decay| {
                    AdamWConfig { weight_decay, ..adamw }.build()
                })
            }
            "adam" => {
                let adam = AdamConfig::new()
                    .with_beta_1(self.beta1)
                    .with_beta_2(self.beta2)
                    .with_epsilon(self.epsilon)
                    .with_amsgrad(self.amsgrad);
                OptimizerFactory::with_weight_decay(decay, move |decay| {
                    adam.clone().with_weight_decay(l2(decay)).build()
                })
            }
            "sgd" => {
                let sgd = SgdConfig {
                    momentum: (self.momentum > 0.0).then_some(self.momentum as f32),
                    dampening: self.dampening,
                    nesterov: self.nesterov,
                    weight_decay: None,
                };
                OptimizerFactory::with_weight_decay(decay, move |decay| {
                    SgdConfig { weight_decay: (decay > 0.0).then_some(decay), ..sgd }.build()
                })
            }
            "lion" => {
                let (beta_1, beta_2) = (self.beta1, self.beta2);
                OptimizerFactory::with_weight_decay(decay, move |weight_decay| {
                    LionConfig { beta_1, beta_2, weight_decay }.build()
                })
            }
            "rmsprop" => {
                let rmsprop = RmsPropConfig::new()
                    .with_alpha(self.alpha)
                    .with_momentum(self.momentum as f32)
                    .with_epsilon(self.epsilon)
                    .with_centered(self.centered);
                OptimizerFactory::with_weight_decay(decay, move |decay| {
                    rmsprop.clone().with_weight_decay(l2(decay)).build()
                })
            }
            "adagrad" => {
                let adagrad = AdaGradConfig::new().with_lr_decay(self.lr_decay).with_epsilon(self.epsilon);
                OptimizerFactory::with_weight_decay(decay, move |decay| {
                    adagrad.clone().with_weight_decay(l2(decay)).build()
                })
            }
            "adan" => {
                let adan = AdanConfig::new()
                    .with_beta_1(self.beta1)
                    .with_beta_2(self.beta2)
                    .with_beta_3(self.beta3)
                    .with_epsilon(self.epsilon)
                    .with_no_prox(self.no_prox);
                OptimizerFactory::with_weight_decay(decay, move |decay| {
                    adan.clone().with_weight_decay(decay).build()
                })
            }
            other => return Err(refused(other)),
        })
    }
}

/// Why an optimizer is not offered.
fn refused(name: &str) -> SettingError {
    let why = match name {
        "muon" => "Muon orthogonalises whole matrices, which a flat buffer or a shard of it does not have; ",
        "lamb" => {
            "LAMB scales by the norms of whole parameters, which a flat buffer or a shard of it does not have; "
        }
        "adafactor" => {
            "Adafactor keeps row and column statistics of whole matrices, which a flat buffer or a shard of it does not have; "
        }
        "lbfgs" => {
            "L-BFGS runs the loss several times in a step, and needs scalar products over the whole model; "
        }
        _ => "",
    };
    let allowed = format!(
        "{why}use adamw, adam, sgd, lion, rmsprop, adagrad or adan, or give the program one of its own by `Training::optimizer`"
    );
    SettingError::new("optimizer.name", name, allowed)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::settings::Settings;

    #[test]
    fn numbers_are_written_as_they_were_given() {
        let given =
            "weight_decay = 0.1\nbeta1 = 0.9\nbeta2 = 0.95\nbeta3 = 0.99\nepsilon = 1e-8\nalpha = 0.3";
        let settings: OptimizerSettings =
            toml::from_str(&format!("{given}\n[[groups]]\npattern = '*'\nweight_decay = 0.2")).unwrap();
        let table = toml::Table::try_from(&settings).unwrap();
        for (name, value) in given.parse::<toml::Table>().unwrap() {
            assert_eq!(table[&name], value, "{name}");
        }
        assert_eq!(table["groups"][0]["weight_decay"].as_float(), Some(0.2));
        assert_eq!(table.try_into::<OptimizerSettings>().unwrap(), settings);
    }

    #[test]
    fn every_elementwise_optimizer_has_a_name_and_others_a_reason() {
        let settings = |name: &str| OptimizerSettings { name: name.into(), ..OptimizerSettings::default() };
        let bytes = |settings: OptimizerSettings| settings.state_bytes_per_parameter().unwrap();
        // RMSprop keeps the mean of squares twice where it is not centered.
        for (name, expected) in [
            ("adamw", 8),
            ("adam", 8),
            ("sgd", 4),
            ("lion", 4),
            ("rmsprop", 12),
            ("adagrad", 4),
            ("adan", 16),
        ] {
            assert_eq!(bytes(settings(name)), expected, "{name}");
        }
        assert_eq!(bytes(OptimizerSettings { momentum: 0.0, ..settings("sgd") }), 0);
        assert_eq!(bytes(OptimizerSettings { amsgrad: true, ..settings("adam") }), 12);
        assert_eq!(bytes(OptimizerSettings { centered: true, ..settings("rmsprop") }), 16);
        for (name, why) in [
            ("muon", "matrices"),
            ("lamb", "norms"),
            ("adafactor", "row and column"),
            ("lbfgs", "several times"),
            ("adamax", "use adamw"),
        ] {
            let message = settings(name).factory().unwrap_err().to_string();
            assert!(message.starts_with(&format!("optimizer.name = {name} is not possible: ")), "{message}");
            assert!(message.contains(why) && message.contains("Training::optimizer"), "{message}");
        }
    }

    #[test]
    fn groups_are_read_from_toml_and_follow_the_learning_rate() {
        let toml = "[[optimizer.groups]]\npattern = \"embedding.*\"\nlearning_rate = 1e-4\nweight_decay = 0\n[[optimizer.groups]]\npattern = \"*\"\nfrozen = true\n";
        let settings: Settings = crate::settings::parse_defaults(toml).unwrap();
        let groups = &settings.optimizer.groups;
        assert_eq!(groups[0], OptimizerGroup::matching("embedding.*").learning_rate(1e-4).weight_decay(0.0));
        assert_eq!(groups[1], OptimizerGroup::matching("*").frozen());
        let written = crate::settings::config_to_toml(&settings).unwrap();
        assert_eq!(crate::settings::parse_defaults::<Settings>(&written).unwrap(), settings);
        let plan = settings.plan(1, 1).unwrap();
        assert_eq!(plan.engine.groups[0].learning_rate_factor, 0.1);
        assert_eq!((plan.engine.groups[1].learning_rate_factor, plan.engine.groups[1].frozen), (1.0, true));
        let none = crate::settings::parse_defaults::<Settings>("[[optimizer.groups]]\npatern = \"a\"\n")
            .unwrap_err();
        assert!(none.to_string().contains("patern"), "{none}");
    }

    #[test]
    fn a_learning_rate_of_a_group_that_is_no_number_is_refused() {
        for (base, own, said) in
            [(1e-3, -1.0, "at least 0"), (1e-3, f64::NAN, "at least 0"), (0.0, 1e-3, "which is 0")]
        {
            let settings = OptimizerSettings { learning_rate: base, ..OptimizerSettings::default() };
            let groups = [OptimizerGroup::matching("a.*").learning_rate(own)];
            let message = settings.parameter_groups(&groups).unwrap_err().to_string();
            assert!(
                message.starts_with("optimizer.groups.learning_rate = ")
                    && message.contains("`a.*`")
                    && message.contains(said),
                "{message}"
            );
        }
    }
}
