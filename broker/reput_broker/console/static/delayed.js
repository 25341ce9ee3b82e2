// Delayed messages: the next ones first, and cancelling one.

import { rowActions } from "./actions.js";
import { get } from "./api.js";
import { badge, empty, failure, h, link, path, put } from "./dom.js";
import { ago, count, counted, size, span, time } from "./format.js";
import { schedules } from "./schedules.js";
import { Table } from "./table.js";

export function delayed(page) {
  page.title("Delayed messages");
  const topic = h("input", { type: "search", id: "search", placeholder: "Topic, exactly", value: page.query.get("topic") ?? "", "aria-label": "Topic" });
  const key = h("input", { type: "search", id: "key", placeholder: "Key or message id, exactly", value: page.query.get("key") ?? "", "aria-label": "Key or message id" });
  const actions = rowActions(page, "delayed", () => again());
  const more = h("div", { class: "buttons" });
  let now = 0;
  let extra = [];
  const table = new Table({
    label: "Delayed messages",
    key: (row) => row.offset_message_id,
    sort: "due",
    empty: null,
    columns: [
      { name: "due", label: "Due", value: (row) => row.deliver_timestamp, cell: (row) => h("span", { title: time(row.deliver_timestamp) }, row.deliver_timestamp < now - 1000 ? badge("warn", "late " + span(now - row.deliver_timestamp)) : ago(row.deliver_timestamp, now)) },
      { name: "at", label: "At", value: (row) => row.deliver_timestamp, cell: (row) => h("span", { class: "when" }, time(row.deliver_timestamp)) },
      { name: "topic", label: "Topic", value: (row) => row.topic, cell: (row) => link(path("topics", row.topic), row.topic) },
      { name: "keys", label: "Keys", value: (row) => row.keys.join(" "), cell: (row) => h("span", { class: "short" }, row.keys.join(" ") || "–") },
      { name: "level", label: "Level", isNumber: true, value: (row) => row.delay_level, cell: (row) => (row.delay_level || "–") },
      { name: "size", label: "Size", isNumber: true, value: (row) => row.size, cell: (row) => size(row.size) },
      { name: "id", label: "Message", value: (row) => row.unique_id ?? row.offset_message_id, cell: (row) => link(path("messages", row.offset_message_id), h("code", { class: "short" }, row.unique_id ?? row.offset_message_id)) },
      { name: "actions", label: "", cell: (row) => (row.unique_id ? actions.cell(row.topic, { topic: row.topic, key: row.unique_id }) : null) },
    ],
  });
  put(page.main, h("h1", null, "Delayed messages"), h("div", { class: "tools" }, topic, key), actions.outcome, table.element, more, schedules(page));

  const refresh = page.poll(async () => {
    const found = await get("delayed", { topic: topic.value, key: key.value }, page.signal);
    now = found.at_ms;
    const known = new Set(found.messages.map((row) => row.offset_message_id));
    extra = found.cursor ? extra.filter((row) => !known.has(row.offset_message_id)) : [];
    await show(found, [...found.messages, ...extra]);
  });

  async function show(found, rows) {
    await actions.know(rows.map((row) => row.topic));
    table.limit = Math.max(table.limit, rows.length);
    table.setEmpty(topic.value || key.value ? empty("No delayed message of this topic, with this key, waits.", "reput delay list") : empty("No delayed message waits.", "reput produce orders 'remember me' --delay 5m"));
    table.update(rows, (rows.length ? counted(rows.length, "message") + " of " + count(found.total) + " that wait" : "") + (found.late_s > 1 ? "; the most overdue is " + span(found.late_s * 1000) + " late" : ""));
    put(more, found.cursor ? h("button", { type: "button", onclick: () => next(found.cursor) }, "Show more") : null);
  }

  async function next(cursor) {
    try {
      const found = await get("delayed", { topic: topic.value, key: key.value, cursor }, page.signal);
      const known = new Set(table.rows.map((row) => row.offset_message_id));
      extra.push(...found.messages.filter((row) => !known.has(row.offset_message_id)));
      await show(found, [...table.rows, ...found.messages.filter((row) => !known.has(row.offset_message_id))]);
    } catch (error) {
      if (error.name !== "AbortError") put(actions.outcome, failure(error));
    }
  }

  const again = () => {
    extra = [];
    refresh();
  };
  page.onInput(topic, again);
  page.onInput(key, again);
}
