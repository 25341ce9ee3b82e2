// Dead letters: the groups that have some, those of one group, and replaying them.

import { get, post } from "./api.js";
import { command, empty, failure, h, link, path, put, query, quoted, say, section, tile } from "./dom.js";
import { confirm, withLogin } from "./dialogs.js";
import { ago, count, counted, size, time } from "./format.js";
import { Table } from "./table.js";

const AT_ONCE = 100;

export function deadLetters(page) {
  if (page.parts.length > 1) return ofGroup(page);
  page.title("Dead letters");
  const search = h("input", { type: "search", id: "search", placeholder: "Part of a group's name", "aria-label": "Search groups" });
  const table = new Table({
    label: "Groups with dead letters",
    key: (row) => row.group,
    sort: "left",
    descending: true,
    empty: empty("No dead letters. A message becomes one after its group has given up on it.", "reput dlq list"),
    columns: [
      { name: "group", label: "Group", value: (row) => row.group, cell: (row) => link(path("dead-letters", row.group), row.group) },
      { name: "left", label: "Not replayed", isNumber: true, value: (row) => row.left, cell: (row) => count(row.left) },
      { name: "messages", label: "Kept", isNumber: true, value: (row) => row.messages, cell: (row) => count(row.messages) },
      { name: "end", label: "Ever", isNumber: true, value: (row) => row.end, cell: (row) => count(row.end), title: "Dead letters since the group began" },
    ],
  });
  put(page.main, h("h1", null, "Dead letters"), h("div", { class: "tools" }, search), table.element);
  const refresh = page.poll(async () => {
    const found = await get("dead-letters", { search: search.value }, page.signal);
    table.update(found.groups, found.total ? counted(found.total, "group") + " with dead letters" : "");
  });
  page.onInput(search, refresh);
}

function ofGroup(page) {
  const name = page.parts[1];
  page.title("Dead letters of " + name);
  const chosen = new Set();
  const from = page.query.get("from") ?? "";
  let found = null;
  let now = 0;
  const tiles = h("div", { class: "tiles" });
  const outcome = h("div");
  const some = h("button", { type: "button", disabled: true, onclick: () => replayChosen() }, "Replay selected");
  const all = h("button", { type: "button", class: "primary", disabled: true, onclick: () => replayAll() }, "Replay all");
  const table = new Table({
    label: "Dead letters of " + name,
    key: (row) => row.offset,
    sort: "offset",
    descending: true,
    empty: empty("No dead letters of " + name + " are kept.", "reput dlq list"),
    columns: [
      { name: "choose", label: "", cell: (row) => h("input", { type: "checkbox", "aria-label": "Select dead letter " + row.offset, onchange: (event) => choose(row, event.currentTarget.checked) }) },
      { name: "offset", label: "Offset", isNumber: true, value: (row) => row.offset, cell: (row) => count(row.offset) },
      { name: "stored", label: "Dead since", value: (row) => row.stored_ms, cell: (row) => link(path("messages", row.id), h("span", { title: time(row.stored_ms) }, ago(row.stored_ms, now))) },
      { name: "origin", label: "Came from", value: (row) => row.origin_topic ?? "", cell: (row) => (row.origin_topic ? link(path("topics", row.origin_topic), row.origin_topic) : "unknown") },
      { name: "reason", label: "Reason", value: (row) => row.reason, cell: (row) => [row.reason.replaceAll("_", " "), row.cause ? h("div", { class: "hint" }, row.cause) : null] },
      { name: "attempts", label: "Attempts", isNumber: true, value: (row) => row.attempts, cell: (row) => count(row.attempts) },
      { name: "keys", label: "Keys", value: (row) => row.keys.join(" "), cell: (row) => h("span", { class: "short" }, row.keys.join(" ") || "–") },
      { name: "size", label: "Size", isNumber: true, value: (row) => row.size_b, cell: (row) => size(row.size_b) },
      { name: "body", label: "Body", isWide: true, cell: (row) => h("code", { class: "preview" }, row.preview || (row.is_compressed ? "(compressed)" : "(empty)")) },
    ],
  });
  put(page.main, page.trail(["dead-letters", "Dead letters"], name), tiles,
    h("div", { class: "tools" }, some, all, link(path("groups", name), "The group"), command("reput dlq peek " + quoted(name))), outcome, section("Letters", table.element));

  function choose(row, isChosen) {
    if (isChosen) chosen.add(row.offset);
    else chosen.delete(row.offset);
    some.disabled = !chosen.size || chosen.size > AT_ONCE;
    some.textContent = chosen.size ? "Replay " + count(chosen.size) + " selected" : "Replay selected";
  }

  async function load() {
    found = await get("letters", { group: name, from }, page.signal);
    now = found.at_ms;
    put(tiles, tile("Not replayed", count(found.left), "after offset " + count(found.replayed_until), found.left ? "warn" : ""), tile("Kept", count(found.messages), "offsets " + count(found.start) + " to " + count(Math.max(found.start, found.end - 1))));
    all.disabled = !found.left;
    all.textContent = found.left ? "Replay all " + count(found.left) : "Replay all";
    const here = path("dead-letters", name);
    const last = found.from + found.letters.length;
    table.update(found.letters, found.messages ? ["Offsets " + count(found.from) + " to " + count(last - 1) + ". ", found.from > found.start ? link(here + query({ from: Math.max(found.start, found.from - 50) }), "Older") : "", " ",
      last < found.end ? link(here + query({ from: last }), "Newer") : ""] : "");
  }

  function report(sent, skipped, stopped) {
    const total = Object.values(sent).reduce((sum, number) => sum + number, 0);
    const where = Object.entries(sent).map(([topic, number]) => count(number) + " to " + topic).join(", ");
    const text = total ? counted(total, "dead letter was", "dead letters were") + " sent: " + where + "." : "No dead letter was sent.";
    put(outcome, h("div", { class: "notice " + (skipped.length || stopped ? "warn" : "ok"), role: "status" }, h("strong", null, text), stopped ? h("span", null, "Stopped: " + stopped) : null,
      skipped.slice(0, 10).map((row) => h("span", null, "Offset " + count(row.offset) + ": " + row.why)), skipped.length > 10 ? h("span", null, "and " + count(skipped.length - 10) + " more") : null));
    say(text);
  }

  async function changing(work) {
    some.disabled = all.disabled = true;
    try {
      await withLogin(work);
    } catch (error) {
      put(outcome, failure(error));
    }
    document.querySelectorAll("main input[type=checkbox]").forEach((box) => { box.checked = false; });
    chosen.clear();
    choose({}, false);
    await load().catch((error) => { if (error.name !== "AbortError") put(outcome, failure(error)); });
  }

  async function replayChosen() {
    const offsets = [...chosen];
    if (!(await confirm("Replay " + counted(offsets.length, "dead letter") + "?", "Each becomes a new message in the topic that it came from. The dead letters stay where they are.", "Replay"))) return;
    await changing(async () => {
      const done = await post("replay", { group: name, offsets: offsets.join(",") });
      report(done.sent, done.skipped, done.stopped);
    });
  }

  async function replayAll() {
    if (!(await confirm("Replay all " + counted(found.left, "dead letter") + "?", "Each becomes a new message in the topic that it came from, from offset " + count(found.replayed_until) + " on. The progress is kept: reput dlq replay continues at the same place.", "Replay all"))) return;
    await changing(async () => {
      const sent = {};
      const skipped = [];
      let last = null;
      do {
        const before = last?.left;
        last = await post("replay", { group: name });
        for (const [topic, number] of Object.entries(last.sent)) sent[topic] = (sent[topic] ?? 0) + number;
        skipped.push(...last.skipped);
        report(sent, skipped, last.stopped);
        if (last.left === before) break;
      } while (last.left && !last.stopped && !page.signal.aborted);
    });
  }

  page.poll(load, 15000);
}
