// The heat map of ranks and steps.

/** The colours of a measure, from its lowest to its highest value. */
function scaleOf(measure) {
  return measure.centre == null ? ["heat-low", "heat-high"] : ["heat-below", "heat-low", "heat-high"];
}

function rgb(name) {
  const context = document.createElement("canvas").getContext("2d");
  context.fillStyle = colour(name);
  context.fillRect(0, 0, 1, 1);
  return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
}

/** The position of a value among the colours, from 0 to 1; the centre is in the middle. */
function position(value, { low, centre, high }) {
  const at = (value, from, to) => Math.min(1, Math.max(0, (value - from) / (to - from)));
  if (centre == null) return at(value, low, high);
  return value < centre ? at(value, low, centre) / 2 : 0.5 + at(value, centre, high) / 2;
}

function mixed(colours, position) {
  const at = position * (colours.length - 1);
  const index = Math.min(Math.floor(at), colours.length - 2);
  return colours[index].map((part, channel) => part + (colours[index + 1][channel] - part) * (at - index));
}

/** Draws a measure into `place`: a row for each rank, a column for each recorded step (or the mean of several). */
function drawHeat(place, heat, measure) {
  const { steps, rows } = heat;
  const [colours, missing] = [scaleOf(measure).map(rgb), rgb("panel")];
  const pixels = new ImageData(steps.length, rows.length);
  measure.values.forEach((column, x) => column.forEach((value, y) => {
    const [r, g, b] = value == null ? missing : mixed(colours, position(value, measure));
    pixels.data.set([r, g, b, 255], 4 * (y * steps.length + x));
  }));
  const cells = document.createElement("canvas");
  [cells.width, cells.height] = [steps.length, rows.length];
  cells.getContext("2d").putImageData(pixels, 0, 0);

  const ends = [steps[0], steps[steps.length - 1]].map((step) => `step ${step}`);
  const { canvas, context, width, row } = rowsCanvas(place, rows, [2, 22], ends);
  context.imageSmoothingEnabled = false;
  context.drawImage(cells, LABELS, 0, width - LABELS, row * rows.length);

  const said = hintOf(place, canvas, measure.title, (mouse) => {
    const x = Math.floor((mouse.x - LABELS) / (width - LABELS) * steps.length);
    const y = Math.floor(mouse.y / row);
    const value = measure.values[x]?.[y];
    return value == null ? null : `${rows[y]}, step ${steps[x]}: ${formatted(value, measure.unit)}`;
  });
  place.replaceChildren(canvas, legend(measure), said);
  place.dataset.points = measure.values.reduce((sum, column) => sum + column.filter((value) => value != null).length, 0);
}

function legend(measure) {
  const bar = document.createElement("div");
  bar.className = "scale";
  const [low, middle, high] = [measure.low, measure.centre, measure.high].map((value) => value == null ? "" : formatted(value, measure.unit));
  const strip = document.createElement("span");
  strip.style.background = `linear-gradient(to right, ${scaleOf(measure).map(colour).join(", ")})`;
  const text = (content) => Object.assign(document.createElement("small"), { textContent: content });
  bar.append(text(low), strip, text(high), text(middle && `middle: ${middle}`));
  return bar;
}
