//! Records of instruction tuning: chats, and prompts with completions.

use std::error::Error;
use std::path::{Path, PathBuf};

use brigade::data::{Example, Record, RecordEncoder, RecordLocation, Result, Tokenizer, TokenizerSpec};
use brigade_hf::chat::{self, ChatTemplate, Encoded, RecordTokenizer};
use brigade_hf::{HfError, TokenizerConfig};
use serde::{Deserialize, Serialize};

/// Columns of records of any kind: chats (with the tools that the assistant may call), prompts with completions, texts.
pub const COLUMNS: [&str; 5] = ["messages", "tools", "prompt", "completion", "text"];

/// What templates write as today's date: that of Llama 3's own default, so that tokens do not depend on the day.
const TODAY: &str = "2024-07-26T00:00:00";

/// Which tokens of a record are learned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Learn {
    /// What the assistant says, or the completion.
    Assistant,
    /// All.
    All,
}

/// Makes examples of chats and completions, with the template beside the tokenizer.
#[derive(Debug)]
pub struct Chats {
    tokenizer: TokenizerConfig,
    special_tokens: Vec<String>,
    /// For chats without tools, and for those with them; or why there is none.
    templates: [std::result::Result<ChatTemplate, String>; 2],
    learn: Learn,
}

impl Chats {
    /// Reads what stands beside the tokenizer, and the file of a template if one is given.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn new(
        given: &TokenizerSpec,
        learn: Learn,
        template: Option<&Path>,
    ) -> std::result::Result<Self, HfError> {
        let folder = match given {
            TokenizerSpec::File(path) => path.parent().map(Path::to_owned),
            TokenizerSpec::Bytes | TokenizerSpec::Bpe(_) => None,
        };
        let mut tokenizer = match &folder {
            Some(folder) => TokenizerConfig::read(folder)?,
            None => TokenizerConfig::default(),
        };
        let mut place = folder.unwrap_or_else(|| PathBuf::from(given.to_string()));
        if let Some(template) = template {
            tokenizer = tokenizer.with_template_of(template)?;
            place = template.to_owned();
        }
        let template = |tools| {
            let template = tokenizer.chat_template(&place, tools).and_then(|found| found.with_time(TODAY));
            template.map_err(|error| error.to_string())
        };
        let templates = [false, true].map(template);
        Ok(Self { special_tokens: tokenizer.special_texts(), tokenizer, templates, learn })
    }
}

/// Whether the record has something in this column.
fn has(record: &Record, column: &str) -> bool {
    record.fields.get(column).is_some_and(|value| !value.is_null())
}

impl RecordEncoder for Chats {
    fn identity(&self) -> String {
        let TokenizerConfig { special_tokens, templates, .. } = &self.tokenizer;
        format!("chats 2 {TODAY} {:?} {special_tokens:?} {templates:?} {:?}", self.learn, self.special_tokens)
    }

    fn takes(&self, record: &Record) -> bool {
        has(record, "messages") || (has(record, "prompt") && has(record, "completion"))
    }

    fn example(&self, place: &RecordLocation, record: &str, tokenizer: &Tokenizer) -> Result<Example> {
        let wrong = |error: HfError| match error {
            HfError::Chat { problem, .. } => place.error(problem),
            other => place.error(other.to_string()),
        };
        let name = String::new();
        let parsed = chat::Record::from_json(&name, record).map_err(|error| match error {
            HfError::Chat { problem, .. } if !record.contains("\"completion\"") => {
                place.error(format!("{problem}; for plain text, use the column `text`"))
            }
            other => wrong(other),
        })?;
        let template = match &parsed {
            chat::Record::Completion { .. } => None,
            chat::Record::Chat(chat) => match &self.templates[usize::from(chat.has_tools())] {
                Ok(template) => Some(template),
                Err(problem) => {
                    let without = "data.chat_template gives another; a `prompt` and a `completion` that are texts need none";
                    return Err(place.error(format!("it is a chat, and {problem}; {without}")));
                }
            },
        };
        let end = match self.tokenizer.special_tokens.get("eos_token") {
            Some(token) => token.clone(),
            None => tokenizer.decode(&[tokenizer.end_of_text()])?,
        };
        let encode = |text: &str, add: bool| -> std::result::Result<Encoded, Box<dyn Error + Send + Sync>> {
            let (ids, offsets) = tokenizer.encode_marked(text, add)?;
            Ok(Encoded { ids, offsets })
        };
        let records =
            RecordTokenizer { template, special_tokens: &self.special_tokens, eos_token: &end, encode };
        let tokens = records.tokens(&name, &parsed).map_err(wrong)?;
        let learned = match self.learn {
            Learn::Assistant => tokens.learned,
            Learn::All => vec![true; tokens.ids.len()],
        };
        Ok(Example { ids: tokens.ids, learned, label: None, cut: 0 })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use brigade::data::{
        Columns, Corpus, DataSource, NoProgress, PrepareOptions, PreparedData, RowOptions, SequenceLayout,
        prepare,
    };
    use tempfile::TempDir;

    use super::*;

    /// A folder with records, and a tokenizer with a template.
    struct Bench(TempDir);

    impl Bench {
        fn new(records: &str) -> Self {
            let bench = Self(tempfile::tempdir().unwrap());
            let from =
                Path::new(env!("CARGO_MANIFEST_DIR")).join("../brigade-hf/tests/fixtures/chat/tokenizer");
            for name in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"] {
                fs::copy(from.join(name), bench.path(name)).unwrap();
            }
            fs::write(bench.path("chats.jsonl"), records).unwrap();
            bench
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn prepared(&self, tokenizer: &str, learn: Learn) -> Result<PreparedData> {
            self.prepared_with(tokenizer, learn, None)
        }

        fn prepared_with(
            &self,
            tokenizer: &str,
            learn: Learn,
            template: Option<&Path>,
        ) -> Result<PreparedData> {
            let tokenizer = match tokenizer {
                "" => TokenizerSpec::File(self.path("tokenizer.json")),
                other => other.parse()?,
            };
            let corpus = Corpus::from_sources(&[self.path("chats.jsonl").display().to_string()]);
            let source = DataSource { columns: Columns::new(&[], &COLUMNS), ..DataSource::new(corpus) };
            prepare(
                &PrepareOptions {
                    records: Some(Arc::new(Chats::new(&tokenizer, learn, template).unwrap())),
                    tokenizer,
                    rows: RowOptions::new(128, SequenceLayout::Auto),
                    validation_fraction: 0.0,
                    ..PrepareOptions::of(vec![source], self.path("cache"))
                },
                &NoProgress,
            )
        }
    }

    /// The texts of a row's documents: all tokens, and those that are learned.
    fn texts(prepared: &PreparedData) -> Vec<(String, String)> {
        let row = prepared.sources[0].train.get(0).unwrap();
        let mut start = 0;
        let text = |length: &usize| {
            let at = start..start + length;
            start += length;
            let learned: Vec<u32> =
                at.clone().filter(|at| row.valid[*at]).map(|at| row.targets[at]).collect();
            let all = [&row.inputs[at.start..=at.start], &row.targets[at]].concat();
            let decode = |ids: &[u32]| prepared.tokenizer.decode(ids).unwrap();
            (decode(&all), decode(&learned))
        };
        row.documents.iter().map(text).collect()
    }

    const RECORDS: &str = concat!(
        r#"{"messages": [{"role": "user", "content": "A"}, {"role": "assistant", "content": "é1"}]}"#,
        "\n",
        r#"{"prompt": "2 + 2 =", "completion": " 4"}"#,
        "\n",
        r#"{"text": "as it is"}"#,
        "\n",
    );

    #[test]
    fn chats_and_completions_become_rows_in_which_the_assistant_is_learned() {
        let bench = Bench::new(RECORDS);
        let prepared = bench.prepared("", Learn::Assistant).unwrap();
        assert_eq!(prepared.sources[0].train.options().layout, SequenceLayout::Bfd);
        let chat = "<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\né1<|im_end|>\n";
        let found = texts(&prepared);
        assert_eq!(found[0], (chat.into(), "é1<|im_end|>".into()));
        assert_eq!(found[1], ("2 + 2 = 4</s>".into(), " 4</s>".into()));
        // Of a text, all but the first token.
        assert_eq!(found[2], ("as it is</s>".into(), "s it is</s>".into()));

        let all = bench.prepared("", Learn::All).unwrap();
        assert!(!all.summary.from_cache);
        assert_eq!(texts(&all)[1].1, " + 2 = 4</s>");
        // Completions need no template.
        fs::write(bench.path("chats.jsonl"), "{\"prompt\": \"1\", \"completion\": \"2\"}").unwrap();
        let bytes = bench.prepared("bytes", Learn::Assistant).unwrap();
        assert_eq!(texts(&bytes), [("12<|endoftext|>".into(), "2<|endoftext|>".into())]);
    }

    #[test]
    fn spaces_of_an_answer_are_learned_also_where_offsets_are_trimmed() {
        let records = concat!(
            r#"{"messages": [{"role": "user", "content": "A"}, {"role": "assistant", "content": " f:\n    1  \n\n x "}]}"#,
            "\n",
            r#"{"prompt": "a  ", "completion": "  b\n\n  c "}"#,
        );
        let bench = Bench::new(records);
        let expected = [" f:\n    1  \n\n x <|im_end|>", "  b\n\n  c </s>"];
        let learned = || -> Vec<String> {
            let prepared = bench.prepared("", Learn::Assistant).unwrap();
            texts(&prepared).into_iter().map(|(_, learned)| learned).collect()
        };
        assert_eq!(learned(), expected);
        let path = bench.path("tokenizer.json");
        let mut json: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        json["post_processor"] = serde_json::json!({
            "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true,
        });
        fs::write(&path, json.to_string()).unwrap();
        assert_eq!(learned(), expected);
    }

    #[test]
    fn another_template_gives_other_tokens() {
        let bench = Bench::new(RECORDS);
        assert!(!bench.prepared("", Learn::Assistant).unwrap().summary.from_cache);
        assert!(bench.prepared("", Learn::Assistant).unwrap().summary.from_cache);
        let path = bench.path("chat_template.jinja");
        fs::write(&path, fs::read_to_string(&path).unwrap() + "!").unwrap();
        assert!(!bench.prepared("", Learn::Assistant).unwrap().summary.from_cache);
    }

    #[test]
    fn a_template_that_is_given_takes_the_place_of_that_beside_the_tokenizer() {
        let bench = Bench::new(RECORDS.lines().next().unwrap());
        fs::write(
            bench.path("own.jinja"),
            "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}",
        )
        .unwrap();
        let own = bench.path("own.jinja");
        let prepared = bench.prepared_with("", Learn::Assistant, Some(&own)).unwrap();
        assert!(texts(&prepared)[0].0.starts_with("user: A\nassistant: é1"), "{:?}", texts(&prepared));
        // A tokenizer without any gets one.
        assert!(bench.prepared_with("bytes", Learn::Assistant, Some(&own)).is_ok());
        fs::write(&own, "{% for").unwrap();
        let message = bench.prepared_with("", Learn::Assistant, Some(&own)).unwrap_err().to_string();
        assert!(message.contains("own.jinja"), "{message}");
    }

    #[test]
    fn records_that_cannot_be_learned_from_are_named() {
        let chat = |role: &str| format!("{{\"messages\": [{{\"role\": \"{role}\", \"content\": \"A\"}}]}}");
        for (line, tokenizer, said) in [
            (chat("user"), "", "the assistant says nothing in this chat that could be learned"),
            (
                chat("assistant"),
                "bytes",
                "it is a chat, and the chat template of bytes: there is no chat template",
            ),
            (
                "{\"note\": \"A\"}".into(),
                "",
                "it has neither `messages` nor `prompt` and `completion`, but `note`; for plain text, use the \
                column `text`",
            ),
            ("{\"messages\": null, \"text\": null}".into(), "", "the text is null, but must be a string"),
        ] {
            let bench = Bench::new(&format!("{{\"text\": \"a\"}}\n\n{line}\n"));
            let error = bench.prepared(tokenizer, Learn::Assistant).unwrap_err();
            let message = error.to_string();
            assert!(
                error.is_usage() && message.contains("chats.jsonl:3: ") && message.contains(said),
                "{message}"
            );
        }
    }
}
