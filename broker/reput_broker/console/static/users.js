// The users of access control, the groups of rules, and what they may do.

import { get } from "./api.js";
import { actionBar, rowActions } from "./actions.js";
import { badge, empty, h, put, section } from "./dom.js";
import { counted } from "./format.js";
import { Table } from "./table.js";

function rulesOf(row) {
  if (row.is_admin) return "everything, as an administrator";
  return row.rules.length ? h("ul", { class: "plain" }, row.rules.map((rule) => h("li", null, h("code", null, rule)))) : "–";
}

export function users(page) {
  page.title("Users");
  const doing = actionBar(page, "users", "", undefined, () => refresh());
  const actions = rowActions(page, "user", () => refresh());
  const table = new Table({
    label: "Users",
    key: (row) => row.name,
    sort: "name",
    empty: empty("There is no user but the administrator of the configuration.", "reput user create alice --generate alice.secret"),
    columns: [
      { name: "name", label: "User", value: (row) => row.name, cell: (row) => row.name },
      { name: "state", label: "State", value: (row) => (row.is_enabled ? 0 : 1), cell: (row) => [row.is_enabled ? badge("ok", "enabled") : badge("warn", "disabled"), " ", row.is_admin ? badge("warn", "administrator") : null] },
      { name: "groups", label: "Sets of rules", value: (row) => row.groups.join(" "), cell: (row) => row.groups.join(", ") || "–" },
      { name: "rules", label: "Rules", isWide: true, cell: rulesOf },
      { name: "actions", label: "", cell: (row) => actions.cell(row.name, { user: row.name }) },
    ],
  });
  const groups = new Table({
    label: "Sets of rules",
    key: (row) => row.name,
    sort: "name",
    empty: empty("There is no group of rules.", "reput acl allow @readers read 'topic:*'"),
    columns: [
      { name: "name", label: "Group", value: (row) => row.name, cell: (row) => row.name },
      { name: "rules", label: "Rules", isWide: true, cell: rulesOf },
    ],
  });
  put(page.main, h("h1", null, "Users"), h("div", { class: "tools" }, doing.buttons), doing.outcome, actions.outcome, table.element,
    section("Sets of rules", groups.element), h("p", { class: "hint" }, "These are the users of the broker shown. Each broker of a cluster has its own users; reput user changes all of them."));
  const refresh = page.poll(async () => {
    const found = await get("users", {}, page.signal);
    await actions.know(found.users.map((row) => row.name));
    table.update(found.users, counted(found.users.length, "user"));
    groups.update(found.groups, "");
  });
}
