//! `brigade generate`

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use brigade::data::Tokenizer;
use brigade::models::{CausalLm, LoraConfig};
use brigade::{LanguageModel, UsageError, exit, parse_whole_number};
use brigade_hf::ConfigFile;
use brigade_hf::weights::weights_file;
use clap::Args;

use crate::adapters::Origin;
use crate::config::TOKENIZER_FILE;
use crate::model_folder::model_folder;
use crate::sampling::TokenSampler;

pub const EXAMPLES: &str = "\
Examples:
  brigade generate --model runs/gpt-tiny-1 --prompt \"fn main\"
  brigade generate --model runs/gpt-tiny-1 --prompt \"use std\" --tokens 500 --temperature 0.5 --seed 3
  brigade generate --model runs/gpt-tiny-1 --temperature 0        always the most likely token";

#[derive(Debug, Args)]
pub struct GenerateArgs {
    /// Folder of a finished run, or a model: a folder as Hugging Face's libraries write it, or organization/name[@revision] on the hub.
    #[arg(long, value_name = "MODEL", visible_alias = "out")]
    model: PathBuf,
    /// Text to continue [default: the beginning of a document].
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true,
        allow_hyphen_values = true
    )]
    prompt: String,
    /// Number of tokens to generate; generation stops earlier at the end of a document.
    #[arg(long, value_name = "N", default_value_t = 200, allow_negative_numbers = true, value_parser = parse_whole_number::<usize>)]
    tokens: usize,
    /// Sampling temperature: likelier text below 1, more surprising text above 1; 0 always takes the most likely token.
    #[arg(long, value_name = "T", default_value_t = 0.8, value_parser = temperature, allow_negative_numbers = true)]
    temperature: f64,
    /// Sample from this many of the most likely tokens; 0 samples from all.
    #[arg(long, value_name = "K", default_value_t = 50, allow_negative_numbers = true, value_parser = parse_whole_number::<usize>)]
    top_k: usize,
    /// The same seed gives the same text.
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true, value_parser = parse_whole_number::<u64>)]
    seed: u64,
}

fn temperature(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| "it is a number of at least 0, as in 0.8".into())
}

pub fn run(args: &GenerateArgs) -> anyhow::Result<ExitCode> {
    let FinishedRun { model, tokenizer } =
        model_folder(&args.model).and_then(|folder| FinishedRun::open(&folder)).map_err(UsageError)?;
    let end = tokenizer.end_of_text();
    let mut tokens = tokenizer.encode(&args.prompt)?;
    // The end-of-text token separates documents, so a document begins after one.
    let unseen = usize::from(tokens.is_empty());
    if unseen == 1 {
        tokens.push(end);
    }
    let mut output = StreamedText::default();
    let mut sampler = TokenSampler::new(args.seed, args.temperature, args.top_k);
    for _ in 0..args.tokens {
        if !output.show(&tokenizer.decode(&tokens[unseen..])?, false)? {
            return Ok(ExitCode::from(exit::DONE));
        }
        let logits = model.next_token_logits(&tokens)?;
        // The model's vocabulary may be larger than the tokenizer's.
        let next = sampler.choose(logits.get(..tokenizer.vocabulary_size()).unwrap_or(&logits))?;
        if next == end {
            break;
        }
        tokens.push(next);
    }
    output.show(&tokenizer.decode(&tokens[unseen..])?, true)?;
    Ok(ExitCode::from(exit::DONE))
}

/// The model and tokenizer of a finished run.
struct FinishedRun {
    model: LanguageModel,
    tokenizer: Tokenizer,
}

impl FinishedRun {
    fn open(folder: &Path) -> anyhow::Result<Self> {
        let given = || format!("--model {}", folder.display());
        let Origin { base, adapters } = Origin::read(folder).with_context(given)?;
        if !base.join("config.json").is_file() {
            bail!("{}: it has no config.json; is it the folder of a finished run or of a model?", given());
        }
        let file = ConfigFile::read(&base).with_context(given)?;
        let lora = adapters.as_ref().map_or_else(LoraConfig::default, |saved| saved.lora.clone());
        let description = CausalLm::from_config(&file.config, None);
        let description = description.and_then(|model| model.with_adapters(&lora)).with_context(given)?;
        let weights = weights_file(&base, &file.config, file.task).with_context(given)?;
        let weights: Vec<&Path> =
            [weights.as_path()].into_iter().chain(adapters.iter().map(|saved| &*saved.file)).collect();
        let own = folder.join(TOKENIZER_FILE);
        let path = if own.is_file() { own } else { base.join(TOKENIZER_FILE) };
        let tokenizer = Tokenizer::from_file(&path).with_context(given)?;
        let (ids, vocabulary) = (tokenizer.vocabulary_size(), description.vocabulary());
        if ids > vocabulary {
            bail!(
                "{} has {ids} token ids, but the model of {} has {vocabulary}: they belong to different models",
                path.display(),
                folder.join("config.json").display()
            );
        }
        Ok(Self { model: LanguageModel::load(&description, &weights)?, tokenizer })
    }
}

/// Text streamed to standard output.
#[derive(Default)]
struct StreamedText(String);

impl StreamedText {
    /// Prints the part of `text` that was not printed yet; at the end also the rest and a newline. Until then, a character whose
    /// bytes are incomplete is held back. `false` if nobody reads any more.
    fn show(&mut self, text: &str, end: bool) -> anyhow::Result<bool> {
        let whole = if end { text } else { text.trim_end_matches(char::REPLACEMENT_CHARACTER) };
        let new = whole.strip_prefix(&self.0).unwrap_or_default();
        let mut out = std::io::stdout().lock();
        let newline = if end { "\n" } else { "" };
        self.0.push_str(new);
        match write!(out, "{new}{newline}").and_then(|()| out.flush()) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
            written => written.map(|()| true).context("cannot write to standard output"),
        }
    }
}
