"""Checks that models go between `transformers` and `brigade` both ways; `cargo xtask check-hf --python PATH` runs it.

For each family, `transformers` writes a tiny model with random weights, in shards, with a tokenizer; `brigade train --model` goes on from it for some
steps on two stages; then `transformers` loads the run's folder, where no tensor may be missing or left over, must compute the same logits as Brigade within 1e-5 of
the largest, for the model that it wrote and for the run's, and must continue a text with the same tokens as `brigade generate`. A Llama that begins from nothing in
Brigade is loaded with `AutoTokenizer` and `AutoModelForCausalLM` as it is. Encoders and decoders are trained for labels and numbers, and `transformers` must find the loss that Brigade finds, or for masked tokens the
logits. Where `peft` is installed, it does so with adapters of every family, too, beside their model and merged into it. Weights exported in 16 bits and in shards must be those that `transformers` rounds to, and embeddings that a tokenizer needs
besides must be there. Needs torch and transformers.
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSequenceClassification,
                          AutoTokenizer)

SMALL = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=128, bos_token_id=0, eos_token_id=1, pad_token_id=None)
FAMILIES = {
    "gpt2": dict(n_embd=32, n_layer=4, n_head=4, n_positions=128, embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0, n_inner=96, layer_norm_epsilon=1e-3,
                 bos_token_id=0, eos_token_id=1),
    "llama": dict(SMALL, rope_parameters=dict(rope_type="llama3", rope_theta=500.0, factor=8.0, low_freq_factor=1.0,
                                              high_freq_factor=4.0, original_max_position_embeddings=64)),
    "mistral": dict(SMALL, sliding_window=16),
    "qwen2": dict(SMALL, tie_word_embeddings=True),
    "qwen3": dict(SMALL, head_dim=16),
    "gemma2": dict(SMALL, head_dim=16, sliding_window=16),
    "gemma3_text": dict(SMALL, head_dim=16, sliding_window=16),
}
ENCODERS = ["bert", "roberta"]
TEXTS = 32
PROMPT = "the cat number"


def tokenizer(texts):
    found = Tokenizer(models.BPE())
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    found.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=300, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=found, bos_token="<s>", eos_token="</s>")


def run(*words, **options):
    done = subprocess.run([str(word) for word in words], capture_output=True, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stderr.decode()}")
    # Not as text, which would turn carriage returns into line feeds.
    return done.stdout.decode(errors="replace")


def train(brigade, place, base, out, *flags):
    run(brigade, "train", "--model", base, "--data", place / "text", "--out", out, "--nproc-per-node", 2, "--pp", 2, "--steps", 30,
        "--micro-batch-size", 2, "--global-batch-size", 8, "--set", "model.sequence_length=64", "--set", "optimizer.learning_rate=5e-3",
        "--set", "schedule.warmup_steps=2", "--quiet", *flags)


def report(name, problems, note=""):
    """Prints the line of one check; returns whether there were no problems."""
    print(f"{name:22} {'FAILED' if problems else 'ok'}{note and ', ' + note}", *(f"\n  {problem}" for problem in problems))
    return not problems


def text_problems(brigade, folder, model, tokens, odd):
    """What is wrong where the model does not continue the prompt as `brigade generate` does, or something in its files was odd."""
    said = run(brigade, "generate", "--model", folder, "--prompt", PROMPT, "--temperature", 0, "--tokens", 40).rstrip("\n")
    ids = tokens(PROMPT, return_tensors="pt").input_ids
    expected = tokens.decode(model.generate(ids, max_new_tokens=40, do_sample=False)[0], skip_special_tokens=True).rstrip("\n")
    return [f"brigade {said!r}, transformers {expected!r}"] * (said != expected) + [str(odd)] * bool(odd)


def logits_differ(example, folder, model, tokens):
    """The largest difference between Brigade's logits and those of `transformers`, in parts of the largest logit."""
    ids = [number for number in range(len(tokens)) if number != tokens.pad_token_id]
    rows = torch.tensor(ids)[torch.randint(0, len(ids), (2, 48), generator=torch.Generator().manual_seed(1))]
    ours = torch.tensor(json.loads(run(example, folder, input=json.dumps(rows.tolist()).encode())))
    with torch.no_grad():
        theirs = model(rows).logits.flatten(0, 1)
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


def logits_note(differences):
    return "logits differ by " + ", ".join(f"{each:.1e}" for each in differences)


def logits_problems(differences):
    return [] if max(differences) <= 1e-5 else ["they differ by more than 1e-5"]


def check(brigade, example, place, family, fields, tokens):
    base, tuned = place / f"{family}-base", place / f"{family}-tuned"
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.for_model(family, vocab_size=len(tokens), **fields)).save_pretrained(base, max_shard_size="60KB")
    tokens.save_pretrained(base)
    train(brigade, place, base, tuned)
    model, loaded = AutoModelForCausalLM.from_pretrained(tuned, dtype=torch.float32, output_loading_info=True)
    odd = {kind: names for kind, names in loaded.items() if names}
    before = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    differences = [logits_differ(example, folder, of, tokens) for folder, of in [(base, before), (tuned, model)]]
    problems = text_problems(brigade, tuned, model, AutoTokenizer.from_pretrained(tuned), odd)
    return report(family, problems + logits_problems(differences), logits_note(differences))


def check_new(brigade, example, place):
    """Whether `transformers` loads, as it is, a model that Brigade began from nothing, with a tokenizer that it trained."""
    out, config = place / "new", place / "new.toml"
    fields = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128)
    config.write_text("[model]\nsequence_length = 64\n[model.config]\nmodel_type = 'llama'\n" + "".join(f"{key} = {value}\n" for key, value in fields.items()))
    run(brigade, "train", "--config", config, "--data", place / "text", "--out", out, "--nproc-per-node", 2, "--steps", 30, "--set", "data.tokenizer=bpe:300",
        "--micro-batch-size", 2, "--global-batch-size", 8, "--quiet")
    tokens = AutoTokenizer.from_pretrained(out)
    model, loaded = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, output_loading_info=True)
    odd = {kind: names for kind, names in loaded.items() if names}
    if not tokens.eos_token_id == tokens.bos_token_id == model.generation_config.eos_token_id == model.config.eos_token_id:
        odd["end of a text"] = [tokens.eos_token_id, tokens.bos_token_id, model.generation_config.eos_token_id, model.config.eos_token_id]
    differences = [logits_differ(example, out, model, tokens)]
    problems = text_problems(brigade, out, model, tokens, odd) + logits_problems(differences)
    return report("from nothing", problems, logits_note(differences))


def has_peft():
    try:
        import peft
    except ImportError:
        print(f"{'adapters':22} skipped: peft is not installed")
        return False
    return True


def check_adapters(brigade, place, family, tokens):
    from peft import PeftModel
    base, tuned, merged = place / f"{family}-base", place / f"{family}-adapters", place / f"{family}-merged"
    train(brigade, place, base, tuned, "--lora-rank", 4)
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), tuned)
    run(brigade, "export", tuned, "--out", merged, "--merge-lora")
    whole = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32)
    good = report(f"{family} adapters", text_problems(brigade, tuned, model, tokens, {}))
    return report(f"{family} merged", text_problems(brigade, merged, whole, tokens, {})) and good


def check_exports(brigade, place):
    """Whether what is exported of a run in each type, cut into shards, is the run's weights in that type."""
    tuned, good = place / "llama-tuned", True
    whole = AutoModelForCausalLM.from_pretrained(tuned, dtype=torch.float32).state_dict()
    for name, dtype in [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]:
        out = place / f"export-{name}"
        run(brigade, "export", tuned, "--out", out, "--dtype", name, "--max-shard-size", "30KB")
        model, loaded = AutoModelForCausalLM.from_pretrained(out, dtype="auto", output_loading_info=True)
        same = all(torch.equal(value, whole[key].to(dtype)) for key, value in model.state_dict().items())
        fine = same and model.dtype == dtype and not any(loaded.values()) and len(list(out.glob("model-*"))) > 2
        shards = len(list(out.glob("model-*")))
        good &= report(f"export {name}", [] if fine else [f"{same} {model.dtype} {shards} {loaded}"])
    return good


def check_resized(brigade, place, tokens):
    """Whether a model whose tokenizer has more tokens gets embeddings for them, and is loaded with them."""
    base, grown = place / "larger-base", place / "larger"
    AutoModelForCausalLM.from_pretrained(place / "qwen2-base").save_pretrained(base)
    larger = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(tokens.backend_tokenizer.to_str()),
                                                  bos_token="<s>", eos_token="</s>")
    larger.add_tokens(["<one>", "<two>", "<three>"])
    larger.save_pretrained(base)
    train(brigade, place, base, grown, "--set", "model.resize_embeddings=true")
    model, loaded = AutoModelForCausalLM.from_pretrained(grown, dtype=torch.float32, output_loading_info=True)
    odd = {kind: names for kind, names in loaded.items() if names}
    if model.get_input_embeddings().weight.shape[0] != len(larger):
        odd["embeddings"] = model.get_input_embeddings().weight.shape[0]
    return report("resized", text_problems(brigade, grown, model, AutoTokenizer.from_pretrained(grown), odd))


def encoder_tokenizer(texts):
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    found = Tokenizer(models.WordLevel(unk_token="<unk>"))
    found.pre_tokenizer = pre_tokenizers.Whitespace()
    found.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=special))
    found.post_processor = processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1", special_tokens=[("<s>", 0), ("</s>", 2)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=found, cls_token="<s>", pad_token="<pad>", sep_token="</s>", unk_token="<unk>", mask_token="<mask>")


def without_head(family, tokens):
    """A model with random weights: an encoder without a head, or a language model."""
    torch.manual_seed(0)
    if family in FAMILIES:
        fields = dict(FAMILIES[family], bos_token_id=tokens.cls_token_id, eos_token_id=tokens.sep_token_id, pad_token_id=None)
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(family, vocab_size=len(tokens), **fields))
    config = AutoConfig.for_model(family, vocab_size=len(tokens), hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4, max_position_embeddings=72,
                                  hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, pad_token_id=tokens.pad_token_id)
    return AutoModel.from_config(config)


def check_task(brigade, example, place, family, task, tokens, adapters=False):
    """Trains a model for a task that it has no head for, and compares the loss over all texts, or the logits of masked tokens."""
    name = f"{family}-{task}" + ("-adapters" if adapters else "")
    base, tuned, again, data = place / f"{name}-base", place / f"{name}-tuned", place / f"{name}-again", place / f"{name}.jsonl"
    without_head(family, tokens).save_pretrained(base)
    tokens.save_pretrained(base)
    texts = [f"the {['cat', 'dog'][n % 2]} number {n} sat " + "on the mat " * (n % 5) for n in range(TEXTS)]
    several = "multi-label-classification"
    labels = {"classification": ["feline", "canine"], "regression": [0.5, -1.0], "masked-lm": [None, None], several: [["animal", "feline"], ["animal"]]}[task]
    pairs = [f"it ran away {n}" for n in range(TEXTS)] if task == several else None
    records = [dict(text=text, **({} if labels[0] is None else {"label": labels[n % 2]}), **({"text_pair": pairs[n]} if pairs else {})) for n, text in enumerate(texts)]
    data.write_text("".join(json.dumps(record) + "\n" for record in records))
    flags = ["--data", data, "--set", "model.sequence_length=64", "--set", "data.validation_fraction=0", "--micro-batch-size", 4, "--global-batch-size", TEXTS, "--quiet"]
    if task == "masked-lm":
        flags += ["--set", "data.layout=documents"]
    lora = ["--lora-rank", 4] if adapters else []
    run(brigade, "train", "--model", base, "--task", task, "--out", tuned, "--nproc-per-node", 2, "--pp", 2, "--steps", 30, "--set", "optimizer.learning_rate=1e-3",
        "--set", "schedule.warmup_steps=2", *lora, *flags)
    kind = AutoModelForMaskedLM if task == "masked-lm" else AutoModelForSequenceClassification
    if adapters:
        from peft import PeftModel
        labels_of = json.loads((tuned / "labels.json").read_text())
        labels_of["id2label"] = {int(number): label for number, label in labels_of["id2label"].items()}
        model = PeftModel.from_pretrained(kind.from_pretrained(base, dtype=torch.float32, **labels_of), tuned)
        merged = place / f"{name}-merged"
        run(brigade, "export", tuned, "--out", merged, "--merge-lora")
        whole, loaded = kind.from_pretrained(merged, dtype=torch.float32, output_loading_info=True)
        models_of_run = [model, whole]
    else:
        model, loaded = kind.from_pretrained(tuned, dtype=torch.float32, output_loading_info=True)
        models_of_run = [model]
    odd = {kind: names for kind, names in loaded.items() if names}
    problems = [str(odd)] * bool(odd)
    if task == "masked-lm":
        differences = [logits_differ(example, tuned, model, tokens)]
        return report(name, problems + logits_problems(differences), logits_note(differences))
    # Steps that are too small for fp32 change nothing: this is the loss of the trained model.
    run(brigade, "train", "--model", tuned, "--out", again, "--nproc-per-node", 1, "--steps", 1, "--set", "optimizer.learning_rate=1e-30", *flags)
    said = json.loads((again / "metrics.jsonl").read_text().splitlines()[0])["loss"]
    encode = lambda texts, pairs: tokens(texts, pairs, padding=True, return_tensors="pt", return_token_type_ids=pairs is not None and family in ENCODERS)
    wanted = [model.config.label2id[label] for label in labels] if task == "classification" else labels
    if task == several:
        wanted = [[float(model.config.id2label[index] in own) for index in range(model.config.num_labels)] for own in labels]
    wanted = torch.tensor([wanted[n % 2] for n in range(TEXTS)])
    # In a window that sees padding alone there are no numbers, so such texts are not padded.
    size = 1 if "sliding_window" in FAMILIES.get(family, {}) else TEXTS
    for each in models_of_run:
        with torch.no_grad():
            parts = [each(**encode(texts[n:n + size], pairs and pairs[n:n + size]), labels=wanted[n:n + size]).loss.item() for n in range(0, TEXTS, size)]
        expected = sum(parts) / len(parts)
        if abs(said - expected) > 1e-5 * max(abs(expected), 1e-2):
            problems.append(f"brigade {said}, transformers {expected}")
    return report(name, problems)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--brigade", required=True, type=Path)
    parser.add_argument("--logits", required=True, type=Path)
    brigade, example = (path.resolve() for path in (parser.parse_args().brigade, parser.parse_args().logits))
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "text").mkdir()
        texts = [f"the cat number {n} sat on the mat and the dog {n * n} ran away\n" * 6 for n in range(40)]
        for number, text in enumerate(texts):
            (place / "text" / f"{number:02}.txt").write_text(text)
        tokens = tokenizer(texts)
        results = [check(brigade, example, place, family, fields, tokens) for family, fields in FAMILIES.items()]
        results.append(check_new(brigade, example, place))
        if has_peft():
            results += [check_adapters(brigade, place, family, tokens) for family in FAMILIES]
        results.append(check_exports(brigade, place))
        results.append(check_resized(brigade, place, tokens))
        tokens = encoder_tokenizer(texts)
        several = ["classification", "multi-label-classification", "regression"]
        tasks = [(family, task) for family in ENCODERS for task in [*several, "masked-lm"]]
        tasks += [(family, "classification") for family in FAMILIES] + [(family, task) for family in ["llama", "gpt2"] for task in several[1:]]
        results += [check_task(brigade, example, place, family, task, tokens) for family, task in tasks]
        if has_peft():
            results += [check_task(brigade, example, place, family, "classification", tokens, adapters=True) for family in [*ENCODERS, *FAMILIES]]
    sys.exit(0 if all(results) else 1)
