// The phase bar and the figures at the top of a study.

import { byId, h, meter, put } from "./dom.js";
import { count, duration, gain, metricName, number, percent, stateBadge, unit } from "./format.js";

const PHASES = [
  ["gate", "Gate", "the baseline, several launches"],
  ["recipes", "Recipes", "what experts reported"],
  ["search", "Search", "new candidates"],
  ["confirm", "Confirm", "the best against the baseline"],
];

export function outcome(row) {
  if (row.state !== "measured") return row.state;
  return row.verdict?.feasible ? "meets" : "breaks";
}

export function showPhases(study, rows) {
  const now = PHASES.findIndex(([name]) => name === study.phase);
  const items = PHASES.map(([name, title, about], index) => {
    const here = rows.filter((row) => row.phase === name).length;
    let state = index < now || study.state === "done" ? "done" : "next";
    if (index === now && study.state === "running") state = "now";
    else if (index === now && study.state !== "done") state = "stopped";
    const skipped = state === "done" && here === 0;
    return h(
      "li",
      { class: state, "aria-current": state === "now" ? "step" : null },
      h("b", {}, title),
      h("span", {}, skipped ? "not needed" : here ? count(here, "trial") : about),
    );
  });
  put(byId("phases"), items);
}

function tile(title, figure, small, below, kind = "") {
  return h(
    "section",
    { class: "card tile" },
    h("h2", {}, title),
    h("div", { class: `figure ${kind}` }, figure, small && h("small", {}, ` ${small}`)),
    h("p", {}, below),
  );
}

const OUTCOMES = [
  ["meets", "good", "meets the SLA"],
  ["breaks", "warn", "breaks the SLA"],
  ["failed", "bad", "failed"],
  ["running", "", "running"],
  ["waiting", "idle", "waiting"],
  ["cancelled", "idle", "cancelled"],
];

function spent(rows) {
  const spans = rows
    .filter((row) => row.started_at)
    .map((row) => [Date.parse(row.started_at), row.finished_at ? Date.parse(row.finished_at) : Date.now()])
    .sort((a, b) => a[0] - b[0]);
  let total = 0;
  let reached = -Infinity;
  for (const [start, end] of spans) {
    total += Math.max(0, end - Math.max(start, reached));
    reached = Math.max(reached, end);
  }
  return total / 1000;
}

function trialsTile(spec, rows) {
  const budget = spec.budget.trials;
  const found = OUTCOMES.map(([name, kind, text]) => ({ kind, text, n: rows.filter((row) => outcome(row) === name).length })).filter(({ n }) => n > 0);
  const bar = meter(
    found.map(({ kind, n }) => ({ kind, share: n / Math.max(budget, rows.length) })),
    `${rows.length} of ${budget} trials: ${found.map(({ n, text }) => `${n} ${text}`).join(", ") || "none"}`,
  );
  return h(
    "section",
    { class: "card tile wide" },
    h("h2", {}, "Trials"),
    h("div", { class: "figure" }, String(rows.length), h("small", {}, ` of ${count(budget, "launch", "launches")} · ${duration(spent(rows))} of ${duration(spec.budget.wall_time_s)}`)),
    bar,
    h("ul", { class: "legend" }, found.map(({ kind, n, text }) => h("li", {}, h("i", { class: kind }), `${n} ${text}`))),
  );
}

export function showTiles(overview, rows) {
  const { study, baseline_objective: baseline, best } = overview;
  const metric = study.spec.objective.metric;
  const name = metricName(metric);
  const won = gain(metric, baseline, best?.objective ?? null);
  const where = best && h("a", { href: `#trial=${best.number}` }, `trial ${best.number}`);
  put(
    byId("tiles"),
    tile("Baseline", number(baseline), baseline !== null && unit(metric), baseline === null ? "not measured yet" : `${name}, median of the gate`),
    tile("Best so far", number(best?.objective), best && unit(metric), best ? [where, ` · ${best.label}`] : "no trial meets the SLA yet"),
    tile("Gain", percent(won), "", won === null ? "of the best over the baseline" : study.state === "done" ? "as measured; the result tells what is proven" : "measured, not yet confirmed", won > 0 ? "good-text" : ""),
    trialsTile(study.spec, rows),
  );
}

export function showState(study) {
  put(byId("study-state"), stateBadge(study.state));
}
