//! `brigade generate`

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{anyhow, bail};
use brigade::core::Dtype;
use brigade::launcher::StandardStreams;
use brigade::{Backend, CachedText, ComputeDtype, Session, Settings, UsageError, exit, parse_whole_number};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::generation::{
    ChatSession, Continuation, GenerationSettings, Generator, Prompt, PromptContent, PromptRound, RankInput,
    SamplingFlags, StandardInput, UnloadedModel,
};
use crate::model_files::model_folder::model_folder;
use crate::output::{BackgroundOutput, show};
use crate::ranks::{RankFlags, RankProgram};

pub const EXAMPLES: &str = "\
Examples:
  brigade generate --model runs/a --prompt \"fn main\"
  brigade generate --model runs/a --prompt \"use std\" --tokens 500 --temperature 0.5 --seed 3
  brigade generate --model runs/a --temperature 0             always the most likely token
  brigade generate --model runs/a --prompts q.jsonl --format jsonl --stop $'\\n\\n' > a.jsonl
  brigade generate --model runs/a --prompts q.jsonl --dp 4    four prompts at a time
  brigade generate --model runs/a --chat --system \"Answer in one sentence.\"
  brigade generate --model tuned-7b --chat --dtype bf16       in 14 GB of memory, not 28
  brigade generate --model tuned-70b --chat --pp 4            a model spread over four processes

Keys and values of earlier tokens are cached, so a token costs the same at the end of a text as at its beginning, \
except for attention, which looks at all earlier tokens. A text that grows beyond the model's positions continues with the last \
half of them.";

#[derive(Debug, Args)]
pub struct GenerateArgs {
    /// Folder of a finished run, or a model: a folder as Hugging Face's libraries write it, or organization/name[@revision] on the hub.
    #[arg(long, value_name = "MODEL", alias = "out")]
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
    /// File of prompts, one per line; in a *.jsonl file each line is an object with a text `prompt`, or with `messages` in OpenAI's format.
    #[arg(long, value_name = "FILE", conflicts_with = "prompt")]
    prompts: Option<PathBuf>,
    /// Answer each line of standard input as an assistant, with the model's chat template, until the input ends (Ctrl-D) or
    /// Ctrl-C.
    #[arg(long, conflicts_with_all = ["prompt", "prompts", "format"])]
    chat: bool,
    /// The system message, which the assistant gets first.
    #[arg(long, value_name = "TEXT", requires = "chat", conflicts_with_all = ["prompt", "prompts"], allow_hyphen_values = true)]
    system: Option<String>,
    /// File with a chat template (Jinja), instead of that of the model.
    #[arg(long, value_name = "FILE", conflicts_with = "prompt")]
    chat_template: Option<PathBuf>,
    /// How results are printed.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// The number type of parameters and activations: bf16 takes half the memory of fp32 [default: fp32, or bf16 on ranks with CUDA].
    #[arg(long, value_name = "TYPE", value_parser = dtype_parser())]
    dtype: Option<Dtype>,
    #[command(flatten)]
    sampling: SamplingFlags,
    /// Data-parallel ranks, each with all of the model's layers or a pipeline of its own; this is how many prompts of a file are continued at a time
    /// [default: 1].
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        value_parser = parse_whole_number::<usize>,
        help_heading = "Ranks"
    )]
    dp: Option<usize>,
    /// How long a rank waits for another, such as for a stage that reads a long prompt, before all end; --heartbeat-timeout is at least this unless it is given
    /// [default: 3600].
    #[arg(
        long,
        value_name = "SECONDS",
        allow_negative_numbers = true,
        value_parser = wait_seconds,
        help_heading = "Ranks"
    )]
    step_timeout: Option<f64>,
    #[command(flatten)]
    ranks: RankFlags,
}

/// The default of `--step-timeout`. Processes that end and machines that do not answer are noticed at once, whatever it is.
const STEP_TIMEOUT: f64 = 3600.0;

fn wait_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| (0.1..=1e6).contains(seconds));
    seconds.ok_or_else(|| "it must be from 0.1 to 1000000 seconds".into())
}

fn dtype_parser() -> impl TypedValueParser<Value = Dtype> {
    PossibleValuesParser::new([
        PossibleValue::new("fp32").alias("f32").help("32 bits"),
        PossibleValue::new("bf16").help("16 bits: bfloat16"),
    ])
    .map(|name| if name == "bf16" { Dtype::Bf16 } else { Dtype::F32 })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Prompt and continuation, token by token, with an empty line between results.
    Text,
    /// The fields of each prompt with `completion`, `finish_reason` (`stop` or `length`) and `completion_tokens`, one object per line.
    Jsonl,
}

impl GenerateArgs {
    /// Whether it starts ranks, or is one.
    pub fn uses_ranks(&self) -> bool {
        // A process alone computes on the CPU.
        let on_cpu = Backend::Auto.resolved() == Backend::Cpu;
        self.dp.is_some() || self.ranks.are_given() || !on_cpu
    }

    /// What a process alone computes in.
    fn compute(&self) -> Dtype {
        self.dtype.unwrap_or_default()
    }

    fn described(&self) -> anyhow::Result<UnloadedModel> {
        let checks = !self.uses_ranks() || self.ranks.checks_for_all()?;
        UnloadedModel::read(&model_folder(&self.model)?, checks, self.chat_template.clone())
    }

    fn settings(&self, described: &UnloadedModel) -> GenerationSettings {
        self.sampling.settings(described.file.generation.as_ref())
    }

    fn prompts(&self) -> anyhow::Result<Vec<Prompt>> {
        match &self.prompts {
            Some(path) => Prompt::of_file(path),
            None => Ok(vec![Prompt::of_flag(&self.prompt)]),
        }
    }
}

pub fn run(args: &GenerateArgs) -> anyhow::Result<ExitCode> {
    if args.uses_ranks() {
        return on_ranks(args);
    }
    if let Some(seconds) = args.step_timeout {
        let alone = anyhow!(
            "--step-timeout {seconds} is for ranks that wait for each other (--pp, --dp, --nproc-per-node); leave it out"
        );
        return Err(UsageError(alone).into());
    }
    let described = args.described().map_err(UsageError)?;
    let settings = args.settings(&described);
    described.print_notes();
    if args.chat {
        let template = described.chat_template(false).map_err(UsageError)?;
        let mut generator = described.load(settings, args.compute()).map_err(UsageError)?;
        let mut chat = ChatSession::new(template, args.system.clone());
        chat.run(&described, &mut generator, &mut StandardInput::open())?;
        return Ok(ExitCode::from(exit::DONE));
    }
    let prompts = args.prompts().map_err(UsageError)?;
    let tokens = described.tokens_of(&prompts, settings.limit).map_err(UsageError)?;
    let mut generator = described.load(settings, args.compute()).map_err(UsageError)?;
    for (index, (prompt, tokens)) in prompts.iter().zip(&tokens).enumerate() {
        if !answer(&mut generator, (index, prompt), tokens, args.format, &mut show, &mut || Ok(()))? {
            break;
        }
    }
    Ok(ExitCode::from(exit::DONE))
}

/// Continues a prompt; `false` if nobody reads any more. `each`: what is done after each token.
fn answer(
    generator: &mut Generator<'_>,
    (index, prompt): (usize, &Prompt),
    tokens: &[u32],
    format: Format,
    show: &mut dyn FnMut(&str) -> anyhow::Result<bool>,
    each: &mut dyn FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<bool> {
    let mut text = CachedText::default();
    match format {
        Format::Text => {
            let gap = if index > 0 { "\n" } else { "" };
            let given = if let PromptContent::Text(text) = &prompt.content { text } else { "" };
            let mut is_read = show(&format!("{gap}{given}"))?;
            if is_read {
                generator.continued(&mut text, tokens, &mut |part| {
                    each()?;
                    is_read = show(part)?;
                    Ok(is_read)
                })?;
            }
            Ok(is_read && show("\n")?)
        }
        Format::Jsonl => {
            let Continuation { text, tokens, is_whole } =
                generator.continued(&mut text, tokens, &mut |_| each().map(|()| true))?;
            let mut fields = prompt.fields.clone();
            fields.insert("completion".into(), text.into());
            fields.insert("finish_reason".into(), if is_whole { "stop" } else { "length" }.into());
            fields.insert("completion_tokens".into(), tokens.into());
            show(&format!("{}\n", serde_json::Value::Object(fields)))
        }
    }
}

/// What must be the same on all ranks.
#[derive(Serialize)]
struct Shared<'a> {
    model: String,
    sampling: &'a SamplingFlags,
    #[serde(flatten)]
    settings: &'a Settings,
}

fn on_ranks(args: &GenerateArgs) -> anyhow::Result<ExitCode> {
    let (described, settings) = checked_for_ranks(args).map_err(UsageError)?;
    let model = described.file.config.family().to_string();
    let program = RankProgram {
        name: "generate",
        flags: &args.ranks,
        config: brigade::config_to_toml(&Shared { model, sampling: &args.sampling, settings: &settings })?,
        settings,
        costs: described.model.costs()?,
        quiet: true,
        streams: if args.chat { StandardStreams::Dialogue } else { StandardStreams::Results },
    };
    if args.chat {
        let prepare = |_| described.chat_template(false);
        return program.run(prepare, |session, template| {
            let mut chat = ChatSession::new(template, args.system.clone());
            let begins = hash_of(&chat.beginning(&described));
            session.check_same("--system (or chat template, or tokenizer)", &begins)?;
            print_notes(&described, session);
            let mut generator = described.load_on(session, args.settings(&described))?;
            let mut input = RankInput::open(session)?;
            chat.run(&described, &mut generator, &mut input)?;
            input.finish()
        });
    }
    let prepare = |_| {
        let prompts = args.prompts()?;
        let tokens = described.tokens_of(&prompts, args.settings(&described).limit)?;
        Ok((prompts, tokens))
    };
    program.run(prepare, |session, (prompts, tokens)| {
        session.check_same("prompts (or tokenizer)", &hash_of(&tokens))?;
        print_notes(&described, session);
        let mut generator = described.load_on(session, args.settings(&described))?;
        let output = (session.rank() == 0).then(BackgroundOutput::open).transpose()?;
        // All ranks continue a prompt together, also where nobody reads what the first one prints.
        let mut show = |text: &str| {
            output.iter().for_each(|output| output.show(text));
            Ok(true)
        };
        let given: Vec<_> = prompts.iter().zip(&tokens).enumerate().collect();
        let (pipeline, pipelines) = (session.data_parallel_rank(), session.data_parallel_size());
        for round in given.chunks(pipelines) {
            let mut text = String::new();
            let mut keep = |part: &str| {
                text.push_str(part);
                Ok(true)
            };
            let show_now: &mut dyn FnMut(&str) -> anyhow::Result<bool> =
                if pipelines == 1 { &mut show } else { &mut keep };
            let mut shared = (pipelines > 1).then(|| PromptRound::begin(session));
            if let Some((index, (prompt, tokens))) = round.get(pipeline) {
                let mut each = || shared.as_mut().map_or(Ok(()), PromptRound::count_token);
                answer(&mut generator, (*index, prompt), tokens, args.format, show_now, &mut each)?;
            }
            if let Some(shared) = shared {
                for text in shared.finish(&text)? {
                    show(&text)?;
                }
            }
            let notice = if output.as_ref().is_none_or(BackgroundOutput::is_read) { "" } else { NOT_READ };
            if session.all_gather_text(notice)?.first().is_some_and(|text| text == NOT_READ) {
                break;
            }
        }
        output.map_or(Ok(()), BackgroundOutput::finish)
    })
}

/// What rank 0 tells the others where nobody reads what it prints.
const NOT_READ: &str = "not read";

/// The same on all ranks, which run the same program; it is not stored.
fn hash_of(value: &impl Hash) -> String {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

fn print_notes(described: &UnloadedModel, session: &Session) {
    if session.rank() == 0 {
        described.print_notes();
    }
}

fn checked_for_ranks(args: &GenerateArgs) -> anyhow::Result<(UnloadedModel, Settings)> {
    let mut settings = Settings::default();
    args.ranks.apply(&mut settings);
    settings.compute.dtype = match args.dtype {
        None => settings.compute.dtype,
        Some(Dtype::F32) => ComputeDtype::F32,
        Some(Dtype::Bf16) => ComputeDtype::Bf16,
    };
    settings.comm.train_timeout_seconds = args.step_timeout.unwrap_or(STEP_TIMEOUT);
    let dp = args.dp.unwrap_or(1);
    if dp == 0 {
        bail!("--dp 0 is not possible: it must be at least 1");
    }
    if args.chat && dp > 1 {
        bail!(
            "--dp {dp} is not possible with --chat, which answers one line at a time: leave it out, and spread the model with --pp"
        );
    }
    if args.chat
        && let Some(flag) = args.ranks.restarts()
    {
        bail!(
            "{flag} is not possible with --chat: ranks that are started again know nothing of what was said; leave it out"
        );
    }
    let wanted = args.ranks.pp.unwrap_or(1).saturating_mul(dp);
    let world = args.ranks.world_size(Some(wanted), settings.compute.backend)?;
    settings.mesh.pp = args.ranks.pp.unwrap_or((world / dp).max(1));
    settings.mesh.dp = dp;
    (settings.optimizer.name, settings.optimizer.momentum) = ("sgd".into(), 0.0);
    settings.train.micro_batch_size = 1;
    settings.train.global_batch_size = dp;
    settings.resolve();
    Ok((args.described()?, settings))
}
