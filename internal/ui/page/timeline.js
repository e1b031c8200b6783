// What has changed since the page was opened, and the events from before.

import { age, clock, h } from "./dom.js";

const most = 200; // changes are kept for each ExternalBackend, and this many ExternalBackends
const changes = new Map();

function add(key, text, tone) {
  const list = changes.get(key) ?? [];
  list.unshift({ time: Date.now(), text, tone });
  list.length = Math.min(list.length, most);
  changes.delete(key);
  changes.set(key, list);
  if (changes.size > most) changes.delete(changes.keys().next().value); // the one that changed longest ago
}

const tierText = (tier) => (tier == null ? "no tier" : "tier " + tier);

// noteRow notes what differs between two rows of an ExternalBackend.
export function noteRow(key, before, after) {
  if (!before) return;
  if (!after) return add(key, "The ExternalBackend is gone", "bad");
  if (before.state !== after.state) {
    add(key, `${before.state} → ${after.state}${after.why ? ": " + after.why : ""}`,
      { Healthy: "good", Down: "bad" }[after.state] ?? "warn");
  }
  if (before.activeTier !== after.activeTier) {
    add(key, `Active: ${tierText(before.activeTier)} → ${tierText(after.activeTier)}`, "warn");
  }
  if (before.ready !== after.ready) add(key, `Ready: ${before.ready} → ${after.ready}`, "unknown");
  if ((before.override ?? "") !== (after.override ?? "")) {
    add(key, after.override ? "Override " + after.override : "No override any more", "warn");
  }
}

// noteBackend notes how the targets of an ExternalBackend have changed.
export function noteBackend(key, before, after) {
  const known = new Map((before?.targets ?? []).map((target) => [target.name, target]));
  for (const target of before ? after.targets ?? [] : []) {
    const old = known.get(target.name);
    if (!old || (old.health === target.health && old.state === target.state)) continue;
    add(key, `Target ${target.name}: ${describe(old)} → ${describe(target)}${target.message ? ": " + target.message : ""}`,
      target.health === "Healthy" ? "good" : "bad");
  }
}

const describe = (target) => [target.state, target.health].filter(Boolean).join(", ") || "not in status";

// timeline returns the changes and events, newest first.
export function timeline(key, events) {
  const lines = [
    ...(changes.get(key) ?? []),
    ...(events ?? []).map((event) => ({
      time: Date.parse(event.last), text: `${event.reason}: ${event.message}${event.count > 1 ? ` (${event.count} times)` : ""}`,
      tone: event.type === "Warning" ? "warn" : "unknown", event: true,
    })),
  ].sort((a, b) => b.time - a.time).slice(0, most);
  if (!lines.length) return h("p", { class: "faint" }, "Nothing has changed since the page was opened, and there are no events.");
  return h("ol", { class: "rows scroll", tabindex: "0", role: "region", "aria-label": "Timeline" }, lines.map((line) => h("li", {},
    h("span", { class: "badge " + line.tone }, line.event ? "event" : "change"), " ",
    h("time", { class: "faint", datetime: new Date(line.time).toISOString() }, `${clock(line.time)}, ${age(line.time)} ago`),
    h("p", {}, line.text))));
}
