// The broker itself: its clients, its store with the configuration, its cluster.

import { get } from "./api.js";
import { badge, bar, command, empty, facts, h, link, path, put, section, tile } from "./dom.js";
import { ago, count, counted, percent, size, span, time } from "./format.js";
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
  const table = new Table({
    label: "Clients",
    key: (row) => row.address + row.listener,
    sort: "role",
    empty: empty("No client matches. A client appears here with its first connection:", "reput consume orders -g billing"),
    columns: [
      { name: "address", label: "Address", value: (row) => row.address, cell: (row) => row.address },
      { name: "role", label: "Role", value: (row) => row.role, cell: (row) => row.role },
      { name: "groups", label: "Groups", value: (row) => row.groups.join(" "), cell: groupsOf },
      { name: "client", label: "Client id", value: (row) => row.client_id ?? "", cell: (row) => row.client_id ?? "–" },
      { name: "language", label: "Language", value: (row) => row.language ?? "", cell: (row) => (row.language ? row.language.toLowerCase() + " " + row.version : "–") },
      { name: "protocol", label: "Protocol", value: (row) => row.protocol, cell: (row) => row.protocol + (row.listener === "main" ? "" : ", " + row.listener) },
      { name: "connected", label: "Connected for", isNumber: true, value: (row) => row.connected_millis, cell: (row) => span(row.connected_millis) },
      { name: "idle", label: "Silent for", isNumber: true, value: (row) => row.idle_millis, cell: (row) => span(row.idle_millis) },
    ],
  });
  put(page.main, h("h1", null, "Clients"), tiles, h("div", { class: "tools" }, search, command("reput client list")), table.element);
  const refresh = page.poll(async () => {
    const found = await get("clients", { search: search.value }, page.signal);
    const total = Object.values(found.roles).reduce((sum, number) => sum + number, 0);
    put(tiles, tile("Connections", count(total), "open now"), ["producer", "consumer", "admin", "broker", "unknown"].filter((role) => found.roles[role]).map((role) => tile(role === "unknown" ? "Not known yet" : role + "s", count(found.roles[role]), "connections")));
    table.update(found.clients, found.total > found.clients.length ? count(found.clients.length) + " of " + count(found.total) + "; search for others." : "");
  });
  page.onInput(search, refresh);
}

const PARTS = { commitlog: "Log", consumequeue: "Queues", index: "Key index", timer: "Delayed messages", other: "Other" };
const LEVELS = { ok: ["ok", "enough room"], clean: ["warn", "old files are deleted"], refuse: ["bad", "puts are refused"] };

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
      { name: "live", label: "Changes", value: (row) => (row.live ? 0 : 1), cell: (row) => h("span", { class: "when" }, row.live ? "while it runs" : "at a restart") },
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
    const disk = status.disk ?? { level: "ok", size_b: {}, free_b: 0, used_ratio: 0, looked_up_at: 0, oldest_ms: -1 };
    const [kind, text] = LEVELS[disk.level] ?? ["warn", disk.level];
    const total = Object.values(disk.size_b).reduce((sum, number) => sum + number, 0);
    const option = (key) => (found.options.find((row) => row.key === key)?.text ?? "–").replaceAll('"', "");
    put(tiles, tile("Disk used", percent(disk.used_ratio), size(disk.free_b) + " free", kind === "ok" ? "" : kind), tile("Store", size(total), "on disk"),
      tile("Oldest message", disk.oldest_ms < 0 ? "–" : span(found.at_ms - disk.oldest_ms), "kept for " + option("store.file_reserved_time")),
      tile("Not on disk yet", size(store.flush_behind_b), "flush = " + status.flush), tile("Not in queues yet", size(store.dispatch_behind_b), "of the log"));
    put(parts, disk.looked_up_at ? facts(Object.entries(disk.size_b).map(([part, bytes]) => [PARTS[part] ?? part, [bar(total ? bytes / total : 0, "busy"), size(bytes)]])) : empty("Not measured yet."),
      h("p", { class: "hint" }, "Measured " + ago(1000 * disk.looked_up_at, found.at_ms) + ". The log's current file has its whole size from the start."));
    put(about, store.read_only_reason ? h("div", { class: "notice bad" }, h("strong", null, "The store takes no messages: " + store.read_only_reason)) : null, facts([
      ["Room", badge(kind, text)],
      ["Directory", h("code", null, status.data_dir)],
      ["Log", count(store.start_offset_b) + " to " + count(store.end_offset_b)],
      ["On disk up to", count(store.flushed_offset_b)],
      ["Deleted at", "hour " + option("store.delete_when") + ", or when the disk is fuller than " + option("store.disk_max_used_ratio")],
      ["Deleted so far", Object.entries(store.deleted_files).map(([what, number]) => what + ": " + counted(number, "file")).join(", ") || "nothing since the start"],
      ["Last start", "recovered in " + span(store.recovery_s * 1000) + (store.recovery_truncated_b ? ", " + size(store.recovery_truncated_b) + " of unfinished writes truncated" : "")],
    ]), command("reput store verify " + status.data_dir));
    options = found.options;
    show();
  }, 10000);
}

export function cluster(page) {
  page.title("Cluster");
  const tiles = h("div", { class: "tiles" });
  const about = h("div");
  const members = new Table({
    label: "Brokers",
    key: (row) => row.cluster + row.broker + row.broker_id,
    sort: "broker",
    empty: empty("The name service of this broker knows no broker.", "reput cluster status"),
    columns: [
      { name: "broker", label: "Broker", value: (row) => row.broker, cell: (row) => row.broker },
      { name: "role", label: "Role", value: (row) => row.broker_id, cell: (row) => badge(row.broker_id ? "quiet" : "ok", row.broker_id ? "slave" : "master") },
      { name: "id", label: "Id", isNumber: true, value: (row) => row.broker_id, cell: (row) => String(row.broker_id) },
      { name: "address", label: "Address", value: (row) => row.address, cell: (row) => row.address },
      { name: "cluster", label: "Cluster", value: (row) => row.cluster, cell: (row) => row.cluster || "–" },
    ],
  });
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
  put(page.main, h("h1", null, "Cluster"), tiles, section("Brokers that the name service knows", members.element), section("Slaves of this broker", slaves.element), h("div", { class: "columns" }, section("This broker", about), section("Name servers", servers)));
  page.poll(async () => {
    const found = await get("cluster", {}, page.signal);
    const status = found.status;
    const election = status.election;
    const isMaster = status.role !== "SLAVE";
    put(tiles, tile("This broker", status.broker_name, status.cluster), tile("Role", isMaster ? "master" : "slave", (status.role ?? "").replaceAll("_", " ").toLowerCase()),
      isMaster ? tile("Copies in sync", count(status.copies_in_sync) + " of " + count(status.copies_wanted), "its own included", status.copies_in_sync < status.copies_wanted ? "bad" : "") :
        tile("Behind its master", size(status.behind_b), span(status.behind_s * 1000), status.is_connected ? "" : "bad"),
      tile("Epoch", count(status.epoch), election ? "elected by " + election.engine : "no election"));
    members.update(found.members);
    slaves.update(status.slaves ?? []);
    put(about, facts([
      ["Address", status.address],
      ["For slaves", status.ha ?? "off"],
      isMaster ? ["On enough machines up to", count(status.replicated_offset)] : ["Copies from", status.master ?? "no master is known"],
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
