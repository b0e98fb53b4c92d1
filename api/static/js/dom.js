// Elements from data. Every child that is no element becomes a text node: nothing is ever parsed as markup.

const SVG = "http://www.w3.org/2000/svg";

function build(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function h(tag, properties, ...children) {
  return build(document.createElement(tag), properties, children);
}

export function svg(tag, properties, ...children) {
  return build(document.createElementNS(SVG, tag), properties, children);
}

export function byId(id) {
  return document.getElementById(id);
}

// Replaces what is in `parent`; what had the focus there has it afterwards, found again by its link or key.
export function put(parent, ...children) {
  const held = parent.contains(document.activeElement) ? document.activeElement : null;
  const key = held?.dataset.key ?? held?.getAttribute("href");
  parent.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  if (!held || parent.contains(document.activeElement)) return;
  if (parent.contains(held)) held.focus({ preventScroll: true });
  else if (key) [...parent.querySelectorAll("[href], [data-key]")].find((e) => (e.dataset.key ?? e.getAttribute("href")) === key)?.focus({ preventScroll: true });
}

// A bar of parts that share its length; `parts` are {share: 0..1, kind}.
export function meter(parts, label) {
  const bar = h("div", { class: "meter", role: "img", "aria-label": label });
  for (const { share, kind } of parts) {
    const part = h("i", { class: kind });
    part.style.width = `${Math.min(1, Math.max(0, share)) * 100}%`;
    bar.append(part);
  }
  return bar;
}

export function failureNote(error, again) {
  return h(
    "div",
    { class: "note bad", role: "alert" },
    h("b", {}, "This did not work. "),
    error.message,
    " ",
    again && h("button", { class: "button", type: "button", onclick: again }, "Try again"),
  );
}
