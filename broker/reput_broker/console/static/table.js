// A table that is sorted by its headings, shown a hundred rows at a time, and updated in place: focus stays where it is.

import { h, put } from "./dom.js";
import { count } from "./format.js";

const STEP = 100;

export class Table {
  // columns: [{name, label, value(row), cell(row), isNumber, title}]; key(row) identifies a row; empty is a node.
  constructor({ label, columns, key, empty, sort = null, descending = false }) {
    this.columns = columns;
    this.key = key;
    this.sort = sort;
    this.descending = descending;
    this.limit = STEP;
    this.rows = [];
    this.lines = new Map();
    this.heads = columns.map((column) => this.#head(column));
    this.body = h("tbody");
    this.table = h("table", null, h("caption", { class: "sr" }, label), h("thead", null, h("tr", null, this.heads)), this.body);
    this.frame = h("div", { class: "frame" }, this.table);
    this.foot = h("p", { class: "foot" });
    this.empty = h("div", null, empty);
    this.element = h("div", { class: "listing" }, this.frame, this.empty, this.foot);
    this.#show();
  }

  #head(column) {
    const head = h("th", { scope: "col", class: column.isNumber ? "num" : "", title: column.title });
    if (!column.value) return put(head, column.label);
    return put(head, h("button", { type: "button", onclick: () => this.#sortBy(column) }, column.label));
  }

  #sortBy(column) {
    this.descending = this.sort === column.name ? !this.descending : Boolean(column.isNumber);
    this.sort = column.name;
    this.#show();
  }

  update(rows, note = "") {
    this.rows = rows;
    this.note = note;
    this.#show();
  }

  #sorted() {
    const column = this.columns.find((one) => one.name === this.sort);
    if (!column) return this.rows;
    const way = this.descending ? -1 : 1;
    const of = (row) => column.value(row) ?? (column.isNumber ? -Infinity : "");
    return [...this.rows].sort((a, b) => {
      const [x, y] = [of(a), of(b)];
      return (x < y ? -1 : x > y ? 1 : 0) * way;
    });
  }

  #show() {
    const shown = this.#sorted().slice(0, this.limit);
    const before = this.lines;
    this.lines = new Map();
    shown.forEach((row, at) => {
      const key = this.key(row);
      const line = before.get(key) ?? h("tr");
      this.lines.set(key, line);
      const cells = this.columns.map((column) => h("td", { class: column.isNumber ? "num" : column.isWide ? "wide" : "", "data-label": column.label }, column.cell(row)));
      if (line.children.length !== cells.length) line.replaceChildren(...cells);
      else cells.forEach((cell, i) => { if (!cell.isEqualNode(line.children[i])) line.children[i].replaceWith(cell); });
      if (this.body.children[at] !== line) this.body.insertBefore(line, this.body.children[at] ?? null);
    });
    while (this.body.children.length > shown.length) this.body.lastElementChild.remove();
    this.columns.forEach((column, i) => {
      if (column.name === this.sort) this.heads[i].setAttribute("aria-sort", this.descending ? "descending" : "ascending");
      else this.heads[i].removeAttribute("aria-sort");
    });
    const more = this.rows.length - shown.length;
    this.frame.hidden = !this.rows.length;
    this.empty.hidden = this.rows.length > 0;
    put(this.foot, this.note ?? "", more > 0 ? [" ", h("button", { type: "button", onclick: () => this.#more() },
      "Show " + count(Math.min(STEP, more)) + " of " + count(more) + " more")] : null);
    this.foot.hidden = !this.foot.textContent;
  }

  #more() {
    this.limit += STEP;
    this.#show();
  }
}
