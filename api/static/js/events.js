// The event stream: takes up where it lost the server, and says so while it has.

import { eventsUrl } from "./api.js";
import { byId } from "./dom.js";

const WORDS = { connecting: "connecting", live: "live", reconnecting: "reconnecting", paused: "paused" };
const AGAIN_MS = 2000;

function show(state) {
  const sign = byId("connection");
  sign.dataset.state = state;
  sign.textContent = WORDS[state];
}

// Calls `onEvent` for every event after the given one, `onReturn` when the server is back after an outage.
export function follow({ after, studyId = null, onEvent, onReturn }) {
  let last = after;
  let source = null;
  let lost = false;

  function open() {
    show(lost ? "reconnecting" : "connecting");
    source = new EventSource(eventsUrl(last, studyId));
    source.onopen = () => {
      show("live");
      if (lost) onReturn();
      lost = false;
    };
    source.onmessage = (message) => {
      last = Number(message.lastEventId);
      onEvent(JSON.parse(message.data));
    };
    source.onerror = () => {
      lost = true;
      show("reconnecting");
      // The browser gives up after an answer that is no stream; a service that starts gives such answers.
      if (source.readyState === EventSource.CLOSED) setTimeout(() => source?.readyState === EventSource.CLOSED && open(), AGAIN_MS);
    };
  }

  function close() {
    source?.close();
    source = null;
  }

  // A browser opens six connections to one host at most: tabs that nobody sees must not hold one each.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      close();
      show("paused");
    } else if (source === null) {
      open();
    }
  });
  addEventListener("pagehide", close);
  if (document.hidden) show("paused");
  else open();
}

// Collects calls and runs `work` once, `delay` ms after the first; never two at a time.
export function gather(work, delay) {
  let timer = null;
  let busy = false;
  let again = false;

  async function run() {
    timer = null;
    busy = true;
    try {
      await work();
    } finally {
      busy = false;
      if (again) {
        again = false;
        ask();
      }
    }
  }

  function ask() {
    if (busy) again = true;
    else timer ??= setTimeout(run, delay);
  }

  return ask;
}
