// What the viewer chose, kept in the address so that a link shows the same.

export function read(name, fallback = "") {
  return new URLSearchParams(location.search).get(name) ?? fallback;
}

export function write(values) {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(values)) {
    if (value === "" || value === null || value === undefined) query.delete(name);
    else query.set(name, value);
  }
  const text = query.toString();
  history.replaceState(null, "", `${location.pathname}${text ? `?${text}` : ""}${location.hash}`);
}

export function selectedTrial() {
  const found = /^#trial=(\d+)$/.exec(location.hash);
  return found ? Number(found[1]) : null;
}

export function selectTrial(number) {
  if (number === null) history.pushState(null, "", location.pathname + location.search);
  else history.pushState(null, "", `#trial=${number}`);
  dispatchEvent(new HashChangeEvent("hashchange"));
}
