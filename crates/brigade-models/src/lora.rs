//! Which linear layers of a model have adapters (LoRA), and what these are like.

use brigade_hf::{Config, Family, Task};
use brigade_sorted::{SortedMap, SortedSet};
use burn::module::Module;
use burn::tensor::Device;
use glob::Pattern;

use crate::layers::{Linear, Lora, LoraConfig};

/// How many names a message suggests.
const SUGGESTIONS: usize = 3;

/// The modules that make up the head of a classifier, as names of tensors have them.
const HEAD_MODULES: [&str; 3] = ["classifier.", "pooler.", "score."];

/// Why there are no such adapters.
#[derive(Debug, thiserror::Error)]
#[error("lora.{option} = {given} is not possible: {allowed}")]
pub struct LoraError {
    option: &'static str,
    given: String,
    allowed: String,
}

impl LoraError {
    /// A setting of `[lora]` that is not possible: its name, the value, and what is allowed.
    pub fn new(option: &'static str, given: impl ToString, allowed: impl Into<String>) -> Self {
        Self { option, given: given.to_string(), allowed: allowed.into() }
    }
}

impl LoraConfig {
    /// The adapters of a model with the head of a task. A classifier or regression has its whole head trained beside them, which no file of the model may have.
    ///
    /// # Errors
    /// If a value is not possible, or a target is not a layer; the message then suggests similar names.
    pub fn adapters(&self, of: &Config, task: Task) -> Result<Adapters, LoraError> {
        let (family, tensors) = (of.family(), of.tensors(task));
        let mut adapters = self.adapters_among(linear_layers(family, &tensors), usual_targets(family))?;
        if adapters.is_empty() {
            return Ok(adapters);
        }
        adapters.inputs_first = family == Family::Gpt2;
        if task == Task::SequenceClassification {
            let is_head = |name: &str| HEAD_MODULES.iter().any(|module| name.contains(module));
            adapters.head = tensors.into_iter().filter(|(name, _)| is_head(name)).collect();
        }
        Ok(adapters)
    }

    /// The layers that adapters have where none are named: those of queries and values.
    pub fn usual_targets(of: &Config) -> Vec<String> {
        usual_targets(of.family()).iter().map(|target| (*target).to_owned()).collect()
    }

    fn adapters_among(
        &self,
        mut layers: SortedMap<String, [usize; 2]>,
        usual_targets: &[&str],
    ) -> Result<Adapters, LoraError> {
        if self.rank == 0 {
            return Ok(Adapters::default());
        }
        if !(self.alpha.is_finite() && self.alpha > 0.0) {
            return Err(LoraError::new(
                "alpha",
                self.alpha,
                "it must be a number above 0: it scales the adapters",
            ));
        }
        // In fp32, in which layers compute, it must not be 1 either.
        if !(0.0..1.0).contains(&(self.dropout as f32)) {
            return Err(LoraError::new("dropout", self.dropout, "it must be at least 0 and below 1"));
        }
        let mut config = self.clone();
        if config.targets.is_empty() {
            config.targets = usual_targets.iter().map(|target| (*target).to_owned()).collect();
        }
        let targets =
            config.targets.iter().map(|target| Target::new(target)).collect::<Result<Vec<_>, _>>()?;
        let has_none = |target: &&Target<'_>| !layers.keys().any(|name| target.matches(name));
        if let Some(Target { text, .. }) = targets.iter().find(has_none) {
            let why = match *text {
                "lm_head" => "adapters of the head are not supported",
                "all-linear" => "`*` stands for all linear layers",
                _ => "it is not a linear layer of the model",
            };
            let allowed = format!("{why}; there is {}", near(text, &layers));
            return Err(LoraError::new("targets", format!("[\"{text}\"]"), allowed));
        }
        layers.retain(|name, _| targets.iter().any(|target| target.matches(name)));
        drop(targets);
        Ok(Adapters { config, layers, ..Adapters::default() })
    }
}

/// The adapters of a model; by default none.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Adapters {
    config: LoraConfig,
    /// By name as in Hugging Face's files (`model.layers.0.self_attn.q_proj`), with `[outputs, inputs]`.
    layers: SortedMap<String, [usize; 2]>,
    /// Names and shapes of the tensors that are trained whole beside them, as in Hugging Face's files.
    head: Vec<(String, Vec<usize>)>,
    /// Whether the weights of the layers are `[inputs, outputs]` in files.
    inputs_first: bool,
}

impl Adapters {
    /// What they are like.
    pub fn config(&self) -> &LoraConfig {
        &self.config
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// The names of the layers that have one, as in Hugging Face's files: `model.layers.0.self_attn.q_proj`.
    pub fn layers(&self) -> impl Iterator<Item = &str> {
        self.layers.keys().map(String::as_str)
    }

    /// Whether the weights of their layers are `[inputs, outputs]` (`fan_in_fan_out`).
    pub fn inputs_first(&self) -> bool {
        self.inputs_first
    }

    /// Names and shapes of their tensors, as `peft` writes them.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let rank = self.config.rank;
        let tensors = self.layers.iter().flat_map(|(layer, [outputs, inputs])| {
            let tensor = |matrix: &str, shape| (in_adapters(&format!("{layer}.lora_{matrix}.weight")), shape);
            [tensor("A", vec![rank, *inputs]), tensor("B", vec![*outputs, rank])]
        });
        tensors.collect()
    }

    /// Names and shapes of the tensors that are trained whole beside them, as `peft` writes them.
    pub fn head_tensors(&self) -> impl Iterator<Item = (String, Vec<usize>)> {
        self.head.iter().map(|(name, shape)| (in_adapters(name), shape.clone()))
    }

    /// The names of the modules that are trained whole beside them, as `peft` lists them (`modules_to_save`): `classifier`.
    pub fn head_modules(&self) -> SortedSet<&str> {
        let names = self.head.iter().map(|(name, _)| {
            let own = ["bert.", "roberta."].into_iter().find_map(|prefix| name.strip_prefix(prefix));
            own.unwrap_or(name)
        });
        names.filter_map(|name| name.split('.').next()).collect()
    }

    /// With the rank divided, if it can be.
    pub(crate) fn divided(&self, divisor: usize) -> Self {
        let mut divided = self.clone();
        if self.config.rank.is_multiple_of(divisor) {
            divided.config.rank /= divisor;
        }
        divided
    }

    /// The module as it is trained beside them: not at all.
    pub(crate) fn frozen<M: Module>(&self, module: M) -> M {
        if self.is_empty() { module } else { module.no_grad() }
    }

    /// The adapter of a layer, by its name in Hugging Face's files, if it has one; drawn by (`seed`, `path`).
    pub(crate) fn lora(
        &self,
        layer: &str,
        linear: &Linear,
        seed: u64,
        path: &str,
        device: &Device,
    ) -> Option<Lora> {
        let of = self.layers.contains_key(layer);
        of.then(|| Lora::new(&self.config, linear.shape(), seed, path, device))
    }
}

/// The name that a tensor of a model has in a file of adapters.
pub fn in_adapters(tensor: &str) -> String {
    format!("base_model.model.{tensor}")
}

/// Whether a parameter (`block.path`) is an adapter's.
pub fn is_adapter(parameter: &str) -> bool {
    parameter.ends_with(".lora.a") || parameter.ends_with(".lora.b")
}

/// Whether a parameter (`block.path`) is an adapter's, or of the block `head`.
pub fn is_adapter_or_head(parameter: &str) -> bool {
    is_adapter(parameter) || parameter.starts_with("head.")
}

/// The layers of queries and values.
fn usual_targets(of: Family) -> &'static [&'static str] {
    match of {
        Family::Gpt2 => &["c_attn"],
        Family::Bert | Family::Roberta => &["query", "value"],
        _ => &["q_proj", "v_proj"],
    }
}

/// The linear layers among a model's tensors, with `[outputs, inputs]`, without those of its head.
fn linear_layers(family: Family, tensors: &[(String, Vec<usize>)]) -> SortedMap<String, [usize; 2]> {
    let of_layer = match family {
        Family::Gpt2 => "transformer.h.",
        Family::Bert | Family::Roberta => "encoder.layer.",
        _ => "model.layers.",
    };
    let linear = |(name, shape): &(String, Vec<usize>)| {
        let name = name.strip_suffix(".weight").filter(|name| name.contains(of_layer))?;
        let mut shape = <[usize; 2]>::try_from(shape.clone()).ok()?;
        if family == Family::Gpt2 {
            shape.reverse();
        }
        Some((name.to_owned(), shape))
    };
    tensors.iter().filter_map(linear).collect()
}

/// One of `lora.targets`.
struct Target<'a> {
    text: &'a str,
    pattern: Pattern,
}

impl<'a> Target<'a> {
    fn new(text: &'a str) -> Result<Self, LoraError> {
        let pattern = Pattern::new(text);
        let pattern =
            pattern.map_err(|error| LoraError::new("targets", format!("[\"{text}\"]"), error.msg))?;
        Ok(Self { text, pattern })
    }

    /// Whether it is the name, or the name from one of its dots on.
    fn matches(&self, name: &str) -> bool {
        let after_dots = name.match_indices('.').map(|(dot, _)| &name[dot + 1..]);
        std::iter::once(name).chain(after_dots).any(|name| self.pattern.matches(name))
    }
}

/// The last parts of layers' names that are most like a target, in words.
fn near(target: &str, layers: &SortedMap<String, [usize; 2]>) -> String {
    let last = |name: &str| name.rsplit('.').next().unwrap_or(name).to_owned();
    let mut names: Vec<_> = layers.keys().map(|name| last(name)).collect();
    names.sort_by(|a, b| {
        let likeness = |name: &String| strsim::jaro_winkler(target, name);
        likeness(b).total_cmp(&likeness(a)).then_with(|| a.cmp(b))
    });
    names.dedup();
    let shown: Vec<_> = names.iter().take(SUGGESTIONS).map(|name| format!("`{name}`")).collect();
    shown.join(", ")
}
