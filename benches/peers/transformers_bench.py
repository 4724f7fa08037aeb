"""Times a training step of a model of `transformers` on the CPU, for a side-by-side figure on the same machine.

    python benches/peers/transformers_bench.py --model folder
    python benches/peers/transformers_bench.py --model folder --lora-rank 16             # with peft
    python benches/peers/transformers_bench.py --model folder --task classification
    torchrun --standalone --nproc-per-node 2 benches/peers/transformers_bench.py --model folder

`cargo xtask bench --only fine-tuning` makes the folder and runs it in turns with Brigade. With several ranks the model is in DistributedDataParallel. Rank 0 prints one
JSON line a step: tokens_per_second counts the tokens of the whole world.
"""
import argparse, json, os, resource, time
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

p = argparse.ArgumentParser()
p.add_argument("--model", required=True)
p.add_argument("--task", choices=["causal-lm", "classification"], default="causal-lm")
p.add_argument("--steps", type=int, default=8)
p.add_argument("--batch", type=int, default=8)
p.add_argument("--seq", type=int, default=256)
p.add_argument("--threads", type=int, default=1)
p.add_argument("--lora-rank", type=int, default=0, help="adapters of q_proj and v_proj alone, by peft")
p.add_argument("--bf16", action="store_true", help="under torch.autocast")
a = p.parse_args()
torch.set_num_threads(a.threads)
torch.manual_seed(0)
rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
kind = AutoModelForCausalLM if a.task == "causal-lm" else AutoModelForSequenceClassification
model = kind.from_pretrained(a.model, dtype=torch.float32)
vocabulary = model.config.vocab_size
if a.lora_rank:
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(model, LoraConfig(r=a.lora_rank, target_modules=["q_proj", "v_proj"]))
model.train()
if world > 1:
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW([w for w in model.parameters() if w.requires_grad], lr=1e-3)
tokens = torch.randint(0, vocabulary, (a.batch // world, a.seq))
batch = dict(input_ids=tokens, labels=tokens, use_cache=False)
if a.task == "classification":
    batch = dict(input_ids=tokens, labels=torch.randint(0, 2, (a.batch // world,)))
for step in range(a.steps):
    start = time.perf_counter()
    with torch.autocast("cpu", torch.bfloat16, enabled=a.bf16):
        loss = model(**batch).loss
    loss.backward()
    optimizer.step(), optimizer.zero_grad()
    if rank == 0:
        seconds = time.perf_counter() - start
        rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(dict(world=world, step=step, seconds=round(seconds, 4),
                              tokens_per_second=round(a.batch * a.seq / seconds, 1), peak_rss_mib=round(rss))), flush=True)
if world > 1:
    dist.destroy_process_group()
