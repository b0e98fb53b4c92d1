// The panel of one trial.

import * as api from "./api.js";
import { byId, failureNote, h, put } from "./dom.js";
import { duration, gain, knob, metricName, number, percent, stateBadge, time, unit } from "./format.js";

const LOG_MS = 2000; // between two looks at the log of a running server

function section(title, ...content) {
  return h("section", {}, h("h3", {}, title), content);
}

function fact(name, value, kind = null, wide = false) {
  return h("div", { class: wide ? "whole" : null }, h("dt", {}, name), h("dd", { class: kind }, value));
}

function grid(heads, rows, label, numeric = true) {
  const kind = (i) => (i && numeric ? "number" : null);
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, heads.map((text, i) => h("th", { scope: "col", class: kind(i) }, text)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, i) => h("td", { class: kind(i) }, cell))))),
    ),
  );
}

function facts(trial, overview) {
  const metric = overview.study.spec.objective.metric;
  const value = trial.verdict?.objective ?? null;
  const won = gain(metric, overview.baseline_objective, value);
  const durations = Object.entries(trial.durations_s).map(([name, seconds]) => `${name.replaceAll("_", " ")} ${duration(seconds)}`);
  return h(
    "dl",
    { class: "facts" },
    value !== null && fact(metricName(metric), `${number(value)} ${unit(metric)}`, "big"),
    won !== null && fact("Against the baseline", percent(won), `big ${won > 0 ? "good-text" : ""}`),
    trial.verdict && fact("Verdict", trial.verdict.feasible ? "meets the SLA" : "breaks the SLA", `big ${trial.verdict.feasible ? "good-text" : "warn-text"}`),
    fact("Phase", trial.label === trial.phase ? trial.phase : `${trial.phase} · ${trial.label}`),
    fact("Started", time(trial.started_at)),
    fact("Finished", time(trial.finished_at)),
    fact("Attempt", String(trial.attempt)),
    trial.provenance && fact("Host", trial.provenance.host),
    durations.length > 0 && fact("Time spent", durations.join(" · "), null, true),
  );
}

// The line that decided, among its neighbours where the kept log holds it.
function decisive({ decisive_line: line }, context) {
  if (!context) return line && h("pre", { class: "code decisive" }, line);
  const rows = context.lines.map((text, i) => h(i === context.decisive ? "mark" : "span", {}, `${withoutColours(text)}\n`));
  return h("pre", { class: "code context", tabindex: "0", "aria-label": "The line that decided, with its neighbours in the log" }, rows);
}

function cause({ means, cause: from, settings }) {
  const names = settings.map(({ name, asked }, i) => [i > 0 && ", ", h("code", {}, asked === null ? name : `${name}=${asked}`)]);
  return [
    h("p", {}, means),
    h("p", {}, h("b", {}, "Likely cause: "), from),
    names.length > 0 && h("p", {}, h("b", {}, "Settings involved: "), names),
  ];
}

function failed({ failure, context, about, policy }) {
  return section(
    "Failure",
    h("p", {}, h("span", { class: "badge bad" }, failure.failure_class), ` in phase ${failure.phase}: ${failure.summary}`),
    decisive(failure, context),
    failure.exit_code !== null && h("p", { class: "muted" }, `exit code ${failure.exit_code}`),
    about && cause(about),
    policy && h("p", {}, h("b", {}, "What the study does: "), policy.sentence),
  );
}

// Every launch, where there was more than one.
function attempts(list) {
  if (list.length < 2) return null;
  const why = (one) => [one.failure_class && h("span", { class: "badge bad" }, one.failure_class), one.failure_class && " ", one.decisive_line ?? one.summary ?? ""];
  const rows = list.map((one) => [String(one.attempt), time(one.started_at), one.host ?? "–", one.ended ?? "running", h("div", { title: one.policy?.sentence ?? null }, why(one))]);
  return section("Attempts", grid(["Attempt", "Started", "Host", "Ended", "Why"], rows, "Attempts", false));
}

function judged(verdict) {
  const rows = verdict.margins.map((margin) => [
    h("code", {}, margin.limit),
    margin.level,
    number(margin.value),
    h("span", { class: margin.excess > 0 ? "bad-text" : "good-text" }, margin.excess > 0 ? `broken by ${(margin.excess * 100).toFixed(1)} %` : "holds"),
  ]);
  const others = verdict.reasons.filter((reason) => !reason.includes(" is broken at "));
  if (rows.length === 0 && others.length === 0) return null;
  return section(
    "SLA",
    others.length > 0 && h("ul", { class: "warn-text" }, others.map((reason) => h("li", {}, reason))),
    rows.length > 0 && grid(["Limit", "Level", "Value", "Margin"], rows, "Limits"),
  );
}

function difference(trial) {
  const rows = Object.entries(trial.changes).map(([name, [before, after]]) => [h("code", {}, name), knob(before), h("b", {}, knob(after))]);
  return section(
    "Difference from the baseline",
    rows.length ? grid(["Knob", "Baseline", "This trial"], rows, "Difference from the baseline", false) : h("p", { class: "muted" }, "None: this is the baseline."),
    trial.repairs.length > 0 && h("p", { class: "muted" }, "Changed by rules of the space: ", trial.repairs.join(", ")),
    trial.warnings.length > 0 && h("ul", { class: "warn-text" }, trial.warnings.map((text) => h("li", {}, text))),
  );
}

function measured({ levels, trust, trust_reasons: reasons }) {
  const rows = Object.values(levels).map((level) => [
    level.level,
    number(level.tpot_ms?.mean),
    number(level.tpot_ms?.p50),
    number(level.tpot_ms?.p99),
    number(level.ttft_ms?.mean),
    number(level.ttft_ms?.p99),
    number(level.e2e_ms?.mean),
    number(level.output_tok_s),
    level.failed ? h("span", { class: "bad-text" }, `${level.failed} of ${level.sent}`) : `0 of ${level.sent}`,
  ]);
  return section(
    "Measurement",
    trust !== "ok" && h("div", { class: `note ${trust === "invalid" ? "bad" : "warn"}` }, trust === "invalid" ? "Not trusted" : "With reservation", h("ul", {}, reasons.map((reason) => h("li", {}, reason)))),
    grid(["Level", "TPOT ms", "p50", "p99", "TTFT ms", "p99", "E2E ms", "tok/s", "Failed"], rows, "Measurement by level"),
    counters(levels),
  );
}

// What the servers' own counters say; nothing where they say nothing.
function counters(levels) {
  const rows = Object.values(levels).flatMap((level) =>
    Object.entries(level.server ?? {}).map(([role, truth]) => [
      level.level,
      role,
      number(truth.finished),
      number(truth.generation_tokens),
      number(truth.cached_tokens),
      number(truth.tpot_mean_ms),
      number(truth.ttft_mean_ms),
      number(truth.drafts ? 1 + truth.accepted_tokens / truth.drafts : null),
      number(truth.preemptions),
    ]),
  );
  const head = ["By the server", "Role", "Requests", "Tokens", "Cached", "TPOT ms", "TTFT ms", "Tokens a step", "Preempted"];
  return rows.length > 0 && grid(head, rows, "The server's own counters");
}

// Terminal colours mean nothing here.
function withoutColours(text) {
  return text.replaceAll(/\u001b\[[0-9;]*[A-Za-z]/g, "");
}

function word(text) {
  return /^[\w@%+=:,./{}-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

// One option a line, as one would write it in a script.
function command(argv) {
  return argv.map((item, i) => (i === 0 ? word(item) : item.startsWith("-") ? ` \\\n  ${word(item)}` : ` ${word(item)}`)).join("");
}

async function copy(button, text) {
  await navigator.clipboard.writeText(text);
  button.textContent = "Copied";
}

function launch(role, { env, argv, preload = [] }, known) {
  const lines = [...Object.entries(env).map(([name, value]) => `${name}=${word(value)}`), ...preload.map((name) => `# preloads ${name}`)];
  const text = [...lines, command(argv)].filter(Boolean).join("\n");
  return h(
    "section",
    {},
    h("div", { class: "section-head" }, h("h3", {}, known ? `Launched: ${role}` : `On top of the template: ${role}`), h("button", { class: "button", type: "button", onclick: (event) => copy(event.currentTarget, text) }, "Copy")),
    h("pre", { class: "code wrap", tabindex: "0", "aria-label": `Environment and command of ${role}` }, text || "nothing beyond the template"),
  );
}

function launches(trial) {
  const known = Object.keys(trial.provenance?.roles ?? {}).length > 0;
  const roles = known ? trial.provenance.roles : trial.plan.roles;
  return Object.entries(roles).map(([role, plan]) => launch(role, plan, known));
}

// Gives a function that shows a trial, or nothing for null.
export function trialDetail({ studyId, onSelect, overview, last }) {
  const panel = byId("detail");
  const title = byId("detail-title");
  const inside = byId("detail-inside");
  const logText = h("pre", { class: "code", tabindex: "0", "aria-label": "End of the server's log" });
  let current = null;
  let opener = null;
  let ticking = null;

  async function showLog(trial) {
    const text = await api.log(studyId, trial.number).catch(() => "");
    if (current !== trial.number) return;
    const atEnd = logText.scrollTop + logText.clientHeight >= logText.scrollHeight - 8;
    logText.textContent = withoutColours(text) || (trial.state === "running" ? "No line yet, or the server runs on another host." : "No log was kept.");
    if (atEnd) logText.scrollTop = logText.scrollHeight;
  }

  function fill(trial) {
    const now = overview();
    const running = trial.state === "running";
    put(
      inside,
      facts(trial, now),
      trial.failure && failed(trial),
      attempts(trial.attempts),
      difference(trial),
      trial.verdict && judged(trial.verdict),
      trial.measurement && measured(trial.measurement),
      launches(trial),
      trial.attempt > 0 && section(running ? "Log (live)" : "End of the log", logText),
    );
    put(byId("detail-state"), stateBadge(trial.state));
    clearInterval(ticking);
    if (trial.attempt > 0) showLog(trial);
    if (running) ticking = setInterval(() => showLog(trial), LOG_MS);
  }

  async function load() {
    const number = current;
    try {
      const trial = await api.trial(studyId, number);
      if (current === number) fill(trial);
    } catch (error) {
      if (current === number) put(inside, error.status === 404 ? h("div", { class: "empty" }, h("h2", {}, "There is no such trial")) : failureNote(error, load));
    }
  }

  function close() {
    clearInterval(ticking);
    current = null;
    panel.hidden = true;
    opener?.focus();
    opener = null;
  }

  function show(number) {
    if (number === null) {
      if (current !== null) close();
      return;
    }
    if (number === current) return;
    const first = current === null;
    current = number;
    clearInterval(ticking);
    title.textContent = `Trial ${number}`;
    byId("detail-previous").disabled = number === 0;
    byId("detail-next").disabled = number >= last();
    put(byId("detail-state"));
    put(inside, h("div", { class: "loading" }, "Loading…"));
    logText.textContent = "";
    panel.hidden = false;
    inside.scrollTop = 0;
    if (first) {
      opener = document.activeElement === document.body ? null : document.activeElement;
      title.focus({ preventScroll: true });
    }
    load();
  }

  byId("detail-close").addEventListener("click", () => onSelect(null));
  byId("detail-previous").addEventListener("click", () => onSelect(current - 1));
  byId("detail-next").addEventListener("click", () => onSelect(current + 1));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && current !== null) onSelect(null);
  });

  // `changed`: numbers of trials that are no longer as they were.
  function refresh(changed) {
    if (current === null) return;
    byId("detail-next").disabled = current >= last();
    if (changed.has(current)) load();
  }

  return { show, refresh };
}
