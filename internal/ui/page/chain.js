// The dialog, and the explanation of one endpoint in it.

import { address, state } from "./app.js";
import { byId, h } from "./dom.js";

const dialog = byId("dialog");
let latest = 0;

dialog.addEventListener("close", () => {
  latest++; // an answer on its way is not shown any more
  if (state.explain) location.hash = address({});
});

// openDialog shows a dialog with a title and content.
export function openDialog(title, ...content) {
  dialog.replaceChildren(h("div", { class: "inside" },
    h("div", { class: "line" }, h("h2", { id: "dialog-title", tabindex: "-1", autofocus: true }, title),
      h("button", { type: "button", onclick: closeDialog }, "Close")),
    ...content));
  if (!dialog.open) dialog.showModal();
}

export function closeDialog() {
  if (dialog.open) dialog.close();
}

const marks = { yes: "✓", no: "✕", unknown: "?" };
const tones = { yes: "good", no: "bad", unknown: "unknown" };

function link(chain, step, index) {
  const cause = index === chain.cause;
  return h("li", { class: step.answer + (cause ? " cause" : ""), "data-link": step.id },
    h("p", { class: "line" }, h("strong", {}, step.title),
      h("span", { class: "badge " + tones[step.answer] }, `${marks[step.answer]} ${step.answer}`)),
    cause ? h("p", {}, h("strong", {}, "This is the cause.")) : "",
    step.reason ? h("p", { class: "faint" }, step.reason) : "",
    (step.evidence ?? []).map((text) => h("p", { class: "faint" }, text)),
    step.hint ? h("p", {}, step.hint) : "");
}

// showChain explains a target or an address of an ExternalBackend.
export async function showChain(key, what) {
  const mine = ++latest;
  openDialog(what, h("p", { role: "status" }, "asking"));
  const [namespace, name] = key.split("/");
  let content;
  let title = what;
  try {
    const answer = await fetch("explain?" + new URLSearchParams({ namespace, name, what }));
    if (!answer.ok) throw new Error(await answer.text());
    const chain = await answer.json();
    title = chain.address ? `${chain.address}, target ${chain.target}` : `target ${chain.target}`;
    const gets = { yes: "It gets traffic.", no: "It gets no traffic.", unknown: "Whether it gets traffic is unknown." };
    content = [
      h("p", {}, gets[chain.getsTraffic]), chain.remark ? h("p", { class: "faint" }, chain.remark) : "",
      h("ol", { class: "chain" }, chain.links.map((step, index) => link(chain, step, index))),
    ];
  } catch (error) {
    content = [h("p", { role: "alert" }, error.message)];
  }
  if (mine === latest) openDialog(title, ...content);
}
