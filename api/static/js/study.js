// The page of one study: loads it, then follows its events and fetches only what has changed.

import * as api from "./api.js";
import { byId, failureNote, h, put } from "./dom.js";
import { follow, gather } from "./events.js";
import { showPhases, showState, showTiles } from "./figures.js";
import { time } from "./format.js";
import { progressPlot } from "./progress_plot.js";
import { showResult } from "./result.js";
import { trialDetail } from "./trial_detail.js";
import { trialTable } from "./trial_table.js";
import * as url from "./url_state.js";

const BATCH = 500;
const id = Number(document.body.dataset.study);
const rows = new Map();
const dirty = new Set();
let overview = null;
let result = null;

const showPlot = progressPlot(url.selectTrial);
const showTable = trialTable(url.selectTrial);
const detail = trialDetail({ studyId: id, onSelect: url.selectTrial, overview: () => overview, last: () => rows.size - 1 });

function ordered() {
  return [...rows.values()].sort((a, b) => a.number - b.number);
}

async function fetchRows(from, to = Infinity) {
  for (let offset = from; offset <= to; offset += BATCH) {
    const page = await api.trials(id, offset, Math.min(BATCH, to - offset + 1));
    for (const row of page.items) rows.set(row.number, row);
    if (offset + BATCH >= page.total) return;
  }
}

function show() {
  const all = ordered();
  const { study } = overview;
  const selected = url.selectedTrial();
  showState(study);
  showPhases(study, all);
  showTiles(overview, all);
  showTable(overview, all, selected);
  showPlot(overview, all, selected);
  const ended = `${study.state} ${study.finished_at}`;
  if (ended !== result) {
    result = ended;
    showResult(study);
    put(byId("when"), "created ", time(study.created_at), study.finished_at ? [", ended ", time(study.finished_at)] : null);
  }
}

// Trials are numbered without gaps, so that a number is also a place in the list.
async function refresh() {
  const changed = new Set(dirty);
  dirty.clear();
  try {
    if (changed.size) await fetchRows(Math.min(...changed), Math.max(...changed));
    overview = await api.study(id);
    show();
    detail.refresh(changed);
  } catch (error) {
    if (!(error instanceof api.ApiError)) throw error;
    // The service is away, as the sign at the top says; what was missed stays noted.
    for (const number of changed) dirty.add(number);
    setTimeout(ask, 2000);
  }
}

const ask = gather(refresh, 200);

async function start() {
  try {
    overview = await api.study(id);
    await fetchRows(0);
  } catch (error) {
    put(byId("trials"), h("div", { class: "body" }, failureNote(error, start)));
    return;
  }
  show();
  detail.show(url.selectedTrial());
  follow({
    after: Number(document.body.dataset.lastEvent),
    studyId: id,
    onEvent: (event) => {
      if (event.trial_number !== null) dirty.add(event.trial_number);
      ask();
    },
    onReturn: ask,
  });
}

addEventListener("hashchange", () => {
  if (overview === null) return;
  detail.show(url.selectedTrial());
  const all = ordered();
  showTable(overview, all, url.selectedTrial());
  showPlot(overview, all, url.selectedTrial());
});
await start();
