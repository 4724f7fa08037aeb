"""Reads what trace.c has written: how long kernels ran, and what the GPU waited for between them.

    python benches/gpu/gaps.py trace.csv [FIRST_NANOSECOND]

Counts the second half of the trace, where every kernel has been compiled and tuned. A step ends with the last kernel whose name has `adamw`.
"""
import collections, csv, sys

rows = [(kind, int(start), int(end), stream, int(size), name) for kind, start, end, stream, size, name in csv.reader(open(sys.argv[1], errors="replace")) if kind != "call"]
rows.sort(key=lambda row: row[1])
# A step's optimizer: kernels named adamw with nothing else of that name for 5 ms after them.
ends = [row[2] for row in rows if "adamw" in row[5].lower()]
ends = [end for end, after in zip(ends, ends[1:] + [ends[-1] + 10**9]) if after - end > 5_000_000]
ends = ends[len(ends) // 2:]
first, last, steps = ends[0], ends[-1], len(ends) - 1
rows = [row for row in rows if first <= row[1] < last]
print(f"{steps} steps of {(last - first) / steps / 1e6:.2f} ms, {len(rows) / steps:.0f} launches and copies in each")

times, counts = collections.Counter(), collections.Counter()
busy, until, gaps, small = 0, first, [], 0
before = "the optimizer"
for kind, start, end, stream, size, name in rows:
    shown = f"{kind} {name}" if kind != "kernel" else name
    times[shown] += end - start
    counts[shown] += 1
    if start > until:
        if start - until > 20_000:
            gaps.append((start - until, before, shown, (until - first) / (last - first) * steps % 1))
        else:
            small += start - until
    if end > until:
        busy += end - max(until, start)
        until, before = end, shown
print(f"busy {busy / steps / 1e6:.2f} ms a step; waits of more than 20 us {sum(gap[0] for gap in gaps) / steps / 1e6:.2f} ms, of less {small / steps / 1e6:.2f} ms")
print("the longest waits, between which kernels, and where in the step:")
for gap, before, after, where in sorted(gaps, reverse=True)[:30]:
    print(f"  {gap / 1e3:8.0f} us at {where:.2f}  {before[:60]} -> {after[:60]}")
print("kernels, ms and launches a step:")
for name, time in times.most_common(45):
    print(f"  {time / steps / 1e6:7.3f} {counts[name] / steps:6.1f}  {name[:110]}")
