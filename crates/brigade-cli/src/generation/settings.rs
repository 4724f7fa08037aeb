//! How text is generated: as flags say, or else the model's `generation_config.json`.

use anyhow::bail;
use brigade_hf::config::GenerationConfig;
use clap::Args;
use serde::Serialize;

use super::SamplingConfig;
use brigade::parse_whole_number;

/// The most tokens to generate.
const TOKENS: usize = 200;
/// The defaults of sampling, where no file has others.
const TEMPERATURE: f64 = 0.8;
const TOP_K: usize = 50;

/// The flags of sampling.
#[derive(Debug, Clone, Args, Serialize)]
#[command(
    next_help_heading = "Sampling (defaults marked * are overridden by the model's generation_config.json)"
)]
pub struct SamplingFlags {
    /// Number of tokens to generate; generation stops earlier at the end of a document [default*: 200].
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_whole_number::<usize>)]
    tokens: Option<usize>,
    /// Sampling temperature: likelier text below 1, more surprising text above 1; 0 always takes the most likely token [default*: 0.8].
    #[arg(long, value_name = "T", value_parser = temperature, allow_negative_numbers = true)]
    temperature: Option<f64>,
    /// Sample from this many of the most likely tokens; 0 samples from all [default*: 50].
    #[arg(long, value_name = "K", allow_negative_numbers = true, value_parser = parse_whole_number::<usize>)]
    top_k: Option<usize>,
    /// Sample from the most likely tokens that together have this probability; 1 samples from all [default*: 1].
    #[arg(long, value_name = "P", value_parser = top_p, allow_negative_numbers = true)]
    top_p: Option<f64>,
    /// Make tokens that are already in the text less likely: their logits are divided by this, or multiplied if below 0; 1 changes nothing [default*: 1].
    #[arg(long, value_name = "X", value_parser = repetition_penalty, allow_negative_numbers = true)]
    repetition_penalty: Option<f64>,
    /// End the text before this string; can be given several times.
    #[arg(long, value_name = "TEXT", value_parser = stop, allow_hyphen_values = true)]
    stop: Vec<String>,
    /// Random seed; the same seed gives the same text, whatever the other prompts are.
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true, value_parser = parse_whole_number::<u64>)]
    seed: u64,
}

/// How many tokens are generated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TokenLimit {
    /// So many.
    New(usize),
    /// So many together with the prompt (`max_length`).
    WithPrompt(usize),
}

impl TokenLimit {
    /// How many follow a prompt of this many tokens.
    ///
    /// # Errors
    /// If the prompt leaves none.
    pub fn after(self, prompt: usize) -> anyhow::Result<usize> {
        match self {
            Self::New(tokens) => Ok(tokens),
            Self::WithPrompt(tokens) if tokens > prompt => Ok(tokens - prompt),
            Self::WithPrompt(tokens) => bail!(
                "max_length = {tokens} in generation_config.json leaves no token to generate after a prompt of {prompt}; --tokens says how many follow"
            ),
        }
    }
}

/// How text is generated.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerationSettings {
    pub sampling: SamplingConfig,
    pub limit: TokenLimit,
    pub stops: Vec<String>,
    pub seed: u64,
}

impl SamplingFlags {
    /// Fills in what a model's file says where there is no flag.
    pub fn settings(&self, file: Option<&GenerationConfig>) -> GenerationSettings {
        let default = GenerationConfig::default();
        let file = file.unwrap_or(&default);
        // Where a file says that tokens are drawn, what it does not say is as in `transformers`.
        let temperature = match file.do_sample {
            Some(true) => file.temperature.unwrap_or(1.0),
            // Who says how tokens are drawn wants them drawn.
            Some(false) if self.top_k.is_none() && self.top_p.is_none() => 0.0,
            Some(false) | None => file.temperature.unwrap_or(TEMPERATURE),
        };
        let sampling = SamplingConfig {
            temperature: self.temperature.unwrap_or(temperature),
            top_k: self.top_k.or(file.top_k).unwrap_or(TOP_K),
            top_p: self.top_p.or(file.top_p).unwrap_or(1.0),
            repetition_penalty: self.repetition_penalty.or(file.repetition_penalty).unwrap_or(1.0),
        };
        let limit = match (self.tokens.or(file.max_new_tokens), file.max_length) {
            (Some(tokens), _) => TokenLimit::New(tokens),
            (None, Some(tokens)) => TokenLimit::WithPrompt(tokens),
            (None, None) => TokenLimit::New(TOKENS),
        };
        GenerationSettings { sampling, limit, stops: self.stop.clone(), seed: self.seed }
    }
}

fn number(text: &str, allowed: &str, is_allowed: impl Fn(f64) -> bool) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && is_allowed(*number));
    number.ok_or_else(|| allowed.into())
}

fn temperature(text: &str) -> Result<f64, String> {
    number(text, "it must be a number of at least 0, as in 0.8", |number| number >= 0.0)
}

fn top_p(text: &str) -> Result<f64, String> {
    number(text, "it must be a number above 0 and at most 1, as in 0.9", |number| {
        number > 0.0 && number <= 1.0
    })
}

fn repetition_penalty(text: &str) -> Result<f64, String> {
    number(text, "it must be a number above 0, as in 1.1; 1 changes nothing", |number| number > 0.0)
}

fn stop(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("an empty string would end every text at once".into()) } else { Ok(text.into()) }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        sampling: SamplingFlags,
    }

    fn settings(line: &str, file: Option<&GenerationConfig>) -> GenerationSettings {
        Flags::try_parse_from(line.split(' ')).unwrap().sampling.settings(file)
    }

    #[test]
    fn flags_go_before_the_file_and_that_before_the_defaults() {
        let own = SamplingConfig { temperature: 0.8, top_k: 50, top_p: 1.0, repetition_penalty: 1.0 };
        assert_eq!(settings("a", None).sampling, own);
        assert_eq!(settings("a", Some(&GenerationConfig::default())).sampling, own);
        let mut drawn = GenerationConfig::default();
        (drawn.do_sample, drawn.top_p) = (Some(true), Some(0.9));
        assert_eq!(
            settings("a", Some(&drawn)).sampling,
            SamplingConfig { temperature: 1.0, top_p: 0.9, ..own }
        );
        let mut file = GenerationConfig::default();
        (file.do_sample, file.temperature) = (Some(false), Some(0.6));
        (file.repetition_penalty, file.max_new_tokens) = (Some(1.1), Some(7));
        let found = settings("a", Some(&file));
        assert_eq!(
            (found.sampling.temperature, found.sampling.repetition_penalty, found.limit),
            (0.0, 1.1, TokenLimit::New(7))
        );
        let found = settings(
            "a --temperature 0.5 --top-k 3 --top-p 0.2 --repetition-penalty 2 --tokens 9 --stop x --stop y",
            Some(&file),
        );
        let given = SamplingConfig { temperature: 0.5, top_k: 3, top_p: 0.2, repetition_penalty: 2.0 };
        assert_eq!(
            found,
            GenerationSettings {
                sampling: given,
                limit: TokenLimit::New(9),
                stops: vec!["x".into(), "y".into()],
                seed: 0
            }
        );
    }

    #[test]
    fn a_length_counts_the_prompt() {
        let mut file = GenerationConfig::default();
        file.max_length = Some(12);
        let limit = settings("a", Some(&file)).limit;
        assert_eq!(limit.after(5).unwrap(), 7);
        let refused = limit.after(12).unwrap_err().to_string();
        assert!(
            refused.starts_with("max_length = 12 in generation_config.json leaves no token"),
            "{refused}"
        );
        assert_eq!(settings("a --tokens 3", Some(&file)).limit.after(12).unwrap(), 3);
        file.max_new_tokens = Some(4);
        assert_eq!(settings("a", Some(&file)).limit.after(12).unwrap(), 4);
        assert_eq!(settings("a", None).limit.after(500).unwrap(), TOKENS);
    }

    #[test]
    fn values_out_of_range_are_refused() {
        for line in [
            "a --temperature -0.1",
            "a --temperature nan",
            "a --top-p 0",
            "a --top-p 1.1",
            "a --repetition-penalty 0",
            "a --repetition-penalty inf",
            "a --tokens -1",
            "a --top-k -1",
            "a --stop=",
        ] {
            assert!(Flags::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}
