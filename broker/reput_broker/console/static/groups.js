// Consumer groups: the list, and one with its lag in each queue and its members.

import { actionBar } from "./actions.js";
import { get } from "./api.js";
import { badge, bar, command, empty, facts, h, link, path, put, query, quoted, section, tile } from "./dom.js";
import { groupFigures } from "./figures.js";
import { ago, count, counted, lagShare, perSecond, span, time } from "./format.js";
import { Table } from "./table.js";

// The broker decides the state of a group; here it only gets a colour, and what to do about it.
const KINDS = { ok: "ok", unknown: "quiet", behind: "warn", stuck: "bad", empty: "warn", conflicting: "bad" };
const RANKS = ["conflicting", "empty", "stuck", "behind", "unknown", "ok"];
const REMEDIES = {
  conflicting: "Give all its members the same subscription, or each program its own group.",
  empty: "Start its consumers; the messages wait, and are kept for as long as all messages.",
  stuck: "Check the member: it may hang, or fail for one message.",
  behind: "Check which of its queues are behind, and which members have them.",
};

// A state in a sentence: without the time since when, and with it.
const SAID = { empty: ["has no member", "has had no member"], conflicting: ["has conflicting subscriptions", "has had conflicting subscriptions"] };

function state(health) {
  return badge(KINDS[health.state] ?? "warn", health.state, health.reason || null);
}

export function isFault(health) {
  return health.state in REMEDIES;
}

// What is wrong with a group, as a title and a remedy: for the first page, and for the group's own.
export function problem(group, health, now) {
  const [is, was] = SAID[health.state] ?? ["is " + health.state, "has been " + health.state];
  const said = health.since_millis < 0 ? is : was + " for " + span(Math.max(0, now - health.since_millis));
  return { kind: KINDS[health.state] ?? "warn", title: [group, " " + said], text: health.reason + ". " + (REMEDIES[health.state] ?? "") };
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
      { name: "state", label: "State", value: (row) => RANKS.indexOf(row.health.state), cell: (row) => state(row.health) },
      { name: "since", label: "Since", value: (row) => row.health.since_millis, cell: (row) => (row.health.since_millis < 0 ? "–" : h("span", { title: time(row.health.since_millis) }, time(row.health.since_millis).slice(0, 16))) },
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
  const table = groupTable(null);
  const actions = actionBar(page, "groups", "", undefined, () => refresh());
  put(page.main, h("h1", null, "Consumer groups"), h("div", { class: "tools" }, search, h("label", { class: "check" }, system, "System groups"), actions.buttons), actions.outcome, table.element);
  const refresh = page.poll(async () => {
    const found = await get("groups", { search: search.value, system: system.checked ? "1" : "" }, page.signal);
    table.setEmpty(search.value ? empty("No group matches.", "reput group list") : empty("No consumer groups yet. A group exists once a consumer joins it:", "reput consume orders -g billing"));
    table.update(found.groups, found.total > found.groups.length ? "The " + count(found.groups.length) + " with the most lag of " + count(found.total) + "; search for others." :
      found.total ? counted(found.total, "group") + ", " + counted(found.lag, "message") + " not committed" : "");
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
      { name: "lag", label: "Lag", isNumber: true, value: (row) => row.lag, cell: (row) => [bar(lagShare(row.lag, most), row.lag ? "busy" : ""), count(row.lag)] },
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
  let settings = {};
  const actions = actionBar(page, "group", name, () => settings, (row) => (row.name === "delete-group" ? page.go("groups") : refresh()));
  put(page.main, page.trail(["groups", "Groups"], name), tiles, h("div", { class: "tools" }, actions.buttons), actions.outcome, advice, groupFigures(page, name), section("Lag in each queue", queues.element), section("Members", members.element), section("Settings", about));

  const refresh = page.poll(async () => {
    const found = await get("group", { group: name }, page.signal);
    now = found.at_ms;
    const letters = found.dead_letters;
    const topics = found.topics.filter((one) => !one.startsWith("%RETRY%"));
    settings = { topic: topics.length === 1 ? topics[0] : undefined };
    most = Math.max(1, ...found.queues.map((row) => row.lag));
    const done = found.queues.reduce((sum, row) => sum + (row.committed_offset ?? 0), 0);
    const speed = before && before.at < now ? Math.max(0, done - before.done) / ((now - before.at) / 1000) : null;
    if (!before || before.at < now) before = { at: now, done };
    put(tiles, tile("Lag", count(found.lag), found.lag ? "oldest waits " + span(found.lag_age_millis) : "all is consumed", isFault(found.health) ? KINDS[found.health.state] : ""),
      tile("Consumes", perSecond(speed), speed && found.lag ? "done in " + span(found.lag / speed * 1000) + " at this rate" : ""),
      tile("Members", count(found.members), found.model.toLowerCase()),
      tile("Retries", count(found.retries), "since the start"),
      tile("Dead letters", letters ? count(letters.messages) : "–", [link(path("dead-letters", name), letters?.replayed ? count(letters.replayed) + " replayed" : "show them")], letters && (letters.left ?? letters.messages) ? "warn" : ""));
    put(advice, found.problems.map((health) => {
      const { kind, title, text } = problem(name, health, now);
      return h("div", { class: "notice " + kind }, h("strong", null, title), h("span", null, text), command("reput doctor group " + quoted(name)));
    }));
    queues.update(found.queues, found.queues_total > found.queues.length ? "The " + count(found.queues.length) + " with the most lag of " + count(found.queues_total) + " queues." : "");
    members.update(found.member_list);
    put(about, facts([
      ["State", state(found.health)],
      ["Starts from", found.starts_from.replace("CONSUME_FROM_", "").replaceAll("_", " ").toLowerCase()],
      ...found.subscriptions.map((one) => ["Subscribed to " + one.topic, one.expression === "*" ? "all messages" : one.type + ": " + one.expression]),
      found.exists ? null : ["Settings", "none: the group has offsets or members only"],
    ]));
  }, undefined, empty("It may have been deleted. A group exists once a consumer joins it:", "reput consume orders -g " + quoted(name)));
}
