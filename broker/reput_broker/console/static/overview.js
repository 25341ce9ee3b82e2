// The first page: what happens now, what needs attention, and which groups are behind.

import { get } from "./api.js";
import { badge, command, empty, h, link, path, put, quoted, section, tile } from "./dom.js";
import { count, counted, percent, perSecond, rate, size, span } from "./format.js";
import { groupTable } from "./groups.js";
import { column, live, watch } from "./live.js";
import { Plot } from "./plot.js";

const REMEDIES = {
  recovered: "It takes no messages until its store is recovered. Its log says how far it is.",
  writable: "Consumers can still read. See what the disk says: reput doctor, and the broker's log.",
  disk_space: "Free disk space, or lower store.file_reserved_time.",
  directories: "A directory of the store is gone. Mount it again, then restart the broker.",
  replication: "See the page Cluster.",
};

function plots() {
  const seconds = (value) => (value === null || value === undefined ? "–" : span(value * 1000));
  const bytes = (value) => (value === null || value === undefined ? "–" : size(value) + "/s");
  const make = (title, names, options) => new Plot({ title, series: names.map(([name, label]) => ({ index: column(name), label })), ...options });
  return [
    make("Messages a second", [["messages_in_per_s", "in"], ["messages_out_per_s", "out"]], { format: rate, least: 5 }),
    make("Bytes a second", [["bytes_in_per_s", "in"], ["bytes_out_per_s", "out"]], { format: bytes, base: 1024, least: 1024 }),
    make("Time of a put", [["put_p99_s", "p99"], ["put_p50_s", "median"]], { format: seconds, least: 0.001 }),
    make("CPU of the broker", [["cpu_ratio", "of a core"]], { format: percent, least: 0.1 }),
    make("Delay of the event loop", [["loop_delay_s", "mean"]], { format: seconds, least: 0.001 }),
    make("Behind the log", [["flush_behind_b", "not on disk"], ["dispatch_behind_b", "not in queues"]], { format: size, base: 1024, least: 1024 }),
  ];
}

export function overview(page) {
  page.title("Overview");
  const tiles = h("div", { class: "tiles eight" });
  const drawn = h("div", { class: "plots" });
  const attention = h("div", { class: "attention" }, h("p", { class: "hint" }, "Loading …"));
  const table = groupTable(empty("No consumer groups yet. A group exists once a consumer joins it.", "reput consume orders -g billing"));
  put(page.main, h("h1", null, "Overview"), tiles, section("Needs attention", attention), section("The last minutes", drawn), section("Groups by lag", table.element));
  let pictures = null;
  let groups = null;
  let letters = null;

  page.onLeave(watch(() => {
    if (live.series.length && !pictures) {
      pictures = plots();
      put(drawn, pictures.map((picture) => picture.element));
    }
    pictures?.forEach((picture) => picture.update(live.rows));
    const row = live.rows.at(-1);
    const of = (name) => (row ? row[column(name)] : null);
    const now = live.facts;
    if (!now) return;
    put(tiles,
      tile("Messages in", perSecond(of("messages_in_per_s")), size(of("bytes_in_per_s") ?? 0) + "/s"),
      tile("Messages out", perSecond(of("messages_out_per_s")), size(of("bytes_out_per_s") ?? 0) + "/s"),
      tile("Put, p99", of("put_p99_s") === null ? "–" : span(of("put_p99_s") * 1000), "median " + (of("put_p50_s") === null ? "–" : span(of("put_p50_s") * 1000))),
      tile("Lag", groups ? count(groups.lag) : "–", groups ? counted(groups.total, "group") : ""),
      tile("Delayed", count(now.delayed), "messages wait"),
      tile("Connections", count(of("connections")), "of clients"),
      tile("Disk", percent(now.disk_used_ratio), size(now.disk_free_b) + " free", now.disk_used_ratio > 0.85 ? "warn" : ""),
      tile("Broker", percent(of("cpu_ratio")), now.memory_b === null ? "of a core" : "of a core, " + size(now.memory_b)));
    attend();
  }));

  function attend() {
    const items = [];
    const add = (kind, title, text, ...more) => items.push(h("li", { class: kind }, h("div", { class: "what" }, title), h("div", null, text), more));
    for (const [name, detail] of Object.entries(live.facts?.problems ?? {})) {
      add("bad", detail || name, REMEDIES[name] ?? "See /readyz?verbose, and the broker's log.");
    }
    for (const group of groups?.groups ?? []) {
      const of = link(path("groups", group.group), group.group);
      if (group.has_conflict) {
        add("bad", ["Members of ", of, " want different messages"], "Give all of them the same subscription, or each its own group.", command("reput group describe " + quoted(group.group)));
      }
      if (group.lag > 0 && group.members === 0) {
        add("warn", [of, " has no consumer, and " + counted(group.lag, "message waits", "messages wait")], "The oldest for " + span(group.lag_age_millis) + ". Start its consumers.",
          command("reput group describe " + quoted(group.group)));
      } else if (group.lag_age_millis > 600000) {
        add("warn", [of, " is " + span(group.lag_age_millis) + " behind"], counted(group.lag, "message waits", "messages wait") + ". Check which of its queues are behind, and which members have them.");
      }
      if (items.length >= 8) break;
    }
    for (const found of letters?.groups ?? []) {
      if (found.left) {
        add("warn", [link(path("dead-letters", found.group), found.group), " has " + counted(found.left, "dead letter") + " not replayed yet"], "Look at the reasons, fix the consumer, then replay them.",
          command("reput dlq peek " + quoted(found.group)));
      }
      if (items.length >= 12) break;
    }
    if (!groups) return;
    const list = items.length ? h("ul", null, items) : h("p", { class: "calm" }, badge("ok", "All is well"), " Nothing needs attention.");
    if (!attention.firstElementChild?.isEqualNode(list)) put(attention, list);
  }

  page.poll(async () => {
    [groups, letters] = await Promise.all([get("groups", {}, page.signal), get("dead-letters", {}, page.signal)]);
    table.update(groups.groups.slice(0, 8), groups.total > 8 ? [link("groups", "All " + count(groups.total) + " groups")] : "");
    attend();
  });
}
