//! The optimizer's settings.

use brigade_core::{LearningRateScaling, OptimizerFactory};
use burn::optim::{
    AdamConfig, AdamWConfig, LionConfig, SgdConfig, decay::WeightDecayConfig, momentum::MomentumConfig,
};
use serde::{Deserialize, Serialize};

use super::SettingError;

/// `[optimizer]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerSettings {
    /// `adamw`, `adam`, `sgd` or `lion`.
    pub name: String,
    /// Peak learning rate, at `base_batch_size` if it is scaled with the batch.
    pub learning_rate: f64,
    /// `none`, `linear` or `sqrt`: how the learning rate scales with the global batch size.
    pub learning_rate_scaling: LearningRateScaling,
    /// The global batch size that `learning_rate` was tuned for; 0 is the run's own.
    pub base_batch_size: usize,
    /// Weight decay; biases and norms have none.
    pub weight_decay: f32,
    /// First momentum coefficient (AdamW, Adam, Lion).
    pub beta1: f32,
    /// Second momentum coefficient (AdamW, Adam, Lion).
    pub beta2: f32,
    /// Added to the denominator (AdamW, Adam).
    pub epsilon: f32,
    /// Momentum (SGD); 0 turns it off.
    pub momentum: f64,
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
            epsilon: 1e-8,
            momentum: 0.9,
        }
    }
}

impl OptimizerSettings {
    /// Bytes of state per parameter value.
    pub fn state_bytes(&self) -> usize {
        match self.name.as_str() {
            "sgd" if self.momentum == 0.0 => 0,
            "sgd" | "lion" => 4,
            _ => 8,
        }
    }

    /// The optimizer.
    ///
    /// # Errors
    /// If it is not an elementwise optimizer; for well-known ones the message says why.
    pub fn factory(&self) -> Result<OptimizerFactory, SettingError> {
        let pair = [self.weight_decay, 0.0];
        Ok(match self.name.as_str() {
            "adamw" => {
                let [decayed, plain] = pair.map(|decay| {
                    AdamWConfig::new()
                        .with_beta_1(self.beta1)
                        .with_beta_2(self.beta2)
                        .with_epsilon(self.epsilon)
                        .with_weight_decay(decay)
                        .build()
                });
                OptimizerFactory::new(decayed, plain)
            }
            "adam" => {
                let [decayed, plain] = pair.map(|decay| {
                    AdamConfig::new()
                        .with_beta_1(self.beta1)
                        .with_beta_2(self.beta2)
                        .with_epsilon(self.epsilon)
                        .with_weight_decay((decay > 0.0).then(|| WeightDecayConfig::new(decay)))
                        .build()
                });
                OptimizerFactory::new(decayed, plain)
            }
            "sgd" => {
                let momentum = (self.momentum > 0.0)
                    .then(|| MomentumConfig::new().with_momentum(self.momentum).with_dampening(0.0));
                let [decayed, plain] = pair.map(|decay| {
                    SgdConfig::new()
                        .with_momentum(momentum.clone())
                        .with_weight_decay((decay > 0.0).then(|| WeightDecayConfig::new(decay)))
                        .build()
                });
                OptimizerFactory::new(decayed, plain)
            }
            "lion" => {
                let [decayed, plain] = pair.map(|decay| {
                    LionConfig::new()
                        .with_beta_1(self.beta1)
                        .with_beta_2(self.beta2)
                        .with_weight_decay(decay)
                        .build()
                });
                OptimizerFactory::new(decayed, plain)
            }
            other => {
                let why = match other {
                    "muon" => {
                        "Muon orthogonalises whole matrices, which a flat buffer or a shard of it does not have; "
                    }
                    "lamb" => {
                        "LAMB scales by the norms of whole parameters, which a flat buffer or a shard of it does not have; "
                    }
                    "adafactor" => {
                        "Adafactor keeps row and column statistics of whole matrices, which a flat buffer or a shard of it does not have; "
                    }
                    _ => "",
                };
                return Err(SettingError::new(
                    "optimizer.name",
                    other,
                    format!("{why}use adamw, adam, sgd or lion"),
                ));
            }
        })
    }
}
