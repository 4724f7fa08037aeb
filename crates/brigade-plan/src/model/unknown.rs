//! `config.json`s that training does not know, with sizes that a plan can count: of another family, or with further fields.

use brigade_hf::{Config, HfError};
use serde_json::{Map, Value};

use super::other_families::{OTHER_FAMILIES, shape};
use super::{ModelError, ModelShape, wrong};

/// Fields of mixtures of experts, whose layers are no Llama's.
const MIXTURE: [&str; 4] = ["num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size"];

/// Whether training refuses these fields, but a plan may know enough of them.
pub fn is_unknown(fields: &Map<String, Value>) -> bool {
    use HfError::{UnknownFamily, UnknownFields};
    matches!(Config::from_fields("config.json", fields), Err(UnknownFamily { .. } | UnknownFields { .. }))
}

/// The sizes of a model whose `config.json` has these fields. Those that training does not know, a plan leaves out; a model of a family that is not known is counted as a
/// Llama of its sizes. The shape says so.
///
/// # Errors
/// If there are no such sizes, or it is a mixture of experts.
pub fn read(file: &str, fields: &Map<String, Value>) -> Result<ModelShape, ModelError> {
    let refused = |problem: String| ModelError::File { file: String::from("--model"), problem };
    match Config::from_fields(file, fields) {
        Ok(config) => ModelShape::of_config(file, &config).check(file),
        Err(HfError::UnknownFields { fields: unknown, .. }) => {
            is_dense(file, fields)?;
            // Of a field within another one, that one is left out.
            let names: Vec<&str> =
                unknown.iter().map(|field| field.name.split('.').next().unwrap_or_default()).collect();
            let known = fields.iter().filter(|(name, _)| !names.contains(&name.as_str()));
            let known: Map<String, Value> =
                known.map(|(name, value)| (name.clone(), value.clone())).collect();
            let config = Config::from_fields(file, &known).map_err(|error| refused(error.to_string()))?;
            let note = format!("the plan leaves out what training does not support: {}", names.join(", "));
            ModelShape { note: Some(note), ..ModelShape::of_config(file, &config) }.check(file)
        }
        Err(error @ HfError::UnknownFamily { .. }) => {
            // Models of several kinds of input have those of their text in a section.
            let text = fields.get("text_config").and_then(Value::as_object).unwrap_or(fields);
            is_dense(file, text)?;
            let family = fields.get("model_type").and_then(Value::as_str).unwrap_or_default();
            let shape = shape(file, family, text).map_err(|problem| {
                refused(format!(
                    "{error}; further ones that can only be planned are {}, and others with the sizes of a Llama, but {problem}",
                    OTHER_FAMILIES.join(", ")
                ))
            })?;
            let part = if text == fields { "it" } else { "the text part" };
            let note = format!(
                "plans do not know the family `{family}`: {part} is counted as a Llama of these sizes"
            );
            Ok(ModelShape { note: Some(note), ..shape })
        }
        Err(error) => Err(refused(error.to_string())),
    }
}

fn is_dense(file: &str, fields: &Map<String, Value>) -> Result<(), ModelError> {
    let count = |name: &&&str| fields.get(**name).and_then(Value::as_u64).unwrap_or(0);
    match MIXTURE.iter().find(|name| count(name) > 1) {
        Some(name) => Err(wrong(
            file,
            name,
            count(&name),
            "of mixtures of experts, plans know mixtral, qwen2_moe and qwen3_moe; describe another one in a TOML, with model.experts and \
             model.experts_per_token",
        )),
        None => Ok(()),
    }
}
