// Pin, drain, disable and resume. Each is shown as the exact change first, and made once confirmed.

import { state } from "./app.js";
import { closeDialog, openDialog } from "./chain.js";
import { h } from "./dom.js";

const actions = [
  ["pin", "Pin a tier", "Make a tier active for a time, whatever its health"],
  ["drain", "Drain a target", "Give a target no new connections for a time"],
  ["disable", "Disable a target", "Neither publish nor probe a target for a time"],
  ["resume", "Resume", "End the override that is applied"],
];
const periods = [[1800, "30 minutes"], [7200, "2 hours"], [28800, "8 hours"], [86400, "1 day"], [604800, "7 days"]];

// moveButtons returns the buttons of the opened ExternalBackend.
export function moveButtons() {
  return h("div", { id: "moves", class: "actions", role: "group", "aria-label": "Move traffic" },
    actions.map(([action, label, title]) =>
      h("button", { type: "button", title, "data-key": "move " + action, onclick: () => choose(action, label) }, label)));
}

// updateMoves offers to resume only where an override is applied.
export function updateMoves(head) {
  document.querySelector('[data-key="move resume"]').disabled = !head.override;
}

function select(label, name, options) {
  return h("label", {}, label, h("select", { name }, options.map(([value, text]) => h("option", { value }, text))));
}

function choose(action, label) {
  const [namespace, name] = state.open.split("/");
  const move = { namespace, name, action };
  if (action === "resume") return show(move);
  const targets = state.head.targets ?? [];
  const tiers = [...new Set(targets.map((target) => target.tier))].sort((a, b) => a - b);
  const what = action === "pin" ? select("Tier", "tier", tiers.map((tier) => [tier, tier]))
    : select("Target", "target", targets.map((target) => [target.name, `${target.name}, tier ${target.tier}`]));
  const period = select("For", "seconds", periods);
  period.querySelector("select").value = "7200";
  openDialog(`${label} of ${state.open}`, h("div", { class: "fields" }, what, period), h("div", { class: "actions" },
    h("button", {
      type: "button", class: "primary", onclick: () => {
        const chosen = what.querySelector("select");
        move[chosen.name] = action === "pin" ? Number(chosen.value) : chosen.value;
        move.seconds = Number(period.querySelector("select").value);
        show(move);
      },
    }, "Show what changes")));
}

// send sends a move, and returns the answer.
async function send(move) {
  const answer = await fetch("move", {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(move),
  });
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

const failed = (error) => openDialog("Nothing is changed", h("p", { role: "alert" }, error.message));

function prediction(change) {
  const p = change.prediction;
  if (!p) return [h("p", {}, "It is unknown what traffic will do: " + change.unknown)];
  const tier = (number) => (number == null ? "none" : String(number));
  return [
    h("p", {}, `Active tier: ${tier(p.tierBefore)}, then ${tier(p.tierAfter)}. `
      + `Ready endpoints: ${p.readyBefore}, then ${p.readyAfter}.`),
    p.readyAfter === 0 ? h("p", {}, h("strong", {}, "No endpoint is ready then.")) : "",
    h("ul", { class: "rows scroll", tabindex: "0", "aria-label": "Targets whose traffic changes" }, (p.targets ?? []).map((t) => h("li", {},
      `${t.target}, tier ${t.tier}: ${t.readyBefore} of ${t.totalBefore} ready, then ${t.readyAfter} of ${t.totalAfter}`))),
  ];
}

async function show(move) {
  let change;
  try {
    change = await send(move);
  } catch (error) {
    return failed(error);
  }
  const make = h("button", { type: "button", class: "primary" }, "Do it");
  make.addEventListener("click", async () => {
    make.disabled = true;
    try {
      await send({ ...move, digest: change.digest, at: change.at });
      closeDialog();
    } catch (error) {
      failed(error);
    }
  });
  openDialog(change.headline, ...prediction(change), h("pre", { tabindex: "0", "aria-label": "The exact change" }, change.manifest),
    h("div", { class: "actions" }, make, h("button", { type: "button", onclick: closeDialog }, "Cancel")));
}
