// Open transactions: half messages that no producer has ended yet, the oldest first.

import { get } from "./api.js";
import { rowActions } from "./actions.js";
import { empty, failure, h, link, path, put } from "./dom.js";
import { count, counted, size, span, time } from "./format.js";
import { Table } from "./table.js";

export function transactions(page) {
  page.title("Transactions");
  const topic = h("input", { type: "search", id: "search", placeholder: "Topic, exactly", value: page.query.get("topic") ?? "", "aria-label": "Topic" });
  const key = h("input", { type: "search", id: "key", placeholder: "Key or transaction id, exactly", value: page.query.get("key") ?? "", "aria-label": "Key or transaction id" });
  const more = h("div", { class: "buttons" });
  let now = 0;
  let extra = [];
  const actions = rowActions(page, "transactions", () => again());
  const table = new Table({
    label: "Open transactions",
    key: (row) => row.queue_offset,
    sort: "stored",
    descending: true,
    empty: null,
    columns: [
      { name: "stored", label: "Open for", value: (row) => -row.store_timestamp, cell: (row) => h("span", { title: time(row.store_timestamp) }, span(Math.max(0, now - row.store_timestamp))) },
      { name: "topic", label: "Topic", value: (row) => row.topic, cell: (row) => link(path("topics", row.topic), row.topic) },
      { name: "group", label: "Producer group", value: (row) => row.producer_group, cell: (row) => row.producer_group || "–" },
      { name: "keys", label: "Keys", value: (row) => row.keys.join(" "), cell: (row) => h("span", { class: "short" }, row.keys.join(" ") || "–") },
      { name: "checked", label: "Checked", isNumber: true, value: (row) => row.check_times, cell: (row) => count(row.check_times), title: "How often its producers were asked for the outcome" },
      { name: "size", label: "Size", isNumber: true, value: (row) => row.size, cell: (row) => size(row.size) },
      { name: "id", label: "Transaction", value: (row) => row.unique_id ?? "", cell: (row) => h("code", { class: "short" }, row.unique_id ?? "–") },
      { name: "actions", label: "", cell: (row) => (row.unique_id ? actions.cell(row.topic, { topic: row.topic, transaction: row.unique_id }) : null) },
    ],
  });
  put(page.main, h("h1", null, "Transactions"), h("div", { class: "tools" }, topic, key), actions.outcome, table.element, more);

  async function show(found, rows) {
    await actions.know(rows.map((row) => row.topic));
    table.limit = Math.max(table.limit, rows.length);
    table.setEmpty(topic.value || key.value ? empty("No open transaction of this topic, with this key or id.", "reput transaction list") : empty("No transaction is open. A producer opens one with a half message, and commits it or rolls it back."));
    table.update(rows, rows.length ? counted(rows.length, "transaction") + " of " + count(found.total) + " that are open" : "");
    put(more, found.cursor === null ? null : h("button", { type: "button", onclick: () => next(found.cursor) }, "Show more"));
  }

  const refresh = page.poll(async () => {
    const found = await get("transactions", { topic: topic.value, key: key.value }, page.signal);
    now = found.at_ms;
    const known = new Set(found.transactions.map((row) => row.queue_offset));
    extra = found.cursor === null ? [] : extra.filter((row) => !known.has(row.queue_offset));
    await show(found, [...found.transactions, ...extra]);
  });

  async function next(cursor) {
    try {
      const found = await get("transactions", { topic: topic.value, key: key.value, cursor }, page.signal);
      const known = new Set(table.rows.map((row) => row.queue_offset));
      extra.push(...found.transactions.filter((row) => !known.has(row.queue_offset)));
      await show(found, [...table.rows, ...found.transactions.filter((row) => !known.has(row.queue_offset))]);
    } catch (error) {
      if (error.name !== "AbortError") put(more, failure(error));
    }
  }

  const again = () => {
    extra = [];
    refresh();
  };
  page.onInput(topic, again);
  page.onInput(key, again);
}
