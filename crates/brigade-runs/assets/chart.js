// One chart of numbers over steps or time, drawn by uPlot.

const MARKS = { checkpoint: "good", start: "muted", resume: "accent", restart: "bad", failure: "bad", rollback: "bad", skipped: "bad", finish: "good" };

// Steps of an axis of bytes.
const POWERS = Array.from({ length: 60 }, (_, power) => 2 ** power);

/** Sums of each series and those below it, from the lowest on; a missing number counts as 0. */
function stacked(columns) {
  const sums = [];
  columns.forEach((values, index) => {
    const below = sums[index - 1];
    sums.push(values.map((value, at) => (value ?? 0) + (below ? below[at] : 0)));
  });
  return sums;
}

/** What uPlot is given: the columns of numbers and a description of each. `other` is the same chart of another run. */
function columnsOf(chart, x, other, otherX) {
  const raw = chart.series.map((one) => one.values);
  const described = chart.series.map((one, index) => ({ name: one.name, index, raw: raw[index], sparse: one.sparse, joined: one.joined }));
  if (chart.stacked) {
    const sums = stacked(raw);
    const order = described.map((one, index) => ({ ...one, column: sums[index], filled: true })).reverse();
    return { x, series: order };
  }
  const own = described.map((one) => ({ ...one, column: one.raw }));
  if (!other) return { x, series: own };
  const [joined, ...columns] = uPlot.join([[x, ...own.map((one) => one.column)], [otherX, ...other.series.map((one) => one.values)]]);
  const theirs = other.series.map((one) => {
    const index = chart.series.findIndex((mine) => mine.name === one.name);
    return { name: `${one.name} (${other.run})`, index: index < 0 ? 7 : index, sparse: one.sparse, dashed: true };
  });
  const all = [...own, ...theirs].map((one, index) => ({ ...one, column: columns[index], raw: columns[index], joined: true }));
  return { x: joined, series: all };
}

/** Vertical lines where something happened. */
function drawMarks(plot, marks) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
  const colours = Object.fromEntries(["muted", ...Object.values(MARKS)].map((name) => [name, colour(name)]));
  for (const { at, kind } of marks) {
    const x = Math.round(plot.valToPos(at, "x", true));
    if (at == null || x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.strokeStyle = colours[MARKS[kind] ?? "muted"];
    ctx.globalAlpha = kind === "checkpoint" ? 0.35 : 0.8;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

function seriesOptions(one, unit, place) {
  const stroke = seriesColour(one.index);
  const isAlone = one.sparse || one.column.filter((value) => value != null).length < 2;
  return {
    label: one.name,
    stroke,
    width: one.filled ? 1 : 1.5,
    fill: one.filled ? stroke : undefined,
    dash: one.dashed ? [6, 4] : undefined,
    spanGaps: Boolean(one.sparse || one.joined),
    points: { show: isAlone || undefined, size: 5 },
    value: (plot, value, column, at) => (at == null ? "–" : formatted(place.drawn.series[column - 1].raw[at], unit)),
  };
}

/** What part of the axis a plot shows, if a reader chose one. */
function zoomOf(plot) {
  const { min, max } = plot.scales.x;
  const [x] = plot.data;
  return min > x[0] || max < x[x.length - 1] ? { min, max } : null;
}

/**
 * Draws a chart into `place`, which keeps what a reader does there if it has drawn the same before. `x`: the numbers of the axis, with
 * `formatX`; `marks`: what happened where.
 */
function drawChart(place, chart, { x, formatX, marks, other, otherX }) {
  const columns = columnsOf(chart, x, other, otherX);
  const data = [columns.x, ...columns.series.map((one) => one.column)];
  const isPositive = data.slice(1).every((column) => column.every((value) => value == null || value > 0));
  const axis = { stroke: colour("text"), grid: { stroke: colour("grid"), width: 1 }, ticks: { stroke: colour("grid"), width: 1 } };
  const options = {
    width: Math.max(place.clientWidth, 200),
    height: 240,
    scales: { x: { time: false }, y: { distr: chart.log && isPositive ? 3 : 1, range: chart.stacked ? (plot, low, high) => [0, high * 1.05 || 1] : undefined } },
    axes: [
      { ...axis, values: (plot, splits) => splits.map(formatX) },
      { ...axis, size: 72, incrs: chart.unit === "bytes" ? POWERS : undefined, values: (plot, splits) => splits.map((value) => (value == null ? "" : formatted(value, chart.unit))) },
    ],
    series: [{ label: chart.axis, value: (plot, value) => (value == null ? "–" : formatX(value)) }, ...columns.series.map((one) => seriesOptions(one, chart.unit, place))],
    cursor: { sync: { key: "brigade", scales: ["x", null] }, points: { size: 6 } },
    hooks: { draw: [(plot) => drawMarks(plot, place.drawn.marks)] },
  };
  place.dataset.points = data.slice(1).reduce((sum, column) => sum + column.filter((value) => value != null).length, 0);
  // What is left of functions is the same for the same chart and axis.
  const look = JSON.stringify(options);
  const before = place.drawn;
  const zoom = before?.axis === chart.axis ? zoomOf(before.plot) : null;
  place.drawn = { series: columns.series, marks, axis: chart.axis, look, plot: before?.plot };
  if (before?.look === look) {
    before.plot.setData(data, !zoom);
  } else {
    before?.plot.destroy();
    place.drawn.plot = new uPlot(options, data, place);
  }
  if (zoom) place.drawn.plot.setScale("x", zoom);
}
