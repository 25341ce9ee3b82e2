// A plot of the past minutes: lines over time with a scale, the values under the pointer or the arrow keys, and in words.

import { clean, h } from "./dom.js";
import { span } from "./format.js";

const NS = "http://www.w3.org/2000/svg";
const HEIGHT = 132;
const TOP = 10;
const BOTTOM = 20;
const LEFT = 58;
const RIGHT = 8;
const SAMPLES_MIN = 60;

function s(tag, attributes, text) {
  const element = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = clean(text);
  return element;
}

function nice(value, base) {
  if (!(value > 0)) return 1;
  const unit = Math.pow(base, Math.floor(Math.log(value) / Math.log(base)));
  for (const step of base === 1024 ? [1, 2, 5, 10, 20, 50, 100, 200, 500, 1024] : [1, 2, 5, 10]) {
    if (value <= step * unit) return step * unit;
  }
  return base * unit;
}

export class Plot {
  // series: [{index, label}], format(value) -> text, base: 10 or 1024 for the scale.
  constructor({ title, series, format, base = 10, least = 0 }) {
    this.series = series;
    this.format = format;
    this.base = base;
    this.least = least;
    this.rows = [];
    this.at = null;
    this.svg = s("svg", { role: "img", class: "plot", height: HEIGHT, tabindex: "0" });
    this.values = series.map(() => h("span", { class: "number" }));
    this.when = h("span", { class: "when" });
    const legend = h("div", { class: "legend" }, series.map((one, i) =>
      h("span", { class: "key line" + i }, h("i", null), one.label, " ", this.values[i])), this.when);
    this.title = title;
    this.element = h("figure", { class: "card" }, h("figcaption", null, h("h3", null, title), legend), this.svg);
    this.svg.addEventListener("pointermove", (event) => this.#point(event));
    this.svg.addEventListener("pointerleave", () => this.#choose(null));
    this.svg.addEventListener("blur", () => this.#choose(null));
    this.svg.addEventListener("keydown", (event) => this.#key(event));
    this.sizes = new ResizeObserver(() => this.draw());
    this.sizes.observe(this.element);
  }

  update(rows) {
    this.rows = rows;
    if (this.at !== null && this.at >= rows.length) this.at = null;
    this.draw();
  }

  // Samples along the axis: fewer than all of them while the broker is young.
  get #span() {
    return Math.max(SAMPLES_MIN, this.rows.length);
  }

  #x(i) {
    return LEFT + (this.width - LEFT - RIGHT) * (this.#span - this.rows.length + i) / (this.#span - 1);
  }

  #point(event) {
    if (!this.rows.length) return;
    const x = event.clientX - this.svg.getBoundingClientRect().left;
    const i = Math.round((x - LEFT) / (this.width - LEFT - RIGHT) * (this.#span - 1)) - (this.#span - this.rows.length);
    this.#choose(i >= 0 && i < this.rows.length ? i : null);
  }

  #key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -this.rows.length, End: this.rows.length }[event.key];
    if (step === undefined || !this.rows.length) return;
    event.preventDefault();
    this.#choose(Math.max(0, Math.min(this.rows.length - 1, (this.at ?? this.rows.length - 1) + step)));
  }

  #choose(i) {
    if (i !== this.at) {
      this.at = i;
      this.draw();
    }
  }

  draw() {
    const width = Math.floor(this.svg.parentElement?.clientWidth ?? 0);
    if (!width) return;
    this.width = Math.max(200, width - 24);
    const { rows, series } = this;
    const all = series.flatMap((one) => rows.map((row) => row[one.index] ?? 0));
    const top = nice(Math.max(this.least, ...all), this.base);
    const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top);
    const parts = [];
    for (const share of [0, 0.5, 1]) {
      parts.push(s("line", { class: "grid", x1: LEFT, x2: this.width - RIGHT, y1: y(top * share), y2: y(top * share) }));
      parts.push(s("text", { class: "axis", x: LEFT - 6, y: y(top * share) + 4, "text-anchor": "end" }, this.format(top * share)));
    }
    const ends = [[span(this.#span * 1000) + " ago", LEFT, "start"], ["now", this.width - RIGHT, "end"]];
    for (const [text, x, anchor] of ends) parts.push(s("text", { class: "axis", x, y: HEIGHT - 5, "text-anchor": anchor }, text));
    series.forEach((one, i) => {
      let d = "";
      let isDown = false;
      rows.forEach((row, at) => {
        const value = row[one.index];
        if (value === null || value === undefined) {
          isDown = false;
          return;
        }
        d += (isDown ? "L" : "M") + this.#x(at).toFixed(1) + " " + y(value).toFixed(1);
        // A lone value between two gaps would be invisible.
        if (!isDown && (rows[at + 1]?.[one.index] ?? null) === null) d += "h1";
        isDown = true;
      });
      parts.push(s("path", { class: "line line" + i, d: d || "M0 0" }));
    });
    const shown = this.at ?? rows.length - 1;
    if (this.at !== null) {
      parts.push(s("line", { class: "cross", x1: this.#x(shown), x2: this.#x(shown), y1: TOP, y2: HEIGHT - BOTTOM }));
    }
    this.svg.setAttribute("width", this.width);
    this.svg.replaceChildren(...parts);
    const row = rows[shown];
    const texts = series.map((one) => (row ? this.format(row[one.index]) : "–"));
    texts.forEach((text, i) => { this.values[i].textContent = text; });
    this.when.textContent = this.at === null || !row ? "" : span(rows.at(-1)[0] - row[0]) + " ago";
    this.svg.setAttribute("aria-label", this.title + ": " + series.map((one, i) => one.label + " " + texts[i]).join(", "));
  }
}
