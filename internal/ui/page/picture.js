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
const top = 34;
const columns = { name: [10, 190], endpoint: [230, 210], target: [480, 190], slice: [710, 190], service: [940, 150] };
const width = 1100;

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

// layout says what is drawn, from top to bottom.
function layout(head, endpoints) {
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
  const [x, w] = columns[column];
  return s("g", { class: classes, ...extra },
    s("rect", { class: "box", x, y, width: w, height: boxHeight, rx: 7 }),
    lines.map(([text, dx, style, anchor]) =>
      s("text", { x: x + (anchor ? w - dx : dx), y: y + 17, class: style, "text-anchor": anchor ?? "start" }, text)));
}

function edge(from, y1, to, y2, traffic) {
  const x1 = columns[from][0] + columns[from][1];
  const x2 = columns[to][0];
  const bend = (x2 - x1) / 2;
  const half = boxHeight / 2;
  return s("path", {
    class: "edge" + (traffic ? " traffic" : ""),
    d: `M${x1} ${y1 + half}C${x1 + bend} ${y1 + half} ${x2 - bend} ${y2 + half} ${x2} ${y2 + half}`,
  });
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

// picture draws one ExternalBackend.
export function picture(head, endpoints) {
  const bands = s("g"), edges = s("g"), boxes = s("g");
  const own = head.slices?.own ?? [];
  const shownSlices = own.slice(0, mostSlices);
  const tiers = layout(head, endpoints);
  const rowsHigh = tiers.reduce((sum, { rows, hidden }) =>
    sum + 1 + rows.reduce((n, row) => n + Math.max(1, row.nodes.length), 0) + (hidden.length ? 1 : 0), 0);
  const sliceRows = Math.max(1, shownSlices.length + (own.length > shownSlices.length ? 1 : 0));
  const height = top + Math.max(rowsHigh, sliceRows) * rowHeight + 12;
  const start = top + Math.max(0, (height - top - sliceRows * rowHeight) / 2);
  const sliceY = (name) => {
    const index = shownSlices.findIndex((slice) => slice.name === name);
    return start + (index < 0 ? shownSlices.length : index) * rowHeight;
  };
  const serviceY = top + (height - top - boxHeight) / 2;
  for (const [column, text] of [["name", "NAME"], ["endpoint", "ADDRESS"], ["target", "TARGET"], ["slice", "SLICE"], ["service", "SERVICE"]]) {
    boxes.append(s("text", { class: "head", x: columns[column][0], y: 20 }, text));
  }

  let y = top;
  for (const { tier, rows, hidden } of tiers) {
    const began = y;
    const text = `Tier ${tier.number}${tier.active ? ", active" : ""}${tier.pinned ? ", pinned" : ""}`;
    boxes.append(s("text", { class: "head", x: columns.target[0], y: y + 21 }, text));
    y += rowHeight;
    for (const row of rows) y = drawTarget(row, y, head, { edges, boxes, sliceY });
    if (hidden.length) {
      boxes.append(box("target", y, "unknown", [[`${hidden.length} more targets`, 26]]));
      y += rowHeight;
    }
    bands.append(s("rect", {
      class: "band" + (tier.active ? "" : " idle"), x: columns.target[0] - 12, y: began + 3, width: columns.target[1] + 24,
      height: y - began - 4, rx: 10,
    }));
  }
  drawSlices(head, shownSlices, { edges, boxes, sliceY, serviceY });
  return s("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `Traffic of ${state.open}` },
    bands, edges, boxes);
}

function drawTarget({ target, nodes }, began, head, { edges, boxes, sliceY }) {
  const lines = Math.max(1, nodes.length);
  const targetY = began + ((lines - 1) * rowHeight) / 2;
  const name = head.names?.find((each) => each.target === target.name);
  if (name) {
    const tone = { Current: "good", Stale: "warn", Failed: "bad" }[name.quality] ?? "unknown";
    boxes.append(box("name", targetY, tone, [[shorten(name.name, 19), 9], [name.quality, 8, "small", "end"]]));
    if (!nodes.length) edges.append(edge("name", targetY, "target", targetY, false));
  }
  boxes.append(targetBox(targetY, target));
  const perSlice = new Map();
  nodes.forEach((node, index) => {
    const y = began + index * rowHeight;
    const traffic = node.endpoints.some((endpoint) => endpoint.ready);
    boxes.append(endpointBox(y, node));
    if (name) edges.append(edge("name", targetY, "endpoint", y, traffic));
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
