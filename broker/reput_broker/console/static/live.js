// The figures of the broker: those of the last minutes, always up to date, and those of the range that plots show.
//
// A broker streams its own, by server-sent events; those of another one are asked for every few seconds. A hidden page
// takes none: browsers have few connections for one server.

import { get, MEMBER } from "./api.js";

const LIVE_S = 300;
// A sample comes each second; after this the figures are old.
const SILENT_MS = 3500;
const ASK_MEMBER_MS = 2000;

export const live = { recent: empty(), facts: null, isConnected: false, isRefused: false, hasFailed: false, heardAt: null };

// What plots show, in seconds since 1970 or, up to 0, before now. It is the same on all pages.
export const range = { begin: -LIVE_S, end: 0 };
export const RANGES = [[-LIVE_S, "5 min"], [-7200, "2 h"], [-86400, "24 h"], [-14 * 86400, "14 days"]];

const watchers = new Set();
const rangeWatchers = new Set();
let source = null;
let timer = null;
let listensSince = 0;

function empty() {
  return { begin_s: Math.floor(Date.now() / 1000) - LIVE_S, step_s: 1, rows: LIVE_S, columns: {}, events: [] };
}

function tell() {
  for (const watcher of watchers) watcher(live);
}

// Calls `watcher` with each change, and each second while the broker is away; returns what ends that.
export function watch(watcher) {
  watchers.add(watcher);
  watcher(live);
  return () => watchers.delete(watcher);
}

// The newest value of a figure; null if nothing was measured of late.
export function newest(figures, name) {
  const column = figures.columns[name] ?? [];
  for (let row = figures.rows - 1; row >= Math.max(0, figures.rows - 5); row -= 1) {
    if ((column[row] ?? null) !== null) return column[row];
  }
  return null;
}

export function isLive() {
  return range.begin === -LIVE_S && range.end === 0;
}

export function chooseRange(begin, end) {
  Object.assign(range, { begin, end });
  for (const watcher of rangeWatchers) watcher();
}

// Calls `work` when another range is chosen, until the page is left.
export function onRange(page, work) {
  rangeWatchers.add(work);
  page.onLeave(() => rangeWatchers.delete(work));
}

// Milliseconds after which the range has a new step; a range of the past has none.
export function refreshAfter(least) {
  return range.end > 0 ? 60000 : Math.max(least, Math.min(30000, -range.begin * 1000 / 720));
}

// Asks for figures of the range, again and again until the page is left, and calls `draw` with the answer. What keeps
// them away, the other requests of the page report.
export function follow(page, name, values, draw, least = 10000) {
  let timeout;
  let last = 0;
  const refresh = async () => {
    const run = last += 1;
    clearTimeout(timeout);
    try {
      if (!document.hidden) {
        const found = await get(name, { ...values, ...range }, page.signal);
        if (run === last) draw(found);
      }
    } catch (error) {
      if (error.name === "AbortError") return;
    }
    if (run === last && !page.signal.aborted) timeout = setTimeout(refresh, refreshAfter(least));
  };
  page.onLeave(() => clearTimeout(timeout));
  onRange(page, refresh);
  refresh();
}

// Appends a sample to figures in steps of a second, which always have the last five minutes.
function append(sample) {
  const recent = live.recent;
  const at = sample.at_s - recent.begin_s;
  if (recent.step_s !== 1 || at < 0) return;
  const drop = Math.max(0, at - LIVE_S + 1);
  for (const name of new Set([...Object.keys(recent.columns), ...Object.keys(sample.values)])) {
    const column = recent.columns[name] ??= [];
    while (column.length < at) column.push(null);
    column[at] = sample.values[name] ?? null;
    column.splice(0, drop);
  }
  recent.begin_s += drop;
  recent.rows = Math.max(recent.rows, at + 1 - drop);
  recent.events = recent.events.filter((one) => one.at_ms >= recent.begin_s * 1000);
}

// A request had no answer: the figures count as old until the next sample.
export function doubt() {
  lose(false);
}

function lose(isRefused) {
  live.isConnected = false;
  live.isRefused = isRefused;
  live.hasFailed = true;
  tell();
}

function heard(facts) {
  live.facts = facts;
  live.isConnected = true;
  live.isRefused = false;
  live.heardAt = Date.now();
  tell();
}

// Loads the past minutes.
async function load() {
  try {
    const found = await get("history", { begin: -LIVE_S, rows: LIVE_S });
    if (found.is_kept) live.recent = found;
    if (MEMBER) heard(found.facts);
    else tell();
  } catch (error) {
    if (MEMBER) lose(error.status !== 0 && error.status !== 503);
    // The stream says how this broker is; without its past, the plots begin now.
  }
}

function open() {
  if (MEMBER) {
    clearInterval(timer);
    timer = setInterval(load, ASK_MEMBER_MS);
    load();
    return;
  }
  if (source !== null) return;
  listensSince = Date.now();
  source = new EventSource("events");
  source.addEventListener("facts", (event) => {
    heard(JSON.parse(event.data).facts);
    load();
  });
  source.addEventListener("sample", (event) => {
    const sample = JSON.parse(event.data);
    append(sample);
    heard(sample.facts);
  });
  source.addEventListener("error", () => {
    // Closed: the broker has answered, but not with figures, such as when many pages are open.
    lose(source?.readyState === EventSource.CLOSED);
    if (live.isRefused) {
      close();
      setTimeout(() => { if (!document.hidden) open(); }, 5000);
    }
  });
}

function close() {
  source?.close();
  source = null;
  clearInterval(timer);
}

// A broker that hangs closes no connection.
function check() {
  if (document.hidden) return;
  if (live.isConnected && Date.now() - Math.max(live.heardAt, listensSince) > SILENT_MS + (MEMBER ? ASK_MEMBER_MS : 0)) live.isConnected = false;
  if (!live.isConnected) tell();
}

export function start() {
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  setInterval(check, 1000);
  if (!document.hidden) open();
}
