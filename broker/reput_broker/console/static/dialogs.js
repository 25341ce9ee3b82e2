// Dialogs: the frame of forms, the keyboard shortcuts; and the way to the page of the login.

import { MEMBER, post } from "./api.js";
import { h, say } from "./dom.js";

export const session = { has_users: false, can_log_in: false, is_logged_in: false, user: null, is_admin: false, may_watch: true, read_without_login: true, how: "" };

export function openDialog(title, body, buttons, onclose) {
  const dialog = h("dialog", { "aria-labelledby": "dialog-title" }, h("h2", { id: "dialog-title" }, title), body, h("div", { class: "buttons" }, buttons));
  dialog.addEventListener("close", () => {
    dialog.remove();
    onclose?.();
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

// Whether nothing can be shown before a login.
export function needsLogin() {
  return !session.is_logged_in && (session.has_users || !session.read_without_login);
}

// Goes to the page of the login, which comes back to this place; never resolves.
export function logIn() {
  location.assign("login.html?" + new URLSearchParams({ ...(MEMBER ? { member: MEMBER } : {}), to: location.hash }));
  return new Promise(() => {});
}

export async function logOut() {
  await post("logout", {});
  session.is_logged_in = false;
  session.user = null;
  say("Logged out");
}

export function showKeys(keys) {
  const rows = keys.map(([key, text]) => h("tr", null, h("td", null, key.split(" ").map((part) => h("kbd", null, part))), h("td", null, text)));
  const close = h("button", { type: "button", onclick: () => dialog.close() }, "Close");
  const dialog = openDialog("Keyboard shortcuts", h("table", { class: "keys" }, h("tbody", null, rows)), [close]);
}
