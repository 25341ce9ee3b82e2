// Messages: through the queues of topics, by key, by id; following what is stored; one of them whole.

import { addressOf, get } from "./api.js";
import { badge, cleanLines, command, empty, facts, failure, h, link, path, put, query, quoted, say, section } from "./dom.js";
import { ago, clock, count, counted, fieldTime, momentOf, size, time } from "./format.js";
import { Table } from "./table.js";

const MODES = [["browse", "Browse"], ["key", "By key"], ["id", "By id"]];
const STARTS = [["newest", "the newest"], ["oldest", "the oldest"], ["time", "a time"], ["offset", "an offset"]];
const FILTERS = [
  ["", "all messages", ""],
  ["tag", "tag", "paid || refunded"],
  ["key", "key or message id", "o-42"],
  ["sql", "SQL92 of the properties", "amount > 100 AND region = 'eu'"],
  ["text", "text in the body", "not found"],
  ["path", "value in the body", 'order.items[*].sku = "A-1"'],
];
const HEX_BYTES = 16;
const FOLLOW_MS = 1000;
const AWAY_MS = 5000;
const KEPT = 200;
const EXPORTED_AT_ONCE = 50;
const SAID_EVERY_MS = 5000;

// A damaged message has no page of its own: the broker gives none out.
function storedCell(row, now) {
  if (row.stored_ms === null) return "unknown";
  const when = h("span", { class: "when", title: ago(row.stored_ms, now) }, time(row.stored_ms));
  return row.fault || !row.id ? when : link(path("messages", row.id), when);
}

export function bodyCell(row) {
  if (row.fault) return badge("bad", "damaged", row.fault);
  return row.is_compressed ? badge("quiet", "compressed") : h("code", { class: "preview" }, row.preview || "(empty)");
}

function messageColumns(now, hasTopic) {
  return [
    { name: "stored", label: "Stored", value: (row) => row.stored_ms, cell: (row) => storedCell(row, now()) },
    hasTopic ? { name: "topic", label: "Topic", value: (row) => row.topic, cell: (row) => link(path("topics", row.topic), row.topic) } : null,
    { name: "queue", label: "Queue", isNumber: true, value: (row) => row.queue, cell: (row) => count(row.queue) },
    { name: "offset", label: "Offset", isNumber: true, value: (row) => row.offset, cell: (row) => count(row.offset) },
    { name: "tag", label: "Tag", value: (row) => row.tag ?? "", cell: (row) => h("span", { class: "short" }, row.tag ?? "–") },
    { name: "keys", label: "Keys", value: (row) => row.keys.join(" "), cell: (row) => h("span", { class: "short", title: row.keys.join(" ") }, row.keys.join(" ") || "–") },
    { name: "size", label: "Size", isNumber: true, value: (row) => row.size_bytes, cell: (row) => size(row.size_bytes) },
    { name: "body", label: "Body", isWide: true, cell: bodyCell },
  ].filter(Boolean);
}

function choice(name, label, options, chosen) {
  const select = h("select", { name, id: name }, options.map(([value, text]) => h("option", { value }, text)));
  select.value = chosen;
  if (select.selectedIndex < 0) select.selectedIndex = 0;
  return { select, element: h("label", null, label, select) };
}

export function messages(page) {
  if (page.parts.length > 1) return message(page);
  page.title("Messages");
  const given = page.query;
  const mode = given.get("mode") ?? "browse";
  const topics = h("datalist", { id: "topics" });
  const field = (name, label, properties) => h("label", { class: properties.class }, label, h("input", { name, id: name, autocomplete: "off", spellcheck: "false", ...properties, class: null }));
  const topic = field("topic", "Topic", { list: "topics", required: true, value: given.get("topic") ?? "", placeholder: mode === "browse" ? "orders, or orders-*" : "orders" });
  const parts = [];
  if (mode === "id") parts.push(field("id", "Message id", { required: true, value: given.get("id") ?? "", placeholder: "32 or 56 hexadecimal digits", class: "wide" }));
  if (mode === "key") {
    parts.push(topic, field("key", "Key, or the producer's message id", { required: true, value: given.get("key") ?? "", class: "wide" }),
      field("from", "From", { type: "datetime-local", step: "1", value: given.get("from") ?? "" }), field("to", "To", { type: "datetime-local", step: "1", value: given.get("to") ?? "" }));
  }
  if (mode === "browse") {
    const start = choice("start", "From", STARTS, given.get("start") ?? "newest");
    const at = field("at", "Time", { type: "datetime-local", step: "1", value: given.get("at") ?? fieldTime(Date.now() - 900000) });
    const offset = field("offset", "Offset", { inputmode: "numeric", pattern: "[0-9]*", value: given.get("offset") ?? "0", class: "narrow" });
    const by = choice("by", "Only", FILTERS, given.get("by") ?? "");
    const filter = field("with", "Filter", { value: given.get("with") ?? "", class: "wide" });
    const show = () => {
      at.hidden = start.select.value !== "time";
      offset.hidden = start.select.value !== "offset";
      filter.hidden = by.select.value === "";
      const input = filter.querySelector("input");
      input.required = !filter.hidden;
      input.placeholder = FILTERS.find(([name]) => name === by.select.value)[2];
    };
    start.select.addEventListener("change", show);
    by.select.addEventListener("change", () => {
      show();
      if (!filter.hidden) filter.querySelector("input").focus();
    });
    show();
    parts.push(topic, field("queue", "Queue", { inputmode: "numeric", pattern: "[0-9]*", placeholder: "all", value: given.get("queue") ?? "", class: "narrow" }), start.element, at, offset, by.element, filter);
  }
  const form = h("form", { class: "form", role: "search" }, parts, h("button", { type: "submit", class: "primary" }, mode === "browse" ? "Show" : "Find"), topics);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const values = Object.fromEntries(new FormData(form));
    if (mode === "id") page.go(path("messages", values.id.trim()));
    else {
      const unused = { ...(values.start === "time" ? {} : { at: "" }), ...(values.start === "offset" ? {} : { offset: "" }), ...(values.by ? {} : { with: "" }), ...(values.start === "newest" ? { start: "" } : {}) };
      page.go("messages" + query({ mode: mode === "browse" ? "" : mode, ...values, ...unused }));
    }
  });
  const results = h("div");
  put(page.main, h("h1", null, "Messages"), h("div", { class: "tabs" }, MODES.map(([name, text]) =>
    h("a", { href: "#/messages" + query({ mode: name === "browse" ? "" : name, topic: given.get("topic") }), "aria-current": name === mode ? "page" : null }, text))), form, results);
  if (mode !== "id") {
    get("topics", {}, page.signal).then((found) => put(topics, found.topics.map((row) => h("option", { value: row.topic }))), () => null);
  }
  const name = given.get("topic");
  if (mode === "browse" && name) browse(page, results, name);
  else if (mode === "key" && name && given.get("key")) find(page, results, name);
  else put(results, hint(mode));
}

function hint(mode) {
  if (mode === "id") return empty("The offset message id is what a producer's receipt, a consumer and reput produce print.", "reput message get ID");
  if (mode === "key") return empty("Finds messages by one of their keys, or by the id that their producer gave them.", "reput message find orders o-42");
  return empty("Choose a topic, or several by a pattern such as orders-*, to see their messages. Nothing is consumed, and no offset changes.", "reput consume orders -n 10");
}

// A list whose messages can be chosen and exported.
function listing(page, nothing, { hasTopic = false, name = "messages" } = {}) {
  const button = h("button", { type: "button", disabled: true, onclick: () => exportRows(page, table, button, name) }, "Export");
  const table = new Table({
    label: "Messages", key: (row) => row.topic + " " + row.queue + ":" + row.offset, sort: "stored", descending: true, empty: nothing,
    columns: messageColumns(() => Date.now(), hasTopic),
    select: {
      label: (row) => "Select the message at offset " + row.offset + " of queue " + row.queue,
      onchange: () => {
        button.disabled = !table.chosen.size;
        button.textContent = table.chosen.size ? "Export " + count(table.chosen.size) : "Export";
      },
    },
  });
  button.title = "Write the selected messages to a file, as JSON lines";
  return { table, button };
}

async function exportRows(page, table, button, name) {
  const ids = [...table.chosen.values()].filter((row) => row.id && !row.fault).map((row) => row.id);
  button.disabled = true;
  try {
    const parts = [];
    for (let at = 0; at < ids.length; at += EXPORTED_AT_ONCE) {
      button.textContent = "Exporting " + count(at) + " of " + count(ids.length);
      const answer = await fetch(addressOf("export", { ids: ids.slice(at, at + EXPORTED_AT_ONCE).join(",") }), { signal: page.signal, credentials: "same-origin" });
      if (!answer.ok) throw new Error((await answer.json().catch(() => null))?.error ?? "The broker responded with status " + answer.status + ".");
      parts.push(await answer.blob());
    }
    const url = URL.createObjectURL(new Blob(parts, { type: "application/x-ndjson" }));
    const to = h("a", { href: url, download: name.replaceAll(/[^\w.%-]+/g, "_") + ".jsonl" });
    to.click();
    setTimeout(() => URL.revokeObjectURL(url), 60000);
    say(counted(ids.length, "message") + " exported");
    table.clearChosen();
  } catch (error) {
    if (error.name !== "AbortError") say(error.message);
    button.textContent = "Not exported: " + error.message;
  }
}

async function browse(page, results, name) {
  const given = page.query;
  const start = given.get("start") || "newest";
  const by = given.get("by") ?? "";
  const asked = { topic: name, queue: given.get("queue") ?? "", ...(by ? { [by]: given.get("with") } : {}) };
  const isSeveral = /[*?[,\s]/.test(name.trim());
  const nothing = by ? empty("No message matches here. “Older” and “Newer” look further.") :
    start === "newest" || start === "oldest" ? empty(isSeveral ? "These topics keep no messages." : "This topic keeps no messages.", "reput produce " + quoted(isSeveral ? "orders" : name) + " 'hello'") :
      empty("No message is stored at this position or after it.");
  const { table, button } = listing(page, nothing, { hasTopic: isSeveral, name });
  table.descending = start === "newest";
  const trouble = h("div");
  const older = h("button", { type: "button", disabled: true, "data-key": "p", title: "Older messages (p)", onclick: () => turn("previous", shown.previous) }, "← Older");
  const newer = h("button", { type: "button", disabled: true, "data-key": "n", title: "Newer messages (n)", onclick: () => turn("next", shown.next) }, "Newer →");
  const follow = h("button", { type: "button", "aria-pressed": "false", title: "Show new messages as they are stored", onclick: () => (isFollowing ? stop() : beginFollowing()) }, "Follow");
  const status = h("span", { class: "hint", id: "following" });
  put(results, h("div", { class: "tools" }, older, newer, follow, button, status), trouble, table.element);
  let shown = null;
  let isFollowing = false;
  let timer = null;
  let rows = [];
  let arrived = 0;
  let skipped = 0;
  let saidAt = 0;

  function note(found) {
    const parts = [counted(rows.length, "message")];
    if (isSeveral) parts.push(" of " + counted(found.topics.length, "topic"));
    if (by) parts.push(", of " + count(found.looked_at) + " looked at");
    if (found.is_cut) parts.push(by ? "; “Older” and “Newer” look further" : "; large messages, so that fewer are shown at once");
    if (found.denied.length) parts.push("; no permission to read " + found.denied.join(", "));
    return parts.join("");
  }

  function show(found) {
    shown = found;
    if (!found.topics.length) table.setEmpty(empty("No topic matches " + name + ".", "reput topic list"));
    table.limit = Math.max(table.limit, rows.length);
    table.update(rows, note(found));
    older.disabled = isFollowing || !found.has_older;
    newer.disabled = isFollowing || !found.has_more;
  }

  async function turn(where, place) {
    try {
      const first = where === "time" ? { at_ms: momentOf(given.get("at")) || 0 } : where === "offset" ? { offset: given.get("offset") } : {};
      const found = await get("browse", { ...asked, start: where, place: place ?? "", ...first }, page.signal);
      put(trouble);
      page.main.classList.remove("failed");
      rows = found.messages;
      show(found);
      if (place) say(note(found));
    } catch (error) {
      if (error.name !== "AbortError") put(trouble, page.failed(error));
    }
  }

  async function beginFollowing() {
    isFollowing = true;
    follow.setAttribute("aria-pressed", "true");
    put(follow, "Stop");
    arrived = skipped = 0;
    table.sort = "stored";
    table.descending = true;
    say("Following " + name);
    await turn("newest");
    if (shown) next();
    else stop();
  }

  function stop() {
    isFollowing = false;
    clearTimeout(timer);
    follow.setAttribute("aria-pressed", "false");
    put(follow, "Follow");
    put(status, arrived ? "stopped; " + counted(arrived, "message") + " came" : "");
    if (shown) show(shown);
  }

  async function next() {
    if (!isFollowing || page.signal.aborted) return;
    let after = FOLLOW_MS;
    if (document.hidden) {
      document.addEventListener("visibilitychange", next, { once: true, signal: page.signal });
      return;
    }
    try {
      const found = await get("browse", { ...asked, start: "next", place: shown.next, follow: "1", count: 100 }, page.signal);
      if (!isFollowing) return;
      put(trouble);
      page.main.classList.remove("failed");
      arrived += found.messages.length;
      skipped += found.skipped;
      rows = [...rows, ...found.messages].slice(-KEPT);
      show(found);
      if (found.has_more) after = FOLLOW_MS / 5;
      put(status, badge("ok", "following"), " " + counted(arrived, "message") + " came" + (skipped ? ", " + count(skipped) + " more are not shown: too many at once" : ""));
      if (found.messages.length && Date.now() - saidAt > SAID_EVERY_MS) {
        saidAt = Date.now();
        say(counted(arrived, "message") + " came");
      }
    } catch (error) {
      if (error.name === "AbortError") return;
      put(trouble, page.failed(error));
      put(status, badge("bad", "no response"), " since " + clock(Date.now()) + "; it continues where it was");
      if (error.status && error.status < 500) {
        stop();
        return;
      }
      after = AWAY_MS;
    }
    timer = setTimeout(next, after);
  }

  page.onLeave(() => clearTimeout(timer));
  await turn(start);
  if (given.get("follow") === "1") beginFollowing();
}

async function find(page, results, name) {
  const given = page.query;
  const nothing = empty("No message of " + name + " has the key " + given.get("key") + ". It may have expired, or wait as a delayed message.", "reput delay list -t " + quoted(name) + " -k " + quoted(given.get("key")));
  const { table, button } = listing(page, nothing, { name });
  put(results, table.element);
  try {
    const at = (text) => (text ? momentOf(text) : "");
    const found = await get("find", { topic: name, key: given.get("key"), from_ms: at(given.get("from")), to_ms: at(given.get("to")) }, page.signal);
    put(results, found.is_complete ? null : h("div", { class: "notice warn" }, h("strong", null, "The key index is being rebuilt, or is off."), h("span", null, "Messages may be missing here; ask again later.")),
      found.messages.length ? h("div", { class: "tools" }, button) : null, table.element);
    table.update(found.messages, found.messages.length ? counted(found.messages.length, "message") : "");
  } catch (error) {
    if (error.name !== "AbortError") put(results, page.failed(error));
  }
}

async function message(page) {
  const id = page.parts[1];
  page.title("Message " + id);
  put(page.main, page.trail(["messages", "Messages"], "Message"), h("p", { class: "hint" }, "Loading …"));
  let found;
  try {
    found = await get("message", { id }, page.signal);
  } catch (error) {
    if (error.name !== "AbortError") put(page.main, page.trail(["messages", "Messages"], "Message"), page.failed(error), error.status ? hint("key") : null);
    return;
  }
  const now = found.at_ms;
  const properties = Object.entries(found.properties);
  const way = h("div", null, h("p", { class: "hint" }, "Loading …"));
  const trouble = h("div");
  const step = (key, text, by) => h("button", { type: "button", "data-key": key, title: text + " in its queue (" + key + ")", onclick: () => neighbour(by) }, key === "p" ? "← " + text : text + " →");
  put(page.main, page.trail(["messages", "Messages"], found.unique_id ?? found.id),
    h("div", { class: "tools" }, step("p", "Previous", -1), step("n", "Next", 1),
      link("messages" + query({ topic: found.topic, start: "time", at: fieldTime(found.stored_ms) }), "Messages stored around then"), command("reput message history " + found.id)), trouble,
    section("Body", bodyOf(found)),
    h("div", { class: "columns" }, section("What became of it", way),
      section("Message", facts([
        ["Topic", link(path("topics", found.topic), found.topic)],
        ["Queue and offset", link("messages" + query({ topic: found.topic, queue: found.queue, start: "offset", offset: found.offset }), count(found.queue) + " / " + count(found.offset))],
        ["Tag", found.tag ?? "–"],
        ["Keys", found.keys.length ? found.keys.flatMap((key, i) => [i ? ", " : "", link("messages" + query({ mode: "key", topic: found.topic, key }), key)]) : "–"],
        ["Stored", time(found.stored_ms) + ", " + ago(found.stored_ms, now)],
        ["Sent", time(found.born_ms) + " by the producer's clock, from " + found.born_host],
        ["Producer's message id", found.unique_id ?? "–"],
        ["Offset message id", h("code", null, found.id)],
        ["Redelivered", found.attempts ? counted(found.attempts, "time") : "never"],
        ["Place in the log", count(found.log_offset) + ", " + size(found.record_bytes)],
        ["Flag", String(found.flag)],
      ]))),
    section("Properties", properties.length ? h("div", { class: "frame" }, h("table", { class: "properties" }, h("tbody", null, properties.map(([name, value]) => h("tr", null, h("th", { scope: "row" }, name), h("td", null, value)))))) : empty("It has no properties.")));

  async function neighbour(by) {
    try {
      const at = found.offset + by;
      const list = at < 0 ? { messages: [] } : await get("browse", { topic: found.topic, queue: found.queue, start: "offset", offset: at, count: 1 }, page.signal);
      const next = list.messages.find((row) => (by > 0 ? row.offset >= at : row.offset === at));
      if (next?.id && !next.fault) page.go(path("messages", next.id));
      else put(trouble, h("div", { class: "notice", role: "status" }, next ? "That message is damaged." : by > 0 ? "It is the newest message of its queue." : "It is the oldest message that its queue keeps."));
    } catch (error) {
      if (error.name !== "AbortError") put(trouble, failure(error));
    }
  }

  try {
    put(way, wayOf(await get("message-history", { id }, page.signal), found));
  } catch (error) {
    if (error.name !== "AbortError") put(way, page.failed(error));
  }
}

const STEPS = {
  sent: ["quiet", "sent"], stored: ["ok", "stored"], waiting: ["warn", "delayed"], consumed: ["ok", "consumed"], filtered: ["quiet", "filtered"], in_flight: ["warn", "in flight"],
  not_consumed: ["warn", "waits"], broadcast: ["quiet", "broadcast"], retry: ["warn", "retry"], dead_letter: ["bad", "dead letter"], replay: ["ok", "replay"], trace: ["quiet", "trace"],
};

// The text of a step without the words of its badge.
function unsaid(text, label) {
  return text.startsWith(label) ? text.slice(label.length).replace(/^[:,]? /, "") || text : text;
}

// What happened to a message, in the order of time.
function wayOf(history, found) {
  const steps = history.steps.map((step) => h("li", { class: step.kind },
    h("div", { class: "when" }, step.at_ms === null ? "" : time(step.at_ms), step.is_client_time ? h("span", { class: "hint" }, " client's clock") : null),
    h("div", null, badge(...STEPS[step.kind]), " ", step.group ? [link(path("groups", step.group), step.group), ": "] : null,
      step.offset_message_id && step.offset_message_id !== found.id ? link(path("messages", step.offset_message_id), unsaid(step.text, STEPS[step.kind][1])) : step.text === STEPS[step.kind][1] ? null : unsaid(step.text, STEPS[step.kind][1]),
      step.client ? h("span", { class: "hint" }, " " + step.client) : null)));
  return [
    history.origin === found.id ? null : h("p", null, "This is a copy of ", link(path("messages", history.origin), "the message that was sent"), "."),
    h("ol", { class: "way" }, steps),
    history.tracks.length ? null : h("p", { class: "hint" }, "No group consumes its topic."),
    history.trace_parent ? h("p", { class: "hint" }, "OpenTelemetry context: ", h("code", null, history.trace_parent)) : null,
    history.missing.map((text) => h("p", { class: "hint" }, "Not known: " + text)),
  ];
}

function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
}

function textOf(bytes, isWhole) {
  // The cut may have split the last character.
  for (let cut = 0; cut <= (isWhole ? 0 : 3); cut += 1) {
    try {
      return new TextDecoder("utf-8", { fatal: true }).decode(bytes.subarray(0, bytes.length - cut));
    } catch {
      continue;
    }
  }
  return null;
}

function hexOf(bytes) {
  const lines = [];
  for (let at = 0; at < bytes.length; at += HEX_BYTES) {
    const part = [...bytes.subarray(at, at + HEX_BYTES)];
    const hex = part.map((byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(HEX_BYTES * 3);
    lines.push(at.toString(16).padStart(8, "0") + "  " + hex + " " + part.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join(""));
  }
  return lines.join("\n");
}

const FORMS = { json: "JSON", msgpack: "MessagePack", avro: "Avro", protobuf: "Protobuf", registry: "By its schema" };

function bodyOf(found) {
  const bytes = bytesOf(found.body_base64);
  const text = textOf(bytes, found.is_whole);
  const forms = [
    found.value === null ? null : [FORMS[found.form] ?? found.form, () => found.value],
    text === null ? null : ["Text", () => text],
    ["Hex", () => hexOf(bytes)],
  ].filter(Boolean);
  const shown = h("pre", { class: "body", tabindex: "0", "aria-label": "Body" });
  const buttons = forms.map(([name, make]) => h("button", { type: "button", onclick: (event) => choose(event.currentTarget, make) }, name));
  function choose(button, make) {
    shown.textContent = cleanLines(make());
    buttons.forEach((one) => one.setAttribute("aria-pressed", String(one === button)));
  }
  if (bytes.length) choose(buttons[0], forms[0][1]);
  const what = bytes.length ? [size(found.size_bytes) + (found.compression ? " as stored, compressed with " + found.compression : ""), found.is_whole ? "" : ", of which the first " + size(bytes.length) + " are shown"] : "It has no body.";
  return h("div", null, [found.trouble, found.value_trouble].filter(Boolean).map((text) => h("div", { class: "notice warn" }, h("strong", null, text))),
    h("div", { class: "tools" }, bytes.length ? h("div", { class: "choice", role: "group", "aria-label": "Form of the body" }, buttons) : null, h("span", { class: "hint" }, what),
      h("a", { href: addressOf("body", { id: found.id }), download: found.id + ".bin" }, "Download")), bytes.length ? shown : null);
}
