// A table that is sorted by its headings, shown a hundred rows at a time, and updated in place: focus stays where it is.
// Until its first update it says that it loads, not that there is nothing.

import { h, put, waiting } from "./dom.js";
import { NONE, count } from "./format.js";

const STEP = 100;

export class Table {
  // columns: [{name, label, value(row), cell(row), isNumber, isWide, title}]; key(row) identifies a row; empty is a node.
  // select: {label(row), onchange()}: rows have a box that chooses them; `chosen` has the chosen rows by key.
  constructor({ label, columns, key, empty, sort = null, descending = false, select = null }) {
    this.key = key;
    this.chosen = new Map();
    this.select = select;
    this.columns = select ? [{ name: "choose", label: "", cell: (row) => this.#box(row) }, ...columns] : columns;
    this.sort = sort;
    this.descending = descending;
    this.limit = STEP;
    this.rows = [];
    this.isLoaded = false;
    this.lines = new Map();
    this.heads = this.columns.map((column) => this.#head(column));
    // The roles are those of the elements, which lose them where a phone shows rows as cards.
    this.body = h("tbody", { role: "rowgroup" });
    this.table = h("table", { role: "table" }, h("caption", { class: "sr" }, label), h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, this.heads)), this.body);
    this.frame = h("div", { class: "frame" }, this.table);
    this.foot = h("p", { class: "foot" });
    this.empty = h("div", null, empty);
    this.waiting = waiting();
    this.element = h("div", { class: "listing" }, this.waiting, this.frame, this.empty, this.foot);
    this.#show();
  }

  // What stands there while there is no row.
  setEmpty(nothing) {
    if (!this.empty.firstElementChild?.isEqualNode(nothing)) put(this.empty, nothing);
  }

  // Shows the boxes or hides them, as where there is nothing to do with chosen rows.
  offerChoice(isOffered) {
    this.element.classList.toggle("unchoosable", !isOffered);
  }

  #head(column) {
    const isChoice = this.select && column.name === "choose";
    const head = h("th", { scope: "col", role: "columnheader", class: isChoice ? "choose" : column.isNumber ? "num" : "", title: column.title });
    if (isChoice) return put(head, this.all = h("input", { type: "checkbox", "aria-label": "Select all that are shown", onchange: () => this.#chooseAll() }));
    if (!column.value) return put(head, column.label);
    return put(head, h("button", { type: "button", onclick: () => this.#sortBy(column) }, column.label));
  }

  #box(row) {
    return h("input", { type: "checkbox", "aria-label": this.select.label(row), onchange: (event) => {
      if (event.currentTarget.checked) this.chosen.set(this.key(row), row);
      else this.chosen.delete(this.key(row));
      this.#chosenChanged();
    } });
  }

  #chooseAll() {
    const isChosen = this.all.checked;
    this.chosen.clear();
    if (isChosen) this.#shown().forEach((row) => this.chosen.set(this.key(row), row));
    this.#chosenChanged();
  }

  clearChosen() {
    this.chosen.clear();
    this.#chosenChanged();
  }

  #chosenChanged() {
    this.#showChosen();
    this.select.onchange();
  }

  // What is chosen is in the boxes' state, which survives an update; the rows of others are forgotten.
  #showChosen() {
    for (const key of this.chosen.keys()) {
      if (!this.lines.has(key)) this.chosen.delete(key);
    }
    for (const [key, line] of this.lines) line.querySelector("input[type=checkbox]").checked = this.chosen.has(key);
    this.all.checked = this.chosen.size > 0 && this.chosen.size === this.lines.size;
    this.all.indeterminate = this.chosen.size > 0 && !this.all.checked;
  }

  #sortBy(column) {
    this.descending = this.sort === column.name ? !this.descending : Boolean(column.isNumber);
    this.sort = column.name;
    this.#show();
  }

  update(rows, note = "") {
    this.isLoaded = true;
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

  #shown() {
    return this.#sorted().slice(0, this.limit);
  }

  #show() {
    const shown = this.#shown();
    const before = this.lines;
    this.lines = new Map();
    shown.forEach((row, at) => {
      const key = this.key(row);
      const line = before.get(key) ?? h("tr", { role: "row" });
      this.lines.set(key, line);
      const head = this.columns.findIndex((column) => column.label);
      const cells = this.columns.map((column, i) => this.#cell(row, column, i === head));
      if (line.children.length !== cells.length) line.replaceChildren(...cells);
      else cells.forEach((cell, i) => { if (!cell.isEqualNode(line.children[i])) line.children[i].replaceWith(cell); });
      if (this.body.children[at] !== line) this.body.insertBefore(line, this.body.children[at] ?? null);
    });
    while (this.body.children.length > shown.length) this.body.lastElementChild.remove();
    this.columns.forEach((column, i) => {
      if (column.name === this.sort) this.heads[i].setAttribute("aria-sort", this.descending ? "descending" : "ascending");
      else this.heads[i].removeAttribute("aria-sort");
    });
    if (this.select) {
      const before = this.chosen.size;
      this.#showChosen();
      if (this.chosen.size !== before) this.select.onchange();
    }
    const more = this.rows.length - shown.length;
    this.waiting.hidden = this.isLoaded;
    this.frame.hidden = !this.rows.length;
    this.empty.hidden = !this.isLoaded || this.rows.length > 0;
    put(this.foot, this.note ?? "", more > 0 ? [" ", h("button", { type: "button", onclick: () => this.#more() },
      "Show " + count(Math.min(STEP, more)) + " of " + count(more) + " more")] : null);
    this.foot.hidden = !this.foot.textContent;
  }

  // On a phone the first cell is the headline of its row, and cells without a value are left out.
  #cell(row, column, isHead) {
    const cell = h("td", { role: "cell", class: this.select && column.name === "choose" ? "choose" : column.isNumber ? "num" : column.isWide ? "wide" : "", "data-label": column.label }, column.cell(row));
    if (isHead) cell.classList.add("head");
    if (cell.textContent === NONE) cell.classList.add("none");
    return cell;
  }

  #more() {
    this.limit += STEP;
    this.#show();
  }
}
