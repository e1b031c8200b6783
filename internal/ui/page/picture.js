// The picture of one ExternalBackend: names, addresses, targets by tier, slices and the Service.

import { address, state } from "./app.js";
import { markOf, s, shorten, toneOf, trafficOf } from "./dom.js";
import { showGroup } from "./endpoints.js";

// What is more than these is drawn as groups.
const mostTargets = 24;
const mostSlices = 10;
const fewEndpoints = 6;
const endpointBudget = 72;

const rowHeight = 34;
const boxHeight = 26;

// Each layout says where its boxes begin and how wide they are. On a phone all boxes are in one stack, each kind a step
// further to the right than what leads to it. Edges to slices then run along the right side.
const columnsLayout = {
  name: [10, 190], endpoint: [230, 210], target: [480, 190], slice: [710, 190], service: [940, 150],
  band: [468, 214], width: 1100, top: 34, stacked: false,
};
const stackLayout = {
  name: [10, 230], endpoint: [32, 230], target: [54, 230], slice: [76, 230], service: [98, 208],
  band: [2, 318], width: 340, top: 4, stacked: true,
};
let layout = columnsLayout;

// groupsOf returns what is drawn for the endpoints of a target: the worst ones alone, the others by
// verdict and traffic.
function groupsOf(list, budget) {
  const alone = list.length <= Math.min(fewEndpoints, budget) ? list.length : Math.min(2, budget);
  const nodes = list.slice(0, alone).map((endpoint) => ({ endpoints: [endpoint] }));
  const groups = new Map();
  for (const endpoint of list.slice(alone)) {
    const key = endpoint.verdict + ", " + trafficOf(endpoint);
    if (!groups.has(key)) groups.set(key, { key, endpoints: [] });
    groups.get(key).endpoints.push(endpoint);
  }
  return [...nodes, ...groups.values()];
}

// tiersOf says what is drawn, from top to bottom.
function tiersOf(head, endpoints) {
  const byTarget = Map.groupBy(endpoints, (endpoint) => endpoint.target);
  const targets = [...(head.targets ?? [])];
  if (byTarget.get("")?.length) targets.push({ name: "", value: "belongs to no target", tier: 0, stray: true });
  const tiers = [...Map.groupBy(targets, (target) => target.tier)].sort((a, b) => a[0] - b[0]);
  let left = mostTargets;
  let budget = endpointBudget;
  return tiers.map(([number, list]) => {
    const shown = list.slice(0, Math.max(1, left));
    left -= shown.length;
    const rows = shown.map((target) => {
      const nodes = groupsOf(byTarget.get(target.name) ?? [], Math.max(0, budget));
      budget -= nodes.length;
      return { target, nodes };
    });
    const hidden = list.slice(shown.length);
    return { tier: head.tiers?.find((tier) => tier.number === number) ?? { number }, rows, hidden };
  });
}

function box(column, y, classes, lines, extra = {}) {
  const [x, w] = layout[column];
  return s("g", { class: classes, ...extra },
    s("rect", { class: "box", x, y, width: w, height: boxHeight, rx: 7 }),
    lines.map(([text, dx, style, anchor]) =>
      s("text", { x: x + (anchor ? w - dx : dx), y: y + 17, class: style, "text-anchor": anchor ?? "start" }, text)));
}

function edge(from, y1, to, y2, traffic) {
  return s("path", { class: "edge" + (traffic ? " traffic" : ""), d: course(layout[from], y1, layout[to], y2, to) });
}

// course returns the way of an edge between two boxes.
function course([x1, w1], y1, [x2, w2], y2, to) {
  const half = boxHeight / 2;
  if (!layout.stacked) {
    const bend = (x2 - x1 - w1) / 2;
    return `M${x1 + w1} ${y1 + half}C${x1 + w1 + bend} ${y1 + half} ${x2 - bend} ${y2 + half} ${x2} ${y2 + half}`;
  }
  if (to === "slice") return `M${x1 + w1} ${y1 + half}H${layout.width - 10}V${y2 + half}H${x2 + w2}`;
  return `M${x1 + 10} ${y1 + boxHeight}V${y2 + half}H${x2}`;
}

function button(label, key, action) {
  return {
    role: "button", tabindex: "0", "aria-label": label, "data-key": key, onclick: action,
    onkeydown: (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      action();
    },
  };
}

const explainLink = (what) => () => { location.hash = address({ explain: what }); };

function endpointBox(y, node) {
  const [first] = node.endpoints;
  const ready = node.endpoints.some((endpoint) => endpoint.ready);
  const classes = toneOf(first.verdict) + (ready ? "" : " idle");
  const traffic = trafficOf(first);
  if (!node.key) {
    return box("endpoint", y, classes,
      [[markOf(first.verdict), 9, "mark"], [shorten(first.address, 22), 26], [ready ? "←" : "", 10, "mark", "end"]],
      button(`${first.address}: ${first.verdict}, ${traffic}; explain`, first.key, explainLink(first.address)));
  }
  return box("endpoint", y, classes,
    [[markOf(first.verdict), 9, "mark"], [`${node.endpoints.length.toLocaleString()} more`, 26], [traffic, 10, "small", "end"]],
    button(`${node.endpoints.length} more endpoints of ${first.target}: ${node.key}; list them`,
      first.target + " " + node.key, () => showGroup(first.target, first.verdict, traffic)));
}

function targetBox(y, target) {
  const tone = target.stray ? "unknown" : toneOf(target.health);
  const idle = target.ready > 0 ? "" : " idle";
  if (target.stray) return box("target", y, tone + idle, [[target.value, 26]]);
  const label = `target ${target.name}: ${target.health ?? "Unknown"}, ${target.ready} of ${target.total} ready; explain`;
  return box("target", y, tone + idle,
    [[markOf(target.health), 9, "mark"], [shorten(target.name, 18), 26], [`${target.ready}/${target.total}`, 9, "small", "end"]],
    button(label, "target " + target.name, explainLink(target.name)));
}

const nameOf = (target, head) => head.names?.find((each) => each.target === target.name);

// linesOf returns how many lines a target takes.
function linesOf({ target, nodes }, head) {
  if (layout.stacked) return (nameOf(target, head) ? 1 : 0) + nodes.length + 1;
  return Math.max(1, nodes.length);
}

// places returns where slices and the Service begin, and how high the picture is.
function places(tiers, head, sliceRows) {
  const rows = tiers.reduce((sum, { rows, hidden }) =>
    sum + 1 + rows.reduce((n, row) => n + linesOf(row, head), 0) + (hidden.length ? 1 : 0), 0);
  if (layout.stacked) {
    const slices = layout.top + (rows + 1) * rowHeight;
    const service = slices + (sliceRows + 1) * rowHeight;
    return { slices, service, height: service + rowHeight };
  }
  const height = layout.top + Math.max(rows, sliceRows) * rowHeight + 12;
  const slices = layout.top + Math.max(0, (height - layout.top - sliceRows * rowHeight) / 2);
  return { slices, service: layout.top + (height - layout.top - boxHeight) / 2, height };
}

// headings names the columns, or what follows the targets in a stack.
function headings(at) {
  const heading = (column, y, text) => s("text", { class: "head", x: layout[column][0], y }, text);
  if (layout.stacked) return [heading("slice", at.slices - 13, "SLICES"), heading("service", at.service - 13, "SERVICE")];
  return [["name", "NAME"], ["endpoint", "ADDRESS"], ["target", "TARGET"], ["slice", "SLICE"], ["service", "SERVICE"]]
    .map(([column, text]) => heading(column, 20, text));
}

// picture draws one ExternalBackend, as a stack if that is what has room.
export function picture(head, endpoints, stacked) {
  layout = stacked ? stackLayout : columnsLayout;
  const bands = s("g"), edges = s("g"), boxes = s("g");
  const own = head.slices?.own ?? [];
  const shownSlices = own.slice(0, mostSlices);
  const tiers = tiersOf(head, endpoints);
  const at = places(tiers, head, Math.max(1, shownSlices.length + (own.length > shownSlices.length ? 1 : 0)));
  const sliceY = (name) => {
    const index = shownSlices.findIndex((slice) => slice.name === name);
    return at.slices + (index < 0 ? shownSlices.length : index) * rowHeight;
  };
  boxes.append(...headings(at));

  let y = layout.top;
  for (const { tier, rows, hidden } of tiers) {
    const began = y;
    const text = `Tier ${tier.number}${tier.active ? ", active" : ""}${tier.pinned ? ", pinned" : ""}`;
    boxes.append(s("text", { class: "head", x: layout.band[0] + 12, y: y + 21 }, text));
    y += rowHeight;
    for (const row of rows) y = drawTarget(row, y, head, { edges, boxes, sliceY });
    if (hidden.length) {
      boxes.append(box("target", y, "unknown", [[`${hidden.length} more targets`, 26]]));
      y += rowHeight;
    }
    bands.append(s("rect", {
      class: "band" + (tier.active ? "" : " idle"), x: layout.band[0], y: began + 3, width: layout.band[1],
      height: y - began - 4, rx: 10,
    }));
  }
  drawSlices(head, shownSlices, { edges, boxes, sliceY, serviceY: at.service });
  return s("svg", { viewBox: `0 0 ${layout.width} ${at.height}`, role: "group", "aria-label": `Traffic of ${state.open}` },
    bands, edges, boxes);
}

function drawTarget({ target, nodes }, began, head, { edges, boxes, sliceY }) {
  const lines = linesOf({ target, nodes }, head);
  const name = nameOf(target, head);
  const targetY = began + ((lines - 1) * rowHeight) / (layout.stacked ? 1 : 2);
  const nameY = layout.stacked ? began : targetY;
  const endpointsY = began + (layout.stacked && name ? rowHeight : 0);
  if (name) {
    const tone = { Current: "good", Stale: "warn", Failed: "bad" }[name.quality] ?? "unknown";
    boxes.append(box("name", nameY, tone, [[shorten(name.name, 19), 9], [name.quality, 8, "small", "end"]]));
    if (!nodes.length) edges.append(edge("name", nameY, "target", targetY, false));
  }
  boxes.append(targetBox(targetY, target));
  const perSlice = new Map();
  nodes.forEach((node, index) => {
    const y = endpointsY + index * rowHeight;
    const traffic = node.endpoints.some((endpoint) => endpoint.ready);
    boxes.append(endpointBox(y, node));
    if (name) edges.append(edge("name", nameY, "endpoint", y, traffic));
    edges.append(edge("endpoint", y, "target", targetY, traffic));
    for (const endpoint of node.endpoints) {
      const at = sliceY(endpoint.slice);
      perSlice.set(at, perSlice.get(at) || endpoint.ready);
    }
  });
  for (const [at, traffic] of perSlice) edges.append(edge("target", targetY, "slice", at, traffic));
  return began + lines * rowHeight;
}

function drawSlices(head, shown, { edges, boxes, sliceY, serviceY }) {
  const own = head.slices?.own ?? [];
  for (const slice of shown) {
    const y = sliceY(slice.name);
    boxes.append(box("slice", y, slice.counts.ready ? "" : "idle",
      [[shorten(slice.name, 20), 9], [`${slice.counts.ready}/${slice.counts.total}`, 9, "small", "end"]]));
    edges.append(edge("slice", y, "service", serviceY, slice.counts.ready > 0));
  }
  const rest = own.slice(shown.length);
  if (rest.length) {
    const ready = rest.reduce((sum, slice) => sum + slice.counts.ready, 0);
    boxes.append(box("slice", sliceY(""), "", [[`${rest.length} more slices`, 9], [`${ready} ready`, 9, "small", "end"]]));
    edges.append(edge("slice", sliceY(""), "service", serviceY, ready > 0));
  }
  if (!own.length) {
    const text = head.slices?.known ? "no slices" : "unknown: not readable";
    boxes.append(box("slice", sliceY(""), "unknown idle", [[text, 9]]));
  }
  const service = head.service;
  const missing = !service.known ? "?" : service.exists ? "" : "missing";
  boxes.append(box("service", serviceY, missing ? "unknown" : "", [[shorten(service.name, missing ? 12 : 19), 9], [missing, 9, "small", "end"]]));
}
