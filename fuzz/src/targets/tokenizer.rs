//! Tokenizers.

use brigade::data::{Tokenizer, fuzzing};

use crate::target::{Bound, Limit, Target, bare};

/// What stands between a `tokenizer.json` and the text that it takes apart.
const TEXT: &[u8] = b"\n#text\n";

/// A `tokenizer.json`, and a text there and back.
///
/// Counted as parsed: it is a tokenizer that takes the text. Bound: the vocabulary is there as text, as JSON, and in maps
/// both ways.
pub const TOKENIZER: Target = Target {
    name: "tokenizer",
    run: |input| {
        tokenized(input);
    },
    parsed: |input| tokenized(input).is_some(),
    bound: Bound {
        peak: Limit { fixed: 4 << 20, per_byte: 1024 },
        total: Limit { fixed: 16 << 20, per_byte: 8192 },
    },
    payloads: || {
        let texts = ["fn main() { let x = 1; }\n".repeat(20)];
        let made = [Tokenizer::bytes(), Tokenizer::train_bpe(280, &texts)];
        let with = |text: &str| [TEXT, text.as_bytes()].concat();
        let made = made.into_iter().flatten().map(|made| [made.json().as_bytes(), &with("fn é(1)")].concat());
        made.chain(KINDS.map(|json| [json.as_bytes(), &with("a b  ab")].concat())).collect()
    },
    envelope: bare,
};

/// Small ones of other kinds.
const KINDS: [&str; 3] = [
    r###"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[{"id":3,"content":"</s>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],"normalizer":{"type":"Lowercase"},"pre_tokenizer":{"type":"Whitespace"},"post_processor":null,"decoder":null,"model":{"type":"WordLevel","vocab":{"a":0,"b":1,"[UNK]":2},"unk_token":"[UNK]"}}"###,
    r###"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[{"id":4,"content":"[EOS]","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],"normalizer":null,"pre_tokenizer":{"type":"WhitespaceSplit"},"post_processor":null,"decoder":{"type":"WordPiece","prefix":"##","cleanup":true},"model":{"type":"WordPiece","unk_token":"[UNK]","continuing_subword_prefix":"##","max_input_chars_per_word":100,"vocab":{"[UNK]":0,"a":1,"##b":2,"b":3}}}"###,
    r###"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[{"id":3,"content":"</s>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],"normalizer":{"type":"NFKC"},"pre_tokenizer":{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true},"post_processor":null,"decoder":{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true},"model":{"type":"Unigram","unk_id":0,"vocab":[["<unk>",0.0],["▁",-2.5],["a",-3.0]],"byte_fallback":false}}"###,
];

fn tokenized(input: &[u8]) -> Option<usize> {
    let text = String::from_utf8_lossy(input);
    let marker = std::str::from_utf8(TEXT).unwrap_or_default();
    let (json, text) = text.split_once(marker).unwrap_or((&text, "a b"));
    fuzzing::tokenizer(json, text).ok()
}
