"""What run.sh reads off a run of Brigade, as JSON lines; and the table that becomes of all lines. Needs Python 3.8, no packages.

    python benches/gpu/figures.py steps RUN key=value …        # medians of a run's metrics.jsonl
    python benches/gpu/figures.py losses RUN REFERENCE …       # how far two runs' losses are apart
    python benches/gpu/figures.py memory RUN PLAN …            # what a run held beside what `--dry-run` said
    python benches/gpu/figures.py line key=value …             # nothing but what is given
    python benches/gpu/figures.py table raw.jsonl              # the page, in Markdown

What is given as key=value goes into each line. A RUN is the folder of `--out`.
"""
import json, os, re, statistics, sys

WARM_UP = int(os.environ.get("WARM_UP", "5"))
"""Steps at the start of a run that do not count: kernels are compiled and tuned in them."""

UNITS = {unit: 1024**power for power, unit in enumerate(["B", "KiB", "MiB", "GiB", "TiB"])}


def metrics(run):
    with open(os.path.join(run, "metrics.jsonl")) as file:
        return [json.loads(line) for line in file]


def median(steps, field):
    values = [step[field] for step in steps if step.get(field) is not None]
    return statistics.median(values) if values else None


def steps(run):
    """Medians after the warm-up; of a shorter run those of its last step."""
    lines = metrics(run)
    steady = lines[WARM_UP:] or lines[-1:]
    medians = {field: median(steady, field) for field in ["step_seconds", "tokens_per_second", "tflops", "mfu_percent"]}
    last = lines[-1]
    return dict(
        steps=len(steady), **medians,
        step_seconds_least=min(step["step_seconds"] for step in steady), step_seconds_most=max(step["step_seconds"] for step in steady),
        peak_bytes=last.get("device_memory_bytes_peak"), peak_rss_bytes=last["peak_rss_bytes"], loss=last["loss"],
        collective_calls=last["comm_calls"],
    )


def losses(run, reference):
    """Relative distances of the losses, step by step; `tail` is that of the means of the last tenth."""
    pairs = [(a["loss"], b["loss"]) for a, b in zip(metrics(run), metrics(reference))]
    if any(a is None or b is None for a, b in pairs):
        sys.exit("figures.py: a loss is not finite")
    apart = [abs(a - b) / abs(b) for a, b in pairs]
    tail = [statistics.mean(side) for side in zip(*pairs[-max(1, len(pairs) // 10):])]
    return dict(steps=len(pairs), most=max(apart), median=statistics.median(apart), tail=abs(tail[0] - tail[1]) / tail[1],
                first_loss=pairs[0][0], last_loss=pairs[-1][0], last_loss_reference=pairs[-1][1])


def memory(run, plan):
    """The plan's bytes of one rank, those that the run counted tensor by tensor, and those of the device."""
    with open(plan) as file:
        found = re.search(r"together\s+([\d.]+) (\w+)", file.read())
    if not found:
        sys.exit(f"figures.py: {plan} names no bytes")
    last = metrics(run)[-1]
    counted = sum(last[f"{kind}_bytes_peak"] for kind in ["parameter", "gradient", "optimizer", "activation"])
    return dict(planned_bytes=round(float(found[1]) * UNITS[found[2]]), counted_bytes=counted,
                device_bytes=last.get("device_memory_bytes_peak") or last["peak_rss_bytes"])


class Page:
    """Rows of the table, from the last line of each name."""

    def __init__(self, lines):
        self.lines, self.rows = lines, []

    def all(self, row, **fields):
        return [line for line in self.lines if line["row"] == row and all(line.get(key) == value for key, value in fields.items())]

    def one(self, row, **fields):
        return (self.all(row, **fields) or [None])[-1]

    def median(self, row, field, **fields):
        values = [line[field] for line in self.all(row, **fields) if line.get(field) is not None]
        return statistics.median(values) if values else None

    def add(self, what, here, beside, ratio="–", goal="–", met=None):
        self.rows.append([what, here, beside, ratio, goal, {None: "–", True: "yes", False: "**no**"}[met]])

    def ratio(self, what, here, beside, show, goal=None, least=True):
        """A row of two figures; nothing if one is missing."""
        if here is None or beside is None:
            return
        ratio = here / beside
        met = None if goal is None else ratio >= goal if least else ratio <= goal
        self.add(what, show(here), show(beside), f"{ratio:.3f}", "–" if goal is None else f"{'≥' if least else '≤'} {goal}", met)


def rate(value):
    return f"{value:,.0f} tokens/s"


def time(value):
    return f"{1000 * value:.1f} ms"


def gib(value):
    return "–" if value is None else f"{value / 2**30:.2f} GiB"


def share(value):
    return f"{100 * value:.3g}%"


def table(path):
    with open(path) as file:
        page = Page([json.loads(line) for line in file if line.strip()])
    own = page.one("peers", name="brigade")
    for mode, goal in [("eager", None), ("compile", 0.5)]:
        peer = page.one("peers", name=f"torch {mode}")
        page.ratio(f"each at its largest micro-batch, PyTorch {mode}", own and own["tokens_per_second"],
                   peer and peer["tokens_per_second"], rate, goal)
    nccl = [page.median("nccl", "step_seconds", name=name) for name in ["through", "without"]]
    page.ratio("one rank through NCCL, and without", *nccl, time, 1.03, least=False)
    calls = [page.median("nccl", "collective_calls", name=name) for name in ["through", "without"]]
    if None not in calls:
        page.add("the same: collectives in a step", *(f"{count:.0f}" for count in calls), "–", "more", calls[0] > calls[1])
    blocks = [page.median("blocks", "seconds", name=name) for name in ["blocks", "one graph"]]
    page.ratio("a graph for each block, and one graph", *blocks, time, 1.05, least=False)
    held = page.one("memory", name="zero 3, recomputed")
    if held:
        for what in ["device", "counted"]:
            ratio = held[f"{what}_bytes"] / held["planned_bytes"]
            met = abs(ratio - 1) <= 0.1 if what == "device" else None
            page.add(f"ZeRO-3, recomputed: bytes ({what}), and planned", gib(held[f"{what}_bytes"]), gib(held["planned_bytes"]),
                     f"{ratio:.3f}", "within 10%" if what == "device" else "–", met)
    for line in [page.one("losses", name=name) for name in ["bf16", "f32"]]:
        if line:
            page.add(f"losses of {line['steps']} steps, {line['name']}, and f32 on the CPU: distance at most, and of the last tenth's mean",
                     f"{line['last_loss']:.4f}", f"{line['last_loss_reference']:.4f}", f"{share(line['most'])}, {share(line['tail'])}")
    alone = page.one("shared", name="1 rank")
    for ranks in [2, 4]:
        line = page.one("shared", name=f"{ranks} ranks")
        page.ratio(f"{ranks} ranks on one GPU through the host, and 1", line and line["tokens_per_second"],
                   alone and alone["tokens_per_second"], rate)
        apart = page.one("shared", name=f"{ranks} ranks apart")
        if apart:
            page.add(f"{ranks} ranks on one GPU: losses apart at most", f"{apart['last_loss']:.4f}",
                     f"{apart['last_loss_reference']:.4f}", share(apart["most"]))
    bits = page.one("bits", name="twice")
    if bits:
        same = bits["first"] == bits["second"]
        page.add("the same run twice: weights", bits["first"][:12], bits["second"][:12], "equal" if same else "differ", "equal", same)
    checked = page.one("sanitizer", name="memcheck")
    if checked:
        page.add("compute-sanitizer on the collectives' tests", checked["summary"], "–", "–", "no errors", checked["code"] == 0)

    machine = page.one("machine") or {}
    text = ["# One GPU", "", "Written by `benches/gpu/run.sh`; benches/gpu/README.md says what each row proves.", "", "| | |", "|---|---|"]
    text += [f"| {key} | {value} |" for key, value in machine.items() if key not in ("row", "name")]
    text += ["", "| | Brigade | beside | ratio | goal | met |", "|---|---:|---:|---:|---|---|"]
    text += ["| " + " | ".join(row) + " |" for row in page.rows]
    sides = [line for line in [own, *(page.one("peers", name=f"torch {mode}") for mode in ["eager", "compile"])] if line]
    if sides:
        text += ["", "| GPT-2 124M | micro-batch | step | tokens/s | MFU | peak memory |", "|---|---:|---:|---:|---:|---:|"]
    for line in sides:
        mfu = line.get("mfu_percent")
        text.append(f"| {line['name']} | {line['micro_batch']} | {time(line['step_seconds'])} | {line['tokens_per_second']:,.0f} | "
                    f"{'–' if mfu is None else f'{mfu:.1f}%'} | {gib(line.get('peak_bytes'))} |")
    done = {line["row"] for line in page.lines if line.get("name") != "skipped"}
    missing = [f"{line['row']}: {line['why']}" for line in page.lines if line.get("name") == "skipped" and line["row"] not in done]
    if missing:
        text += ["", "Not measured: " + "; ".join(dict.fromkeys(missing)) + "."]
    return "\n".join(text) + "\n"


def value(text):
    """Whole numbers and truths as such, and all else as text."""
    if text in ("true", "false"):
        return text == "true"
    return int(text) if re.fullmatch(r"-?\d{1,15}", text) else text


def main():
    if len(sys.argv) < 3 or sys.argv[1] not in ("steps", "losses", "memory", "table", "line"):
        sys.exit(__doc__)
    what, rest = sys.argv[1], sys.argv[2:]
    if what == "table":
        print(table(rest[0]), end="")
        return
    paths = [word for word in rest if "=" not in word]
    fields = {key: value(text) for key, text in (word.split("=", 1) for word in rest if "=" in word)}
    found = {} if what == "line" else {"steps": steps, "losses": losses, "memory": memory}[what](*paths)
    print(json.dumps({**fields, **found}))


if __name__ == "__main__":
    main()
