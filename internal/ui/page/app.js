// The page: what it knows, the stream that keeps it current, and the address that says what is open.

import { byId, h, setText } from "./dom.js";
import { drawCards } from "./cards.js";
import { drawDetail, openedDetail } from "./detail.js";
import { showChain, closeDialog } from "./chain.js";
import { noteBackend, noteRow } from "./timeline.js";

// state is all that the page knows. rows and endpoints are maps by key.
export const state = {
  rows: new Map(), notice: "", head: null, error: "", endpoints: new Map(), open: "", query: "", only: "", explain: "",
  version: 0, // grows with each change of endpoints
};

let source = null;
let drawing = false;

// draw draws once before the next frame, however much has changed.
function draw() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    drawCards();
    drawDetail();
    byId("notice").hidden = !state.notice;
    setText(byId("notice"), state.notice);
  });
}

function live(text, on) {
  setText(byId("live"), text);
  byId("live").classList.toggle("off", !on);
}

function connect() {
  source?.close();
  source = new EventSource("events" + (state.open ? "?open=" + encodeURIComponent(state.open) : ""));
  source.addEventListener("open", () => live("live", true));
  source.addEventListener("error", () => {
    const ended = source.readyState === EventSource.CLOSED;
    live(ended ? "refused: close another page of this server, and reload" : "not connected, trying again", false);
  });
  source.addEventListener("rows", (event) => takeRows(JSON.parse(event.data)));
  source.addEventListener("backend", (event) => takeBackend(JSON.parse(event.data)));
}

function takeRows(update) {
  const stale = update.reset ? new Set(state.rows.keys()) : new Set();
  for (const row of update.put ?? []) {
    const key = row.namespace + "/" + row.name;
    stale.delete(key);
    noteRow(key, state.rows.get(key), row);
    state.rows.set(key, row);
  }
  for (const key of [...stale, ...(update.gone ?? [])]) {
    noteRow(key, state.rows.get(key), null);
    state.rows.delete(key);
  }
  if (update.reset) { // the stream knows nothing of what was opened before
    state.endpoints = new Map();
  }
  state.notice = update.notice;
  draw();
}

function takeBackend(update) {
  if (update.key !== state.open) return;
  state.error = update.error ?? "";
  if (update.head) {
    noteBackend(update.key, state.head, update.head);
    state.head = update.head;
  }
  for (const endpoint of update.put ?? []) state.endpoints.set(endpoint.key, endpoint);
  for (const key of update.gone ?? []) state.endpoints.delete(key);
  state.version++;
  draw();
}

// address returns the hash of a state of the page.
export function address(change) {
  const next = { open: state.open, query: state.query, only: state.only, explain: "", ...change };
  const hash = new URLSearchParams();
  for (const [name, value] of Object.entries(next)) if (value) hash.set(name, value);
  return "#" + hash;
}

function follow() {
  const hash = new URLSearchParams(location.hash.slice(1));
  const open = hash.get("open") ?? "";
  const changed = open !== state.open;
  for (const name of ["open", "query", "only", "explain"]) state[name] = hash.get(name) ?? "";
  if (changed || !source) {
    state.head = null;
    state.error = "";
    state.endpoints = new Map();
    connect();
  }
  document.body.classList.toggle("opened", open !== "");
  if (byId("search").value !== state.query) byId("search").value = state.query;
  draw();
  if (changed && open) openedDetail();
  if (state.explain) showChain(state.open, state.explain);
  else closeDialog();
}

byId("search").addEventListener("input", (event) => {
  state.query = event.target.value;
  history.replaceState(null, "", address({}));
  draw();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.target.closest("input, textarea, select, dialog")) {
    event.preventDefault();
    byId("search").focus();
  }
});
addEventListener("hashchange", follow);
addEventListener("pagehide", () => source?.close());
addEventListener("pageshow", (event) => event.persisted && connect());

fetch("about").then((answer) => answer.json()).then((about) => {
  byId("about").replaceChildren(h("span", {}, about.title));
  document.title = "External backends, " + about.title;
});
setInterval(draw, 10000); // ages
follow();
