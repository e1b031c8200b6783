// The opened ExternalBackend.

import { address, state } from "./app.js";
import { age, byId, h, stateBadge } from "./dom.js";
import { drawEndpoints, endpointPanel, resetEndpoints, sorted } from "./endpoints.js";
import { moveButtons, updateMoves } from "./moves.js";
import { picture } from "./picture.js";
import { timeline } from "./timeline.js";

let builtFor = "";
let drawnHead = null;
let drawnEndpoints = "";

// The picture is a stack where the window is narrow.
const phone = matchMedia("(max-width: 600px)");
phone.addEventListener("change", () => {
  drawnHead = null;
  drawDetail();
});

// openedDetail moves the reader to what was opened.
export function openedDetail() {
  resetEndpoints();
  byId("main").focus();
}

function build() {
  builtFor = state.open;
  drawnHead = null;
  byId("detail").replaceChildren(
    h("a", { class: "back", href: address({ open: "" }) }, "← All ExternalBackends"),
    h("div", { id: "summary" }),
    moveButtons(),
    h("section", { class: "panel", "aria-labelledby": "picture-title" },
      h("h3", { id: "picture-title" }, "Where traffic goes"),
      h("div", { id: "picture", class: "picture", tabindex: "0", role: "region", "aria-labelledby": "picture-title" }),
      h("p", { class: "legend faint" },
        ...["✓ healthy", "✕ unhealthy", "? unknown", "– not probed"].map((text) => h("span", {}, text)),
        h("span", {}, "← and a thick line: gets traffic"), h("span", {}, "dashed: gets none"))),
    endpointPanel(),
    h("div", { class: "columns" },
      h("section", { class: "panel", "aria-labelledby": "timeline-title" },
        h("h3", { id: "timeline-title" }, "Timeline"), h("div", { id: "timeline" })),
      h("section", { class: "panel", "aria-labelledby": "facts-title" },
        h("h3", { id: "facts-title" }, "Conditions and more"), h("div", { id: "facts" }))));
}

// replace puts new content into an element, and keeps the focus where it was.
function replace(element, ...content) {
  const focused = element.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  const scrolled = element.firstElementChild?.scrollTop ?? 0;
  element.replaceChildren(...content);
  if (element.firstElementChild) element.firstElementChild.scrollTop = scrolled;
  if (focused) element.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

function summary(head) {
  const counts = head.endpoints ? `${head.endpoints.ready} of ${head.endpoints.total} endpoints ready` : "no counts yet";
  return [
    h("div", { class: "titleline" }, h("h2", { id: "detail-name" }, `${head.namespace}/${head.name}`), stateBadge(head.state),
      head.override ? h("span", { class: "badge warn" }, "override " + head.override) : ""),
    h("p", {}, head.summary ?? ""),
    h("p", { class: "faint" }, `${counts}. Check: ${head.check}. Service ${head.service.name}, created ${age(head.created)} ago.`),
  ];
}

function facts(head) {
  const lines = [];
  for (const unread of head.unread ?? []) {
    lines.push(["unknown", "? unknown", `${unread.part}: ${unread.why}`]);
  }
  for (const text of head.slices?.differences ?? []) lines.push(["warn", "! slices", text]);
  for (const each of head.overrides ?? []) {
    const until = new Date(each.until).toLocaleString();
    lines.push([each.applied === "True" ? "warn" : "unknown", "override", `${each.effect}, until ${until}. ${each.message ?? ""}`]);
  }
  for (const condition of head.conditions ?? []) {
    const fine = (condition.status === "True") !== (condition.type === "Stalled");
    const tone = condition.status === "Unknown" ? "unknown" : fine ? "good" : "warn";
    lines.push([tone, `${condition.type} ${condition.status}`, condition.message]);
  }
  for (const each of head.policy?.selecting ?? []) lines.push(["unknown", "policy", `${each.name}, ${each.mode}`]);
  return h("ul", { class: "rows" }, lines.map(([tone, badge, text]) =>
    h("li", {}, h("span", { class: "badge " + tone }, badge), h("p", { class: "faint" }, text ?? ""))));
}

// drawDetail changes what differs.
export function drawDetail() {
  const shown = state.open !== "" && (state.head || state.error);
  byId("detail").hidden = !shown;
  byId("nothing").hidden = Boolean(shown);
  byId("nothing").textContent = state.open ? "Reading " + state.open
    : "Choose an ExternalBackend to see where its traffic goes.";
  if (!shown) return;
  if (!state.head) {
    builtFor = "";
    byId("detail").replaceChildren(
      h("a", { class: "back", href: address({ open: "" }) }, "← All ExternalBackends"),
      h("h2", { id: "detail-name" }, state.open), h("p", { role: "alert" }, state.error));
    return;
  }
  if (builtFor !== state.open || !byId("summary")) build();
  replace(byId("summary"), ...summary(state.head), state.error ? h("p", { role: "alert" }, "Out of date: " + state.error) : "");
  updateMoves(state.head);
  replace(byId("timeline"), timeline(state.open, state.head.events));

  const version = state.version;
  if (drawnHead !== state.head || drawnEndpoints !== version) {
    const all = sorted();
    replace(byId("picture"), picture(state.head, all, phone.matches));
    drawEndpoints(all);
    replace(byId("facts"), facts(state.head));
    drawnHead = state.head;
    drawnEndpoints = version;
  }
}
