// The page of one run.

const state = { axis: "step", measure: 0 };

/** The numbers of the axis of a run: steps, or seconds since its first step began. */
function axisOf(run) {
  return state.axis === "time" ? run.times : run.steps;
}

function marksOf(run) {
  return run.events.map(({ step, seconds, kind }) => ({ at: state.axis === "time" ? seconds : step, kind }));
}

function drawAll(data) {
  const formatX = state.axis === "time" ? clock : (step) => String(Number(step.toPrecision(8)));
  const others = data.compare;
  for (const chart of data.charts) {
    const place = document.getElementById(`chart-${chart.id}`);
    if (!place) continue;
    const found = others?.charts.find((one) => one.id === chart.id);
    const other = found && { ...found, run: others.name };
    const view = { x: axisOf(data), formatX, marks: marksOf(data), other, otherX: others && axisOf(others) };
    drawChart(place, { ...chart, axis: state.axis }, view);
  }
  if (data.heat) drawHeat(document.getElementById("heat"), data.heat, data.heat.measures[state.measure]);
  const timeline = document.getElementById("step-timeline");
  if (data.timeline && timeline) drawTimeline(timeline, data.timeline);
  document.documentElement.dataset.charts = document.querySelectorAll("[data-points]").length;
}

/** Buttons of which one is chosen. */
function choice(place, names, choose) {
  if (!place) return;
  place.replaceChildren(...names.map((name, index) => {
    const button = Object.assign(document.createElement("button"), { textContent: name, type: "button" });
    button.setAttribute("aria-pressed", String(index === 0));
    button.addEventListener("click", () => {
      [...place.children].forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
      choose(index);
    });
    return button;
  }));
}

/** What a page has a place for. */
function places({ charts, heat, timeline }) {
  return [...charts.map(({ id }) => id), heat && "heat", timeline && "timeline"].filter(Boolean);
}

/** Replaces the parts of the page that are text, and draws the charts again. One that was not there before needs a new page. */
function update(answer) {
  const before = places(read());
  if (places(answer.data).some((place) => !before.includes(place))) {
    location.reload();
    return;
  }
  for (const [id, html] of Object.entries(answer.parts)) {
    const part = document.getElementById(id);
    if (part) part.innerHTML = html;
  }
  document.getElementById("data").textContent = JSON.stringify(answer.data);
  drawAll(answer.data);
}

function begin() {
  const draw = () => drawAll(read());
  const { heat, times, watched } = read();
  choice(document.getElementById("axis"), times ? ["step", "time"] : ["step"], (index) => {
    state.axis = ["step", "time"][index];
    draw();
  });
  if (heat) choice(document.getElementById("measures"), heat.measures.map(({ name }) => name), (index) => {
    state.measure = index;
    draw();
  });
  followTheme(document.getElementById("theme"), draw);
  let width = innerWidth;
  addEventListener("resize", () => {
    if (width !== innerWidth) draw();
    width = innerWidth;
  });
  if (watched != null) follow(watched, update);
}

begin();
