// Schedules: a table for the page of delayed messages.

import { get } from "./api.js";
import { badge, empty, h, link, path, section } from "./dom.js";
import { ago, time } from "./format.js";
import { Table } from "./table.js";

const KINDS = { active: "ok", paused: "quiet", late: "warn", missed: "bad", failing: "bad" };

export function schedules(page) {
  let now = 0;
  const moment = (ms) => (ms === null ? "–" : h("span", { title: ago(ms, now) }, time(ms).slice(0, 19)));
  const table = new Table({
    label: "Schedules",
    key: (row) => row.broker_name + " " + row.definition.name,
    sort: "name",
    empty: empty("No schedule sends messages.", "reput schedule create nightly '0 3 * * *' reports 'make the report'"),
    columns: [
      { name: "name", label: "Schedule", value: (row) => row.definition.name, cell: (row) => row.definition.name },
      { name: "state", label: "State", value: (row) => row.state, cell: (row) => badge(KINDS[row.state] ?? "quiet", row.state, row.reason || null) },
      { name: "when", label: "When", value: (row) => row.definition.when, cell: (row) => row.definition.when + " " + row.definition.time_zone },
      { name: "topic", label: "Topic", value: (row) => row.definition.topic, cell: (row) => link(path("topics", row.definition.topic), row.definition.topic) },
      { name: "next", label: "Next", value: (row) => row.next_ms ?? 0, cell: (row) => moment(row.next_ms) },
      { name: "last", label: "Last sent for", value: (row) => row.last_ms ?? 0, cell: (row) => moment(row.last_ms) },
    ],
  });
  page.poll(async () => {
    const found = await get("schedules", {}, page.signal);
    now = found.at_ms;
    table.update(found.schedules, found.faults.map((row) => row.definition.name + " is " + row.state + ": " + row.reason + ".").join(" "));
  });
  return section("Schedules", table.element);
}
