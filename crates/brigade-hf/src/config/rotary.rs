//! Positions by rotation of queries and keys.

use std::f64::consts::TAU;

use serde_json::{Map, Value, json};

use super::fields::Fields;
use crate::error::HfError;

/// A rotation of the pairs `(i, i + head_dim / 2)` of a head's numbers, by angles that grow with the position.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rotary {
    /// The base of the frequencies.
    pub theta: f64,
    /// What stretches them to longer rows.
    pub scaling: RotaryScaling,
}

/// How frequencies are stretched, as `rope_type` says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RotaryScaling {
    /// `default`: not at all.
    None,
    /// `linear`: all are divided.
    Linear {
        /// By this.
        factor: f64,
    },
    /// `llama3`: long waves are divided, short ones are not, and between the two there is a ramp.
    Llama3 {
        /// What long waves are divided by.
        factor: f64,
        /// Waves longer than `original_max_positions / low_frequency_factor` are long.
        low_frequency_factor: f64,
        /// Waves shorter than `original_max_positions / high_frequency_factor` are short.
        high_frequency_factor: f64,
        /// The longest row before it was stretched.
        original_max_positions: usize,
    },
    /// `yarn` ([Peng et al. 2023](https://arxiv.org/abs/2309.00071)): the same with another ramp, and larger queries and keys.
    Yarn {
        /// What long waves are divided by.
        factor: f64,
        /// What sines and cosines are multiplied by.
        attention_factor: f64,
        /// Waves that turn more often within the original length are short.
        beta_fast: f64,
        /// Waves that turn less often within the original length are long.
        beta_slow: f64,
        /// The longest row before it was stretched.
        original_max_positions: usize,
        /// Whether the ramp begins and ends at whole frequencies.
        truncate: bool,
    },
}

impl Rotary {
    /// By how much the angle of each pair grows from one position to the next, in radians: `head_dim / 2` numbers, computed as
    /// `transformers` does, in single precision.
    pub fn inverse_frequencies(&self, head_dim: usize) -> Vec<f32> {
        let frequency = |index: usize| {
            let exponent = 2.0 * index as f32 / head_dim as f32;
            let wave = self.theta.powf(exponent.into()) as f32;
            match self.scaling {
                RotaryScaling::None => 1.0 / wave,
                RotaryScaling::Linear { factor } => 1.0 / wave / factor as f32,
                RotaryScaling::Llama3 { .. } => self.llama3(1.0 / wave),
                RotaryScaling::Yarn { .. } => self.yarn(index, wave, head_dim),
            }
        };
        (0..head_dim / 2).map(frequency).collect()
    }

    /// What sines and cosines are multiplied by.
    pub fn attention_factor(&self) -> f64 {
        match self.scaling {
            RotaryScaling::Yarn { attention_factor, .. } => attention_factor,
            _ => 1.0,
        }
    }

    fn llama3(&self, frequency: f32) -> f32 {
        let RotaryScaling::Llama3 {
            factor,
            low_frequency_factor,
            high_frequency_factor,
            original_max_positions,
        } = self.scaling
        else {
            return frequency;
        };
        let [factor, low, high] =
            [factor, low_frequency_factor, high_frequency_factor].map(|factor| factor as f32);
        let length = original_max_positions as f32;
        let wave = TAU as f32 / frequency;
        if wave < length / high {
            return frequency;
        }
        if wave > length / low {
            return frequency / factor;
        }
        let smooth = (length / wave - low) / (high - low);
        (1.0 - smooth) * frequency / factor + smooth * frequency
    }

    fn yarn(&self, index: usize, wave: f32, head_dim: usize) -> f32 {
        let RotaryScaling::Yarn { factor, beta_fast, beta_slow, original_max_positions, truncate, .. } =
            self.scaling
        else {
            return 1.0 / wave;
        };
        let turns_at = |turns: f64| {
            head_dim as f64 * (original_max_positions as f64 / (turns * TAU)).ln() / (2.0 * self.theta.ln())
        };
        let (mut low, mut high) = (turns_at(beta_fast), turns_at(beta_slow));
        if truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        let (low, mut high) = (low.max(0.0), high.min(head_dim as f64 - 1.0));
        if low == high {
            high += 0.001;
        }
        let ramp = ((index as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0);
        let short = 1.0 - ramp;
        1.0 / (factor as f32 * wave) * (1.0 - short) + 1.0 / wave * short
    }

    /// What an object (`rope_parameters` or `rope_scaling`) says, with a base for where it has none.
    pub(super) fn read(fields: &Fields<'_>, theta: f64, max_positions: usize) -> Result<Self, HfError> {
        let theta = fields.get("rope_theta", theta)?;
        fields.must_be("partial_rotary_factor", 1.0)?;
        let older = fields.get_or_null::<String>("type", None)?;
        let kind = fields.get_or_null("rope_type", older)?;
        let required = |name: &str| {
            let given = fields.get_or_null::<f64>(name, None)?;
            given.filter(|given| *given > 0.0).ok_or_else(|| fields.wrong(name, "a number above 0"))
        };
        let original_max_positions = || fields.get("original_max_position_embeddings", max_positions);
        let scaling = match kind.as_deref().unwrap_or("default") {
            "default" => RotaryScaling::None,
            "linear" => RotaryScaling::Linear { factor: required("factor")? },
            "llama3" => {
                let (low, high) = (required("low_freq_factor")?, required("high_freq_factor")?);
                if high <= low {
                    return Err(
                        fields.wrong("high_freq_factor", &format!("a number above `low_freq_factor`, {low}"))
                    );
                }
                RotaryScaling::Llama3 {
                    factor: required("factor")?,
                    low_frequency_factor: low,
                    high_frequency_factor: high,
                    original_max_positions: original_max_positions()?,
                }
            }
            "yarn" => {
                let factor = required("factor")?;
                let usual = if factor <= 1.0 { 1.0 } else { 0.1 * factor.ln() + 1.0 };
                RotaryScaling::Yarn {
                    factor,
                    attention_factor: fields.get_or_null("attention_factor", None)?.unwrap_or(usual),
                    beta_fast: fields.get_or_null("beta_fast", None)?.unwrap_or(32.0),
                    beta_slow: fields.get_or_null("beta_slow", None)?.unwrap_or(1.0),
                    original_max_positions: original_max_positions()?,
                    truncate: fields.get("truncate", true)?,
                }
            }
            _ => {
                let name = if fields.value("rope_type").is_some() { "rope_type" } else { "type" };
                return Err(fields.wrong(name, "\"default\", \"linear\", \"llama3\" or \"yarn\""));
            }
        };
        fields.finish(kind.as_deref().unwrap_or("default"), &[])?;
        if !(theta > 1.0 && theta.is_finite()) {
            return Err(fields.wrong("rope_theta", "a number above 1"));
        }
        Ok(Self { theta, scaling })
    }

    /// `rope_parameters`, or the part of it for layers of one type.
    pub(super) fn write(&self) -> Value {
        let mut object = match self.write_scaling() {
            Value::Object(object) => object,
            _ => Map::from_iter([("rope_type".to_owned(), json!("default"))]),
        };
        object.insert("rope_theta".to_owned(), json!(self.theta));
        Value::Object(object)
    }

    /// `rope_scaling`: null where nothing is stretched.
    pub(super) fn write_scaling(&self) -> Value {
        let mut object = Map::new();
        let mut add = |name: &str, value: Value| object.insert(name.to_owned(), value);
        match self.scaling {
            RotaryScaling::None => return Value::Null,
            RotaryScaling::Linear { factor } => {
                add("rope_type", json!("linear"));
                add("factor", json!(factor));
            }
            RotaryScaling::Llama3 {
                factor,
                low_frequency_factor,
                high_frequency_factor,
                original_max_positions,
            } => {
                add("rope_type", json!("llama3"));
                add("factor", json!(factor));
                add("low_freq_factor", json!(low_frequency_factor));
                add("high_freq_factor", json!(high_frequency_factor));
                add("original_max_position_embeddings", json!(original_max_positions));
            }
            RotaryScaling::Yarn {
                factor,
                attention_factor,
                beta_fast,
                beta_slow,
                original_max_positions,
                truncate,
            } => {
                add("rope_type", json!("yarn"));
                add("factor", json!(factor));
                add("attention_factor", json!(attention_factor));
                add("beta_fast", json!(beta_fast));
                add("beta_slow", json!(beta_slow));
                add("original_max_position_embeddings", json!(original_max_positions));
                add("truncate", json!(truncate));
            }
        }
        Value::Object(object)
    }
}
