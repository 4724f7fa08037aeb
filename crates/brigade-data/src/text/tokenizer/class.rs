//! What a tokenizer's class in `transformers` sets in place of its `tokenizer.json`.

use serde_json::Value;
use tokenizers::normalizers::{BertNormalizer, NormalizerWrapper};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;

/// Classes that make their normalizer of settings in `tokenizer_config.json`.
const BERT: [&str; 4] = ["BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer"];

/// Classes that do so with `add_prefix_space`.
const BYTE_LEVEL: [&str; 4] = ["GPT2Tokenizer", "RobertaTokenizer", "BartTokenizer", "Qwen2Tokenizer"];

/// What a class sets. Settings that are not given have the class's defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClassSettings {
    Bert {
        lowercase: bool,
        /// As `lowercase` if none is given.
        strip_accents: Option<bool>,
        tokenize_chinese_chars: bool,
    },
    ByteLevel {
        add_prefix_space: bool,
    },
}

impl ClassSettings {
    /// Those in the fields of a `tokenizer_config.json`; none if its class takes all from `tokenizer.json`. If it names no class, `config` may, the fields of a model's `config.json`: those
    /// of BERT often do so by its family alone.
    pub(super) fn read(fields: &Value, config: Option<&Value>) -> Option<Self> {
        let named = |fields: &Value| Some(fields.get("tokenizer_class")?.as_str()?.to_owned());
        let is_bert = |config: &Value| config.get("model_type").and_then(Value::as_str) == Some("bert");
        let of_model = |config: &Value| is_bert(config).then(|| BERT[0].to_owned());
        let class =
            named(fields).or_else(|| config.and_then(|config| named(config).or_else(|| of_model(config))))?;
        let class = class.as_str();
        let class = class.strip_suffix("Fast").unwrap_or(class);
        let flag = |name: &str| fields.get(name).and_then(Value::as_bool);
        if BERT.contains(&class) {
            return Some(Self::Bert {
                lowercase: flag("do_lower_case").unwrap_or(true),
                strip_accents: flag("strip_accents"),
                tokenize_chinese_chars: flag("tokenize_chinese_chars").unwrap_or(true),
            });
        }
        let add_prefix_space = flag("add_prefix_space").unwrap_or(false);
        BYTE_LEVEL.contains(&class).then_some(Self::ByteLevel { add_prefix_space })
    }

    /// Sets them where the file has such a part.
    pub(super) fn apply(self, library: &mut tokenizers::Tokenizer) {
        match self {
            Self::Bert { lowercase, strip_accents, tokenize_chinese_chars } => {
                if let Some(NormalizerWrapper::BertNormalizer(_)) = library.get_normalizer() {
                    let normalizer =
                        BertNormalizer::new(true, tokenize_chinese_chars, strip_accents, lowercase);
                    library.with_normalizer(Some(normalizer));
                }
            }
            Self::ByteLevel { add_prefix_space } => {
                let own = library.get_pre_tokenizer().cloned();
                library.with_pre_tokenizer(own.map(|own| with_prefix_space(own, add_prefix_space)));
            }
        }
    }
}

fn with_prefix_space(pre_tokenizer: PreTokenizerWrapper, add: bool) -> PreTokenizerWrapper {
    match pre_tokenizer {
        PreTokenizerWrapper::ByteLevel(bytes) => bytes.add_prefix_space(add).into(),
        PreTokenizerWrapper::Sequence(mut all) => {
            for part in all.as_mut() {
                *part = with_prefix_space(part.clone(), add);
            }
            all.into()
        }
        other => other,
    }
}
