"""Times one GPT training step in PyTorch on the CPU, for a side-by-side figure on the same machine.

    torchrun --standalone --nproc-per-node 2 benches/peers/torch_bench.py --mode ddp
    python benches/peers/torch_bench.py --mode single --threads 2

README.md beside this file says how to set up the environment.

Modes: single, ddp, fsdp (FSDP2, per-block), pp (1F1B, one stage a rank), allreduce (gloo, sizes 4 KiB to 64 MiB).
Rank 0 prints one JSON line a step: tokens_per_second counts the tokens of the whole world.

Mode ddp with --tokens trains on Brigade's token files, once with each of the ways to travel in --hook: none, fp16, powersgd,
local-sgd, where ranks make updates of their own and average parameters every 50 steps (a line for each average then), and
post-local-sgd, which is the same after --synchronous-steps of plain DDP.
"""
import argparse, json, os, resource, time
import torch, torch.nn as nn, torch.nn.functional as F
import torch.distributed as dist

p = argparse.ArgumentParser()
p.add_argument("--mode", default="single", choices=["single", "ddp", "fsdp", "pp", "allreduce"])
p.add_argument("--threads", type=int, default=1)
p.add_argument("--steps", type=int, default=8)
p.add_argument("--micro-batches", type=int, default=4)
p.add_argument("--dtype", default="fp32", choices=["fp32", "bf16"], help="bf16: autocast, fp32 masters (not in mode pp)")
p.add_argument("--compile", action="store_true", help="torch.compile (modes single and ddp without --tokens)")
p.add_argument("--hook", default="none", help="none, fp16, powersgd, local-sgd or post-local-sgd; or several with commas, which may have steps of their own: local-sgd:100")
p.add_argument("--synchronous-steps", type=int, default=100, help="of post-local-sgd, a multiple of 50")
p.add_argument("--tokens", default="", help="a folder with train.bin and validation.bin, two bytes a token")
p.add_argument("--tied", action="store_true", help="the head has the token table's weights")
p.add_argument("--validate-every", type=int, default=0)
for name, default in dict(vocab=4096, seq=256, dim=384, layers=6, heads=6, batch=8).items():
    p.add_argument(f"--{name}", type=int, default=default)
a = p.parse_args()
torch.set_num_threads(a.threads)
rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
if world > 1:
    dist.init_process_group("gloo")


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.ln1, self.qkv, self.proj = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.ln2, self.fc, self.out = nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.out(F.gelu(self.fc(self.ln2(x))))


class Gpt(nn.Module):
    """The whole model, or the slice of its blocks that one pipeline stage holds."""

    def __init__(self, first, last, blocks):
        super().__init__()
        self.wte = nn.Embedding(a.vocab, a.dim) if first else None
        self.wpe = nn.Embedding(a.seq, a.dim) if first else None
        self.blocks = nn.ModuleList(Block(a.dim, a.heads) for _ in range(blocks))
        self.lnf = nn.LayerNorm(a.dim) if last else None
        self.head = nn.Linear(a.dim, a.vocab, bias=False) if last else None
        if a.tied:
            self.head.weight = self.wte.weight

    def forward(self, x):
        if self.wte is not None:
            x = self.wte(x) + self.wpe(torch.arange(x.shape[1]))
        for block in self.blocks:
            x = block(x)
        return x if self.head is None else self.head(self.lnf(x))


def loss_fn(logits, targets):
    return F.cross_entropy(logits.view(-1, a.vocab), targets.view(-1))


def report(step, start, **more):
    if rank == 0:
        seconds = time.perf_counter() - start
        rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(dict(mode=a.mode, world=world, step=step, seconds=round(seconds, 4),
                              tokens_per_second=round(a.batch * a.seq / seconds, 1), peak_rss_mib=round(rss), **more)), flush=True)


def split(name):
    """Tokens of a file, which begin after 64 bytes."""
    return torch.from_file(f"{a.tokens}/{name}.bin", dtype=torch.uint16, size=os.path.getsize(f"{a.tokens}/{name}.bin") // 2)[32:]


def rows(tokens, starts):
    """Sequences, and what comes next after each of their tokens."""
    table = torch.stack([tokens[start:start + a.seq + 1].long() for start in starts])
    return table[:, :-1].contiguous(), table[:, 1:].contiguous()


def initialize(module):
    """As GPT-2 begins. PyTorch's own biases are so large beside these weights that all tokens look alike, and gradients have a low rank."""
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def train_with(hook, steps, period=50):
    """The training of configs/gpt-tiny.toml with a constant learning rate after the warm-up, on any of Brigade's texts."""
    torch.manual_seed(0)
    model = Gpt(True, True, a.layers)
    model.apply(initialize)
    # The PowerSGD hook calls all_reduce from callbacks, whose order with several buckets is another on each rank, which gloo does not survive.
    buckets = dict(bucket_cap_mb=1024) if hook == "powersgd" else {}
    dist._DEFAULT_FIRST_BUCKET_BYTES = 1 << (30 if buckets else 20)
    ddp, averager = nn.parallel.DistributedDataParallel(model, **buckets), None
    if hook == "fp16":
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

        ddp.register_comm_hook(None, fp16_compress_hook)
    elif hook == "powersgd":
        from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

        ddp.register_comm_hook(PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2), powerSGD_hook)
    elif hook in ("local-sgd", "post-local-sgd"):
        from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
        from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

        first = a.synchronous_steps if hook == "post-local-sgd" else 0
        alone, _ = dist.new_subgroups(group_size=1)
        ddp.register_comm_hook(PostLocalSGDState(None, alone, start_localSGD_iter=first), post_localSGD_hook)
        averager = PeriodicModelAverager(period=period, warmup_steps=first + period - 1)
    decay, rest = [[p for p in model.parameters() if (p.dim() > 1) == wide] for wide in (True, False)]
    groups = [dict(params=decay, weight_decay=0.1), dict(params=rest, weight_decay=0.0)]
    optimizer = torch.optim.AdamW(groups, lr=2e-3, betas=(0.9, 0.95))
    if averager is not None:
        from torch.distributed.optim import PostLocalSGDOptimizer

        optimizer = PostLocalSGDOptimizer(optim=optimizer, averager=averager)
    train, validation = split("train"), split("validation")
    drawn, last = torch.Generator().manual_seed(1 + rank), len(train) - a.seq - 1
    for step in range(steps):
        start = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1.0, (step + 1) / 40)
        inputs, targets = rows(train, torch.randint(0, last, (a.batch // world,), generator=drawn).tolist())
        loss_fn(ddp(inputs), targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step(), optimizer.zero_grad()
        more = dict(hook=hook)
        if a.validate_every and (step + 1) % a.validate_every == 0 and rank == 0:
            with torch.no_grad():
                parts = [rows(validation, [i * a.seq for i in range(first, first + 8)]) for first in range(0, 64, 8)]
                more["validation_loss"] = sum(loss_fn(model(x), y).item() for x, y in parts) / len(parts)
        if averager is None or (step + 1) % period == 0:
            report(step + 1, start, time=time.time(), **more)


torch.manual_seed(0)
if a.mode == "allreduce":
    for exponent in range(12, 27, 2):
        x, reps = torch.ones(2**exponent // 4), 20 if exponent < 22 else 5
        for i in range(reps + 2):
            if i == 2:
                dist.barrier()
                start = time.perf_counter()
            dist.all_reduce(x)
        seconds = (time.perf_counter() - start) / reps
        if rank == 0:
            print(json.dumps(dict(mode="allreduce", world=world, bytes=2**exponent, micros=round(seconds * 1e6, 1),
                                  bus_gb_per_second=round(2**exponent * 2 * (world - 1) / world / seconds / 1e9, 3))))
elif a.mode == "pp":
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    model = Gpt(rank == 0, rank == world - 1, a.layers // world)
    schedule = Schedule1F1B(PipelineStage(model, rank, world, torch.device("cpu")), a.micro_batches, loss_fn=loss_fn)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(0, a.vocab, (a.batch, a.seq))
    for step in range(a.steps):
        start = time.perf_counter()
        if rank == 0:
            schedule.step(tokens)
        elif rank == world - 1:
            schedule.step(target=tokens, losses=[])
        else:
            schedule.step()
        optimizer.step(), optimizer.zero_grad(), dist.barrier()
        report(step, start)
elif a.tokens:
    for hook in a.hook.split(","):
        name, _, steps = hook.partition(":")
        train_with(name, int(steps or a.steps))
else:
    model = Gpt(True, True, a.layers)
    if a.mode == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    elif a.mode == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (world,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    if a.compile:
        model = torch.compile(model)
    # One pass over the parameters, where PyTorch has that.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=a.mode != "fsdp")
    tokens = torch.randint(0, a.vocab, (a.batch // world, a.seq))
    for step in range(a.steps):
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=a.dtype == "bf16"):
            loss = loss_fn(model(tokens), tokens)
        loss.backward()
        optimizer.step(), optimizer.zero_grad()
        report(step, start)
if world > 1:
    dist.destroy_process_group()
