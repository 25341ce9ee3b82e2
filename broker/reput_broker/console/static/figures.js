// The plots of pages: of a broker, of a group, of a topic.

import { h, put, section } from "./dom.js";
import { count, percent, rate, size, span } from "./format.js";
import { follow, isLive, live, watch } from "./live.js";
import { eventList, Plot, rangeTools } from "./plot.js";

const GROUPS_MAX = 6;
const seconds = (value) => (value === null || value === undefined ? "–" : span(value * 1000));
const bytes = (value) => (value === null || value === undefined ? "–" : size(value) + "/s");

// What brokers are plotted by: title, columns with labels, how values are written. On the first page, in its users' words:
const PLOTS = [
  ["Messages per second", [["messages_in_per_s", "in"], ["messages_out_per_s", "out"]], { format: rate, least: 5 }],
  ["Bytes per second", [["bytes_in_per_s", "in"], ["bytes_out_per_s", "out"]], { format: bytes, base: 1024, least: 1024 }],
  ["Time of a send", [["put_p99_s", "p99"], ["put_p50_s", "median"]], { format: seconds, base: 60, least: 0.001 }],
  ["CPU of the broker", [["cpu_ratio", "of a core"]], { format: percent, least: 0.1 }],
  ["Store on disk", [["store_bytes", "size"], ["disk_free_bytes", "free"]], { format: size, base: 1024, least: 1024 }],
];
// And on the last one, what those who look into the broker ask for.
const INNER_PLOTS = [
  ["Behind the log", [["flush_behind_bytes", "not on disk"], ["dispatch_behind_bytes", "not in queues"]], { format: size, base: 1024, least: 1024 }],
  ["Delay of the event loop", [["loop_delay_s", "highest"]], { format: seconds, base: 60, least: 0.001 }],
];

function makePlot([title, columns, options]) {
  return new Plot({ title, series: columns.map(([key, label]) => ({ key, label })), ...options });
}

// The lag of the groups that were furthest behind, and of all.
function lagFigures(found) {
  const peaks = found.groups.map((one) => ({ ...one, peak: Math.max(0, ...one.lag.map((value) => value ?? 0)) }));
  const shown = peaks.filter((one) => one.peak > 0).sort((a, b) => b.peak - a.peak || (a.group < b.group ? -1 : 1)).slice(0, GROUPS_MAX);
  const columns = { all: found.columns.lag ?? [] };
  for (const one of shown) columns["group " + one.group] = one.lag;
  const series = shown.length === 1 && found.groups.length === 1 ? [] : [{ key: "all", label: "all groups" }];
  return [{ ...found, columns }, [...series, ...shown.map((one) => ({ key: "group " + one.group, label: one.group }))]];
}

// The plots of this page's broker.
export function brokerFigures(page) {
  const tools = rangeTools();
  const plots = PLOTS.map(makePlot);
  const lag = new Plot({ title: "Lag by group", series: [{ key: "all", label: "all groups" }], format: count, least: 10 });
  const events = h("div");
  const drawn = [plots[0], plots[1], plots[2], lag, ...plots.slice(3)];
  let found = null;
  const drawLive = () => {
    if (!isLive()) return;
    const figures = { ...live.recent, events: found?.events ?? live.recent.events };
    tools.update(figures);
    plots.forEach((plot) => plot.update(figures));
  };
  follow(page, "history", { names: "1" }, (answer) => {
    found = answer;
    if (isLive()) drawLive();
    else {
      tools.update(found);
      plots.forEach((plot) => plot.update(found));
    }
    const [figures, series] = lagFigures(found);
    lag.setSeries(series);
    lag.update(figures);
    put(events, eventList(found.events));
  });
  page.onLeave(watch(drawLive));
  return section("Figures", tools.element, h("div", { class: "plots" }, drawn.map((plot) => plot.element)), events);
}

// The plots of what goes on inside this page's broker, in the range that the page's other plots have.
export function innerFigures(page) {
  const plots = INNER_PLOTS.map(makePlot);
  const draw = (figures) => plots.forEach((plot) => plot.update(figures));
  follow(page, "history", {}, (found) => { if (!isLive()) draw(found); });
  page.onLeave(watch(() => { if (isLive()) draw(live.recent); }));
  return section("Inside this broker", h("div", { class: "plots" }, plots.map((plot) => plot.element)));
}

// Those of one name, found in `list` of a history under `key`; nothing while none are kept.
function namedFigures(page, list, key, name, plots) {
  const tools = rangeTools();
  const element = h("section", { hidden: true }, h("h2", null, "Figures"), tools.element, h("div", { class: "plots" }, plots.map((plot) => plot.element)));
  follow(page, "history", { names: "1" }, (found) => {
    const own = found[list].find((one) => one[key] === name);
    if (own) element.hidden = false;
    tools.update(found);
    for (const plot of plots) plot.update({ ...found, columns: own ?? {} });
  });
  return element;
}

export function groupFigures(page, name) {
  return namedFigures(page, "groups", "group", name, [
    new Plot({ title: "Lag", series: [{ key: "lag", label: "messages" }], format: count, least: 10 }),
    new Plot({ title: "Oldest message waits", series: [{ key: "lag_age_s", label: "for" }], format: seconds, base: 60, least: 1 }),
  ]);
}

export function topicFigures(page, name) {
  return namedFigures(page, "topics", "topic", name, [
    new Plot({ title: "Messages per second", series: [{ key: "in_per_s", label: "in" }, { key: "out_per_s", label: "out" }], format: rate, least: 5 }),
  ]);
}
