// The list of studies.

import * as api from "./api.js";
import { byId, failureNote, h, meter, put } from "./dom.js";
import { follow, gather } from "./events.js";
import { count, metricName, number, percent, stateBadge, time, unit } from "./format.js";
import * as url from "./url_state.js";

const PAGE = 25;
const MOST_NOTES = 3;
const list = byId("studies");
const notes = byId("devices");
const filter = byId("state");

function line({ study, counts, trials_total, baseline_objective, best }) {
  const { spec } = study;
  const metric = spec.objective.metric;
  const failed = counts.failed ?? 0;
  const gain = best?.gain_pct ?? null;
  return h(
    "tr",
    {},
    h(
      "td",
      { class: "name" },
      h("a", { href: `/studies/${study.id}` }, spec.name),
      h("div", { class: "muted" }, `${spec.deployment.model} · ${spec.space}`),
    ),
    h("td", {}, stateBadge(study.state)),
    h("td", {}, study.state === "running" ? study.phase : h("span", { class: "muted" }, study.phase)),
    h(
      "td",
      { class: "progress" },
      meter(
        [
          { share: (trials_total - failed) / spec.budget.trials, kind: "" },
          { share: failed / spec.budget.trials, kind: "bad" },
        ],
        `${trials_total} of ${spec.budget.trials} trials`,
      ),
      h("div", { class: "muted" }, `${trials_total} of ${count(spec.budget.trials, "trial")}${failed ? `, ${failed} failed` : ""}`),
    ),
    h(
      "td",
      { class: "number" },
      h("div", { class: `gain ${gain > 0 ? "good-text" : ""}` }, percent(gain)),
      h("div", { class: "muted" }, best ? `${metricName(metric)} ${number(best.objective)} ${unit(metric)}` : baseline_objective ? "baseline only" : "no value yet"),
    ),
    h("td", { class: "nowrap muted" }, time(study.created_at)),
  );
}

function table(items) {
  const heads = ["Study", "State", "Phase", "Progress", "Best gain", "Created"];
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": "Studies" },
    h(
      "table",
      { class: "studies" },
      h("thead", {}, h("tr", {}, heads.map((text) => h("th", { scope: "col", class: text === "Best gain" ? "number" : null }, text)))),
      h("tbody", {}, items.map(line)),
    ),
  );
}

function nothing(state) {
  if (state) return h("div", { class: "empty" }, h("h2", {}, `No study is ${state}`), "Choose another state above.");
  return h(
    "div",
    { class: "empty" },
    h("h2", {}, "No studies yet"),
    h("p", {}, "A study searches the settings of one model under one load. Create the first:"),
    h("pre", { tabindex: "0" }, "autotune study create study.yaml"),
  );
}

function pager(page) {
  if (page.total <= PAGE) return null;
  const go = (offset) => () => {
    url.write({ offset: offset || "" });
    load();
  };
  const last = Math.min(page.offset + PAGE, page.total);
  return h(
    "div",
    { class: "pager" },
    `${page.offset + 1} to ${last} of ${page.total}`,
    h("button", { class: "button", type: "button", disabled: page.offset === 0, onclick: go(Math.max(0, page.offset - PAGE)) }, "Newer"),
    h("button", { class: "button", type: "button", disabled: last >= page.total, onclick: go(page.offset + PAGE) }, "Older"),
  );
}

// What keeps trials from devices and asks for somebody: quarantines, hosts that do not answer.
function complaints(hosts) {
  return hosts.flatMap(({ host, problem, devices }) => [
    ...(problem ? [`${host} takes no trials now, it cannot be asked: ${problem}`] : []),
    ...devices.flatMap(({ index, quarantine }) => (quarantine ? [`Device ${index} of ${host} is in quarantine: ${quarantine.reason}`] : [])),
  ]);
}

async function loadNotes() {
  // The studies say it when the service does not answer.
  const found = complaints(await api.hosts().catch(() => []));
  const more = found.length - MOST_NOTES;
  put(
    notes,
    found.slice(0, MOST_NOTES).map((text) => h("div", { class: "note warn" }, text)),
    more > 0 ? h("div", { class: "note warn" }, `and ${more} more: autotune hosts`) : null,
  );
}

async function load() {
  loadNotes();
  const state = url.read("state");
  const offset = Number.parseInt(url.read("offset", "0"), 10) || 0;
  try {
    const page = await api.studies(state, offset, PAGE);
    put(list, page.items.length ? table(page.items) : nothing(state), pager(page));
  } catch (error) {
    put(list, h("div", { class: "body" }, failureNote(error, load)));
  }
  list.setAttribute("aria-busy", "false");
}

filter.value = url.read("state");
filter.addEventListener("change", () => {
  url.write({ state: filter.value, offset: "" });
  load();
});
await load();
const reload = gather(load, 1000);
follow({ after: Number(document.body.dataset.lastEvent), onEvent: reload, onReturn: reload });
