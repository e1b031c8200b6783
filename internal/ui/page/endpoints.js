// The list of endpoints, filtered, and drawn a part at a time.

import { address, state } from "./app.js";
import { byId, h, markOf, setText, toneOf, trafficOf } from "./dom.js";

const step = 100;
const filter = { text: "", target: "", verdict: "", traffic: "", shown: step };

// resetEndpoints forgets the filter.
export function resetEndpoints() {
  Object.assign(filter, { text: "", target: "", verdict: "", traffic: "", shown: step });
}

// showGroup lists the endpoints of a group of the picture.
export function showGroup(target, verdict, traffic) {
  Object.assign(filter, { text: "", target, verdict, traffic, shown: step });
  byId("endpoint-filter").value = "";
  drawEndpoints();
  const region = byId("endpoint-list");
  region.scrollIntoView({ block: "center" });
  region.focus({ preventScroll: true });
}

const rank = ["Unhealthy", "Unknown", "Unprobed", "Healthy"];

// sorted returns endpoints, worst first.
export function sorted() {
  return [...state.endpoints.values()].sort((a, b) =>
    rank.indexOf(a.verdict) - rank.indexOf(b.verdict) || a.ready - b.ready || a.tier - b.tier || (a.key < b.key ? -1 : 1));
}

function matches(endpoint) {
  return (!filter.target || endpoint.target === filter.target) && (!filter.verdict || endpoint.verdict === filter.verdict)
    && (!filter.traffic || trafficOf(endpoint) === filter.traffic)
    && `${endpoint.address} ${endpoint.target} ${endpoint.verdict} ${endpoint.slice} ${endpoint.zone ?? ""}`.toLowerCase()
      .includes(filter.text);
}

function line(endpoint) {
  return h("li", {}, h("button", {
    type: "button", "data-key": endpoint.key, onclick: () => { location.hash = address({ explain: endpoint.address }); },
  },
  h("span", { class: "badge " + toneOf(endpoint.verdict) }, `${markOf(endpoint.verdict)} ${endpoint.verdict}`),
  h("span", { class: "mono grow" }, endpoint.address),
  h("span", { class: "faint" }, `${endpoint.target || "no target"}, tier ${endpoint.tier}, ${trafficOf(endpoint)}`)));
}

// endpointPanel returns the panel, which drawEndpoints fills.
export function endpointPanel() {
  return h("section", { class: "panel", "aria-labelledby": "endpoint-title" },
    h("h3", { id: "endpoint-title" }, "Endpoints"),
    h("div", { class: "filter" },
      h("input", {
        id: "endpoint-filter", type: "search", "aria-label": "Filter endpoints", placeholder: "address, target, verdict, zone",
        autocomplete: "off", oninput: (event) => {
          Object.assign(filter, { text: event.target.value.toLowerCase(), shown: step });
          drawEndpoints();
        },
      }),
      h("button", { id: "endpoint-group", type: "button", onclick: () => { resetEndpoints(); drawEndpoints(); } }),
      h("span", { id: "endpoint-count", class: "faint", role: "status" })),
    h("ul", { id: "endpoint-list", class: "rows scroll", tabindex: "-1", "aria-label": "Endpoints" }));
}

// drawEndpoints fills the panel.
export function drawEndpoints(all = sorted()) {
  const list = byId("endpoint-list");
  const found = all.filter(matches);
  const focused = list.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  const at = list.scrollTop;
  list.replaceChildren(...found.slice(0, filter.shown).map(line));
  if (found.length > filter.shown) {
    list.append(h("li", {}, h("button", {
      type: "button", "data-key": "more", onclick: () => { filter.shown += step; drawEndpoints(); },
    }, `Show ${Math.min(step, found.length - filter.shown)} more of ${found.length}`)));
  }
  list.scrollTop = at;
  if (focused) list.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  const group = [filter.target, filter.verdict, filter.traffic].filter(Boolean).join(", ");
  byId("endpoint-group").hidden = !group;
  setText(byId("endpoint-group"), "✕ " + group);
  byId("endpoint-group").setAttribute("aria-label", `Remove the filter ${group}`);
  setText(byId("endpoint-count"), found.length === all.length ? `${all.length}` : `${found.length} of ${all.length}`);
}
