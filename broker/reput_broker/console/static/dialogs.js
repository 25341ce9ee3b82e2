// Dialogs: questions before a change, the login, the keyboard shortcuts.

import { post } from "./api.js";
import { failure, h, put, say } from "./dom.js";

export const session = { can_log_in: false, is_logged_in: false, read_without_login: true, how: "" };

function open(title, body, buttons, onclose) {
  const dialog = h("dialog", { "aria-labelledby": "dialog-title" }, h("h2", { id: "dialog-title" }, title), body, h("div", { class: "buttons" }, buttons));
  dialog.addEventListener("close", () => {
    dialog.remove();
    onclose?.();
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

// Resolves to whether the person agrees.
export function confirm(title, text, verb) {
  return new Promise((resolve) => {
    let answer = false;
    const yes = h("button", { type: "button", class: "primary", onclick: () => { answer = true; dialog.close(); } }, verb);
    const no = h("button", { type: "button", autofocus: true, onclick: () => dialog.close() }, "Cancel");
    const dialog = open(title, h("p", null, text), [no, yes], () => resolve(answer));
  });
}

// Resolves to whether the person is logged in.
export function logIn() {
  return new Promise((resolve) => {
    const trouble = h("div");
    if (!session.can_log_in) {
      const ok = h("button", { type: "button", onclick: () => dialog.close() }, "Close");
      const dialog = open("No login is possible", h("div", null, h("p", null, "The console shows everything, and changes nothing."), h("p", null, session.how, "."),
        h("p", null, "The command line can do the same: reput dlq replay, reput delay cancel.")), [ok], () => resolve(false));
      return;
    }
    const token = h("input", { type: "password", autocomplete: "current-password", required: true, id: "token", name: "token" });
    const form = h("form", { method: "dialog", id: "login" }, h("label", { for: "token" }, "Token"), token, h("p", { class: "hint" }, session.how, "."), trouble);
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      try {
        await post("login", { token: token.value });
        session.is_logged_in = true;
        dialog.close();
      } catch (error) {
        put(trouble, failure(error));
        token.select();
      }
    });
    const dialog = open("Log in", form, [h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"),
      h("button", { type: "submit", class: "primary", form: "login" }, "Log in")], () => resolve(session.is_logged_in));
  });
}

export async function logOut() {
  await post("logout", {});
  session.is_logged_in = false;
  say("Logged out");
}

export function showKeys(keys) {
  const rows = keys.map(([key, text]) => h("tr", null, h("td", null, key.split(" ").map((part) => h("kbd", null, part))), h("td", null, text)));
  const close = h("button", { type: "button", onclick: () => dialog.close() }, "Close");
  const dialog = open("Keyboard shortcuts", h("table", { class: "keys" }, h("tbody", null, rows)), [close]);
}

// Calls `work` once the person is logged in; asks for the token first if that is needed, also when the login has ended.
export async function withLogin(work) {
  if (!session.is_logged_in && !(await logIn())) return undefined;
  try {
    return await work();
  } catch (error) {
    if (error.status !== 401) throw error;
    session.is_logged_in = false;
    return (await logIn()) ? work() : undefined;
  }
}
