// The broker itself: its clients, its store with the configuration, its cluster.

import { actionBar, rowActions } from "./actions.js";
import { get, MEMBER } from "./api.js";
import { badge, bar, command, empty, facts, h, link, path, put, section, tile } from "./dom.js";
import { innerFigures } from "./figures.js";
import { ago, count, counted, percent, perSecond, rate, size, span, time } from "./format.js";
import { newest, onRange, range, refreshAfter } from "./live.js";
import { eventList, Plot, rangeTools } from "./plot.js";
import { Table } from "./table.js";

// Only the groups of consumers have a page.
function groupsOf(row) {
  const shown = row.groups.slice(0, 3).flatMap((name, i) => [i ? ", " : "", row.role === "consumer" ? link(path("groups", name), name) : name]);
  return row.groups.length > 3 ? [...shown, " and " + (row.groups.length - 3) + " more"] : shown.length ? shown : "–";
}

export function clients(page) {
  page.title("Clients");
  const search = h("input", { type: "search", id: "search", placeholder: "Part of an id, address, role or group", "aria-label": "Search clients" });
  const tiles = h("div", { class: "tiles" });
  const actions = rowActions(page, "clients", () => refresh());
  const table = new Table({
    label: "Clients",
    key: (row) => row.address + row.listener,
    sort: "role",
    empty: null,
    columns: [
      { name: "address", label: "Address", value: (row) => row.address, cell: (row) => row.address },
      { name: "role", label: "Role", value: (row) => row.role, cell: (row) => row.role },
      { name: "groups", label: "Groups", value: (row) => row.groups.join(" "), cell: groupsOf },
      { name: "client", label: "Client id", value: (row) => row.client_id ?? "", cell: (row) => row.client_id ?? "–" },
      { name: "language", label: "Language", value: (row) => row.language ?? "", cell: (row) => (row.language ? row.language.toLowerCase() + " " + row.version : "–") },
      { name: "protocol", label: "Protocol", value: (row) => row.protocol, cell: (row) => row.protocol + (row.listener === "main" ? "" : ", " + row.listener) },
      { name: "connected", label: "Connected for", isNumber: true, value: (row) => row.connected_millis, cell: (row) => span(row.connected_millis) },
      { name: "idle", label: "Silent for", isNumber: true, value: (row) => row.idle_millis, cell: (row) => span(row.idle_millis) },
      { name: "actions", label: "", cell: (row) => actions.cell("", { address: row.address }) },
    ],
  });
  put(page.main, h("h1", null, "Clients"), tiles, h("div", { class: "tools" }, search, command("reput client list")), actions.outcome, table.element);
  const refresh = page.poll(async () => {
    const found = await get("clients", { search: search.value }, page.signal);
    await actions.know([""]);
    const total = Object.values(found.roles).reduce((sum, number) => sum + number, 0);
    put(tiles, tile("Connections", count(total), "open now"), ["producer", "consumer", "admin", "broker", "unknown"].filter((role) => found.roles[role]).map((role) => tile(role === "unknown" ? "Not known yet" : role + "s", count(found.roles[role]), "connections")));
    table.setEmpty(search.value ? empty("No client matches.") : empty("No client is connected.", "reput consume orders -g billing"));
    table.update(found.clients, found.total > found.clients.length ? count(found.clients.length) + " of " + count(found.total) + "; search for others." : "");
  });
  page.onInput(search, refresh);
}

const PARTS = { commitlog: "Log", consumequeue: "Queues", index: "Key index", timer: "Delayed messages", other: "Other" };
const LEVELS = { ok: ["ok", "enough room"], clean: ["warn", "old files are deleted"], refuse: ["bad", "messages are rejected"] };

export function store(page) {
  page.title("Store");
  const tiles = h("div", { class: "tiles" });
  const parts = h("div");
  const about = h("div");
  const search = h("input", { type: "search", id: "search", placeholder: "Part of an option's name", value: "", "aria-label": "Search options" });
  let options = [];
  const table = new Table({
    label: "Configuration",
    key: (row) => row.key,
    empty: empty("No option matches."),
    columns: [
      { name: "key", label: "Option", value: (row) => row.key, cell: (row) => h("code", null, row.key) },
      { name: "value", label: "Value", value: (row) => row.text, cell: (row) => [h("code", null, row.text), " ", row.text === row.default ? null : badge("quiet", "set", "From " + row.source)] },
      { name: "live", label: "Takes effect", value: (row) => (row.live ? 0 : 1), cell: (row) => h("span", { class: "when" }, row.live ? "while it runs" : "at a restart") },
      { name: "description", label: "What it is", cell: (row) => h("span", { class: "hint" }, row.description) },
    ],
  });
  put(page.main, h("h1", null, "Store"), tiles, h("div", { class: "columns" }, section("On disk", parts), section("State", about)), section("Configuration", h("div", { class: "tools" }, search), table.element));
  const show = () => {
    const wanted = search.value.trim().toLowerCase();
    table.update(options.filter((row) => !wanted || row.key.includes(wanted)), "");
  };
  search.addEventListener("input", show);
  page.poll(async () => {
    const found = await get("store", {}, page.signal);
    const { status, status: { store } } = found;
    const disk = status.disk ?? { level: "ok", size_bytes: {}, free_bytes: 0, used_ratio: 0, looked_up_at: 0, oldest_ms: -1 };
    const [kind, text] = LEVELS[disk.level] ?? ["warn", disk.level];
    const total = Object.values(disk.size_bytes).reduce((sum, number) => sum + number, 0);
    const option = (key) => (found.options.find((row) => row.key === key)?.text ?? "–").replaceAll('"', "");
    put(tiles, tile("Disk used", percent(disk.used_ratio), size(disk.free_bytes) + " free", kind === "ok" ? "" : kind), tile("Store", size(total), "on disk"),
      tile("Oldest message", disk.oldest_ms < 0 ? "–" : span(found.at_ms - disk.oldest_ms), "kept for " + option("store.file_reserved_time")),
      tile("Not on disk yet", size(store.flush_behind_bytes), "flush = " + status.flush), tile("Not in queues yet", size(store.dispatch_behind_bytes), "of the log"));
    put(parts, disk.looked_up_at ? facts(Object.entries(disk.size_bytes).map(([part, bytes]) => [PARTS[part] ?? part, [bar(total ? bytes / total : 0, "busy"), size(bytes)]])) : empty("Not measured yet."),
      h("p", { class: "hint" }, "Measured " + ago(1000 * disk.looked_up_at, found.at_ms) + ". The log's newest file counts with its full size, also while it is being filled."));
    put(about, store.read_only_reason ? h("div", { class: "notice bad" }, h("strong", null, "The store accepts no messages: " + store.read_only_reason)) : null, facts([
      ["Room", badge(kind, text)],
      ["Directory", h("code", null, status.data_dir)],
      ["Log offsets", count(store.start_offset) + " to " + count(store.end_offset)],
      ["On disk up to", count(store.flushed_offset)],
      ["Deleted at", option("store.delete_when").split(";").map((hour) => hour.trim() + ":00").join(", ") + ", or when the disk is more than " + percent(Number(option("store.disk_max_used_ratio"))) + " full"],
      ["Deleted so far", Object.entries(store.deleted_files).map(([what, number]) => what + ": " + counted(number, "file")).join(", ") || "nothing since the start"],
      ["Last start", "recovered in " + span(store.recovery_s * 1000) + (store.recovery_truncated_bytes ? ", " + size(store.recovery_truncated_bytes) + " of unfinished writes truncated" : "")],
    ]), command("reput store verify " + status.data_dir));
    options = found.options;
    show();
  }, 10000);
}

// What the brokers of a cluster are plotted by, and whether the figures of all are added up to one, or the highest counts.
const CLUSTER_PLOTS = [
  ["Messages in, per second", "messages_in_per_s", { format: rate, least: 5 }],
  ["Messages out, per second", "messages_out_per_s", { format: rate, least: 5 }],
  ["Time of a send, p99", "put_p99_s", { format: (value) => (value === null ? "–" : span(value * 1000)), base: 60, least: 0.001 }],
  ["Lag of all groups", "lag", { format: count, least: 10 }],
  ["Disk used", "disk_used_ratio", { format: percent, least: 0.1 }],
  ["CPU", "cpu_ratio", { format: percent, least: 0.1 }],
  ["Slave behind its master", "replica_lag_bytes", { format: size, base: 1024, least: 1024 }],
];
let isByBroker = false;

// The column of a broker on the rows of all together.
function aligned(figures, total, key) {
  const column = figures.columns[key];
  if (!column) return [];
  return Array.from({ length: total.rows }, (_, row) => column[Math.floor((total.begin_s + row * total.step_s - figures.begin_s) / figures.step_s)] ?? null);
}

function role(row) {
  if (row.away_ms !== null) return badge("bad", "unavailable");
  return badge(row.broker_id ? "quiet" : "ok", row.broker_id ? "slave" : "master");
}

// The brokers of the cluster: their figures added up or each, those that are away, what happened, and a link to each.
function brokers(page) {
  const tiles = h("div", { class: "tiles" });
  const away = h("div");
  const tools = rangeTools();
  const plots = CLUSTER_PLOTS.map(([title, , options]) => new Plot({ title, series: [{ key: "all", label: "all" }], ...options }));
  const events = h("div");
  let found = null;
  let names = new Map();
  const of = (row, key) => (row.figures ? newest(row.figures, key) : null);
  const labelOf = (row) => (names.get(row.broker) > 1 ? row.broker + " at " + row.address : row.broker);
  const table = new Table({
    label: "Brokers",
    key: (row) => row.address,
    sort: "broker",
    empty: empty("The name service of this broker knows no broker.", "reput cluster status"),
    columns: [
      { name: "broker", label: "Broker", value: (row) => row.broker + row.address, cell: (row) => (row.address === here() ? h("strong", null, row.broker) : h("a", { href: (row.is_own ? "./" : "?" + new URLSearchParams({ member: row.address })) + "#/", title: "The pages of this broker" }, row.broker)) },
      { name: "role", label: "Role", value: (row) => (row.away_ms !== null ? 99 : row.broker_id), cell: role },
      { name: "state", label: "State", value: (row) => row.away_ms ?? 0, cell: (row) => stateOf(row) },
      { name: "address", label: "Address", value: (row) => row.address, cell: (row) => row.address },
      { name: "in", label: "In, per second", isNumber: true, value: (row) => of(row, "messages_in_per_s"), cell: (row) => rate(of(row, "messages_in_per_s")) },
      { name: "out", label: "Out, per second", isNumber: true, value: (row) => of(row, "messages_out_per_s"), cell: (row) => rate(of(row, "messages_out_per_s")) },
      { name: "lag", label: "Lag", isNumber: true, value: (row) => of(row, "lag"), cell: (row) => count(of(row, "lag")) },
      { name: "disk", label: "Disk", isNumber: true, value: (row) => of(row, "disk_used_ratio"), cell: (row) => percent(of(row, "disk_used_ratio")) },
      { name: "cpu", label: "CPU", isNumber: true, value: (row) => of(row, "cpu_ratio"), cell: (row) => percent(of(row, "cpu_ratio")) },
    ],
  });
  const here = () => MEMBER || (found?.brokers.find((row) => row.is_own)?.address ?? "");

  function stateOf(row) {
    if (row.away_ms !== null) return h("span", { title: row.error }, "unavailable since " + time(row.away_ms).slice(0, 19));
    if (!row.figures) return h("span", { title: row.error }, row.error ? "no figures: " + row.error : "not asked yet");
    return row.figures.facts.state + (row.figures.is_kept ? "" : ", keeps no history");
  }

  function draw() {
    if (!found) return;
    figures.hidden = false;
    const { total } = found;
    const kept = found.brokers.filter((row) => row.figures?.is_kept);
    const all = found.brokers.flatMap((row) => (row.figures?.events ?? []).map((one) => ({ ...one, broker: labelOf(row) }))).sort((a, b) => a.at_ms - b.at_ms);
    tools.update(total);
    plots.forEach((plot, i) => {
      const key = CLUSTER_PLOTS[i][1];
      const columns = isByBroker ? Object.fromEntries(kept.map((row) => [row.address, aligned(row.figures, total, key)])) : { all: total.columns[key] ?? [] };
      plot.setSeries(isByBroker ? kept.map((row) => ({ key: row.address, label: labelOf(row) })) : [{ key: "all", label: "all" }]);
      plot.update({ ...total, columns, events: all });
      // Without a slave there is nothing to be behind.
      plot.element.hidden = key === "replica_lag_bytes" && !Object.values(columns).some((column) => column.some((value) => value !== null));
    });
    put(events, eventList(all));
  }

  const figures = section("Figures of all brokers", tools.element, h("div", { class: "plots" }, plots.map((plot) => plot.element)), events);
  figures.hidden = true; // an empty plot says that nothing was measured

  const choice = [["Added up", false], ["By broker", true]].map(([text, value]) => {
    const button = h("button", { type: "button", class: "small", "aria-pressed": String(isByBroker === value), onclick: () => {
      isByBroker = value;
      choice.forEach((one) => one.setAttribute("aria-pressed", String(one === button)));
      draw();
    } }, text);
    return button;
  });
  tools.element.prepend(h("div", { class: "choice", role: "group", "aria-label": "Figures of" }, choice));

  const refresh = page.poll(async () => {
    const asked = { ...range };
    const answer = await get("brokers", asked, page.signal);
    if (asked.begin !== range.begin || asked.end !== range.end) return;
    found = answer;
    names = new Map();
    for (const row of found.brokers) names.set(row.broker, (names.get(row.broker) ?? 0) + 1);
    const gone = found.brokers.filter((row) => row.away_ms !== null);
    const silent = found.brokers.filter((row) => !row.figures);
    const now = (key) => newest(found.total, key);
    put(tiles, tile("Brokers", count(found.brokers.length - silent.length) + " of " + count(found.brokers.length), silent.length ? "with figures" : "all respond", gone.length ? "bad" : silent.length ? "warn" : ""),
      tile("Messages in", perSecond(now("messages_in_per_s")), "all brokers"), tile("Messages out", perSecond(now("messages_out_per_s")), "all brokers"),
      tile("Send, p99", now("put_p99_s") === null ? "–" : span(now("put_p99_s") * 1000), "of all sends"),
      tile("Lag", count(now("lag")), "all groups"), tile("Disk", percent(now("disk_used_ratio")), "the fullest"));
    put(away, gone.map((row) => h("div", { class: "notice bad" }, h("strong", null, labelOf(row) + " is unavailable since " + time(row.away_ms).slice(0, 19) + ", for " + span(found.at_ms - row.away_ms) + "."), h("span", null, row.error))));
    table.update(found.brokers);
    draw();
  }, () => refreshAfter(2000));
  onRange(page, refresh);
  return [tiles, away, section("Brokers", table.element), figures];
}

export function cluster(page) {
  page.title("Cluster");
  const tiles = h("div", { class: "tiles" });
  const about = h("div");
  const slaves = new Table({
    label: "Slaves",
    key: (row) => row.peer,
    sort: "peer",
    empty: empty("No slave copies this broker's log.", "reput cluster status"),
    columns: [
      { name: "member", label: "Member", isNumber: true, value: (row) => row.member, cell: (row) => (row.member === null ? "–" : String(row.member)) },
      { name: "peer", label: "Address", value: (row) => row.peer, cell: (row) => row.peer },
      { name: "sync", label: "Copy", value: (row) => (row.is_in_sync ? 0 : 1), cell: (row) => badge(row.is_in_sync ? "ok" : "warn", row.is_in_sync ? "in sync" : "behind") },
      { name: "lag", label: "Behind by", isNumber: true, value: (row) => row.lag_bytes, cell: (row) => size(row.lag_bytes) },
      { name: "age", label: "For", isNumber: true, value: (row) => row.lag_s, cell: (row) => span(row.lag_s * 1000) },
      { name: "rate", label: "Receives", isNumber: true, value: (row) => row.bytes_per_s, cell: (row) => size(row.bytes_per_s) + "/s" },
      { name: "acked", label: "Has up to", isNumber: true, value: (row) => row.acked_offset, cell: (row) => count(row.acked_offset) },
    ],
  });
  const servers = h("div");
  const doing = actionBar(page, "cluster", "", undefined, () => refresh());
  put(page.main, h("h1", null, "Cluster"), brokers(page), section("This broker", tiles, h("div", { class: "tools" }, doing.buttons), doing.outcome), section("Slaves of this broker", slaves.element), h("div", { class: "columns" }, section("State", about), section("Name servers", servers)), innerFigures(page));
  const refresh = page.poll(async () => {
    const found = await get("cluster", {}, page.signal);
    const status = found.status;
    const election = status.election;
    const isMaster = status.role !== "SLAVE";
    put(tiles, tile("This broker", status.broker_name, status.cluster), tile("Role", isMaster ? "master" : "slave", (status.role ?? "").replaceAll("_", " ").toLowerCase()),
      isMaster ? tile("Copies in sync", count(status.copies_in_sync) + " of " + count(status.copies_wanted), "its own included", status.copies_in_sync < status.copies_wanted ? "bad" : "") :
        tile("Behind its master", size(status.behind_bytes), span(status.behind_s * 1000), status.is_connected ? "" : "bad"),
      tile("Epoch", count(status.epoch), election ? "elected by " + election.engine : "no election"));
    slaves.update(status.slaves ?? []);
    put(about, facts([
      ["Address", status.address],
      ["Port for slaves", status.ha ?? "off"],
      isMaster ? ["Replicated up to", count(status.replicated_offset)] : ["Copies from", status.master ?? "no master is known"],
      isMaster ? null : ["State", status.replication],
      election ? ["In-sync set", election.in_sync.join(", ") || "empty"] : null,
      election ? ["Master", election.master ?? "none"] : null,
      election && election.lease_left_s !== null ? ["Lease", span(election.lease_left_s * 1000) + " left"] : null,
      election && election.reason ? ["Election", election.reason] : null,
    ]));
    const known = Object.entries(status.name_servers ?? {});
    put(servers, known.length ? facts(known.map(([address, state]) => [address, badge(state === "registered" ? "ok" : "warn", String(state))])) : empty("This broker registers with no name server; it answers for itself."));
  });
}
