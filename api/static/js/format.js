// Numbers, times and settings as a person reads them.

import { h } from "./dom.js";

const MINUS = "−";
const NONE = "–";

// The key of a load level in every mapping: `c8`, or `c48r2` where requests come at 2/s.
export function levelName({ concurrency, rate_per_s: rate }) {
  return `c${concurrency}${rate ? `r${rate}` : ""}`;
}

export function number(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  const size = Math.abs(value);
  const decimals = size === 0 ? 0 : Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
  return value.toLocaleString("en", { maximumFractionDigits: Math.min(decimals, 6), minimumFractionDigits: size >= 1 ? Math.min(decimals, 6) : 0 }).replace("-", MINUS);
}

export function percent(value, digits = 1) {
  if (value === null || value === undefined) return NONE;
  const text = Math.abs(value).toFixed(digits);
  const sign = Number(text) === 0 ? "" : value > 0 ? "+" : MINUS;
  return `${sign}${text} %`;
}

export function interval(found, digits = 3) {
  return found ? `${number(found.low, digits)} … ${number(found.high, digits)}` : "";
}

export function knob(value) {
  if (value === null || value === undefined) return "unset";
  return Array.isArray(value) ? `[${value.map(knob).join(", ")}]` : String(value);
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  if (seconds > 0 && seconds < 10) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
  if (whole < 172_800) return `${Math.floor(whole / 3600)} h ${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")} min`;
  return `${(whole / 86_400).toFixed(1)} d`;
}

const WHEN = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
const EXACT = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });

// A time of the server (UTC) in the viewer's zone.
export function time(iso) {
  if (!iso) return NONE;
  const at = new Date(iso);
  return h("time", { datetime: iso, title: EXACT.format(at) }, WHEN.format(at));
}

export function count(n, one, many = `${one}s`) {
  return `${n.toLocaleString("en")} ${n === 1 ? one : many}`;
}

const UNITS = { tpot_ms: "ms", decode_tpot_ms: "ms", output_tok_s: "tok/s", steady_output_tok_s: "tok/s", goodput_per_s: "requests/s" };
const NAMES = {
  tpot_ms: "TPOT",
  decode_tpot_ms: "Decode TPOT",
  output_tok_s: "Throughput",
  steady_output_tok_s: "Steady throughput",
  goodput_per_s: "Goodput",
};

export function unit(metric) {
  return UNITS[metric] ?? "";
}

export function metricName(metric) {
  return NAMES[metric] ?? metric;
}

export function maximises(metric) {
  return !metric.endsWith("_ms");
}

export function gain(metric, baseline, value) {
  if (baseline === null || baseline === undefined || value === null || value === undefined) return null;
  const change = ((value - baseline) / baseline) * 100;
  return maximises(metric) ? change : -change;
}

const STATES = {
  waiting: ["", "waiting"],
  running: ["active", "running"],
  measured: ["good", "measured"],
  done: ["good", "done"],
  failed: ["bad", "failed"],
  cancelled: ["", "cancelled"],
};

export function stateBadge(state) {
  const [kind, text] = STATES[state] ?? ["", state];
  return h("span", { class: `badge ${kind}` }, text);
}

// Knobs that differ from the baseline: `knob: old → new`.
export function chips(changes, most = Infinity) {
  const entries = Object.entries(changes);
  if (entries.length === 0) return h("span", { class: "muted" }, "as the baseline");
  const list = entries.slice(0, most).map(([name, [before, after]]) =>
    h("span", { class: "chip", title: `${name}: ${knob(before)} → ${knob(after)}` }, `${name} `, h("b", {}, knob(after))),
  );
  if (entries.length > most) list.push(h("span", { class: "chip more" }, `+${entries.length - most} more`));
  return h("div", { class: "chips" }, list);
}
