// The page of many runs.

const COLUMNS = [
  ["name", "run"], ["state", "state"], ["step", "step"], ["total", "of"], ["loss", "loss"], ["validation", "validation"],
  ["rate", "targets/s", "rate"], ["mfu", "MFU", "percent"], ["ranks", "ranks"], ["changed", "last step"],
];
const CURVES = ["loss", "throughput", "gradient-norm"];

// The runs that are drawn, the charts that have a place, and the column that the table is sorted by; -1: the greatest first.
const view = { ticked: null, charts: "", by: "changed", order: -1 };

function cell(run, [key, , unit]) {
  const value = run[key];
  if (key === "changed") return value == null ? "–" : new Date(1000 * value).toLocaleString();
  return typeof value === "string" ? value : formatted(value, unit);
}

function element(name, properties, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function drawTable({ runs }) {
  const compare = (a, b) => {
    const [left, right] = [a[view.by], b[view.by]];
    if (left == null || right == null) return (left == null) - (right == null);
    return view.order * (left < right ? -1 : left > right ? 1 : 0);
  };
  const head = COLUMNS.map(([key, title]) => element("th", {
    textContent: title + (key === view.by ? (view.order > 0 ? " ▲" : " ▼") : ""),
    onclick: () => {
      [view.by, view.order] = [key, key === view.by ? -view.order : 1];
      drawTable(read());
    },
  }));
  const rows = [...runs].sort(compare).map((run) => {
    const tick = element("input", { type: "checkbox", checked: view.ticked.has(run.name), ariaLabel: `draw ${run.name}` });
    tick.onchange = () => {
      view.ticked[tick.checked ? "add" : "delete"](run.name);
      drawCurves(read());
    };
    const cells = COLUMNS.map((column) => {
      const text = cell(run, column);
      if (column[0] === "name") return element("td", {}, element("a", { href: `/run/${encodeURIComponent(run.name)}${location.search}`, textContent: text }));
      if (column[0] === "state") return element("td", {}, element("span", { className: `state ${run.state}`, textContent: text, title: run.why }));
      return element("td", { textContent: text });
    });
    return element("tr", {}, element("td", {}, tick), ...cells);
  });
  document.getElementById("runs").replaceChildren(element("tr", {}, element("th", {}), ...head), ...rows);
}

/** One chart with a line for each run that is ticked. */
function joined(runs, id) {
  const found = runs.map((run) => ({ run, chart: run.charts.find((chart) => chart.id === id) })).filter(({ chart }) => chart);
  const lines = found.flatMap(({ run, chart }) => chart.series.map((series, index) => ({ run, series, chart, index })));
  if (!lines.length) return null;
  const [x, ...columns] = uPlot.join(lines.map(({ run, series }) => [run.steps, series.values]));
  const series = lines.map(({ run, series, index }, at) => ({
    name: index ? `${run.name}: ${series.name}` : run.name, values: columns[at], sparse: series.sparse, joined: true,
  }));
  return { x, chart: { ...found[0].chart, series, axis: "step" } };
}

function drawCurves({ runs }) {
  const ticked = runs.filter((run) => view.ticked.has(run.name));
  const place = document.getElementById("charts");
  const found = CURVES.map((id) => ({ id, curves: joined(ticked, id) })).filter(({ curves }) => curves);
  const charts = found.map(({ id }) => id).join(" ");
  // All places first: how wide one is depends on the others.
  if (charts !== view.charts) {
    place.querySelectorAll(".chart").forEach((chart) => chart.drawn.plot.destroy());
    place.replaceChildren(...found.map(({ id, curves }) => {
      const chart = element("div", { className: "chart", id: `chart-${id}` });
      return element("section", {}, element("h2", { textContent: curves.chart.title }), chart);
    }));
    view.charts = charts;
  }
  for (const { id, curves } of found) {
    drawChart(document.getElementById(`chart-${id}`), curves.chart, { x: curves.x, formatX: String, marks: [] });
  }
  document.documentElement.dataset.charts = place.children.length;
}

function draw() {
  const data = read();
  const latest = [...data.runs].sort((a, b) => (b.changed ?? 0) - (a.changed ?? 0));
  view.ticked ??= new Set(latest.slice(0, 6).map((run) => run.name));
  drawTable(data);
  drawCurves(data);
}

followTheme(document.getElementById("theme"), draw);
addEventListener("resize", draw);
follow(read().watched, (data) => {
  document.getElementById("data").textContent = JSON.stringify(data);
  draw();
});
