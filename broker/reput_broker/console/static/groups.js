// Consumer groups: the list, and one with its lag in each queue and its members.

import { get } from "./api.js";
import { badge, bar, command, empty, facts, h, link, path, put, query, quoted, section, tile } from "./dom.js";
import { ago, count, counted, perSecond, span, time } from "./format.js";
import { Table } from "./table.js";

function state(row) {
  if (row.has_conflict) return badge("bad", "conflict", "Its members ask for different messages");
  if (!row.consume_enable) return badge("warn", "not permitted", "The group's settings forbid it to consume");
  if (row.members) return badge("ok", "online");
  return row.lag ? badge("warn", "no consumer") : badge("quiet", "offline");
}

export function groupTable(nothing) {
  return new Table({
    label: "Consumer groups",
    key: (row) => row.group,
    sort: "lag",
    descending: true,
    empty: nothing,
    columns: [
      { name: "group", label: "Group", value: (row) => row.group.toLowerCase(), cell: (row) => link(path("groups", row.group), row.group) },
      { name: "lag", label: "Lag", isNumber: true, value: (row) => row.lag, cell: (row) => count(row.lag), title: "Messages that are not committed" },
      { name: "age", label: "Oldest waits", isNumber: true, value: (row) => row.lag_age_millis, cell: (row) => (row.lag ? span(row.lag_age_millis) : "–") },
      { name: "members", label: "Members", isNumber: true, value: (row) => row.members, cell: (row) => count(row.members) },
      { name: "state", label: "State", value: (row) => (row.has_conflict ? 0 : row.members ? 2 : row.lag ? 1 : 3), cell: state },
      { name: "topics", label: "Topics", value: (row) => row.topics.length, cell: (row) => topicsOf(row.topics) },
    ],
  });
}

function topicsOf(names) {
  const own = names.filter((name) => !name.startsWith("%RETRY%"));
  const shown = own.slice(0, 3).flatMap((name, i) => [i ? ", " : "", link(path("topics", name), name)]);
  return own.length > 3 ? [...shown, " and " + (own.length - 3) + " more"] : shown.length ? shown : "–";
}

export function groups(page) {
  page.title("Groups");
  const search = h("input", { type: "search", id: "search", placeholder: "Part of a name", value: page.query.get("search") ?? "", "aria-label": "Search groups" });
  const system = h("input", { type: "checkbox", id: "system" });
  const table = groupTable(empty("No group matches. A group exists once a consumer joins it:", "reput consume orders -g billing"));
  put(page.main, h("h1", null, "Consumer groups"), h("div", { class: "tools" }, search, h("label", { class: "check" }, system, "System groups")), table.element);
  const refresh = page.poll(async () => {
    const found = await get("groups", { search: search.value, system: system.checked ? "1" : "" }, page.signal);
    table.update(found.groups, found.total > found.groups.length ? "The " + count(found.groups.length) + " with the most lag of " + count(found.total) + "; search for others." :
      counted(found.total, "group") + ", " + counted(found.lag, "message") + " not committed");
  });
  page.onInput(search, refresh);
  system.addEventListener("change", refresh);
}

export function group(page) {
  const name = page.parts[1];
  page.title(name);
  const tiles = h("div", { class: "tiles" });
  const advice = h("div");
  const about = h("div");
  let now = 0;
  let most = 1;
  let before = null;
  const queues = new Table({
    label: "Lag in each queue",
    key: (row) => row.topic + " " + row.queue_id,
    sort: "lag",
    descending: true,
    empty: empty("This group has no offset in any queue, and is subscribed to none."),
    columns: [
      { name: "topic", label: "Topic", value: (row) => row.topic, cell: (row) => link(path("topics", row.topic), row.topic) },
      { name: "queue", label: "Queue", isNumber: true, value: (row) => row.queue_id, cell: (row) => link("messages" + query({ topic: row.topic, queue: row.queue_id, start: row.committed_offset === null ? "" : "offset", offset: row.committed_offset }), row.queue_id) },
      { name: "lag", label: "Lag", isNumber: true, value: (row) => row.lag, cell: (row) => [bar(row.lag / most, row.lag ? "busy" : ""), count(row.lag)] },
      { name: "age", label: "Oldest waits", isNumber: true, value: (row) => row.lag_age_millis, cell: (row) => (row.lag && row.committed_offset !== null ? span(row.lag_age_millis) : "–") },
      { name: "committed", label: "Committed", isNumber: true, value: (row) => row.committed_offset, cell: (row) => count(row.committed_offset) },
      { name: "end", label: "Next", isNumber: true, value: (row) => row.end_offset, cell: (row) => count(row.end_offset), title: "The offset of the next message of the queue" },
      { name: "flight", label: "In flight", isNumber: true, value: (row) => row.in_flight, cell: (row) => count(row.in_flight), title: "Pulled and not committed" },
      { name: "member", label: "Member", value: (row) => row.client_id, cell: (row) => row.client_id || "–" },
      { name: "commit", label: "Last commit", isNumber: true, value: (row) => row.last_commit_timestamp, cell: (row) => h("span", { title: time(row.last_commit_timestamp) }, ago(row.last_commit_timestamp, now)) },
    ],
  });
  const members = new Table({
    label: "Members",
    key: (row) => row.client_id + " " + row.client_addr,
    sort: "client",
    empty: empty("No member is online.", "reput group describe " + quoted(name)),
    columns: [
      { name: "client", label: "Client", value: (row) => row.client_id, cell: (row) => row.client_id },
      { name: "address", label: "Address", value: (row) => row.client_addr, cell: (row) => row.client_addr },
      { name: "queues", label: "Queues", isNumber: true, value: (row) => row.queues, cell: (row) => count(row.queues) },
      { name: "locks", label: "Locks", isNumber: true, value: (row) => row.locks, cell: (row) => count(row.locks), title: "Queues that it has locked, to consume in order" },
      { name: "language", label: "Language", value: (row) => row.language, cell: (row) => row.language.toLowerCase() },
      { name: "heard", label: "Last heartbeat", isNumber: true, value: (row) => row.silent_millis, cell: (row) => span(row.silent_millis) + " ago" },
    ],
  });
  put(page.main, page.trail(["groups", "Groups"], name), tiles, advice, section("Lag in each queue", queues.element), section("Members", members.element), section("Settings", about));

  function advise(found) {
    const stuck = found.queues.filter((row) => row.lag > 0 && row.in_flight > 0 && row.last_commit_timestamp !== null && now - row.last_commit_timestamp > 60000);
    const free = found.queues.filter((row) => row.lag > 0 && !row.client_id);
    if (found.has_conflict) return ["bad", "Its members ask for different messages.", "Give all of them the same subscription, or each its own group."];
    if (found.lag && !found.members) return ["warn", "No consumer is online.", "Start its consumers; the messages wait, and are kept for as long as all messages."];
    if (stuck.length) return ["warn", counted(stuck.length, "queue has", "queues have") + " messages at a member that has committed nothing for over a minute.", "Check what " + stuck[0].client_id + " does: it may be slow, or stuck in one message."];
    if (found.members && free.length) return ["warn", counted(free.length, "queue", "queues") + " with lag " + (free.length === 1 ? "has" : "have") + " no member.", "Members rebalance within seconds; if that lasts, look for members that stopped."];
    return null;
  }

  page.poll(async () => {
    const found = await get("group", { group: name }, page.signal);
    now = found.at_ms;
    most = Math.max(1, ...found.queues.map((row) => row.lag));
    const done = found.queues.reduce((sum, row) => sum + (row.committed_offset ?? 0), 0);
    const speed = before && before.at < now ? Math.max(0, done - before.done) / ((now - before.at) / 1000) : null;
    if (!before || before.at < now) before = { at: now, done };
    put(tiles, tile("Lag", count(found.lag), found.lag ? "oldest waits " + span(found.lag_age_millis) : "all is consumed", found.lag && !found.members ? "warn" : ""),
      tile("Consumes", perSecond(speed), speed && found.lag ? "done in " + span(found.lag / speed * 1000) + " at this rate" : ""),
      tile("Members", count(found.members), found.model.toLowerCase()),
      tile("Retries", count(found.retries), "since the start"),
      tile("Dead letters", count(found.dead_letters), [link(path("dead-letters", name), "show them")], found.dead_letters ? "warn" : ""));
    const said = advise(found);
    put(advice, said ? h("div", { class: "notice " + said[0] }, h("strong", null, said[1]), h("span", null, said[2]), command("reput group describe " + quoted(name))) : null);
    queues.update(found.queues, found.queues_total > found.queues.length ? "The " + count(found.queues.length) + " with the most lag of " + count(found.queues_total) + " queues." : "");
    members.update(found.member_list);
    put(about, facts([
      ["State", state(found)],
      ["Starts from", found.starts_from.replace("CONSUME_FROM_", "").replaceAll("_", " ").toLowerCase()],
      ...found.subscriptions.map((one) => ["Subscribed to " + one.topic, one.expression === "*" ? "all messages" : one.type + ": " + one.expression]),
      found.exists ? null : ["Settings", "none: the group has offsets or members only"],
    ]));
  });
}
