//! `[data]`: the training data, and how it becomes rows.

pub(crate) mod chats;
pub(crate) mod columns;
pub(crate) mod tasks;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use brigade::data::{
    Columns, Corpus, DataSource, Error, LongExamples, RowOptions, SequenceLayout, TargetToken, TokenizerSpec,
    check_url,
};
use brigade_files::cache_folder;
use brigade_sorted::SortedMap;
use serde::{Deserialize, Serialize};

use crate::data::chats::Learn;

/// `[data]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataSection {
    /// Files, folders, globs and URLs (`gs://`, `s3://`, `https://`); if empty, the Rust sources of Brigade's locked dependencies.
    pub sources: Vec<String>,
    /// Files, folders, globs and URLs to validate on; if empty, a part of the documents in `sources` is set aside.
    pub validation: Vec<String>,
    /// The names of columns in the files, where they differ, as in `{ text = "content" }`.
    pub columns: SortedMap<String, String>,
    /// Instead of `sources`: tables `[[data.source]]`, each with a `path` and optionally a `weight` (its share of the samples, relative to
    /// the sum of all weights; default 1), `columns` instead of `data.columns`, and a path `validation` with its own files to validate on.
    pub source: Vec<SourceSection>,
    /// `bytes`, `bpe:<vocabulary>` (trained on the text itself), or the path of a `tokenizer.json`.
    pub tokenizer: TokenizerSpec,
    /// The share of documents set aside for validation, from 0 to below 1.
    pub validation_fraction: f64,
    /// `packed` (all documents joined and cut into rows), `bfd` (whole documents packed into rows by best-fit decreasing; none sees another), `documents` (one per row,
    /// padded), or `auto`: `packed` for texts, `bfd` for chats and completions.
    pub layout: SequenceLayout,
    /// Whether, also with `packed`, no token sees another document and positions restart at each document (Megatron's `--reset-attention-mask` and
    /// `--reset-position-ids`).
    pub reset_attention_mask: bool,
    /// With `bfd` and `documents`, rows are padded to the longest of their micro-batch, in multiples of this many tokens; 0 pads all to
    /// `model.sequence_length`.
    pub pad_to_multiple: usize,
    /// What to do with documents longer than a row with `bfd` and `documents`: `cut`, `split` into several (not texts with labels), or `refuse`.
    pub long: LongExamples,
    /// The tokens of chats and completions that are learned: the `assistant`'s (or the completion's), or `all`.
    pub learn: Learn,
    /// A file with a chat template (Jinja), for chats instead of the tokenizer's own; the run's folder gets a copy. Empty: that of the tokenizer.
    pub chat_template: PathBuf,
    /// The most bytes read from the sources of the locked dependencies; other sources are read completely.
    pub max_bytes: u64,
    /// The folder of the token cache; empty means the user's cache folder. The variable `BRIGADE_CACHE_DIR` comes before both.
    pub cache_dir: PathBuf,
    /// How long an object store may send nothing, in seconds, while requests are retried; then the run ends.
    pub timeout_seconds: f64,
}

impl DataSection {
    /// How documents become rows of this many tokens.
    pub fn rows(&self, sequence_length: usize) -> RowOptions {
        RowOptions {
            sequence_length,
            layout: self.layout,
            reset_attention_mask: self.reset_attention_mask,
            pad_to_multiple: self.pad_to_multiple,
            long: self.long,
            target: TargetToken::Next,
        }
    }

    /// Checks what does not depend on other sections.
    pub fn check(&self) -> anyhow::Result<()> {
        let has_files = !self.sources.is_empty() || !self.validation.is_empty();
        if has_files && !self.source.is_empty() {
            bail!("[[data.source]] replaces data.sources and data.validation; give one or the other");
        }
        if self.sources.is_empty() && !self.validation.is_empty() {
            bail!("data.validation has files to validate on, but data.sources (--data) has none to train on");
        }
        if !(self.timeout_seconds.is_finite()
            && self.timeout_seconds > 0.0
            && self.timeout_seconds <= MAX_SECONDS)
        {
            let (given, allowed) = (self.timeout_seconds, "it must be above 0 and at most 86400");
            bail!("data.timeout_seconds = {given} is not possible: {allowed}");
        }
        self.urls().try_for_each(|(option, url)| check(option, url))?;
        for SourceSection { path, weight, .. } in &self.source {
            if path.is_empty() {
                bail!("[[data.source]] path = \"\" is not possible: give a file, a folder or a glob");
            }
            if !(weight.is_finite() && *weight > 0.0) {
                bail!(
                    "[[data.source]] {path}: weight = {weight} is not possible: it must be a number above 0; leave the source out to skip \
                    it"
                );
            }
        }
        Ok(())
    }
}

impl DataSection {
    /// All sources, each with the option that gives it.
    pub fn urls(&self) -> impl Iterator<Item = (&'static str, &String)> {
        let of_sections = self.source.iter().flat_map(|source| {
            [("[[data.source]] path =", &source.path), ("[[data.source]] validation =", &source.validation)]
        });
        let sources = self.sources.iter().map(|source| ("data.sources (--data)", source));
        let validation = self.validation.iter().map(|source| ("data.validation", source));
        sources.chain(validation).chain(of_sections)
    }

    /// The file of the chat template, if one is given.
    pub fn template(&self) -> Option<&Path> {
        Some(self.chat_template.as_path()).filter(|path| !path.as_os_str().is_empty())
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs_f64(self.timeout_seconds)
    }

    /// Whether any are given; otherwise the text is that of the locked dependencies.
    pub fn has_sources(&self) -> bool {
        !self.sources.is_empty() || !self.source.is_empty()
    }

    /// The folder of the token cache: `BRIGADE_CACHE_DIR`, the setting, or `brigade` in the user's cache folder.
    pub fn cache_folder(&self) -> anyhow::Result<PathBuf> {
        let variable = |name: &str| std::env::var_os(name);
        let own = variable("BRIGADE_CACHE_DIR").is_some_and(|folder| !folder.is_empty());
        if !own && !self.cache_dir.as_os_str().is_empty() {
            return Ok(self.cache_dir.clone());
        }
        cache_folder(variable).context(
            "there is no folder for the token cache: set data.cache_dir, BRIGADE_CACHE_DIR, XDG_CACHE_HOME or HOME",
        )
    }
}

/// The longest `data.timeout_seconds`: a day.
const MAX_SECONDS: f64 = 86400.0;

/// Refuses a URL that cannot be used, before any part of it is written anywhere.
fn check(option: &str, source: &str) -> anyhow::Result<()> {
    match check_url(source) {
        Err(Error::InvalidUrl { url, message }) => bail!("{option} {url} is not possible: {message}"),
        checked => checked.with_context(|| option.to_owned()),
    }
}

/// `[[data.source]]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceSection {
    /// A file, a folder, a glob or a URL.
    pub path: String,
    /// Its share of the samples, relative to the sum of all weights.
    #[serde(default = "one")]
    pub weight: f64,
    /// Instead of `data.columns`.
    #[serde(default)]
    pub columns: SortedMap<String, String>,
    /// Files to validate on; if empty, a part of the documents is set aside for it.
    #[serde(default)]
    pub validation: String,
}

fn one() -> f64 {
    1.0
}

/// The text that is given, or that of the locked dependencies.
fn corpus(data: &DataSection) -> anyhow::Result<Corpus> {
    match data.sources.as_slice() {
        [] => Ok(Corpus::locked_dependencies(workspace()?, data.max_bytes)),
        sources => Ok(Corpus::from_sources(sources).timeout(data.timeout())),
    }
}

/// The sources with their weights; those of `data.sources` together are one.
pub fn sources(data: &DataSection, columns: &Columns) -> anyhow::Result<Vec<DataSource>> {
    let renamed = |own: &SortedMap<String, String>| {
        columns.clone().renamed(if own.is_empty() { &data.columns } else { own })
    };
    if data.source.is_empty() {
        let files = || Corpus::from_sources(&data.validation).timeout(data.timeout());
        let validation = (!data.validation.is_empty()).then(files);
        let columns = renamed(&data.columns)?;
        return Ok(vec![DataSource { columns, validation, ..DataSource::new(corpus(data)?) }]);
    }
    let one = |path: &String| Corpus::from_sources(std::slice::from_ref(path)).timeout(data.timeout());
    let source = |source: &SourceSection| {
        Ok(DataSource {
            columns: renamed(&source.columns)?,
            weight: source.weight,
            validation: (!source.validation.is_empty()).then(|| one(&source.validation)),
            ..DataSource::new(one(&source.path))
        })
    };
    data.source.iter().map(source).collect()
}

/// The workspace whose lock file lists the dependencies: the one that this program was built in, or else the one of the current
/// folder.
fn workspace() -> anyhow::Result<PathBuf> {
    let built_in = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).map(Path::to_owned);
    let here = std::env::current_dir().unwrap_or_default();
    let around = here.ancestors().map(Path::to_owned);
    let found = built_in.into_iter().chain(around).find(|folder| folder.join("Cargo.lock").is_file());
    found.with_context(|| {
        let here = here.display();
        format!(
            "there is no Cargo.lock in {here} or above it, so no dependencies to read; give text with --data"
        )
    })
}
