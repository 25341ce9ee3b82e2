// Messages: through the queues of a topic, by key, by id; and one of them whole.

import { get } from "./api.js";
import { badge, cleanLines, command, empty, facts, failure, h, link, path, put, query, quoted, section } from "./dom.js";
import { ago, count, counted, size, time } from "./format.js";
import { Table } from "./table.js";

const MODES = [["browse", "Browse"], ["key", "By key"], ["id", "By id"]];
const HEX_BYTES = 16;

// A damaged message has no page of its own: the broker gives none out.
function storedCell(row, now) {
  const when = h("span", { class: "when", title: ago(row.stored_ms, now) }, time(row.stored_ms));
  return row.fault ? when : link(path("messages", row.id), when);
}

export function messageColumns(now) {
  return [
    { name: "stored", label: "Stored", value: (row) => row.stored_ms, cell: (row) => storedCell(row, now()) },
    { name: "queue", label: "Queue", isNumber: true, value: (row) => row.queue, cell: (row) => count(row.queue) },
    { name: "offset", label: "Offset", isNumber: true, value: (row) => row.offset, cell: (row) => count(row.offset) },
    { name: "tag", label: "Tag", value: (row) => row.tag ?? "", cell: (row) => row.tag ?? "–" },
    { name: "keys", label: "Keys", value: (row) => row.keys.join(" "), cell: (row) => h("span", { class: "short" }, row.keys.join(" ") || "–") },
    { name: "size", label: "Size", isNumber: true, value: (row) => row.size_b, cell: (row) => size(row.size_b) },
    { name: "body", label: "Body", isWide: true, cell: (row) => (row.fault ? badge("bad", "damaged", row.fault) : row.is_compressed ? badge("quiet", "compressed") : h("code", { class: "preview" }, row.preview || "(empty)")) },
  ];
}

function choice(name, label, options, chosen) {
  const select = h("select", { name, id: name }, options.map(([value, text]) => h("option", { value }, text)));
  select.value = chosen;
  if (select.selectedIndex < 0) select.selectedIndex = 0;
  return { select, element: h("label", null, label, select) };
}

function localTime(ms) {
  const at = new Date(ms - new Date(ms).getTimezoneOffset() * 60000);
  return at.toISOString().slice(0, 19);
}

export function messages(page) {
  if (page.parts.length > 1) return message(page);
  page.title("Messages");
  const given = page.query;
  const mode = given.get("mode") ?? "browse";
  const topics = h("datalist", { id: "topics" });
  const field = (name, label, properties) => h("label", { class: properties.class }, label, h("input", { name, id: name, autocomplete: "off", spellcheck: "false", ...properties, class: null }));
  const topic = field("topic", "Topic", { list: "topics", required: true, value: given.get("topic") ?? "" });
  const parts = [];
  if (mode === "id") parts.push(field("id", "Message id", { required: true, value: given.get("id") ?? "", placeholder: "32 or 56 hexadecimal digits", class: "wide" }));
  if (mode === "key") {
    parts.push(topic, field("key", "Key, or the producer's message id", { required: true, value: given.get("key") ?? "", class: "wide" }),
      field("from", "From", { type: "datetime-local", step: "1", value: given.get("from") ?? "" }), field("to", "To", { type: "datetime-local", step: "1", value: given.get("to") ?? "" }));
  }
  if (mode === "browse") {
    const start = choice("start", "Start", [["newest", "newest"], ["oldest", "oldest"], ["time", "at a time"], ["offset", "at an offset"]], given.get("start") ?? "newest");
    const at = field("at", "Time", { type: "datetime-local", step: "1", value: given.get("at") ?? localTime(Date.now() - 900000) });
    const offset = field("offset", "Offset", { inputmode: "numeric", pattern: "[0-9]*", value: given.get("offset") ?? "0" });
    const show = () => {
      at.hidden = start.select.value !== "time";
      offset.hidden = start.select.value !== "offset";
    };
    start.select.addEventListener("change", show);
    show();
    parts.push(topic, field("queue", "Queue", { inputmode: "numeric", pattern: "[0-9]*", placeholder: "all", value: given.get("queue") ?? "", class: "narrow" }), start.element, at, offset);
  }
  const form = h("form", { class: "form", role: "search" }, parts, h("button", { type: "submit", class: "primary" }, mode === "browse" ? "Show" : "Find"), topics);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const values = Object.fromEntries(new FormData(form));
    if (mode === "id") page.go(path("messages", values.id.trim()));
    else page.go("messages" + query({ mode: mode === "browse" ? "" : mode, ...values, ...(values.start === "time" ? {} : { at: "" }), ...(values.start === "offset" ? {} : { offset: "" }) }));
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
  return empty("Choose a topic to see its messages. Nothing is consumed, and no offset changes.", "reput consume orders -n 10");
}

function listing(page, text, ...commands) {
  const now = Date.now();
  return new Table({ label: "Messages", key: (row) => row.id + row.queue + ":" + row.offset, sort: "stored", descending: true, empty: empty(text, ...commands), columns: messageColumns(() => now) });
}

async function browse(page, results, name) {
  const given = page.query;
  const start = given.get("start") || "newest";
  const table = listing(page, start === "newest" ? "This topic keeps no messages." : "No message is stored at this position or after it.", "reput produce " + quoted(name) + " 'hello'");
  table.descending = start === "newest";
  const more = h("div", { class: "buttons" });
  put(results, table.element, more);
  const rows = [];
  const load = async (next) => {
    try {
      const found = await get("browse", {
        topic: name, queue: given.get("queue") ?? "", start: next ? "next" : start, next: next ?? "",
        at_ms: start === "time" && !next ? new Date(given.get("at")).getTime() || 0 : "", offset: start === "offset" && !next ? given.get("offset") : "",
      }, page.signal);
      rows.push(...found.messages);
      table.limit = Math.max(table.limit, rows.length);
      table.update(rows, counted(rows.length, "message") + (found.is_cut ? "; large messages, so that fewer are shown at once" : ""));
      put(more, found.has_more && start !== "newest" ? h("button", { type: "button", onclick: () => load(found.next) }, "Show more") : null);
    } catch (error) {
      if (error.name !== "AbortError") put(more, failure(error));
    }
  };
  await load(null);
}

async function find(page, results, name) {
  const given = page.query;
  const table = listing(page, "No message of " + name + " has the key " + given.get("key") + ". It may have expired, or wait as a delayed message.", "reput delay list -t " + quoted(name) + " -k " + quoted(given.get("key")));
  try {
    const at = (text) => (text ? new Date(text).getTime() : "");
    const found = await get("find", { topic: name, key: given.get("key"), from_ms: at(given.get("from")), to_ms: at(given.get("to")) }, page.signal);
    put(results, found.is_complete ? null : h("div", { class: "notice warn" }, h("strong", null, "The key index is being rebuilt, or is off."), h("span", null, "Messages may be missing here; ask again later.")), table.element);
    table.update(found.messages, found.messages.length ? counted(found.messages.length, "message") : "");
  } catch (error) {
    if (error.name !== "AbortError") put(results, failure(error));
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
    if (error.name !== "AbortError") put(page.main, page.trail(["messages", "Messages"], "Message"), failure(error), hint("key"));
    return;
  }
  const now = found.at_ms;
  const properties = Object.entries(found.properties);
  put(page.main, page.trail(["messages", "Messages"], found.unique_id ?? found.id),
    section("Body", bodyOf(found)),
    section("Message", facts([
      ["Topic", link(path("topics", found.topic), found.topic)],
      ["Queue and offset", link("messages" + query({ topic: found.topic, queue: found.queue, start: "offset", offset: found.offset }), count(found.queue) + " / " + count(found.offset))],
      ["Tag", found.tag ?? "–"],
      ["Keys", found.keys.length ? found.keys.flatMap((key, i) => [i ? ", " : "", link("messages" + query({ mode: "key", topic: found.topic, key }), key)]) : "–"],
      ["Stored", time(found.stored_ms) + ", " + ago(found.stored_ms, now)],
      ["Sent", time(found.born_ms) + " by the producer's clock, from " + found.born_host],
      ["Producer's message id", found.unique_id ?? "–"],
      ["Offset message id", h("code", null, found.id)],
      ["Attempts so far", count(found.attempts)],
      ["Place in the log", count(found.log_offset) + ", " + size(found.record_b)],
      ["Flag", String(found.flag)],
    ])),
    section("Who has consumed it", found.groups.length ? h("ul", { class: "plain" }, found.groups.map((row) => h("li", null, badge(row.is_consumed ? "ok" : "warn", row.is_consumed ? "committed" : "waits"), " ", link(path("groups", row.group), row.group),
      " has committed this queue up to " + count(row.committed)))) : empty("No group has committed an offset in its queue.")),
    section("Properties", properties.length ? h("div", { class: "frame" }, h("table", { class: "properties" }, h("tbody", null, properties.map(([name, value]) => h("tr", null, h("th", { scope: "row" }, name), h("td", null, value)))))) : empty("It has no properties.")));
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

function jsonOf(text, isWhole) {
  if (text === null || !isWhole || !/^\s*[[{"]/.test(text)) return null;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return null;
  }
}

function bodyOf(found) {
  const bytes = bytesOf(found.body_base64);
  const text = textOf(bytes, found.is_whole);
  const json = jsonOf(text, found.is_whole);
  const forms = [
    json === null ? null : ["JSON", () => json],
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
  const what = bytes.length ? [size(found.size_b) + (found.compression ? " as stored, compressed with " + found.compression : ""), found.is_whole ? "" : ", of which the first " + size(bytes.length) + " are shown"] : "It has no body.";
  return h("div", null, found.trouble ? h("div", { class: "notice warn" }, h("strong", null, found.trouble)) : null,
    h("div", { class: "tools" }, bytes.length ? h("div", { class: "choice", role: "group", "aria-label": "Form of the body" }, buttons) : null, h("span", { class: "hint" }, what),
      h("a", { href: "api/body" + query({ id: found.id }), download: found.id + ".bin" }, "Download")), bytes.length ? shown : null);
}
