"""Checks that llama.cpp loads what `brigade train` writes; `cargo xtask check-llama-cpp --python PATH --llama-cpp FOLDER` runs it.

For each family, `transformers` writes a tiny model with random weights and a SentencePiece tokenizer; `brigade train --model` goes on from it on two
stages; `convert_hf_to_gguf.py` of FOLDER, a source tree of llama.cpp, converts the run's folder as it is, and llama.cpp must give the logits that
`transformers` gives, within 1e-3 of the largest. With a SentencePiece tokenizer of their own, Llama and Mistral must also continue a text with the same
tokens as `brigade generate`. Needs torch, transformers, sentencepiece,
protobuf, gguf and llama-cpp-python, whose source package has llama.cpp in `vendor/llama.cpp`.
"""
import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
import sentencepiece
import torch
from llama_cpp import GGML_TYPE_F32, Llama
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

SMALL = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=128, bos_token_id=1, eos_token_id=2, pad_token_id=None)
FAMILIES = {
    "llama": SMALL,
    "mistral": dict(SMALL, sliding_window=None),
    "qwen2": dict(SMALL, tie_word_embeddings=True),
    "qwen3": dict(SMALL, head_dim=32),
    "gemma2": dict(SMALL, head_dim=32, sliding_window=64, query_pre_attn_scalar=32),
    "gemma3_text": dict(SMALL, head_dim=32, sliding_window=64, query_pre_attn_scalar=32),
}
# Those whose `tokenizer.json` is what SentencePiece does; the others' libraries have rules of their own.
WITH_TEXT = ["llama", "mistral"]
VOCABULARY = 400
PROMPT = "the cat number 7"


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stderr.decode()}")
    return done.stdout.decode(errors="replace")


def write_text(place):
    things = ["cat", "dog", "bird", "fish"]
    lines = [f"the {things[i % 4]} number {i} sees {i * 7 % 13} other {things[i * 5 % 4]}s and runs home" for i in range(2000)]
    (place / "text").mkdir()
    for part in range(20):
        (place / "text" / f"{part}.txt").write_text("\n".join(lines[part::20]))
    (place / "all.txt").write_text("\n".join(lines))


def write_tokenizer(place):
    """A SentencePiece model, and the `tokenizer.json` that `transformers` makes of it."""
    folder = place / "tokenizer"
    folder.mkdir()
    sentencepiece.SentencePieceTrainer.train(
        input=str(place / "all.txt"), model_prefix=str(folder / "tokenizer"), vocab_size=VOCABULARY, model_type="bpe", byte_fallback=True, unk_id=0, bos_id=1,
        eos_id=2, pad_id=-1, normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2)
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": true, "legacy": false}')
    AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    return folder


def check(arguments, place, family, fields):
    base, tuned, converted = place / f"{family}-base", place / f"{family}-tuned", place / f"{family}.gguf"
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.for_model(family, vocab_size=VOCABULARY, **fields)).save_pretrained(base)
    for file in (place / "tokenizer").iterdir():
        shutil.copy(file, base)
    run(arguments.brigade, "train", "--model", base, "--data", place / "text", "--out", tuned, "--nproc-per-node", 2, "--pp", 2, "--steps", 60,
        "--micro-batch-size", 4, "--global-batch-size", 16, "--set", "model.sequence_length=64", "--set", "optimizer.learning_rate=5e-3",
        "--set", "schedule.warmup_steps=2", "--quiet")
    run(sys.executable, arguments.llama_cpp / "convert_hf_to_gguf.py", tuned, "--outfile", converted, "--outtype", "f32")
    there = Llama(str(converted), n_ctx=128, logits_all=True, type_k=GGML_TYPE_F32, type_v=GGML_TYPE_F32, verbose=False)
    model = AutoModelForCausalLM.from_pretrained(tuned, dtype=torch.float32)
    row = torch.randint(3, VOCABULARY, (1, 100), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = model(row).logits[0].numpy()
    there.reset()
    there.eval(row[0].tolist())
    difference = float(numpy.abs(there.scores[:100] - expected).max() / numpy.abs(expected).max())
    texts = same_text(arguments, there, tuned) if family in WITH_TEXT else []
    good = difference <= 1e-3 and (not texts or texts[0] == texts[1])
    print(f"{family:12} {'ok' if good else 'FAILED'}, logits differ by {difference:.1e}", *([] if good else texts), sep="\n  ")
    return good


def same_text(arguments, there, tuned):
    """What Brigade and llama.cpp make of the prompt."""
    here = run(arguments.brigade, "generate", "--model", tuned, "--prompt", PROMPT, "--temperature", 0, "--tokens", 40)
    ids = there.tokenize(PROMPT.encode(), special=True)
    there.reset()
    said = list(ids)
    for token in there.generate(ids, temp=0.0, repeat_penalty=1.0, reset=True):
        if len(said) == len(ids) + 40 or token == there.token_eos():
            break
        said.append(token)
    return [here.strip(), AutoTokenizer.from_pretrained(tuned).decode(said, skip_special_tokens=True).strip()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brigade", type=Path, required=True)
    parser.add_argument("--llama-cpp", type=Path, required=True, help="a source tree of llama.cpp")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        place = Path(place)
        write_text(place)
        write_tokenizer(place)
        good = [check(arguments, place, family, fields) for family, fields in FAMILIES.items()]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
