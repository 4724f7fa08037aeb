"""Reads the figures of runs as JSON lines, and makes the table of all lines, for run.sh. Needs Python 3.8 and no packages.

    python benches/gpu/figures.py steps RUN key=value …        # medians of a run's metrics.jsonl
    python benches/gpu/figures.py losses RUN REFERENCE …       # how far the losses of two runs are apart
    python benches/gpu/figures.py memory RUN PLAN …            # the memory of a run, and as `--dry-run` planned it
    python benches/gpu/figures.py tests LOG …                  # the results of a program of tests and of compute-sanitizer
    python benches/gpu/figures.py kernels LOG TABLE.csv …      # time by kernel, from CubeCL's lines between those of the steps
    python benches/gpu/figures.py line key=value …             # only the given fields
    python benches/gpu/figures.py table raw.jsonl              # the table, in Markdown

The fields key=value are added to each line. RUN is a folder of `--out`.
"""
import csv, json, os, re, statistics, sys

WARM_UP = int(os.environ.get("WARM_UP", "5"))
"""The steps at the start of a run that do not count, because kernels are compiled and tuned in them."""

UNITS = {unit: 1024**power for power, unit in enumerate(["B", "KiB", "MiB", "GiB", "TiB"])}
SECONDS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}

TOLERANCE = {"f32": 1e-3, "bf16": 2e-2}
"""How far a loss may be from the reference, relative to it, by the type that blocks compute in. A GPU multiplies f32 as TF32."""


def metrics(run):
    with open(os.path.join(run, "metrics.jsonl")) as file:
        return [json.loads(line) for line in file]


def median(steps, field):
    values = [step[field] for step in steps if step.get(field) is not None]
    return statistics.median(values) if values else None


def steps(run):
    """Medians over the steps after the warm-up, or the figures of the last step if there are none."""
    lines = metrics(run)
    steady = lines[WARM_UP:] or lines[-1:]
    medians = {field: median(steady, field) for field in ["step_seconds", "tokens_per_second", "tflops", "mfu_percent"]}
    last = lines[-1]
    # MFU is relative to this.
    peak = 100 * medians["tflops"] / medians["mfu_percent"] if medians["mfu_percent"] else None
    return dict(
        steps=len(steady), **medians, peak_tflops=peak,
        step_seconds_least=min(step["step_seconds"] for step in steady), step_seconds_most=max(step["step_seconds"] for step in steady),
        peak_bytes=last.get("device_memory_reserved_bytes_peak"), peak_rss_bytes=last["peak_rss_bytes"], loss=last["loss"],
        collective_calls=last["comm_calls"],
    )


def losses(run, reference):
    """Relative differences between the losses: step by step, of the means of ten steps each, and (`tail`) of the mean of the last tenth."""
    pairs = [(a["loss"], b["loss"]) for a, b in zip(metrics(run), metrics(reference))]
    if any(a is None or b is None for a, b in pairs):
        sys.exit("figures.py: a loss is not finite")

    def distance(some):
        here, there = (statistics.mean(side) for side in zip(*some))
        return abs(here - there) / abs(there)

    apart = [distance([pair]) for pair in pairs]
    with open(os.path.join(run, "config.toml")) as file:
        dtype = re.search(r'^dtype = "(\w+)"', file.read(), re.MULTILINE)[1]
    return dict(steps=len(pairs), dtype=dtype, tolerance=TOLERANCE[dtype], most=max(apart), median=statistics.median(apart),
                most_of_ten=max(distance(pairs[i:i + 10]) for i in range(0, len(pairs), 10)),
                tail=distance(pairs[-max(1, len(pairs) // 10):]), first_loss=pairs[0][0], last_loss=pairs[-1][0], last_loss_reference=pairs[-1][1])


def planned(path):
    """The bytes that a rank needs in total according to `--dry-run`, and those of them of saved activations (0 if unknown)."""
    with open(path) as file:
        text = file.read()
    size = rf"([\d.]+) ({'|'.join(UNITS)})\b"
    total, saved = re.search(rf"^(.*)\btogether\s+{size}", text, re.MULTILINE), re.search(rf"saved activations\s+{size}", text)
    if not total:
        sys.exit(f"figures.py: {path} has no total in bytes")
    together = float(total[2]) * UNITS[total[3]]
    # The total has one decimal, usually of GiB; the numbers before it in the line have smaller units, so they are more exact.
    parts = sum(float(number) * UNITS[unit] for number, unit in re.findall(size, total[1]))
    exact = abs(parts - together) <= 0.06 * UNITS[total[3]]
    return round(parts if exact else together), round(float(saved[1]) * UNITS[saved[2]]) if saved else 0


def memory(run, plan):
    """The planned bytes of one rank; those that the run counted tensor by tensor, and the plan of these; and the device's peak."""
    last, (together, saved) = metrics(run)[-1], planned(plan)
    counted = sum(last[f"{kind}_bytes_peak"] for kind in ["parameter", "gradient", "optimizer", "activation"])
    return dict(planned_bytes=together, planned_counted_bytes=together - saved, counted_bytes=counted,
                device_bytes=last.get("device_memory_reserved_bytes_peak") or last["peak_rss_bytes"])


def tests(log):
    """How many tests passed, which failed, whether the program finished, and how many errors compute-sanitizer found."""
    with open(log, errors="replace") as file:
        text = file.read()
    result = re.search(r"^test result: \w+\. (\d+) passed; (\d+) failed", text, re.MULTILINE)
    failed = re.findall(r"^test (\S+).* \.\.\. FAILED$", text, re.MULTILINE)
    passed = int(result[1]) if result else len(re.findall(r"\bok$", text, re.MULTILINE))
    errors = [int(count) for count in re.findall(r"ERROR SUMMARY: (\d+) error", text)]
    return dict(passed=passed, failed=failed, ended=bool(result), errors=sum(errors) if errors else None)


def kernels(log, table):
    """Writes the time by kernel of a step to a CSV file, longest first. Leaves out the first two steps, in which kernels are tuned."""
    steps, totals = [], {}
    with open(log, encoding="utf-8", errors="replace") as file:
        for line in file:
            step = re.match(r"step\s+(\d+)/", line)
            launch = re.match(r"\| ([\d.]+)(s|ms|µs|ns) *\| ([^|].*)", line)
            if step:
                steps.append(int(step[1]))
                # Launches after the last step do not belong to one.
                ended = {name: list(sums) for name, sums in totals.items()}
            elif launch and steps and steps[-1] >= 2:
                sums = totals.setdefault(launch[3].strip(), [0, 0.0])
                sums[0] += 1
                sums[1] += float(launch[1]) * SECONDS[launch[2]]
    count = steps[-1] - 2 if steps else 0
    if count < 1 or not ended:
        sys.exit(f"figures.py: {log} has no kernels between the lines of steps")
    seconds = sum(sums[1] for sums in ended.values())
    with open(table, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["kernel", "launches a step", "ms a step", "share"])
        for name, (launches, time) in sorted(ended.items(), key=lambda item: -item[1][1]):
            writer.writerow([name, round(launches / count, 2), round(1000 * time / count, 3), share(time / seconds)])
    return dict(steps=count, kernels=len(ended), launches=sum(sums[0] for sums in ended.values()) / count, seconds=seconds / count)


class Page:
    """The rows of the table, from the newest line of each name."""

    def __init__(self, lines):
        self.lines, self.rows = lines, []

    def all(self, row, **fields):
        return [line for line in self.lines if line["row"] == row and all(line.get(key) == value for key, value in fields.items())]

    def one(self, row, **fields):
        return (self.all(row, **fields) or [None])[-1]

    def largest(self):
        """Brigade's newest result with the largest micro-batch that was measured."""
        most = max((line["micro_batch"] for line in self.all("peers", name="brigade")), default=None)
        return self.one("peers", name="brigade", micro_batch=most)

    def peer(self, mode):
        """PyTorch's result, or if it was cut short, the largest size that was found to fit."""
        tried = [line for line in self.all("peers", name="torch trial", mode=mode) if line["fits"]]
        largest = max(tried, key=lambda line: line["micro_batch"], default=None)
        return self.one("peers", name=f"torch {mode}") or (largest and {**largest, "name": f"torch {mode} (a trial of few steps)"})

    def median(self, row, field, **fields):
        values = [line[field] for line in self.all(row, **fields) if line.get(field) is not None]
        return statistics.median(values) if values else None

    def add(self, what, here, beside, ratio="–", goal="–", met=None):
        self.rows.append([what, here, beside, ratio, goal, {None: "–", True: "yes", False: "**no**"}[met]])

    def apart(self, what, line):
        """Adds a row with the losses of two runs."""
        self.add(f"losses, {what}: the last; largest difference, also of means of ten steps", f"{line['last_loss']:.4f}",
                 f"{line['last_loss_reference']:.4f}", f"{share(line['most'])}, {share(line['most_of_ten'])}",
                 f"≤ {share(line['tolerance'])} at most", line["most"] <= line["tolerance"])

    def tests(self, what, line, goal, clean):
        """Adds a row with the results of a program of tests. If it ran none, the goal is missed."""
        failed = ", ".join(line["failed"]) or ("none" if line["ended"] else "did not finish")
        self.add(f"{what} passed; failed", str(line["passed"]), failed, "–", goal, clean and line["passed"] > 0)

    def ratio(self, what, here, beside, show, goal=None, least=True):
        """Adds a row with two figures, unless one is missing."""
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
    own, peers = page.largest(), {mode: page.peer(mode) for mode in ["eager", "compile"]}
    for mode, goal in [("eager", None), ("compile", 0.5)]:
        peer = peers[mode]
        page.ratio(f"each at its largest micro-batch, PyTorch {mode}", own and own["tokens_per_second"],
                   peer and peer["tokens_per_second"], rate, goal)
    nccl = [page.median("nccl", "step_seconds", name=name) for name in ["through", "without"]]
    page.ratio("one rank through NCCL, and without", *nccl, time, 1.03, least=False)
    calls = [page.median("nccl", "collective_calls", name=name) for name in ["through", "without"]]
    if None not in calls:
        page.add("the same: collectives in a step", *(f"{count:.0f}" for count in calls), "–", "more", calls[0] > calls[1])
    blocks = [page.median("blocks", "seconds", name=name) for name in ["blocks", "one graph"]]
    page.ratio("a graph for each block, and one graph", *blocks, time, 1.05, least=False)
    for held in filter(None, [page.one("memory", name=f"dp {ranks}") for ranks in [1, 2]]):
        what = f"ZeRO-3, recomputed, {held['name']}"
        ratio = held["device_bytes"] / held["planned_bytes"]
        page.add(f"{what}: peak memory of the device per rank, and planned", gib(held["device_bytes"]), gib(held["planned_bytes"]),
                 f"{ratio:.3f}", "within 10%", abs(ratio - 1) <= 0.1)
        page.ratio(f"{what}: counted tensor by tensor, and planned without saved activations",
                   held["counted_bytes"], held["planned_counted_bytes"], gib)
    for line in filter(None, [page.one("losses", name=name) for name in ["bf16", "f32"]]):
        page.apart(f"{line['steps']} steps in {line['dtype']}, and fp32 on the CPU", line)
    alone = page.one("shared", name="1 rank")
    for ranks in [2, 4]:
        line = page.one("shared", name=f"{ranks} ranks")
        page.ratio(f"{ranks} ranks on one GPU through the host, and 1", line and line["tokens_per_second"],
                   alone and alone["tokens_per_second"], rate)
        apart = page.one("shared", name=f"{ranks} ranks apart")
        if apart:
            page.apart(f"{ranks} ranks on one GPU in {apart['dtype']}, and 1", apart)
    bits = page.one("bits", name="twice")
    if bits:
        same = bits["first"] == bits["second"]
        page.add("the same run twice: weights", bits["first"][:12], bits["second"][:12], "equal" if same else "differ", "equal", same)
    ran = page.one("tests", name="tests")
    if ran:
        page.tests("collectives' and training tests", ran, "none fails", ran["code"] == 0)
    checked = page.one("sanitizer", name="tests")
    if checked:
        found = "no summary" if checked["errors"] is None else f"{checked['errors']} errors"
        page.tests(f"compute-sanitizer: {found}; tests", checked, "0 errors", checked["code"] == 0 and checked["errors"] == 0)
    kernels = page.one("profile", name="CubeCL")
    if kernels:
        page.add(f"kernels of a step with 4 micro-batches, one by one ({kernels['file']})", f"{kernels['launches']:,.0f} launches",
                 time(kernels["seconds"]))

    machine = page.one("machine") or {}
    text = ["# One GPU", "", "Written by `benches/gpu/run.sh`; benches/gpu/README.md says what each row proves.", "", "| | |", "|---|---|"]
    text += [f"| {key} | {value} |" for key, value in machine.items() if key not in ("row", "name")]
    text += ["", "| | Brigade | beside | ratio | goal | met |", "|---|---:|---:|---:|---|---|"]
    text += ["| " + " | ".join(row) + " |" for row in page.rows]
    sides, peak = [line for line in [own, *peers.values()] if line], own and own.get("peak_tflops")
    if sides:
        text += ["", "| GPT-2 124M | micro-batch | step | tokens/s | MFU | peak memory |", "|---|---:|---:|---:|---:|---:|"]
    for line in sides:
        # Both sides relative to the same number: the device's peak as Brigade knows it.
        mfu = 100 * line["tflops"] / peak if peak and line.get("tflops") else None
        text.append(f"| {line['name']} | {line['micro_batch']} | {time(line['step_seconds'])} | {line['tokens_per_second']:,.0f} | "
                    f"{'–' if mfu is None else f'{mfu:.1f}%'} | {gib(line.get('peak_reserved_bytes', line.get('peak_bytes')))} |")
    done = {line["row"] for line in page.lines if line.get("name") != "skipped"}
    done |= {"torch"} if any(peers.values()) else set()
    missing = [f"{line['row']}: {line['why']}" for line in page.lines if line.get("name") == "skipped" and line["row"] not in done]
    if missing:
        text += ["", "Not measured: " + "; ".join(dict.fromkeys(missing)) + "."]
    return "\n".join(text) + "\n"


def value(text):
    """A whole number or a truth value if the text is one, or else the text."""
    if text in ("true", "false"):
        return text == "true"
    return int(text) if re.fullmatch(r"-?\d{1,15}", text) else text


def main():
    readers = {"steps": steps, "losses": losses, "memory": memory, "tests": tests, "kernels": kernels, "line": dict}
    if len(sys.argv) < 3 or sys.argv[1] not in ("table", *readers):
        sys.exit(__doc__)
    what, rest = sys.argv[1], sys.argv[2:]
    if what == "table":
        print(table(rest[0]), end="")
        return
    paths = [word for word in rest if "=" not in word]
    fields = {key: value(text) for key, text in (word.split("=", 1) for word in rest if "=" in word)}
    print(json.dumps({**fields, **readers[what](*paths)}))


if __name__ == "__main__":
    main()
