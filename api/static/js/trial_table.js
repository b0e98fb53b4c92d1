// The table of trials: sorted and filtered as the address says, a hundred rows at a time.

import { byId, h, put } from "./dom.js";
import { chips, count, gain, levelName, number, percent, stateBadge } from "./format.js";
import * as url from "./url_state.js";

const PAGE = 100;
const CHIPS = 4;
const FILTERS = ["state", "phase", "failure"];

function value(map, level) {
  return map[level] ?? null;
}

// `ttft_p99_ms <= 900 is broken at c32: 1041` comes as `c32: ttft_p99_ms 1041`; the title holds the sentence.
function short(reasons) {
  const text = (reasons[0] ?? "").replace(/^(\w+) .+ is broken at (\S+): (.+)$/, "$2: $1 $3");
  return reasons.length > 1 ? `${text} +${reasons.length - 1}` : text;
}

function verdict(row) {
  if (row.failure) return h("span", { class: "badge bad", title: row.failure.summary }, row.failure.failure_class);
  if (!row.verdict) return null;
  if (row.verdict.feasible) return h("span", { class: "good-text" }, "meets SLA");
  return h("span", { class: "warn-text", title: row.verdict.reasons.join("\n") }, short(row.verdict.reasons) || "breaks SLA");
}

// Feasible first, then by limit, then by failure class.
function verdictOrder(row) {
  if (row.failure) return `2 ${row.failure.failure_class}`;
  if (!row.verdict) return null;
  return row.verdict.feasible ? "0" : `1 ${row.verdict.reasons[0] ?? ""}`;
}

function columns(spec, overview) {
  const levels = spec.workload.levels.map(levelName);
  const busiest = levelName(spec.workload.levels.reduce((most, level) => (level.concurrency >= most.concurrency ? level : most)));
  const metric = spec.objective.metric;
  const won = (row) => gain(metric, overview.baseline_objective, row.verdict?.objective ?? null);
  const best = overview.best?.number;
  return [
    {
      key: "number",
      title: "Trial",
      sort: (row) => row.number,
      cell: (row) => [h("a", { href: `#trial=${row.number}` }, `#${row.number}`), row.number === best && h("span", { class: "best-mark" }, "★ best")],
    },
    { key: "phase", title: "Phase", sort: (row) => row.phase, cell: (row) => row.phase },
    { key: "label", title: "Label", kind: "names", sort: (row) => row.label, cell: (row) => (row.label === row.phase ? h("span", { class: "muted" }, "–") : row.label) },
    { key: "state", title: "State", sort: (row) => row.state, cell: (row) => [stateBadge(row.state), row.attempt > 1 && h("div", { class: "muted" }, `attempt ${row.attempt}`)] },
    ...levels.map((level) => ({
      key: `tpot-${level}`,
      title: `TPOT ${level}`,
      unit: "ms",
      sort: (row) => value(row.tpot_ms, level),
      cell: (row) => number(value(row.tpot_ms, level)),
    })),
    { key: "ttft", title: `TTFT ${busiest}`, unit: "ms", sort: (row) => value(row.ttft_ms, busiest), cell: (row) => number(value(row.ttft_ms, busiest)) },
    { key: "gain", title: "Gain", unit: "%", sort: won, cell: (row) => h("span", { class: won(row) > 0 && row.verdict?.feasible ? "good-text" : "" }, percent(won(row))) },
    { key: "verdict", title: "Verdict or failure", sort: verdictOrder, cell: verdict, kind: "verdict" },
    { key: "changes", title: "Difference from the baseline", sort: (row) => Object.keys(row.changes).length, cell: (row) => chips(row.changes, CHIPS), kind: "changes" },
  ];
}

// Rows without a value stand last, whichever way it is sorted.
function sorted(rows, column, descending) {
  const way = descending ? -1 : 1;
  return [...rows].sort((a, b) => {
    const left = column.sort(a);
    const right = column.sort(b);
    if (left === null || right === null) return (left === null) - (right === null) || a.number - b.number;
    const order = typeof left === "string" ? left.localeCompare(right) : left - right;
    return order * way || a.number - b.number;
  });
}

function head(column, current, descending, onSort) {
  const numeric = column.unit !== undefined;
  const order = column.key === current ? (descending ? "descending" : "ascending") : "none";
  return h(
    "th",
    { scope: "col", class: numeric ? "number" : null, "aria-sort": order },
    h("button", { type: "button", "data-key": `sort-${column.key}`, onclick: () => onSort(column.key) }, h("span", {}, column.title, column.unit && h("small", {}, column.unit))),
  );
}

// Gives a function that shows these rows.
export function trialTable(onSelect) {
  const place = byId("trials");
  const summary = byId("trials-count");
  const choices = Object.fromEntries(FILTERS.map((name) => [name, byId(`filter-${name}`)]));
  let shown = null;

  function change(values) {
    url.write(values);
    show(...shown);
  }

  function failureClasses(rows) {
    const select = choices.failure;
    const classes = [...new Set(rows.filter((row) => row.failure).map((row) => row.failure.failure_class))].sort();
    const wanted = url.read("failure");
    if (wanted && !classes.includes(wanted)) classes.push(wanted);
    const names = ["", ...classes];
    if (names.join() !== [...select.options].map((option) => option.value).join()) {
      put(select, names.map((name) => h("option", { value: name }, name || "any")));
    }
    for (const name of FILTERS) choices[name].value = url.read(name);
  }

  function onSort(key) {
    const same = url.read("sort", "number") === key;
    const descending = same && url.read("order") !== "down";
    change({ sort: key === "number" ? "" : key, order: descending ? "down" : "", page: "" });
  }

  function line(row, all, selected) {
    return h(
      "tr",
      {
        class: "link",
        "aria-current": row.number === selected ? "true" : null,
        onclick: (event) => {
          if (!event.target.closest("a") && !getSelection().toString()) onSelect(row.number);
        },
      },
      all.map((column) => h("td", { class: column.unit === undefined ? (column.kind ?? null) : "number" }, column.cell(row))),
    );
  }

  function pager(total, page) {
    const pages = Math.ceil(total / PAGE);
    if (pages <= 1) return null;
    const go = (to) => () => change({ page: to > 1 ? to : "" });
    return h(
      "div",
      { class: "pager" },
      `page ${page} of ${pages}`,
      h("button", { class: "button", type: "button", "data-key": "previous", disabled: page <= 1, onclick: go(page - 1) }, "Previous"),
      h("button", { class: "button", type: "button", "data-key": "next", disabled: page >= pages, onclick: go(page + 1) }, "Next"),
    );
  }

  function show(overview, rows, selected) {
    shown = [overview, rows, selected];
    failureClasses(rows);
    const all = columns(overview.study.spec, overview);
    const key = url.read("sort", "number");
    const column = all.find((candidate) => candidate.key === key) ?? all[0];
    const descending = url.read("order") === "down";
    const wanted = rows.filter(
      (row) =>
        (!url.read("state") || row.state === url.read("state")) &&
        (!url.read("phase") || row.phase === url.read("phase")) &&
        (!url.read("failure") || row.failure?.failure_class === url.read("failure")),
    );
    const ordered = sorted(wanted, column, descending);
    const page = Math.min(Math.max(1, Number.parseInt(url.read("page", "1"), 10) || 1), Math.max(1, Math.ceil(ordered.length / PAGE)));
    summary.textContent = wanted.length === rows.length ? count(rows.length, "trial") : `${wanted.length} of ${count(rows.length, "trial")}`;
    if (ordered.length === 0) {
      const text = rows.length ? "No trial is like that" : "No trials yet";
      const why = rows.length ? "Loosen the filters above." : overview.study.state === "running" ? "The first launch of the baseline appears here." : "The study ended before its first launch.";
      put(place, h("div", { class: "empty" }, h("h2", {}, text), h("p", {}, why)));
      return;
    }
    const visible = ordered.slice((page - 1) * PAGE, page * PAGE);
    const scrolled = place.querySelector(".scroll")?.scrollLeft ?? 0;
    put(
      place,
      h(
        "div",
        { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of trials" },
        h(
          "table",
          { class: "trials" },
          h("thead", {}, h("tr", {}, all.map((candidate) => head(candidate, column.key, descending, onSort)))),
          h("tbody", {}, visible.map((row) => line(row, all, selected))),
        ),
      ),
      pager(ordered.length, page),
    );
    place.querySelector(".scroll").scrollLeft = scrolled;
  }

  for (const name of FILTERS) choices[name].addEventListener("change", () => change({ [name]: choices[name].value, page: "" }));
  return show;
}
