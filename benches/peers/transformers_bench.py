"""Times a training step of a causal language model of `transformers` on the CPU, for a side-by-side figure on the same machine.

    python benches/peers/transformers_bench.py --make folder            # writes a Llama of 14 million parameters, once
    python benches/peers/transformers_bench.py --model folder
    torchrun --standalone --nproc-per-node 2 benches/peers/transformers_bench.py --model folder

Beside it: `brigade train --model folder --data … --set model.sequence_length=256 --micro-batch-size 8 --global-batch-size 8`. With several ranks the model is in
DistributedDataParallel. Rank 0 prints one JSON line a step: tokens_per_second counts the tokens of the whole world.
"""
import argparse, json, os, resource, time
import torch
import torch.distributed as dist
from transformers import AutoConfig, AutoModelForCausalLM

p = argparse.ArgumentParser()
p.add_argument("--make", action="store_true")
p.add_argument("--model", default=None)
p.add_argument("folder", nargs="?")
p.add_argument("--steps", type=int, default=8)
p.add_argument("--batch", type=int, default=8)
p.add_argument("--seq", type=int, default=256)
p.add_argument("--threads", type=int, default=1)
p.add_argument("--bf16", action="store_true", help="under torch.autocast")
a = p.parse_args()
torch.set_num_threads(a.threads)
torch.manual_seed(0)
if a.make:
    config = AutoConfig.for_model("llama", vocab_size=4096, hidden_size=384, intermediate_size=1024, num_hidden_layers=7,
                                  num_attention_heads=6, num_key_value_heads=2, max_position_embeddings=2048)
    AutoModelForCausalLM.from_config(config).save_pretrained(a.folder)
    raise SystemExit
rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
model = AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.float32)
model.train()
if world > 1:
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tokens = torch.randint(0, 4096, (a.batch // world, a.seq))
for step in range(a.steps):
    start = time.perf_counter()
    with torch.autocast("cpu", torch.bfloat16, enabled=a.bf16):
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    loss.backward()
    optimizer.step(), optimizer.zero_grad()
    if rank == 0:
        seconds = time.perf_counter() - start
        rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(dict(world=world, step=step, seconds=round(seconds, 4),
                              tokens_per_second=round(a.batch * a.seq / seconds, 1), peak_rss_mib=round(rss))), flush=True)
if world > 1:
    dist.destroy_process_group()
