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
  const labels = 78;
  const width = Math.max(place.clientWidth, 200);
  const row = Math.max(8, Math.min(30, Math.floor(560 / rows.length)));
  const height = row * rows.length + 24;
  const canvas = document.createElement("canvas");
  const ratio = devicePixelRatio;
  [canvas.width, canvas.height] = [width * ratio, height * ratio];
  canvas.style.width = `${width}px`;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  const colours = Object.fromEntries(KINDS.map(([kind, , name]) => [kind, colour(name)]));
  const scale = (width - labels) / seconds;
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  rows.forEach(({ name, spans }, index) => {
    const top = index * row;
    context.fillStyle = colour("text");
    context.textAlign = "left";
    if (row >= 13 || index % 2 === 0) context.fillText(name, 0, top + row / 2, labels - 6);
    context.fillStyle = colour("grid");
    context.fillRect(labels, top + 1, width - labels, row - 2);
    for (const { kind, name: text, start, end } of spans) {
      const [left, long] = [labels + start * scale, Math.max((end - start) * scale, 0.5)];
      context.fillStyle = colours[kind];
      // Waits lie within the work that waits.
      const inset = kind === "wait" && row > 12 ? 4 : 1;
      context.fillRect(left, top + inset, long, row - 2 * inset);
      if (kind !== "wait" && row >= 16 && long > 7 * text.length + 4) {
        context.fillStyle = colour("panel");
        context.textAlign = "center";
        context.fillText(text, left + long / 2, top + row / 2);
      }
    }
  });
  context.fillStyle = colour("text");
  context.textBaseline = "top";
  context.textAlign = "left";
  context.fillText("0", labels, height - 16);
  context.textAlign = "right";
  context.fillText(formatted(seconds, "seconds"), width, height - 16);

  const hint = document.createElement("p");
  hint.className = "hint";
  const explain = () => {
    const most = rows.reduce((most, one) => one.waited > most.waited ? one : most);
    const shown = rows.length < timeline.ranks ? ` The first ${rows.length} of ${timeline.ranks} ranks.` : "";
    hint.textContent = `${most.name} waits most: ${digits(100 * most.waited)}% of its time.${shown}`;
  };
  canvas.addEventListener("mousemove", (event) => {
    const box = canvas.getBoundingClientRect();
    const at = (event.clientX - box.left - labels) / scale;
    const found = rows[Math.floor((event.clientY - box.top) / row)];
    const span = found?.spans.findLast(({ start, end }) => start <= at && at <= end);
    if (!span) return explain();
    const waits = span.kind === "wait" ? "waits for " : "";
    hint.textContent = `${found.name}: ${waits}${span.name}, ${formatted(span.end - span.start, "seconds")} from ${formatted(span.start, "seconds")} on`;
  });
  canvas.addEventListener("mouseleave", explain);
  explain();
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
