// Dead letters: the groups that have some, those of one group, and replaying them.

import { actionBar } from "./actions.js";
import { get } from "./api.js";
import { cleanLines, command, empty, h, link, path, put, query, quoted, section, tile } from "./dom.js";
import { ago, count, counted, size, time } from "./format.js";
import { bodyCell } from "./messages.js";
import { Table } from "./table.js";

const known = (number) => (number === null ? "–" : count(number));

export function deadLetters(page) {
  if (page.parts.length > 1) return ofGroup(page);
  page.title("Dead letters");
  const search = h("input", { type: "search", id: "search", placeholder: "Part of a group's name", "aria-label": "Search groups" });
  const table = new Table({
    label: "Groups with dead letters",
    key: (row) => row.group,
    sort: "left",
    descending: true,
    empty: null,
    columns: [
      { name: "group", label: "Group", value: (row) => row.group, cell: (row) => link(path("dead-letters", row.group), row.group) },
      { name: "left", label: "Not replayed", isNumber: true, value: (row) => row.left ?? -1, cell: (row) => known(row.left) },
      { name: "replayed", label: "Replayed", isNumber: true, value: (row) => row.replayed ?? -1, cell: (row) => known(row.replayed) },
      { name: "messages", label: "Kept", isNumber: true, value: (row) => row.messages, cell: (row) => count(row.messages) },
      { name: "end", label: "Ever", isNumber: true, value: (row) => row.end, cell: (row) => count(row.end), title: "Dead letters since the group was created" },
    ],
  });
  put(page.main, h("h1", null, "Dead letters"), h("div", { class: "tools" }, search), table.element);
  const refresh = page.poll(async () => {
    const found = await get("dead-letters", { search: search.value }, page.signal);
    table.setEmpty(search.value ? empty("No group with such a name has dead letters.") : empty("No dead letters. A message becomes one when its group has failed in every attempt.", "reput dlq list"));
    table.update(found.groups, found.total ? counted(found.total, "group") + " with dead letters" : "");
  });
  page.onInput(search, refresh);
}

// Why it is one in the broker's words, and in those of its last consumer, which may be a stack trace.
function reasonCell(row) {
  const cause = h("div", { class: "cause", title: row.cause && row.cause.length > 200 ? "The message's page has all of it" : null });
  cause.textContent = cleanLines(row.cause ?? "");
  return [row.reason.replaceAll("_", " "), row.cause ? cause : null];
}

function ofGroup(page) {
  const name = page.parts[1];
  page.title("Dead letters of " + name);
  const from = page.query.get("from") ?? "";
  let found = null;
  let now = 0;
  const tiles = h("div", { class: "tiles" });
  const doing = actionBar(page, "dead-letters", name, () => ({ offsets: [...table.chosen.keys()].sort((a, b) => a - b).join(",") }), () => {
    table.clearChosen();
    refresh();
  });
  const table = new Table({
    label: "Dead letters of " + name,
    key: (row) => row.offset,
    sort: "stored",
    descending: true,
    empty: empty("No dead letters of " + name + " are kept.", "reput dlq list"),
    select: { label: (row) => "Select dead letter " + row.offset, onchange: () => null },
    columns: [
      { name: "stored", label: "Dead since", value: (row) => row.offset, cell: (row) => [row.id ? link(path("messages", row.id), h("span", { title: time(row.stored_ms) }, ago(row.stored_ms, now))) : "unknown", h("div", { class: "hint when" }, "offset " + count(row.offset) + ", " + size(row.size_bytes))] },
      { name: "origin", label: "Came from", value: (row) => row.origin_topic ?? "", cell: (row) => [row.origin_topic ? link(path("topics", row.origin_topic), row.origin_topic) : "unknown", h("div", { class: "hint" }, row.keys.join(" "))] },
      { name: "reason", label: "Reason", value: (row) => row.reason, cell: reasonCell },
      { name: "replayed", label: "Replayed", value: (row) => row.replayed?.at_ms ?? 0, cell: (row) => (row.replayed ? [link(path("messages", row.replayed.id), h("span", { title: time(row.replayed.at_ms) }, ago(row.replayed.at_ms, now))), " to ", link(path("topics", row.replayed.topic), row.replayed.topic)] : "–") },
      { name: "attempts", label: "Attempts", isNumber: true, value: (row) => row.attempts, cell: (row) => count(row.attempts) },
      { name: "body", label: "Body", isWide: true, cell: bodyCell },
    ],
  });
  put(page.main, page.trail(["dead-letters", "Dead letters"], name), tiles,
    h("div", { class: "tools" }, doing.buttons, link(path("groups", name), "Group " + name), command("reput dlq peek " + quoted(name))), doing.outcome, section("Dead letters", h("div", { class: "letters" }, table.element)));

  table.offerChoice(false);
  doing.offered.then((names) => table.offerChoice(names.includes("replay-dead-letters")));

  async function load() {
    found = await get("letters", { group: name, from }, page.signal);
    now = found.at_ms;
    put(tiles, tile("Not replayed", known(found.left), found.replayed === null ? "the broker cannot determine that now" : count(found.replayed) + " replayed", found.left ? "warn" : ""), tile("Kept", count(found.messages), found.messages === 0 ? "" : "offsets " + count(found.start) + " to " + count(Math.max(found.start, found.end - 1))));
    const here = path("dead-letters", name);
    const last = found.from + found.letters.length;
    table.update(found.letters, found.messages ? ["Offsets " + count(found.from) + " to " + count(last - 1) + ". ", found.from > found.start ? link(here + query({ from: Math.max(found.start, found.from - 50) }), "Older") : "", " ",
      last < found.end ? link(here + query({ from: last }), "Newer") : ""] : "");
  }

  const refresh = page.poll(load, 15000);
}
