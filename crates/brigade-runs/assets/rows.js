// A canvas with a named row for each rank.

/** Width of the names, in pixels. */
const LABELS = 78;

/** A canvas as wide as `place`, whose rows are `least` to `most` pixels high, with their names and what is at both ends of the axis below. */
function rowsCanvas(place, names, [least, most], [begin, end]) {
  const width = Math.max(place.clientWidth, 200);
  const row = Math.max(least, Math.min(most, Math.floor(560 / names.length)));
  const height = row * names.length + 24;
  const canvas = document.createElement("canvas");
  const ratio = devicePixelRatio;
  [canvas.width, canvas.height] = [width * ratio, height * ratio];
  canvas.style.width = `${width}px`;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.font = "11px system-ui, sans-serif";
  context.fillStyle = colour("text");
  context.textBaseline = "top";
  context.fillText(begin, LABELS, height - 16);
  context.textAlign = "right";
  context.fillText(end, width, height - 16);
  context.textAlign = "left";
  context.textBaseline = "middle";
  const every = Math.ceil(13 / row);
  names.forEach((name, index) => index % every || context.fillText(name, 0, row * (index + 0.5), LABELS - 6));
  return { canvas, context, width, row };
}

/**
 * A line of text below `canvas` in `place`: what `at` says of the place of the mouse, in pixels, or what is `usual`. A canvas that is drawn
 * again under the mouse goes on saying it.
 */
function hintOf(place, canvas, usual, at) {
  const hint = Object.assign(document.createElement("p"), { className: "hint" });
  const explain = () => { hint.textContent = (place.mouse && at(place.mouse)) ?? usual; };
  canvas.addEventListener("mousemove", ({ clientX, clientY }) => {
    const box = canvas.getBoundingClientRect();
    place.mouse = { x: clientX - box.left, y: clientY - box.top };
    explain();
  });
  canvas.addEventListener("mouseleave", () => {
    place.mouse = null;
    explain();
  });
  explain();
  return hint;
}
