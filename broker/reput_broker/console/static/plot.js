// A plot: lines over time with a scale, the values under the pointer or the arrow keys, and in words. Dragging, or the
// keys + and -, choose a shorter or longer range of time for all plots.

import { clean, h, put } from "./dom.js";
import { ago, clock, span, time, zoneName } from "./format.js";
import { chooseRange, range, RANGES } from "./live.js";

const NS = "http://www.w3.org/2000/svg";
const HEIGHT = 132;
const TOP = 10;
const BOTTOM = 20;
const LEFT = 58;
const RIGHT = 8;
const DRAG_MIN = 8;
const RANGE_MIN_S = 10;
const RANGE_MAX_S = 14 * 86400;
const TICKS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];
const TOPS_S = [60, 120, 600, 1200, 3600, 7200, 14400, 43200, 86400, 172800];
const EVENTS = { started: "started", stopped: "stopped", became_master: "became master", became_slave: "became slave" };

function s(tag, attributes, text) {
  const element = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = clean(text);
  return element;
}

// The top of a scale that has this value; its half is a round number, too. The base 60 is for seconds.
export function nice(value, base) {
  if (!(value > 0)) return 1;
  if (base === 60) {
    if (value <= 50) return nice(value, 10);
    return TOPS_S.find((top) => value <= top) ?? 86400 * nice(value / 86400, 10);
  }
  const unit = Math.pow(base, Math.floor(Math.log(value) / Math.log(base)));
  for (const step of base === 1024 ? [1, 2, 5, 10, 20, 50, 100, 200, 500, 1024] : [1, 2, 5, 10]) {
    if (value <= step * unit) return step * unit;
  }
  return base * unit;
}

export function eventText(event) {
  return (event.broker ? event.broker + ": " : "") + EVENTS[event.what] + (event.epoch && event.what.startsWith("became") ? ", epoch " + event.epoch : "");
}

// The bounds of what is shown, in seconds since 1970.
function bounds(figures) {
  const from = range.begin > 0 ? range.begin : figures.begin_s;
  const to = range.end > 0 ? range.end : figures.begin_s + figures.rows * figures.step_s;
  return [from, Math.max(to, from + 1)];
}

export function zoom(from, to) {
  const middle = (from + to) / 2;
  const length = Math.max(RANGE_MIN_S, Math.min(RANGE_MAX_S, to - from));
  const now = Math.floor(Date.now() / 1000);
  const end = Math.min(now, Math.ceil(middle + length / 2));
  if (end === now && length > 300) chooseRange(-Math.round(length), 0);
  else chooseRange(end - Math.round(length), end);
}

export class Plot {
  // series: [{key, label}], where a key is that of a column; format(value) -> text; base: 10, 60 or 1024 for the scale.
  constructor({ title, series, format, base = 10, least = 0 }) {
    this.format = format;
    this.base = base;
    this.least = least;
    this.title = title;
    this.figures = { begin_s: 0, step_s: 1, rows: 0, columns: {}, events: [] };
    this.at = null;
    this.drag = null;
    this.svg = s("svg", { role: "img", class: "plot", height: HEIGHT, tabindex: "0" });
    this.when = h("span", { class: "when" });
    this.legend = h("div", { class: "legend" });
    this.element = h("figure", { class: "card" }, h("figcaption", null, h("h3", null, title), this.legend), this.svg);
    this.setSeries(series);
    this.svg.addEventListener("pointerdown", (event) => this.#grab(event));
    this.svg.addEventListener("pointermove", (event) => this.#point(event));
    this.svg.addEventListener("pointerup", (event) => this.#release(event));
    this.svg.addEventListener("pointercancel", () => this.#endDrag());
    this.svg.addEventListener("pointerleave", () => { if (!this.drag) this.#choose(null); });
    this.svg.addEventListener("blur", () => this.#choose(null));
    this.svg.addEventListener("keydown", (event) => this.#key(event));
    this.sizes = new ResizeObserver(() => this.draw());
    this.sizes.observe(this.element);
  }

  setSeries(series) {
    if (this.series && JSON.stringify(series) === JSON.stringify(this.series)) return;
    this.series = series;
    this.values = series.map(() => h("span", { class: "number" }));
    put(this.legend, series.map((one, i) => h("span", { class: "key line" + i % 8 }, h("i", null), one.label, " ", this.values[i])), this.when);
  }

  update(figures) {
    this.figures = figures;
    if (this.at !== null && this.at >= figures.rows) this.at = null;
    if (!this.drag) this.draw();
  }

  // The middle of a step.
  #x(row) {
    return this.#xOf(this.figures.begin_s + (row + 0.5) * this.figures.step_s);
  }

  #xOf(at_s) {
    const [from, to] = bounds(this.figures);
    return LEFT + (this.width - LEFT - RIGHT) * (at_s - from) / (to - from);
  }

  #timeAt(x) {
    const [from, to] = bounds(this.figures);
    return from + (to - from) * Math.max(0, Math.min(1, (x - LEFT) / (this.width - LEFT - RIGHT)));
  }

  #xUnder(event) {
    return event.clientX - this.svg.getBoundingClientRect().left;
  }

  #grab(event) {
    if (event.button !== 0 || !this.figures.rows) return;
    const x = this.#xUnder(event);
    this.drag = { from: x, to: x };
    this.svg.setPointerCapture(event.pointerId);
  }

  #point(event) {
    if (!this.figures.rows) return;
    const x = this.#xUnder(event);
    if (this.drag) {
      this.drag.to = x;
      this.draw();
      return;
    }
    const row = Math.floor((this.#timeAt(x) - this.figures.begin_s) / this.figures.step_s);
    this.#choose(row >= 0 && row < this.figures.rows ? row : null);
  }

  #release() {
    const drag = this.drag;
    this.#endDrag();
    if (!drag || Math.abs(drag.to - drag.from) < DRAG_MIN) return;
    zoom(...[drag.from, drag.to].map((x) => this.#timeAt(x)).sort((a, b) => a - b));
  }

  #endDrag() {
    this.drag = null;
    this.draw();
  }

  #key(event) {
    if (!this.figures.rows) return;
    const [from, to] = bounds(this.figures);
    const factor = { "+": 0.5, "=": 0.5, "-": 2 }[event.key];
    if (factor) {
      event.preventDefault();
      const middle = this.at === null ? (factor < 1 ? to - (to - from) / 4 : (from + to) / 2) : this.figures.begin_s + (this.at + 0.5) * this.figures.step_s;
      const half = (to - from) * factor / 2;
      zoom(middle - half, middle + half);
      return;
    }
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -this.figures.rows, End: this.figures.rows }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    this.#choose(Math.max(0, Math.min(this.figures.rows - 1, (this.at ?? this.figures.rows - 1) + step)));
  }

  #choose(row) {
    if (row !== this.at) {
      this.at = row;
      this.draw();
    }
  }

  #ticks(from, to) {
    const most = Math.max(2, Math.floor((this.width - LEFT - RIGHT) / 80));
    const step = TICKS_S.find((one) => (to - from) / one <= most) ?? TICKS_S.at(-1);
    const shift = (Date.parse(time(from * 1000).slice(0, 19).replace(" ", "T") + "Z") / 1000 - Math.floor(from)) || 0;
    const found = [];
    for (let at = Math.ceil((from + shift) / step) * step - shift; at <= to; at += step) found.push([at, step]);
    return found;
  }

  draw() {
    const width = Math.floor(this.svg.parentElement?.clientWidth ?? 0);
    if (!width) return;
    this.width = Math.max(200, width - 24);
    const { figures, series } = this;
    const columns = series.map((one) => figures.columns[one.key] ?? []);
    let most = this.least;
    for (const column of columns) for (const value of column) if (value > most) most = value;
    const top = nice(most, this.base);
    const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top);
    const parts = [];
    for (const share of [0, 0.5, 1]) {
      parts.push(s("line", { class: "grid", x1: LEFT, x2: this.width - RIGHT, y1: y(top * share), y2: y(top * share) }));
      parts.push(s("text", { class: "axis", x: LEFT - 6, y: y(top * share) + 4, "text-anchor": "end" }, this.format(top * share).replace(/\.0+(?!\d)/, "")));
    }
    if (figures.rows) {
      const [from, to] = bounds(figures);
      for (const [at, step] of this.#ticks(from, to)) {
        const x = this.#xOf(at);
        const text = step >= 86400 ? time(at * 1000).slice(5, 10) : step >= 60 ? (to - from > 86400 ? time(at * 1000).slice(5, 16) : clock(at * 1000).slice(0, 5)) : clock(at * 1000);
        const anchor = x < LEFT + 18 ? "start" : x > this.width - RIGHT - 18 ? "end" : "middle";
        parts.push(s("line", { class: "grid", x1: x, x2: x, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM + 4 }), s("text", { class: "axis", x, y: HEIGHT - 5, "text-anchor": anchor }, text));
      }
      for (const event of figures.events ?? []) {
        const x = this.#xOf(event.at_ms / 1000);
        if (x < LEFT || x > this.width - RIGHT) continue;
        const line = s("line", { class: "event " + event.what, x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM });
        line.append(s("title", {}, time(event.at_ms) + " " + eventText(event)));
        parts.push(line);
      }
    }
    const lines = series.map((one, i) => {
      const column = columns[i];
      let d = "";
      let isDown = false;
      for (let row = 0; row < figures.rows; row += 1) {
        const value = column[row] ?? null;
        const x = this.#x(row);
        if (value === null || x < LEFT - 1 || x > this.width - RIGHT + 1) {
          isDown = false;
          continue;
        }
        d += (isDown ? "L" : "M") + x.toFixed(1) + " " + y(value).toFixed(1);
        // A lone value between two gaps would be invisible.
        if (!isDown && (column[row + 1] ?? null) === null) d += "h1";
        isDown = true;
      }
      return s("path", { class: "line line" + i % 8, d: d || "M0 0" });
    });
    // The first line is above the others. The second of two is broad, so that it shows where both are the same.
    if (lines.length === 2) lines[1].classList.add("broad");
    parts.push(...lines.reverse());
    if (this.drag) {
      const [from, to] = [this.drag.from, this.drag.to].map((x) => Math.max(LEFT, Math.min(this.width - RIGHT, x))).sort((a, b) => a - b);
      parts.push(s("rect", { class: "chosen", x: from, width: to - from, y: TOP, height: HEIGHT - TOP - BOTTOM }));
    } else if (this.at !== null) {
      const x = this.#x(this.at);
      parts.push(s("line", { class: "cross", x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM }));
    }
    this.svg.setAttribute("width", this.width);
    this.svg.replaceChildren(...parts);
    const texts = columns.map((column) => this.format(this.at === null ? column.slice(-5).findLast((value) => value !== null) ?? null : column[this.at] ?? null));
    texts.forEach((text, i) => { this.values[i].textContent = text; });
    this.when.textContent = this.at === null ? "" : this.#moment(this.at);
    this.svg.setAttribute("aria-label", this.title + ": " + series.map((one, i) => one.label + " " + texts[i]).join(", "));
  }

  #moment(row) {
    const at = (this.figures.begin_s + row * this.figures.step_s) * 1000;
    return (Date.now() - at > 86400000 ? time(at).slice(5, 19) : clock(at)) + ", " + ago(at, Math.max(at + 1000, Date.now()));
  }
}

// The buttons above plots: ranges, and what is shown.
export function rangeTools() {
  const buttons = RANGES.map(([begin, text]) => h("button", { type: "button", class: "small", onclick: () => chooseRange(begin, 0) }, text));
  const back = h("button", { type: "button", class: "small", onclick: () => {
    const length = (range.end > 0 ? range.end - range.begin : -range.begin) * 4;
    const end = range.end > 0 ? range.end : Math.floor(Date.now() / 1000);
    zoom(end - length * 5 / 8, end + length * 3 / 8);
  } }, "Zoom out");
  const shown = h("span", { class: "hint", id: "range" });
  const element = h("div", { class: "tools ranges" }, h("div", { class: "choice", role: "group", "aria-label": "Range of time" }, buttons, back), shown);
  return {
    element,
    update(figures) {
      buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(range.end === 0 && range.begin === RANGES[i][0])));
      if (!figures.rows) return;
      const [from, to] = bounds(figures);
      shown.textContent = range.end > 0 ? time(from * 1000).slice(0, 19) + " to " + time(to * 1000).slice(0, 19) + " (" + zoneName(from * 1000) + "), in steps of " + span(figures.step_s * 1000) :
        "in steps of " + span(figures.step_s * 1000) + "; drag over a plot to see a part of it";
    },
  };
}

// The events of a range as a list; the markers in the plots say no more.
export function eventList(events) {
  const shown = events.slice(-20).reverse();
  return shown.length ? h("ul", { class: "events" }, shown.map((event) => h("li", { class: event.what }, h("span", { class: "when" }, time(event.at_ms).slice(0, 19)), " ", eventText(event)))) : null;
}
