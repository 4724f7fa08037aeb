// What all pages use: their numbers, changes that a server tells of, colours of the theme, and numbers as text.

document.documentElement.dataset.errors = 0;
addEventListener("error", () => { document.documentElement.dataset.errors++; });

/** The numbers of the page. */
function read() {
  return JSON.parse(document.getElementById("data").textContent);
}

/**
 * Takes over what a server that watches says is new, and what changed while no connection was open. One request at a time, so that no
 * answer overtakes a newer one. `?token=…` goes with every request.
 */
function follow(address, update) {
  let isAsking = false;
  let isOld = false;
  const ask = async () => {
    isOld = true;
    if (isAsking) return;
    isAsking = true;
    try {
      while (isOld) {
        isOld = false;
        const answer = await fetch(`${address}/parts${location.search}`);
        if (answer.ok) update(await answer.json());
      }
    } finally {
      isAsking = false;
    }
  };
  const events = new EventSource(`${address}/events${location.search}`);
  events.addEventListener("open", ask);
  events.addEventListener("changed", ask);
}

const THEMES = ["auto", "light", "dark"];

/** A colour of the style sheet in the current theme, as a canvas takes it. */
function colour(name) {
  const probe = document.getElementById("probe");
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

/** The colour of the n-th series of a chart. */
function seriesColour(index) {
  return colour(`series-${index % 8}`);
}

/** Lets the button change the theme; `redraw` draws everything in the new colours. */
function followTheme(button, redraw) {
  const root = document.documentElement;
  const show = (theme) => {
    root.dataset.theme = theme;
    button.textContent = `theme: ${theme}`;
    redraw();
  };
  button.addEventListener("click", () => show(THEMES[(THEMES.indexOf(root.dataset.theme) + 1) % THEMES.length]));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  const asked = location.hash.slice(1);
  show(THEMES.includes(asked) ? asked : "auto");
}

const SI = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
const BINARY = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [0, "B"]];
const SECONDS = [[1, "s"], [1e-3, "ms"], [0, "µs"]];

function digits(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

function scaled(value, units) {
  const [factor, unit] = units.find(([factor]) => Math.abs(value) >= factor) ?? [1, ""];
  return `${digits(value / (factor || (unit === "µs" ? 1e-6 : 1)))} ${unit}`.trim();
}

/** A number in its unit: `number`, `rate`, `bytes`, `seconds` or `percent`. */
function formatted(value, unit) {
  if (value == null) return "–";
  switch (unit) {
    case "rate": return scaled(value, SI);
    case "bytes": return scaled(value, BINARY);
    case "seconds": return value === 0 ? "0" : scaled(value, SECONDS);
    case "percent": return `${digits(value)}%`;
    default: return digits(value);
  }
}

/** Seconds as hours, minutes and seconds. */
function clock(seconds) {
  const whole = Math.round(Math.abs(seconds));
  const parts = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const text = parts.map((part) => String(part).padStart(2, "0"));
  return (seconds < 0 ? "-" : "") + (parts[0] ? text : text.slice(1)).join(":");
}
