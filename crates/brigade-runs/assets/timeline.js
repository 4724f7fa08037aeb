// One step of a profiled run: a row for each rank.

const KINDS = [
  ["forward", "forward", "series-0"],
  ["backward", "backward", "series-2"],
  ["backward_weights", "backward, weights", "series-5"],
  ["other", "optimizer and the rest", "series-7"],
  ["wait", "waiting", "series-1"],
];

/** Draws what each rank did in a step into `place`. */
function drawTimeline(place, timeline) {
  const { rows, seconds } = timeline;
  const names = rows.map(({ name }) => name);
  const { canvas, context, width, row } = rowsCanvas(place, names, [8, 30], ["0", formatted(seconds, "seconds")]);
  const colours = Object.fromEntries(KINDS.map(([kind, , name]) => [kind, colour(name)]));
  const scale = (width - LABELS) / seconds;
  context.textAlign = "center";
  rows.forEach(({ spans }, index) => {
    const top = index * row;
    context.fillStyle = colour("grid");
    context.fillRect(LABELS, top + 1, width - LABELS, row - 2);
    for (const { kind, name: text, start, end } of spans) {
      const [left, long] = [LABELS + start * scale, Math.max((end - start) * scale, 0.5)];
      context.fillStyle = colours[kind];
      // Waits lie within the work that waits.
      const inset = kind === "wait" && row > 12 ? 4 : 1;
      context.fillRect(left, top + inset, long, row - 2 * inset);
      if (kind !== "wait" && row >= 16 && long > 7 * text.length + 4) {
        context.fillStyle = colour("panel");
        context.fillText(text, left + long / 2, top + row / 2);
      }
    }
  });
  const most = rows.reduce((most, one) => one.waited > most.waited ? one : most);
  const shown = rows.length < timeline.ranks ? ` The first ${rows.length} of ${timeline.ranks} ranks.` : "";
  const usual = `${most.name} waits most: ${digits(100 * most.waited)}% of its time.${shown}`;
  const hint = hintOf(place, canvas, usual, (mouse) => {
    const at = (mouse.x - LABELS) / scale;
    const found = rows[Math.floor(mouse.y / row)];
    const span = found?.spans.findLast(({ start, end }) => start <= at && at <= end);
    const waits = span?.kind === "wait" ? "waits for " : "";
    return span && `${found.name}: ${waits}${span.name}, ${formatted(span.end - span.start, "seconds")} from ${formatted(span.start, "seconds")} on`;
  });
  place.replaceChildren(canvas, kindsLegend(rows), hint);
  place.dataset.points = rows.reduce((sum, { spans }) => sum + spans.length, 0);
}

/** The colours of the kinds of work that there are. */
function kindsLegend(rows) {
  const there = new Set(rows.flatMap(({ spans }) => spans.map(({ kind }) => kind)));
  const bar = document.createElement("div");
  bar.className = "kinds";
  bar.append(...KINDS.filter(([kind]) => there.has(kind)).map(([, text, name]) => {
    const entry = Object.assign(document.createElement("small"), { textContent: text });
    const patch = document.createElement("span");
    patch.style.background = colour(name);
    entry.prepend(patch);
    return entry;
  }));
  return bar;
}
