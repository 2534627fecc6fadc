// Charts of the last five minutes. uPlot is loaded as a script before this module.
import { el, fill, uid } from "./admin-dom.js";
import { plainTable } from "./admin-table.js";

const uPlot = globalThis.uPlot;

/** The seconds that a chart shows. */
export const span = 300;

// Without a report for that many seconds, the line is interrupted.
const gap = 4;

/** The figures of the last minutes, by name; null where a value is not known. */
export class History {
  constructor(names) {
    this.times = [];
    this.values = new Map(names.map((n) => [n, []]));
  }

  /** Adds the values (an object by name) of a time in seconds. */
  add(at, values) {
    const last = this.times[this.times.length - 1];
    if (last !== undefined && at <= last) return;
    if (last !== undefined && at - last > gap) this.#push(last + 1, {});
    this.#push(at, values);
    while (this.times.length && this.times[0] < at - span) {
      this.times.shift();
      for (const list of this.values.values()) list.shift();
    }
  }

  #push(at, values) {
    this.times.push(at);
    for (const [name, list] of this.values) list.push(values[name] ?? null);
  }
}

const dashes = [[], [6, 4], [2, 3]];

/**
 * Shows lines of a history in a container: a chart, a summary, and a table of the same values.
 * lines: name (in the history), label, tone (a colour token). format writes a value.
 * Returns { update() }.
 */
export function chart(container, { title, history, lines, format }) {
  const heading = uid("chart");
  const canvas = el("div", { class: "chart", role: "img", "aria-labelledby": heading });
  const legend = el("ul", { class: "legend plain" }, lines.map((l, i) => el("li", {},
    swatch(l.tone, i), el("span", {}, l.label), el("strong", { class: "mono" }, "–"))));
  const values = [...legend.querySelectorAll("strong")];
  const rows = el("div");
  const details = el("details", { ontoggle: () => tabulate() }, el("summary", {}, "Show as a table"), rows);
  fill(container, el("h3", { id: heading }, title), legend, canvas, details);

  const data = () => [history.times, ...lines.map((l) => history.values.get(l.name))];
  let plot = null;
  const draw = () => {
    if (plot) plot.destroy();
    plot = uPlot ? new uPlot(options(canvas, lines, format), data(), canvas) : null;
  };
  const tabulate = () => {
    if (details.open) fill(rows, plainTable(tableOf(title, history, lines, format)));
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  new ResizeObserver(() => plot && plot.setSize({ width: canvas.clientWidth, height: height })).observe(canvas);
  draw();
  let shown = 0;
  return {
    update() {
      const i = history.times.length - 1;
      lines.forEach((l, n) => {
        values[n].textContent = format(history.values.get(l.name)[i]);
      });
      canvas.setAttribute("aria-label", summary(title, history, lines, format));
      canvas.removeAttribute("aria-labelledby");
      if (plot && !document.hidden) plot.setData(data());
      if (history.times[i] - shown >= 10) {
        shown = history.times[i];
        tabulate();
      }
    },
  };
}

const height = 180;

// A page that was just opened shows a minute, which grows to the span.
function shownSpan(_, first, last) {
  const end = last || Date.now() / 1000;
  return [Math.max(end - span, Math.min(first || end, end - 60)), end];
}

function options(canvas, lines, format) {
  const css = getComputedStyle(document.documentElement);
  const colour = (token) => css.getPropertyValue("--" + token).trim();
  const axis = { stroke: colour("muted"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  return {
    width: canvas.clientWidth || 300,
    height,
    legend: { show: false },
    cursor: { show: false },
    scales: {
      x: { time: true, range: shownSpan },
      y: { range: (_, min, max) => [0, max > 0 ? max * 1.1 : 1] },
    },
    axes: [
      { ...axis, space: 80, values: (_, ticks) => ticks.map((t) => new Date(t * 1000).toTimeString().slice(0, stepOf(ticks) < 60 ? 8 : 5)), incrs: [15, 30, 60, 120] },
      { ...axis, size: 64, values: (_, ticks) => ticks.map((t) => format(t)) },
    ],
    series: [{}, ...lines.map((l, i) => ({ label: l.label, stroke: colour(l.tone), width: 2, dash: dashes[i % dashes.length], points: { show: false }, spanGaps: false }))],
  };
}

const stepOf = (ticks) => (ticks.length > 1 ? ticks[1] - ticks[0] : 60);

// The sample of a line in the legend, with its colour and its dashes.
function swatch(tone, i) {
  const ns = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(ns, "svg");
  const line = document.createElementNS(ns, "line");
  for (const [name, value] of Object.entries({ viewBox: "0 0 24 4", width: 24, height: 4, "aria-hidden": "true", class: "swatch " + tone })) svg.setAttribute(name, value);
  for (const [name, value] of Object.entries({ x1: 0, y1: 2, x2: 24, y2: 2, "stroke-width": 3, stroke: "currentColor", "stroke-dasharray": dashes[i % dashes.length].join(" ") })) line.setAttribute(name, value);
  svg.append(line);
  return svg;
}

function summary(title, history, lines, format) {
  const texts = lines.map((l) => {
    const known = history.values.get(l.name).filter((v) => v !== null);
    if (!known.length) return `${l.label}: no values`;
    return `${l.label}: now ${format(known[known.length - 1])}, highest ${format(Math.max(...known))}`;
  });
  return `${title}, the last five minutes. ${texts.join(". ")}.`;
}

// One row for each 15 seconds, newest first.
function tableOf(title, history, lines, format) {
  const rows = [];
  for (let i = history.times.length - 1; i >= 0 && rows.length < 20; i -= 15) rows.push(i);
  return {
    caption: title + ", every 15 seconds",
    columns: [
      { title: "Time", cell: (i) => new Date(history.times[i] * 1000).toLocaleTimeString("en-GB") },
      ...lines.map((l) => ({ title: l.label, numeric: true, cell: (i) => format(history.values.get(l.name)[i]) })),
    ],
    rows,
  };
}
