// The first page: what happens now, what needs attention, and which groups are behind.

import { get } from "./api.js";
import { badge, command, empty, h, link, path, put, quoted, section, tile } from "./dom.js";
import { brokerFigures } from "./figures.js";
import { count, counted, percent, perSecond, size, span } from "./format.js";
import { groupTable, problem } from "./groups.js";
import { live, newest, watch } from "./live.js";

const REMEDIES = {
  recovered: "It takes no messages until its store is recovered. Its log says how far it is.",
  writable: "Consumers can still read. See what the disk says: reput doctor, and the broker's log.",
  disk_space: "Free disk space, or lower store.file_reserved_time.",
  directories: "A directory of the store is missing. Mount it again, then restart the broker.",
  replication: "See the page Cluster.",
};

export function overview(page) {
  page.title("Overview");
  const tiles = h("div", { class: "tiles eight" });
  const attention = h("div", { class: "attention" }, h("p", { class: "hint" }, "Loading …"));
  const table = groupTable(empty("No consumer groups yet. A group exists once a consumer joins it.", "reput consume orders -g billing"));
  put(page.main, h("h1", null, "Overview"), tiles, section("Needs attention", attention), brokerFigures(page), section("Groups by lag", table.element));
  let groups = null;
  let letters = null;
  let schedules = null;

  const showTiles = () => {
    const of = (name) => newest(live.recent, name);
    const now = live.facts;
    if (!now) return;
    put(tiles,
      tile("Messages in", perSecond(of("messages_in_per_s")), size(of("bytes_in_per_s") ?? 0) + "/s"),
      tile("Messages out", perSecond(of("messages_out_per_s")), size(of("bytes_out_per_s") ?? 0) + "/s"),
      tile("Send, p99", of("put_p99_s") === null ? "–" : span(of("put_p99_s") * 1000), "median " + (of("put_p50_s") === null ? "–" : span(of("put_p50_s") * 1000))),
      tile("Lag", groups ? count(groups.lag) : "–", groups ? counted(groups.total, "group") : ""),
      tile("Delayed", count(now.delayed), "messages wait"),
      tile("Connections", count(of("connections")), "of clients"),
      tile("Disk", percent(now.disk_used_ratio), size(now.disk_free_bytes) + " free", now.disk_used_ratio > 0.85 ? "warn" : ""),
      tile("CPU, of a core", percent(of("cpu_ratio")), now.memory_bytes === null ? "" : size(now.memory_bytes) + " memory"));
  };
  page.onLeave(watch(() => {
    showTiles();
    attend();
  }));

  function attend() {
    const items = [];
    const add = (kind, title, text, ...more) => items.push(h("li", { class: kind }, h("div", { class: "what" }, title), h("div", null, text), more));
    for (const [name, detail] of Object.entries(live.facts?.problems ?? {})) {
      add("bad", detail || name, REMEDIES[name] ?? "See /readyz?verbose, and the broker's log.");
    }
    for (const group of groups?.faults ?? []) {
      const { kind, title, text } = problem(link(path("groups", group.group), group.group), group.health, groups.at_ms);
      add(kind, title, text, command("reput doctor group " + quoted(group.group)));
      if (items.length >= 8) break;
    }
    for (const schedule of schedules?.faults ?? []) {
      add("bad", ["Schedule ", link("delayed", schedule.definition.name), " is " + schedule.state], schedule.reason + ".", command("reput schedule describe " + quoted(schedule.definition.name)));
      if (items.length >= 10) break;
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
    [groups, letters, schedules] = await Promise.all([get("groups", {}, page.signal), get("dead-letters", {}, page.signal), get("schedules", {}, page.signal)]);
    table.update(groups.groups.slice(0, 8), groups.total > 8 ? [link("groups", "All " + count(groups.total) + " groups")] : "");
    showTiles();
    attend();
  });
}
