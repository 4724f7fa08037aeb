"""Times training steps of GPT-2 (124M) in PyTorch on one GPU: the peer of `brigade train --config configs/gpt2-124m.toml`.

    python benches/gpu/torch_gpt2.py --mode compile                   # the largest micro-batch that fits
    python benches/gpu/torch_gpt2.py --mode eager --micro-batch 32
    python benches/gpu/torch_gpt2.py --device cpu --tiny              # only checks that the script works

fp32 parameters under bf16 autocast, fused AdamW, clipping at 1, causal scaled_dot_product_attention, tied head, sequences
of 1024, one micro-batch per step. Prints JSON lines: one for each size that it tries, then the result.
"""
import argparse, gc, json, math, platform, statistics, subprocess, sys, time
import torch, torch.nn as nn, torch.nn.functional as F

p = argparse.ArgumentParser()
p.add_argument("--mode", default="eager", choices=["eager", "compile"])
p.add_argument("--micro-batch", type=int, default=0, help="sequences in a step; 0 finds the largest that fits")
p.add_argument("--first", type=int, default=8, help="the first size to try")
p.add_argument("--most", type=int, default=512, help="the largest size to try")
p.add_argument("--steps", type=int, default=20)
p.add_argument("--warm-up", type=int, default=5, help="steps before those, which are not measured")
p.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
p.add_argument("--tiny", action="store_true", help="a tiny model, to check the script")
p.add_argument("--peak-tflops", type=float, default=0, help="the GPU's peak in bf16, as Brigade prints when it starts; 0: no MFU")
# The shape of configs/gpt2-124m.toml.
for name, value in dict(vocabulary=50257, sequence=1024, width=768, layers=12, heads=12).items():
    p.add_argument(f"--{name}", type=int, default=value)
a = p.parse_args()
if a.tiny:
    a.vocabulary, a.sequence, a.width, a.layers, a.heads, a.most = 512, 64, 64, 2, 2, min(a.most, 32)
CUDA = a.device == "cuda"


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        d = a.width
        self.ln1, self.qkv, self.proj = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.ln2, self.fc, self.out = nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, a.heads, d // a.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.out(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """Maps tokens and targets to the mean loss, so that a compiler sees the loss, too."""

    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(a.vocabulary, a.width), nn.Embedding(a.sequence, a.width)
        self.blocks = nn.ModuleList(Block() for _ in range(a.layers))
        self.lnf = nn.LayerNorm(a.width)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                deep = name.endswith(("proj.weight", "out.weight"))
                nn.init.normal_(parameter, std=0.02 / (math.sqrt(2 * a.layers) if deep else 1))

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.lnf(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, a.vocabulary), targets.reshape(-1))


def synchronize():
    if CUDA:
        torch.cuda.synchronize()


def train(rows, steps, warm_up):
    """The seconds of each step after the warm-up, the last loss, the number of parameters, and the peaks of memory."""
    torch.manual_seed(0)
    model = Gpt().to(a.device)
    decayed = [parameter for parameter in model.parameters() if parameter.dim() == 2]
    others = [parameter for parameter in model.parameters() if parameter.dim() != 2]
    groups = [dict(params=decayed, weight_decay=0.1), dict(params=others, weight_decay=0.0)]
    optimizer = torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), eps=1e-8, fused=CUDA)
    call = torch.compile(model, dynamic=False) if a.mode == "compile" else model
    data = torch.randint(0, a.vocabulary, (rows, a.sequence + 1), device=a.device)
    seconds = []
    for step in range(warm_up + steps):
        synchronize()
        start = time.perf_counter()
        with torch.autocast(a.device, dtype=torch.bfloat16):
            loss = call(data[:, :-1], data[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        synchronize()
        seconds.append(time.perf_counter() - start)
    memory = dict(peak_bytes=torch.cuda.max_memory_allocated(), peak_reserved_bytes=torch.cuda.max_memory_reserved()) if CUDA else {}
    return seconds[warm_up:], loss.item(), sum(parameter.numel() for parameter in model.parameters()), memory


def measure(rows, steps, warm_up):
    """The result of `train`, or None if there is not enough memory. Frees all memory either way."""
    done, why = None, ""
    try:
        done = train(rows, steps, warm_up)
    except RuntimeError as error:
        # A compiler wraps the error. Keep only its text, since the error refers to the frames, and so to the tensors.
        if not isinstance(error, torch.OutOfMemoryError) and "out of memory" not in str(error):
            raise
        why = str(error).splitlines()[0]
    torch._dynamo.reset()
    gc.collect()
    if CUDA:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return done, why


def fits(rows):
    done, why = measure(rows, 2, 2)
    seconds = statistics.median(done[0]) if done else None
    rate = rows * a.sequence / seconds if done else None
    print(json.dumps(dict(kind="trial", mode=a.mode, micro_batch=rows, fits=done is not None, step_seconds=seconds, tokens_per_second=rate,
                          why=why)), flush=True)
    return done is not None


def largest():
    """Doubles while it fits (or halves until it does), then closes the gap in powers of two, down to an eighth."""
    size = a.first
    while not fits(size):
        if size == 1:
            sys.exit("torch_gpt2.py: not even one sequence fits into memory")
        size //= 2
    if size == a.first:
        while size * 2 <= a.most and fits(size * 2):
            size *= 2
        if size * 2 > a.most:
            return size
    base = gap = size
    while (gap := gap // 2) >= max(1, base // 8):
        if fits(size + gap):
            size += gap
    return size


def driver():
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
        return subprocess.run(query, check=False, capture_output=True, text=True, timeout=30).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None


rows = a.micro_batch or largest()
while True:
    done, why = measure(rows, a.steps, a.warm_up)
    if done or a.micro_batch or rows == 1:
        break
    # A longer run may need a little more than a short one.
    rows -= max(1, rows // 8)
if not done:
    sys.exit(f"torch_gpt2.py: {rows} sequences do not fit into memory: {why}")
seconds, loss, parameters, memory = done
median = statistics.median(seconds)
# 6·N + 12·L·h·seq, as in Brigade: N includes the head, which is the token table, but not the table of positions.
flops = 6 * (parameters - a.sequence * a.width) + 12 * a.layers * a.width * a.sequence
name = torch.cuda.get_device_name(0) if CUDA else platform.processor() or platform.machine()
tflops = flops * rows * a.sequence / median / 1e12
print(json.dumps(dict(
    kind="result", mode=a.mode, micro_batch=rows, steps=len(seconds), step_seconds=median, step_seconds_least=min(seconds),
    step_seconds_most=max(seconds), tokens_per_second=rows * a.sequence / median, tflops=tflops,
    mfu_percent=100 * tflops / a.peak_tflops if a.peak_tflops else None, loss=loss, parameters=parameters, flops_per_token=flops, **memory,
    device=name, driver=driver() if CUDA else None, torch=torch.__version__, cuda=torch.version.cuda, python=platform.python_version(),
)), flush=True)
