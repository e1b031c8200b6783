// The list of ExternalBackends, worst first. Only the first ones are in the document; more follow
// as the reader scrolls.

import { address, state } from "./app.js";
import { byId, h, setText, stateBadge } from "./dom.js";

const step = 60;
const worstFirst = ["Down", "Degraded", "Unknown", "Healthy"];
const cards = new Map(); // by key: the element, and what it shows
let shown = step;
let lastFilter = "";

new IntersectionObserver((entries) => {
  if (entries.some((entry) => entry.isIntersecting) && shown < matching().length) {
    shown += step;
    drawCards();
  }
}, { rootMargin: "600px" }).observe(byId("more-cards"));

function matching() {
  const words = state.query.toLowerCase().split(/\s+/).filter(Boolean);
  const found = [];
  for (const [key, row] of state.rows) {
    if (state.only && row.state !== state.only) continue;
    const text = `${key} ${row.state} ${row.service} ${row.why ?? ""} ${row.override ?? ""}`.toLowerCase();
    if (words.every((word) => text.includes(word))) found.push([key, row]);
  }
  const rank = (row) => worstFirst.indexOf(row.state);
  return found.sort((a, b) => rank(a[1]) - rank(b[1]) || (a[0] < b[0] ? -1 : 1));
}

function makeCard(key, row) {
  const tier = row.activeTier == null ? "no active tier" : `tier ${row.activeTier} active`;
  return h("li", {}, h("a", { href: address({ open: key }), class: row.state, "data-key": key },
    h("span", { class: "line" }, h("strong", {}, row.name), stateBadge(row.state)),
    h("span", { class: "line faint" }, h("span", {}, row.namespace), h("span", {}, `${row.ready} ready, ${tier}`)),
    row.override ? h("span", { class: "badge warn" }, "override " + row.override) : "",
    row.why ? h("span", { class: "faint clamp" }, row.why) : ""));
}

function drawStates() {
  const counts = {};
  for (const row of state.rows.values()) counts[row.state] = (counts[row.state] ?? 0) + 1;
  const group = byId("states");
  if (!group.firstChild) {
    for (const name of ["", ...worstFirst]) {
      group.append(h("button", {
        type: "button", "data-only": name, onclick: () => { location.hash = address({ only: name }); },
      }));
    }
  }
  for (const button of group.children) {
    const name = button.dataset.only;
    setText(button, `${name || "All"} ${name ? counts[name] ?? 0 : state.rows.size}`);
    button.setAttribute("aria-pressed", String(state.only === name));
  }
}

// drawCards changes only what differs, and keeps the focus.
export function drawCards() {
  drawStates();
  const filter = state.only + " " + state.query;
  if (filter !== lastFilter) shown = step;
  lastFilter = filter;

  const found = matching();
  const list = byId("cards");
  const focused = list.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  const kept = new Set();
  let place = list.firstElementChild;
  for (const [key, row] of found.slice(0, shown)) {
    kept.add(key);
    const text = JSON.stringify([row, filter]);
    let card = cards.get(key);
    if (card?.text !== text) {
      const element = makeCard(key, row);
      if (card?.element === place) place = element;
      card?.element.replaceWith(element);
      cards.set(key, card = { element, text });
    }
    if (card.element === place) place = place.nextElementSibling;
    else list.insertBefore(card.element, place);
    const link = card.element.firstElementChild;
    if (key === state.open) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
    if (key === focused && document.activeElement !== link) link.focus({ preventScroll: true });
  }
  for (const [key, card] of cards) {
    if (kept.has(key)) continue;
    card.element.remove();
    cards.delete(key);
  }
  const all = state.rows.size;
  const noun = all === 1 ? "ExternalBackend" : "ExternalBackends";
  setText(byId("count"), found.length === all ? `${all} ${noun}` : `${found.length} of ${all} ${noun}`);
}
