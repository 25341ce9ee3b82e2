// Numbers, sizes, times and spans for people.

const whole = new Intl.NumberFormat("en-US");
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
// What stands where there is no value.
export const NONE = "–";

export function count(value) {
  return value === null || value === undefined ? NONE : whole.format(value);
}

function digits(value) {
  return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

export function rate(value) {
  if (value === null || value === undefined) return NONE;
  if (value === 0) return "0";
  if (value >= 1e6) return digits(value / 1e6) + " M";
  if (value >= 1e4) return digits(value / 1e3) + " k";
  return value >= 100 ? whole.format(Math.round(value)) : value >= 10 ? value.toFixed(0) : value.toFixed(1);
}

export function perSecond(value) {
  return value === null || value === undefined ? NONE : rate(value) + "/s";
}

export function size(bytes) {
  if (bytes === null || bytes === undefined) return NONE;
  let value = bytes;
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return (unit === 0 ? whole.format(Math.round(value)) : digits(value)) + " " + UNITS[unit];
}

export function percent(share) {
  return share === null || share === undefined ? NONE : (share * 100).toFixed(share > 0 && share < 0.1 ? 1 : 0) + " %";
}

// A span in milliseconds: 850 µs, 3.2 ms, 3.2 s, 3 min 12 s, 2 h 5 min, 4 d 3 h.
export function span(ms) {
  if (ms === null || ms === undefined) return NONE;
  if (ms < 0) return "-" + span(-ms);
  if (ms === 0) return "0 s";
  if (ms < 1) return (ms * 1000).toFixed(0) + " µs";
  if (ms < 1000) return Number(ms.toFixed(ms < 10 ? 1 : 0)) + " ms";
  const s = ms / 1000;
  if (s < 60) return Number(s.toFixed(s < 10 ? 1 : 0)) + " s";
  const [d, hours, min, rest] = [Math.floor(s / 86400), Math.floor(s / 3600) % 24, Math.floor(s / 60) % 60, Math.floor(s) % 60];
  if (d) return d + " d" + (hours ? " " + hours + " h" : "");
  if (hours) return hours + " h" + (min ? " " + min + " min" : "");
  return min + " min" + (rest ? " " + rest + " s" : "");
}

function two(number, width = 2) {
  return String(number).padStart(width, "0");
}

// In which zone the console shows times: that of the browser, or UTC. The choice is kept in the browser.
export const zone = { isUtc: readZone() === "utc" };

function readZone() {
  try {
    return localStorage.getItem("reput.zone");
  } catch {
    return null; // the browser keeps nothing for this page
  }
}

export function chooseZone(isUtc) {
  zone.isUtc = isUtc;
  try {
    localStorage.setItem("reput.zone", isUtc ? "utc" : "local");
  } catch {
    // until the page is left
  }
}

// Minutes that the zone is ahead of UTC at a moment.
function ahead(ms) {
  return zone.isUtc ? 0 : -new Date(ms).getTimezoneOffset();
}

export function zoneName(ms = Date.now()) {
  const minutes = ahead(ms);
  return minutes === 0 ? "UTC" : "UTC" + (minutes < 0 ? "−" : "+") + two(Math.floor(Math.abs(minutes) / 60)) + ":" + two(Math.abs(minutes) % 60);
}

// A moment in the chosen zone.
export function time(ms) {
  if (ms === null || ms === undefined) return NONE;
  const at = new Date(ms + ahead(ms) * 60000);
  if (Number.isNaN(at.getTime())) return String(ms);
  return at.toISOString().replace("T", " ").replace("Z", "");
}

// The same moment within today.
export function clock(ms) {
  return time(ms).slice(11, 19);
}

// A moment as the fields for times have it, in the chosen zone, and back.
export function fieldTime(ms) {
  return time(ms).slice(0, 19).replace(" ", "T");
}

export function momentOf(text) {
  const ms = new Date(text + "Z").getTime();
  return Number.isNaN(ms) || zone.isUtc ? ms : new Date(text).getTime();
}

// The share of a bar for a lag: a full bar is the largest of a table, but not less than a hundred messages.
export function lagShare(lag, most) {
  return lag / Math.max(100, most);
}

export function ago(ms, now) {
  if (ms === null || ms === undefined) return NONE;
  const passed = now - ms;
  return passed < 1000 && passed > -1000 ? "now" : passed < 0 ? "in " + span(-passed) : span(passed) + " ago";
}

export function counted(number, one, many) {
  return count(number) + " " + (number === 1 ? one : many ?? one + "s");
}
