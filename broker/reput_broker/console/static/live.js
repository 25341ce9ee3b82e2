// The live numbers, by server-sent events. A hidden page takes none: browsers have few connections for one server.

const KEPT = 300;

export const live = { rows: [], series: [], facts: null, isConnected: false };

const watchers = new Set();
let source = null;

function tell() {
  for (const watcher of watchers) watcher(live);
}

// Calls `watcher` with each change; returns what ends that.
export function watch(watcher) {
  watchers.add(watcher);
  watcher(live);
  return () => watchers.delete(watcher);
}

export function column(name) {
  return live.series.indexOf(name);
}

function take(event) {
  const data = JSON.parse(event.data);
  live.facts = data.facts;
  live.isConnected = true;
  if (event.type === "history") {
    live.series = data.series;
    live.rows = data.rows;
  } else {
    live.rows.push(data.row);
    live.rows.splice(0, Math.max(0, live.rows.length - KEPT));
  }
  tell();
}

function open() {
  if (source !== null) return;
  source = new EventSource("events");
  source.addEventListener("history", take);
  source.addEventListener("sample", take);
  source.addEventListener("error", () => {
    live.isConnected = false;
    tell();
    if (source?.readyState === EventSource.CLOSED) {
      close();
      setTimeout(() => { if (!document.hidden) open(); }, 5000);
    }
  });
}

function close() {
  source?.close();
  source = null;
}

export function start() {
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  if (!document.hidden) open();
}
