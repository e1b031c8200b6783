// Making elements. Every text goes into the document as text.

const svgSpace = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  for (const child of children.flat()) {
    if (child != null && child !== "") element.append(child);
  }
  return element;
}

// h makes an HTML element, s one of SVG. Children are elements and texts.
export const h = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
export const s = (name, attributes = {}, ...children) =>
  fill(document.createElementNS(svgSpace, name), attributes, children);

export const byId = (id) => document.getElementById(id);

// shorten cuts a text that has no room.
export function shorten(text, length) {
  const letters = Array.from(text);
  return letters.length <= length ? text : letters.slice(0, length - 1).join("") + "…";
}

// setText changes a text only if it differs, so that screen readers do not repeat it.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const units = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];

// age says how long ago a time was.
export function age(time) {
  const seconds = Math.max(0, (Date.now() - new Date(time)) / 1000);
  for (const [unit, length] of units) {
    if (seconds >= length) return Math.floor(seconds / length) + unit;
  }
  return "0s";
}

export const clock = (time) => new Date(time).toLocaleTimeString([], { hour12: false });

const verdictTones = { Healthy: "good", Unhealthy: "bad", Unknown: "unknown", Unprobed: "unknown" };
const verdictMarks = { Healthy: "✓", Unhealthy: "✕", Unknown: "?", Unprobed: "–" };
const stateTones = { Healthy: "good", Degraded: "warn", Down: "bad", Unknown: "unknown" };
const stateMarks = { Healthy: "✓", Degraded: "!", Down: "✕", Unknown: "?" };

export const toneOf = (verdict) => verdictTones[verdict] ?? "unknown";
export const markOf = (verdict) => verdictMarks[verdict] ?? "?";
export const stateTone = (state) => stateTones[state] ?? "unknown";
export const stateBadge = (state) =>
  h("span", { class: "badge " + stateTone(state) }, `${stateMarks[state] ?? "?"} ${state}`);

// trafficOf says whether traffic goes to an endpoint.
export function trafficOf(endpoint) {
  if (endpoint.ready) return "gets traffic";
  return endpoint.terminating && endpoint.serving ? "drains" : "gets no traffic";
}
