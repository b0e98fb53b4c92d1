// What a finished study says: the finding, what was proven, and the files to take away.

import * as api from "./api.js";
import { byId, h, put, svg } from "./dom.js";
import { chips, count, interval, knob, levelName, metricName, number, percent, unit } from "./format.js";

function cell(found, digits = 3) {
  if (!found) return h("span", { class: "muted" }, "–");
  return [h("b", {}, number(found.mean, digits)), h("div", { class: "interval" }, interval(found, digits))];
}

// A gain with its interval on a common scale from `least` to `most`; the dashed line is no gain.
function whisker(found, { least, most }) {
  const x = (value) => 6 + ((value - least) / (most - least)) * 138;
  return svg(
    "svg",
    { class: `whisker ${found.low > 0 ? "good-text" : found.high < 0 ? "bad-text" : "muted"}`, viewBox: "0 0 150 16", "aria-hidden": "true" },
    svg("line", { class: "zero", x1: x(0), x2: x(0), y1: 0, y2: 16 }),
    svg("line", { class: "range", x1: x(found.low), x2: x(found.high), y1: 8, y2: 8 }),
    svg("circle", { class: "mean", cx: x(found.mean), cy: 8, r: 4 }),
  );
}

function gained(found) {
  if (!found) return h("span", { class: "muted" }, "–");
  return [h("b", { class: found.low > 0 ? "good-text" : "" }, percent(found.mean)), h("div", { class: "interval" }, `${percent(found.low)} … ${percent(found.high)}`)];
}

// `words`: indexes of columns, beside the first, that hold no numbers.
function table(label, heads, rows, words = []) {
  const kind = (i) => (i && !words.includes(i) ? "number" : null);
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, heads.map((text, i) => h("th", { scope: "col", class: kind(i) }, text)))),
      h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((content, i) => h("td", { class: kind(i) }, content))))),
    ),
  );
}

// `shown` is the winner, or what came nearest.
function perLevel(recipe, shown) {
  const levels = recipe.workload.levels.map(levelName);
  const gains = shown?.gain_pct_by_level ?? {};
  const ends = Object.values(gains).flatMap((found) => [found.low, found.high]);
  const scale = { least: Math.min(0, ...ends), most: Math.max(1, ...ends) };
  const name = recipe.confirmed ? "Winner" : shown?.evidence.label;
  const { metric } = recipe.objective;
  const what = `${metricName(metric)}, ${unit(metric)}`;
  const heads = ["Level", `Baseline ${what}`, ...(shown ? [`${name} ${what}`, "Gain", "Interval of the gain"] : [])];
  const rows = levels.map((level) => [
    level,
    cell(recipe.baseline[metric][level]),
    ...(shown ? [cell(shown.evidence[metric][level]), gained(gains[level]), gains[level] && whisker(gains[level], scale)] : []),
  ]);
  return table("By load level", heads, rows, [4]);
}

function changed(recipe, shown) {
  const entries = Object.entries(recipe.confirmed ? recipe.changes : (shown?.evidence.candidate_changes ?? {}));
  if (entries.length === 0) return h("p", { class: "fine" }, "Nothing to change: the baseline stays.");
  return table("Settings", ["Knob", "From", "To"], entries.map(([name, [before, after]]) => [h("code", {}, name), knob(before), h("b", {}, knob(after))]), [1, 2]);
}

function contenders(recipe) {
  const rows = recipe.contenders.map((found) => [
    found.evidence.label,
    h("span", { class: `badge ${found.proven ? "good" : "warn"}`, title: found.reason }, found.proven ? "proven" : "not proven"),
    gained(found.gain_pct),
    chips(found.evidence.candidate_changes, 3),
  ]);
  return table("Finalists", ["Finalist", "Proof", `Gain, ${metricName(recipe.objective.metric)}`, "Difference from the baseline"], rows, [1, 3]);
}

function differences(recipe) {
  const base = recipe.baseline.candidate.values;
  return recipe.contenders.map((found) => {
    const mine = found.evidence.candidate.values;
    const names = [...new Set([...Object.keys(base), ...Object.keys(mine)])].sort();
    const pairs = names.map((name) => [name, [base[name] ?? null, mine[name] ?? null]]);
    return { ...found, evidence: { ...found.evidence, candidate_changes: Object.fromEntries(pairs.filter(([, [a, b]]) => JSON.stringify(a) !== JSON.stringify(b))) } };
  });
}

function exports(studyId, confirmed) {
  const files = { sh: confirmed ? "Launch script" : "Launch script of the baseline", env: "Env file", json: "Recipe with evidence" };
  return h("div", { class: "exports" }, Object.entries(files).map(([format, title], i) => h("a", { class: `button ${i || !confirmed ? "" : "primary"}`, href: api.exportUrl(studyId, format), download: "" }, title)));
}

function evidence(recipe) {
  const parts = [
    `${count(recipe.best.trials.length, "launch", "launches")} of the winner and ${count(recipe.baseline.trials.length, "launch", "launches")} of the baseline`,
    `intervals hold with ${(recipe.confidence * 100).toFixed(0)} % confidence`,
    `objective ${number(recipe.best.objective?.mean)} ${unit(recipe.objective.metric)}`,
    `version ${recipe.version}, seed ${recipe.seed}`,
  ];
  if (!recipe.confirmed) parts.splice(0, 1);
  return h("p", { class: "fine" }, `${parts.join(" · ")}.`, recipe.simulated && h("b", { class: "warn-text" }, " Measured on simulated endpoints, not on a device."));
}

function card(kind, title, finding, actions, ...rest) {
  return h("section", { class: `card result ${kind}`, "aria-labelledby": "result-title" }, h("header", {}, h("h2", { id: "result-title" }, title), actions), h("p", { class: "finding" }, finding), rest);
}

export async function showResult(study) {
  const place = byId("result");
  if (study.state === "running") {
    put(place);
    return;
  }
  if (study.state !== "done") {
    put(place, card(study.state === "failed" ? "failed" : "unproven", study.state === "failed" ? "Failed" : "Cancelled", study.finding ?? "", null));
    return;
  }
  let recipe;
  try {
    recipe = await api.recipe(study.id);
  } catch (error) {
    put(place, card("unproven", "Done", study.finding ?? "", null, h("p", { class: "fine" }, error.message)));
    return;
  }
  recipe.contenders = differences(recipe);
  const shown = recipe.confirmed ? recipe.contenders.find((found) => found.evidence.label === recipe.best.label) : recipe.contenders[0];
  const settings = recipe.confirmed ? "Change these settings" : shown ? `What ${shown.evidence.label} changed (not proven)` : "Settings";
  put(
    place,
    card(
      recipe.confirmed ? "proven" : "unproven",
      recipe.confirmed ? "Confirmed result" : "Not proven",
      recipe.finding,
      exports(study.id, recipe.confirmed),
      h("div", { class: "parts" }, h("div", {}, h("h3", {}, "By load level"), perLevel(recipe, shown)), h("div", {}, h("h3", {}, settings), changed(recipe, shown))),
      recipe.contenders.length > 0 && h("div", { class: "parts" }, h("div", { class: "whole" }, h("h3", {}, "Finalists"), contenders(recipe))),
      evidence(recipe),
    ),
  );
}
