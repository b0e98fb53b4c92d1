// Objective over trials: points by outcome in colour and symbol, the best so far as a step line.

import { byId, h, put } from "./dom.js";
import { outcome } from "./figures.js";
import { gain, knob, maximises, metricName, number, percent, unit } from "./format.js";

const KINDS = [
  { key: "meets", name: "meets the SLA", symbol: "circle", colour: "--plot-good", size: 8 },
  { key: "breaks", name: "breaks the SLA", symbol: "diamond", colour: "--plot-warn", size: 9 },
  { key: "failed", name: "failed", symbol: "x", colour: "--plot-bad", size: 9, strip: true },
  { key: "running", name: "running", symbol: "circle-open", colour: "--accent", size: 9, strip: true },
  { key: "waiting", name: "waiting", symbol: "square-open", colour: "--plot-idle", size: 8, strip: true },
  { key: "cancelled", name: "cancelled", symbol: "line-ew-open", colour: "--plot-idle", size: 9, strip: true },
];
const FAR = 1.6; // points beyond this many times the baseline stand at the edge, else one bad trial flattens all

let library = null;

function load(plot) {
  library ??= new Promise((done, failed) => {
    const script = h("script", { src: plot.dataset.plotly });
    script.onload = done;
    script.onerror = () => failed(new Error("The plot's script cannot be loaded."));
    document.head.append(script);
  });
  return library;
}

// The library reads a few tags in texts: names and values must not become any.
function plain(text) {
  return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;");
}

function hover(row, spec, baseline) {
  const metric = spec.objective.metric;
  const lines = [`<b>trial ${row.number}</b> · ${plain(row.phase)}${row.label === row.phase ? "" : ` · ${plain(row.label)}`}`];
  const value = row.verdict?.objective ?? null;
  if (value !== null) {
    const won = gain(metric, baseline, value);
    lines.push(`${number(value)} ${unit(metric)}${won === null ? "" : ` (${percent(won)})`}`);
  }
  if (row.failure) lines.push(plain(row.failure.failure_class));
  const changes = Object.entries(row.changes);
  for (const [name, [, after]] of changes.slice(0, 6)) lines.push(plain(`${name} ${knob(after)}`));
  if (changes.length > 6) lines.push(`and ${changes.length - 6} more`);
  return lines.join("<br>");
}

function bestSoFar(rows, maximise) {
  const line = { x: [], y: [] };
  let best = null;
  for (const row of rows) {
    const value = outcome(row) === "meets" ? row.verdict.objective : null;
    if (value !== null && (best === null || (maximise ? value > best : value < best))) best = value;
    if (best !== null) {
      line.x.push(row.number);
      line.y.push(best);
    }
  }
  return line;
}

// The range of the axis, and how to keep a point inside it.
function scale(rows, baseline, maximise) {
  const values = rows.map((row) => row.verdict?.objective ?? null).filter((value) => value !== null);
  if (baseline !== null) values.push(baseline);
  let low = Math.min(...values);
  let high = Math.max(...values);
  if (baseline !== null && maximise) low = Math.max(low, baseline / FAR);
  if (baseline !== null && !maximise) high = Math.min(high, baseline * FAR);
  const room = Math.max((high - low) * 0.09, high * 0.01);
  const far = values.filter((value) => value < low || value > high).length;
  return { range: [low - room, high + room * 1.6], inside: (value) => Math.min(high, Math.max(low, value)), far };
}

// `perTrial`: pixels between two trials; a phase whose name does not fit goes without it.
function phaseMarks(rows, colour, perTrial) {
  const starts = new Map();
  for (const row of rows) if (!starts.has(row.phase)) starts.set(row.phase, row.number);
  const shapes = [];
  const annotations = [];
  const ends = [...starts.values()].slice(1);
  for (const [phase, number] of starts) {
    const room = ((ends.shift() ?? Infinity) - number) * perTrial;
    if (number > 0) shapes.push({ type: "line", x0: number - 0.5, x1: number - 0.5, y0: 0, y1: 1, yref: "paper", line: { color: colour("--line-strong"), width: 1, dash: "dot" } });
    if (room > phase.length * 7 + 8) annotations.push({ x: number - 0.4, y: 1, yref: "paper", xanchor: "left", yanchor: "top", text: phase, showarrow: false, font: { color: colour("--muted"), size: 11 } });
  }
  return { shapes, annotations };
}

function draw(plot, overview, rows, onSelect, selected) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const { spec } = overview.study;
  const metric = spec.objective.metric;
  const baseline = overview.baseline_objective;
  const axis = scale(rows, baseline, maximises(metric));
  const last = Math.max(rows.length, 8);
  const traces = [
    { ...bestSoFar(rows, maximises(metric)), name: "best so far", mode: "lines", line: { shape: "hv", color: colour("--accent"), width: 2.5 }, hoverinfo: "skip" },
  ];
  for (const kind of KINDS) {
    const mine = rows.filter((row) => outcome(row) === kind.key && (kind.strip || row.verdict?.objective != null));
    if (mine.length === 0) continue;
    traces.push({
      x: mine.map((row) => row.number),
      y: mine.map((row) => (kind.strip ? 0 : axis.inside(row.verdict.objective))),
      yaxis: kind.strip ? "y2" : "y",
      name: kind.name,
      mode: "markers",
      marker: {
        symbol: mine.map((row) => (kind.strip || axis.inside(row.verdict.objective) === row.verdict.objective ? kind.symbol : "triangle-up")),
        color: colour(kind.colour),
        opacity: 1,
        size: mine.map((row) => (row.number === selected ? kind.size + 7 : kind.size)),
        line: { width: kind.symbol.endsWith("open") ? 2 : 1, color: kind.symbol.endsWith("open") ? colour(kind.colour) : colour("--surface") },
      },
      text: mine.map((row) => hover(row, spec, baseline)),
      customdata: mine.map((row) => row.number),
      hovertemplate: "%{text}<extra></extra>",
    });
  }
  const marks = phaseMarks(rows, colour, (plot.clientWidth - 82) / (last + 1.3));
  if (baseline !== null) {
    marks.shapes.push({ type: "line", xref: "paper", x0: 0, x1: 1, y0: baseline, y1: baseline, line: { color: colour("--muted"), width: 1.5, dash: "dash" } });
    marks.annotations.push({ xref: "paper", x: 1, y: baseline, xanchor: "right", yanchor: "bottom", text: `baseline ${number(baseline)}`, showarrow: false, font: { color: colour("--muted"), size: 11 } });
  }
  const lines = { gridcolor: colour("--line"), linecolor: colour("--line-strong"), tickfont: { color: colour("--muted") }, zeroline: false };
  const layout = {
    font: { family: style.getPropertyValue("--sans"), size: 12, color: colour("--text") },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 64, r: 18, t: 44, b: 46 },
    hovermode: "closest",
    hoverdistance: 12,
    hoverlabel: { bgcolor: colour("--surface"), bordercolor: colour("--line-strong"), align: "left", font: { color: colour("--text"), size: 12 } },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { color: colour("--muted") } },
    xaxis: { ...lines, title: { text: "trial", standoff: 8, font: { color: colour("--muted"), size: 12 } }, range: [-0.9, last * 1.01 + 0.4], showgrid: false, tickformat: "d", anchor: "y2" },
    yaxis: { ...lines, title: { text: `${metricName(metric)}, ${unit(metric)}`, font: { color: colour("--muted"), size: 12 } }, range: axis.range, domain: [0.15, 1] },
    yaxis2: { ...lines, domain: [0, 0.1], range: [-1, 1], tickvals: [0], ticktext: ["no value"], fixedrange: true, gridcolor: colour("--line") },
    shapes: marks.shapes,
    annotations: marks.annotations,
    uirevision: "kept", // a zoom of the viewer survives new points
    dragmode: "zoom",
  };
  const settings = { displaylogo: false, responsive: true, displayModeBar: false, doubleClick: "reset", showTips: false };
  const first = !plot.classList.contains("js-plotly-plot");
  const drawn = globalThis.Plotly.react(plot, traces, layout, settings);
  if (first) plot.on("plotly_click", ({ points }) => points[0]?.customdata !== undefined && onSelect(points[0].customdata));
  return drawn.then(() => axis.far);
}

function nothing(plot, foot, running) {
  const text = running ? "The plot begins with the first measured trial." : "No trial was measured.";
  put(plot, h("div", { class: "empty" }, h("p", {}, text)));
  foot.textContent = "";
}

// Gives a function that draws the study as it is now.
export function progressPlot(onSelect) {
  const plot = byId("plot");
  const foot = byId("plot-foot");
  let last = null;

  async function show(overview, rows, selected) {
    last = [overview, rows, selected];
    if (!rows.some((row) => row.verdict?.objective != null)) {
      nothing(plot, foot, overview.study.state === "running");
      return;
    }
    try {
      await load(plot);
    } catch (error) {
      put(plot, h("div", { class: "empty" }, error.message));
      return;
    }
    plot.querySelector(":scope > .loading, :scope > .empty")?.remove();
    const far = await draw(plot, ...last.slice(0, 2), onSelect, last[2]);
    const edge = far ? ` ${far} beyond the scale ${far === 1 ? "stands" : "stand"} at the edge as ▲.` : "";
    foot.textContent = `Choose a point to see its trial; drag to zoom, double-click to see all again.${edge}`;
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => last && show(...last));
  return show;
}
