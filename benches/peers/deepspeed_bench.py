"""Times the step of torch_bench.py under DeepSpeed's ZeRO on the CPU, and DeepSpeed's shared-memory all-reduce.

    torchrun --standalone --nproc-per-node 2 benches/peers/deepspeed_bench.py --stage 3
    LOCAL_SIZE=2 torchrun --standalone --nproc-per-node 2 benches/peers/deepspeed_bench.py --stage allreduce

README.md beside this file says how to set up the environment.
`--stage allreduce` times inference_all_reduce, which goes through shared memory; DeepSpeed's training step itself uses gloo.
Rank 0 prints one JSON line a step or size.
"""
import argparse, json, sys, time
import torch
import deepspeed

p = argparse.ArgumentParser()
p.add_argument("--stage", default="3", choices=["1", "2", "3", "allreduce"])
p.add_argument("--steps", type=int, default=8)
a, rest = p.parse_known_args()
torch.set_num_threads(1)
deepspeed.init_distributed("gloo")
dist = deepspeed.comm
rank, world = dist.get_rank(), dist.get_world_size()

if a.stage == "allreduce":
    for exponent in range(12, 27, 2):
        x, reps = torch.ones(2**exponent // 4), 20 if exponent < 22 else 5
        for i in range(reps + 2):
            if i == 2:
                dist.barrier()
                start = time.perf_counter()
            dist.inference_all_reduce(x)
        seconds = (time.perf_counter() - start) / reps
        if rank == 0:
            print(json.dumps(dict(mode="deepspeed shared memory", world=world, bytes=2**exponent, micros=round(seconds * 1e6, 1),
                                  bus_gb_per_second=round(2**exponent * 2 * (world - 1) / world / seconds / 1e9, 3))))
    sys.exit()

VOCAB, SEQ, DIM, LAYERS, HEADS, BATCH = 4096, 256, 384, 6, 6, 8


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        n = torch.nn
        self.ln1, self.qkv, self.proj = n.LayerNorm(DIM), n.Linear(DIM, 3 * DIM), n.Linear(DIM, DIM)
        self.ln2, self.fc, self.out = n.LayerNorm(DIM), n.Linear(DIM, 4 * DIM), n.Linear(4 * DIM, DIM)

    def forward(self, x):
        f = torch.nn.functional
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, HEADS, d // HEADS).permute(2, 0, 3, 1, 4)
        y = f.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.out(f.gelu(self.fc(self.ln2(x))))


class Gpt(torch.nn.Module):
    def __init__(self):
        super().__init__()
        n = torch.nn
        self.wte, self.wpe = n.Embedding(VOCAB, DIM), n.Embedding(SEQ, DIM)
        self.blocks, self.lnf = n.ModuleList(Block() for _ in range(LAYERS)), n.LayerNorm(DIM)
        self.head = n.Linear(DIM, VOCAB, bias=False)

    def forward(self, x):
        targets, x = x, self.wte(x) + self.wpe(torch.arange(x.shape[1]))
        for block in self.blocks:
            x = block(x)
        return torch.nn.functional.cross_entropy(self.head(self.lnf(x)).view(-1, VOCAB), targets.view(-1))


torch.manual_seed(0)
model = Gpt()
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={
    "train_batch_size": BATCH, "train_micro_batch_size_per_gpu": BATCH // world,
    "zero_optimization": {"stage": int(a.stage)}, "zero_allow_untested_optimizer": True,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}})
tokens = torch.randint(0, VOCAB, (BATCH // world, SEQ))
for step in range(a.steps):
    start = time.perf_counter()
    engine.backward(engine(tokens))
    engine.step()
    seconds = time.perf_counter() - start
    if rank == 0:
        print(json.dumps(dict(mode=f"deepspeed zero-{a.stage}", world=world, step=step, seconds=round(seconds, 4),
                              tokens_per_second=round(BATCH * SEQ / seconds, 1))))
dist.barrier()
dist.destroy_process_group()
