// Topics: the list, and one with its queues and groups.

import { actionBar } from "./actions.js";
import { get } from "./api.js";
import { badge, command, empty, facts, h, link, path, put, query, quoted, section, tile } from "./dom.js";
import { topicFigures } from "./figures.js";
import { ago, count, counted, perSecond, rate, size, span, time } from "./format.js";
import { Table } from "./table.js";

const PERMISSIONS = { 2: "write only", 4: "read only", 6: "read and write" };
// By this a broker tells a topic from an earlier one of its name; it says nothing to people.
const GENERATION = "reput.generation";
const KINDS = { retry: "quiet", dlq: "warn", system: "quiet" };

export function kindBadge(kind) {
  return kind === "normal" ? null : badge(KINDS[kind] ?? "quiet", kind === "dlq" ? "dead letters" : kind);
}

// The rates of counters, from one refresh to the next.
export class Rates {
  constructor() {
    this.before = new Map();
    this.rates = new Map();
    this.at = null;
  }

  take(at, totals) {
    if (this.at === at) return;
    const seconds = this.at === null ? null : (at - this.at) / 1000;
    const next = new Map(totals);
    for (const [name, total] of next) {
      const old = this.before.get(name);
      this.rates.set(name, seconds === null || old === undefined ? null : Math.max(0, total - old) / seconds);
    }
    this.before = next;
    this.at = at;
  }

  of(name) {
    return this.rates.get(name) ?? null;
  }
}

export function topics(page) {
  page.title("Topics");
  const rates = new Rates();
  const search = h("input", { type: "search", id: "search", placeholder: "Part of a name", value: page.query.get("search") ?? "", "aria-label": "Search topics" });
  const system = h("input", { type: "checkbox", id: "system" });
  const table = new Table({
    label: "Topics",
    key: (row) => row.topic,
    sort: "topic",
    empty: null,
    columns: [
      { name: "topic", label: "Topic", value: (row) => row.topic.toLowerCase(), cell: (row) => [link(path("topics", row.topic), row.topic), " ", kindBadge(row.kind)] },
      { name: "rate", label: "In, per second", isNumber: true, value: (row) => rates.of(row.topic), cell: (row) => rate(rates.of(row.topic)) },
      { name: "messages", label: "Messages kept", isNumber: true, value: (row) => row.messages, cell: (row) => count(row.messages) },
      { name: "stored", label: "Stored so far", isNumber: true, value: (row) => row.end_offsets, cell: (row) => count(row.end_offsets) },
      { name: "bytes", label: "Bytes since start", isNumber: true, value: (row) => row.bytes_in, cell: (row) => size(row.bytes_in) },
      { name: "queues", label: "Queues", isNumber: true, value: (row) => row.write_queue_nums, cell: (row) => (row.read_queue_nums === row.write_queue_nums ? count(row.read_queue_nums) : count(row.write_queue_nums) + " write, " + count(row.read_queue_nums) + " read") },
      { name: "perm", label: "Permission", value: (row) => row.perm, cell: (row) => PERMISSIONS[row.perm] ?? (row.perm ? "permission " + row.perm : "none") },
    ],
  });
  const doing = actionBar(page, "topics", "", undefined, () => refresh());
  put(page.main, h("h1", null, "Topics"), h("div", { class: "tools" }, search, h("label", { class: "check" }, system, "Retry, dead-letter and system topics"), doing.buttons), doing.outcome, table.element);
  const refresh = page.poll(async () => {
    const found = await get("topics", { search: search.value, system: system.checked ? "1" : "" }, page.signal);
    rates.take(found.at_ms, found.topics.map((row) => [row.topic, row.end_offsets]));
    table.setEmpty(search.value ? empty("No topic matches.", "reput topic list") : empty("No topics yet. Topics are created on first use, or by hand:", "reput produce orders 'hello'", "reput topic create orders --queues 4"));
    table.update(found.topics, found.total > found.topics.length ? "The first " + count(found.topics.length) + " of " + count(found.total) + " topics by name; search for others." : found.total ? counted(found.total, "topic") : "");
  });
  page.onInput(search, refresh);
  system.addEventListener("change", refresh);
}

export function topic(page) {
  const name = page.parts[1];
  page.title(name);
  const tiles = h("div", { class: "tiles" });
  const about = h("div");
  const rates = new Rates();
  const first = Number(page.query.get("from") ?? 0) || 0;
  const groups = new Table({
    label: "Groups that consume this topic",
    key: (row) => row.group,
    sort: "lag",
    descending: true,
    empty: empty("No group has consumed this topic yet.", "reput consume " + quoted(name) + " -g my-group"),
    columns: [
      { name: "group", label: "Group", value: (row) => row.group, cell: (row) => link(path("groups", row.group), row.group) },
      { name: "lag", label: "Lag", isNumber: true, value: (row) => row.lag, cell: (row) => count(row.lag) },
      { name: "age", label: "Oldest waits", isNumber: true, value: (row) => row.lag_age_millis, cell: (row) => (row.lag ? span(row.lag_age_millis) : "–") },
      { name: "members", label: "Members", isNumber: true, value: (row) => row.members, cell: (row) => count(row.members) },
    ],
  });
  let now = 0;
  const queues = new Table({
    label: "Queues",
    key: (row) => row.queue,
    sort: "queue",
    empty: empty("This topic has no queues."),
    columns: [
      { name: "queue", label: "Queue", isNumber: true, value: (row) => row.queue, cell: (row) => link("messages" + query({ topic: name, queue: row.queue }), row.queue) },
      { name: "start", label: "First offset", isNumber: true, value: (row) => row.start, cell: (row) => count(row.start) },
      { name: "end", label: "Next offset", isNumber: true, value: (row) => row.end, cell: (row) => count(row.end) },
      { name: "messages", label: "Messages kept", isNumber: true, value: (row) => row.messages, cell: (row) => count(row.messages) },
      { name: "rate", label: "In, per second", isNumber: true, value: (row) => rates.of(row.queue), cell: (row) => rate(rates.of(row.queue)) },
      { name: "last", label: "Last message", isNumber: true, value: (row) => row.last_ms, cell: (row) => h("span", { title: time(row.last_ms) }, ago(row.last_ms, now)) },
    ],
  });
  let settings = {};
  const doing = actionBar(page, "topic", name, () => settings, (row) => (row.name === "delete-topic" ? page.go("topics") : refresh()));
  put(page.main, page.trail(["topics", "Topics"], name), tiles,
    h("div", { class: "tools" }, link("messages" + query({ topic: name }), h("span", { class: "button" }, "Browse messages")), link("messages" + query({ topic: name, mode: "key" }), h("span", { class: "button" }, "Find by key")),
      doing.buttons, command("reput topic describe " + quoted(name))), doing.outcome, topicFigures(page, name),
    section("Groups", groups.element), section("Queues", queues.element), section("Settings", about));
  const refresh = page.poll(async () => {
    const found = await get("topic", { topic: name, from: first || "" }, page.signal);
    now = found.at_ms;
    rates.take(found.at_ms, found.queues.map((row) => [row.queue, row.end]));
    const kept = found.queues.reduce((sum, row) => sum + row.messages, 0);
    const inRate = found.queues.some((row) => rates.of(row.queue) !== null) ? found.queues.reduce((sum, row) => sum + (rates.of(row.queue) ?? 0), 0) : null;
    const last = Math.max(...found.queues.map((row) => row.last_ms ?? -Infinity));
    settings = { queues: found.read_queue_nums === found.write_queue_nums ? found.write_queue_nums : undefined };
    put(tiles, tile("In", perSecond(inRate), size(found.bytes_in) + " since start"), tile("Messages kept", count(kept), counted(found.queues_total, "queue")),
      tile("Last message", Number.isFinite(last) ? ago(last, now) : "–", Number.isFinite(last) ? time(last) : "none is kept"), tile("Delayed", count(found.delayed), found.delayed ? [link("delayed" + query({ topic: name }), "show them")] : "none waits"));
    groups.update(found.groups);
    const shown = found.queues.length;
    queues.update(found.queues, shown < found.queues_total ? ["Queues " + count(first) + " to " + count(first + shown - 1) + " of " + count(found.queues_total) + ". ",
      first ? link(path("topics", name) + query({ from: Math.max(0, first - 1000) }), "Before") : "", " ", first + shown < found.queues_total ? link(path("topics", name) + query({ from: first + shown }), "Next") : ""] : "");
    put(about, facts([
      ["Kind", kindBadge(found.kind) ?? "normal"],
      ["Permission", PERMISSIONS[found.perm] ?? String(found.perm)],
      ["Queues", found.write_queue_nums + " to write, " + found.read_queue_nums + " to read"],
      found.order ? ["Order", "yes"] : null,
      Object.keys(found.messages_in).length ? ["Stored since the start", Object.entries(found.messages_in).map(([kind, number]) => counted(number, kind + " message")).join(", ")] : null,
      ...Object.entries(found.attributes).filter(([attribute]) => attribute !== GENERATION),
    ]));
  }, undefined, empty("It may have been deleted. Topics are created on first use, or by hand:", "reput topic create " + quoted(name)));
}
