//! A model that continues texts.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use brigade::core::Dtype;
use brigade::data::{Tokenizer, conversion_hint};
use brigade::models::{CausalLm, LoraConfig};
use brigade::{CachedText, LanguageModel, Session};
use brigade_hf::chat::{Chat, ChatTemplate};
use brigade_hf::config::GenerationConfig;
use brigade_hf::{Config, ConfigFile, Task, TokenizerConfig};

use super::{GenerationSettings, Prompt, PromptContent, TextStream, TokenLimit, TokenSampler};
use crate::config::{TEMPLATE_FILE, TOKENIZER_FILE};
use crate::model_files::adapters::Origin;
use crate::model_files::weights::Weights;
use crate::vocabulary::{no_embedding, note_on_missing};

/// What is known of a model before its weights are read.
pub struct UnloadedModel {
    /// The folder that was given.
    folder: PathBuf,
    /// The folder of the model, if that has adapters for it.
    base: PathBuf,
    pub model: CausalLm,
    weights: Weights,
    pub file: ConfigFile,
    tokenizer: Tokenizer,
    /// The file of a template of chats, in place of the tokenizer's own.
    chat_template: Option<PathBuf>,
}

impl UnloadedModel {
    /// Of a finished run or a model; `compares_copies` as for [`Weights::find`]. A template of chats may be in another file.
    pub fn read(
        folder: &Path,
        compares_copies: bool,
        chat_template: Option<PathBuf>,
    ) -> anyhow::Result<Self> {
        let given = || format!("--model {}", folder.display());
        let origin = Origin::read(folder).with_context(given)?;
        let Origin { base, adapters } = &origin;
        let file = origin.config_file().with_context(given)?;
        if let Some(task @ (Task::SequenceClassification | Task::MaskedLanguageModel)) = file.task {
            let is = if task == Task::SequenceClassification {
                "a classifier"
            } else {
                "a model of masked tokens"
            };
            bail!("{}: it is {is}, which does not generate text; brigade evaluate measures it", given());
        }
        let lora = adapters.as_ref().map_or_else(LoraConfig::default, |saved| saved.lora.clone());
        let model = CausalLm::from_config(&file.config, None);
        let model = model.and_then(|model| model.with_adapters(&lora)).with_context(given)?;
        let weights = Weights::find(&origin, Task::CausalLanguageModel, model.adapters(), compares_copies);
        let weights = weights.with_context(given)?;
        let path = beside(folder, base, TOKENIZER_FILE);
        if !path.is_file() {
            bail!("{}: it has no {TOKENIZER_FILE}{}", given(), conversion_hint(&path));
        }
        let tokenizer = Tokenizer::from_file(&path).with_context(given)?;
        let vocabulary = model.vocabulary();
        if tokenizer.size_without_added() > vocabulary {
            bail!(
                "{} has {} token ids, but the model of {} has {vocabulary}: they belong to different models",
                path.display(),
                tokenizer.vocabulary_size(),
                folder.join("config.json").display()
            );
        }
        let (folder, base) = (folder.to_owned(), base.clone());
        Ok(Self { folder, base, model, weights, file, tokenizer, chat_template })
    }

    /// The model on this process alone, in this number type.
    pub fn load(&self, settings: GenerationSettings, compute: Dtype) -> anyhow::Result<Generator<'static>> {
        let mapping = self.weights.mapping(self.model.mapping());
        let model = LanguageModel::load_in(&self.model, &self.weight_paths(), &mapping, compute)?;
        Ok(self.generator(model, settings))
    }

    /// The model on the ranks of a session.
    pub fn load_on<'s>(
        &self,
        session: &'s Session,
        settings: GenerationSettings,
    ) -> anyhow::Result<Generator<'s>> {
        let mapping = self.weights.mapping(self.model.mapping());
        let model = LanguageModel::load_on(session, &self.model, &self.weight_paths(), &mapping)?;
        Ok(self.generator(model, settings))
    }

    fn weight_paths(&self) -> Vec<&Path> {
        self.weights.files.iter().map(PathBuf::as_path).collect()
    }

    fn generator<'s>(&self, model: LanguageModel<'s>, settings: GenerationSettings) -> Generator<'s> {
        Generator { model, tokenizer: self.tokenizer.clone(), ends: self.ends(), settings }
    }

    /// The tokens that end a text: those of `generation_config.json`, or else of `config.json`, and that of the tokenizer.
    fn ends(&self) -> BTreeSet<u32> {
        let of_file = self.file.generation.as_ref().map(|generation| &generation.tokens.eos);
        let of_model = match &self.file.config {
            Config::Decoder(config) => config.tokens.eos.as_slice(),
            Config::Encoder(_) => &[],
        };
        let named = of_file.filter(|eos| !eos.is_empty()).map_or(of_model, Vec::as_slice);
        named.iter().copied().chain([self.tokenizer.end_of_text()]).collect()
    }

    /// Says which tokens cannot be used, and which fields of the model's `generation_config.json` have no effect here.
    pub fn print_notes(&self) {
        if let Some(note) = note_on_missing(self.tokenizer.vocabulary_size(), self.model.vocabulary()) {
            brigade::print_stderr(format_args!("note: {note}"));
        }
        let ignored = self.file.generation.as_ref().map(GenerationConfig::ignored).unwrap_or_default();
        if !ignored.is_empty() {
            brigade::print_stderr(format_args!(
                "note: generation_config.json of {} has {}, which have no effect here",
                self.folder.display(),
                ignored.join(", ")
            ));
        }
    }

    /// The template of chats, or that of chats with tools.
    pub fn chat_template(&self, tools: bool) -> anyhow::Result<ChatTemplate> {
        let given = || format!("--model {}", self.folder.display());
        let own = self.folder.join("tokenizer_config.json").is_file();
        let folder = if own { &self.folder } else { &self.base };
        let mut config = TokenizerConfig::read(folder).with_context(given)?;
        let trained = self.folder.join(TEMPLATE_FILE);
        if !own && trained.is_file() {
            config = config.with_template_of(&trained).with_context(given)?;
        }
        if let Some(template) = &self.chat_template {
            let given = || format!("--chat-template {}", template.display());
            config = config.with_template_of(template).with_context(given)?;
            return config.chat_template(template, tools).with_context(given);
        }
        let template = config.chat_template(folder, tools);
        template.map_err(|error| anyhow!("{error}; --chat-template gives another")).with_context(given)
    }

    /// The tokens of prompts, each of which leaves some to generate. All are made before the first is continued, so that a mistake is found at once.
    pub fn tokens_of(&self, prompts: &[Prompt], limit: TokenLimit) -> anyhow::Result<Vec<Vec<u32>>> {
        // For chats without tools, and for those with them.
        let templates = [OnceCell::new(), OnceCell::new()];
        let template = |tools: bool| -> anyhow::Result<&ChatTemplate> {
            let known = &templates[usize::from(tools)];
            match known.get() {
                Some(template) => Ok(template),
                None => {
                    let template = self.chat_template(tools)?;
                    Ok(known.get_or_init(|| template))
                }
            }
        };
        let tokens = prompts.iter().map(|prompt| {
            let tokens = match &prompt.content {
                PromptContent::Chat(chat) => self.tokens_of_chat(template(chat.has_tools())?, chat),
                PromptContent::Text(text) => self.tokens_of_text(text),
            };
            let tokens = tokens.with_context(|| prompt.name.clone())?;
            if !self.fits(&tokens) {
                bail!(
                    "{} has {} tokens, but the model has {} positions; give a shorter one",
                    prompt.name,
                    tokens.len(),
                    self.model.sequence_length()
                );
            }
            limit.after(tokens.len()).with_context(|| prompt.name.clone())?;
            Ok(tokens)
        });
        tokens.collect()
    }

    /// Whether the model sees all of a text.
    pub fn fits(&self, tokens: &[u32]) -> bool {
        tokens.len() <= self.model.sequence_length()
    }

    /// With what stands before a text, in which the names of special tokens stand for these. The end-of-text token separates documents, so a document begins after one where nothing else does.
    fn tokens_of_text(&self, text: &str) -> anyhow::Result<Vec<u32>> {
        let mut tokens = self.tokenizer.beginning()?;
        tokens.extend(self.tokenizer.encode_special(text)?);
        if tokens.is_empty() {
            tokens.push(self.tokenizer.end_of_text());
        }
        self.with_embeddings(tokens)
    }

    /// Up to where the assistant answers.
    pub fn tokens_of_chat(&self, template: &ChatTemplate, chat: &Chat) -> anyhow::Result<Vec<u32>> {
        let tokens = self.tokenizer.encode_special(&template.render(chat, true)?)?;
        if tokens.is_empty() {
            bail!("the chat template gives no text for this chat");
        }
        self.with_embeddings(tokens)
    }

    /// The tokens, if the model has an embedding for each.
    fn with_embeddings(&self, tokens: Vec<u32>) -> anyhow::Result<Vec<u32>> {
        match tokens.iter().find(|token| **token as usize >= self.model.vocabulary()) {
            Some(token) => bail!(no_embedding(&self.tokenizer, *token, self.model.vocabulary())?),
            None => Ok(tokens),
        }
    }
}

/// A file of a folder, or else of another.
fn beside(folder: &Path, base: &Path, name: &str) -> PathBuf {
    let own = folder.join(name);
    if own.is_file() { own } else { base.join(name) }
}

/// A model that continues texts.
pub struct Generator<'a> {
    model: LanguageModel<'a>,
    tokenizer: Tokenizer,
    ends: BTreeSet<u32>,
    settings: GenerationSettings,
}

/// What was added to a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Continuation {
    pub text: String,
    /// How many tokens were generated.
    pub tokens: usize,
    /// Whether it ended by itself, at an end of text or a stop string, and not because there were enough tokens or nobody reads on.
    pub is_whole: bool,
}

impl Generator<'_> {
    /// How many tokens are generated.
    pub fn limit(&self) -> TokenLimit {
        self.settings.limit
    }

    /// Continues a prompt. After each token that does not end the text, `show` gets the part of the text that has become certain, which may be empty; if it answers
    /// `false`, the text ends there.
    ///
    /// `text` is what was continued before: where the prompt begins with it, only what follows is computed.
    pub fn continued(
        &mut self,
        text: &mut CachedText,
        prompt: &[u32],
        show: &mut dyn FnMut(&str) -> anyhow::Result<bool>,
    ) -> anyhow::Result<Continuation> {
        let settings = &self.settings;
        let tokens = settings.limit.after(prompt.len())?;
        let mut sampler = TokenSampler::new(settings.seed, settings.sampling);
        sampler.see(prompt);
        let mut stream = TextStream::new(&self.tokenizer, &settings.stops, prompt)?;
        let mut new = match prompt.strip_prefix(text.tokens()) {
            Some(rest) if !rest.is_empty() => rest.to_vec(),
            _ => {
                *text = CachedText::default();
                prompt.to_vec()
            }
        };
        let mut found = Continuation { text: String::new(), tokens: 0, is_whole: false };
        let vocabulary = self.tokenizer.vocabulary_size();
        while found.tokens < tokens {
            // The model's vocabulary may be larger than the tokenizer's.
            let choose = |logits: &[f32]| sampler.choose(logits.get(..vocabulary).unwrap_or(logits));
            let next = self.model.next_token(text, &new, choose)?;
            found.tokens += 1;
            if self.ends.contains(&next) {
                found.is_whole = true;
                break;
            }
            sampler.see(&[next]);
            new = vec![next];
            let (part, stopped) = stream.push(next)?;
            found.text.push_str(&part);
            if !show(&part)? {
                return Ok(found);
            }
            if stopped {
                found.is_whole = true;
                return Ok(found);
            }
        }
        let rest = stream.finish()?;
        found.text.push_str(&rest);
        if !rest.is_empty() {
            show(&rest)?;
        }
        Ok(found)
    }
}
