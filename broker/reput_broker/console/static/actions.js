// Buttons of actions. The broker says which ones this user has: a button without the right is not there.

import { get } from "./api.js";
import { h, put, say } from "./dom.js";
import { openForm } from "./forms.js";

const AT_ONCE = 100;

let table = null;

async function rowsOf(names) {
  table ??= get("actions").then((found) => new Map(found.actions.map((row) => [row.name, row])), (error) => {
    table = null; // asked for again by the next page
    throw error;
  });
  const rows = await table;
  return names.map((name) => rows.get(name));
}

async function ask(place, names, signal) {
  const found = await get("offered", { place }, signal, names.map((name) => ["name", name]));
  return found.offered;
}

function button(row, values, fixed, outcome, after) {
  const run = async () => {
    const done = await openForm(row, { ...values(), ...fixed }, Object.keys(fixed));
    if (!done) return;
    put(outcome, h("div", { class: "notice " + (done.done ? "ok" : "warn"), role: "status" }, h("strong", null, done.text)));
    say(done.text);
    after?.(row, done);
  };
  return h("button", { type: "button", class: row.typed ? "danger" : "", "data-action": row.name, onclick: run }, row.title);
}

// The buttons of a page about `name`, "" for a list, and `offered`, which resolves to the names of their actions. `values`
// returns what a form begins with; `after` follows a change.
export function actionBar(page, place, name, values = () => ({}), after = undefined) {
  const buttons = h("span", { class: "actions" });
  const outcome = h("div");
  const own = (row) => (name && row.about ? { [row.about]: name } : {});
  const offered = ask(place, [name], page.signal).then(async (found) => {
    const rows = await rowsOf(found[name] ?? []);
    put(buttons, rows.map((row) => button(row, values, own(row), outcome, after)));
    return rows.map((row) => row.name);
  }).catch((error) => {
    if (error.name !== "AbortError") put(buttons);
    return [];
  });
  return { buttons, outcome, offered };
}

// The buttons of rows. `know` asks for what is offered about names; `cell` returns the buttons of one row then.
export function rowActions(page, place, after = undefined) {
  const known = new Map();
  const outcome = h("div");
  return {
    outcome,
    async know(names) {
      const fresh = [...new Set(names)].filter((name) => !known.has(name));
      for (let at = 0; at < fresh.length; at += AT_ONCE) {
        const offered = await ask(place, fresh.slice(at, at + AT_ONCE), page.signal);
        for (const [name, actions] of Object.entries(offered)) known.set(name, await rowsOf(actions));
      }
    },
    cell: (name, values) => h("span", { class: "actions" }, (known.get(name) ?? []).map((row) => {
      const one = button(row, () => ({}), values, outcome, after);
      one.classList.add("small");
      return one;
    })),
  };
}
