// Building the page. All text goes through `clean`, into text nodes: nothing from the broker is ever parsed as HTML.

const HIDDEN = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}\p{Co}]/gu;

function escaped(char) {
  return "\\u{" + char.codePointAt(0).toString(16) + "}";
}

// Text on one line, with what does not print written out: control characters, and those that reorder or hide text.
export function clean(text) {
  return String(text).replace(HIDDEN, escaped);
}

// The same, with line breaks and tabs kept.
export function cleanLines(text) {
  return String(text).replace(/\r\n/g, "\n").replace(HIDDEN, (char) => (char === "\n" || char === "\t" ? char : escaped(char)));
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(clean(child)));
  }
}

// Makes an element: `h("a", {href: "#/", class: "x", onclick: f}, "text", node, [more])`.
export function h(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else if (name === "width") element.style.width = value;
    else element.setAttribute(name, value === true ? "" : clean(value));
  }
  append(element, children);
  return element;
}

export function put(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

export function say(text) {
  document.getElementById("said").textContent = clean(text);
}

export function link(path, ...children) {
  return h("a", { href: "#/" + path }, ...children);
}

// The path of a page whose parts may hold any character.
export function path(...parts) {
  return parts.map(encodeURIComponent).join("/");
}

export function query(values) {
  const given = Object.entries(values).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return given.length ? "?" + new URLSearchParams(given).toString() : "";
}

export function badge(kind, text, title) {
  return h("span", { class: "badge " + kind, title }, text);
}

export function tile(label, value, note, kind) {
  return h("div", { class: "tile " + (kind ?? "") }, h("div", { class: "label" }, label),
    h("div", { class: "value" }, value), note ? h("div", { class: "note" }, note) : null);
}

export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, value]) => [h("dt", null, name), h("dd", null, value)]));
}

export function section(title, ...children) {
  return h("section", null, h("h2", null, title), ...children);
}

export function bar(share, kind) {
  const width = Math.max(0, Math.min(1, share)) * 100;
  return h("span", { class: "meter", "aria-hidden": "true" }, h("span", { class: "fill " + (kind ?? ""), width: width.toFixed(1) + "%" }));
}

// A command of the command line, with a button that copies it.
export function command(text) {
  const copy = h("button", { type: "button", class: "copy", "aria-label": "Copy the command" }, "Copy");
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      copy.textContent = "Copied";
    } catch {
      copy.textContent = "Select it";
    }
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  });
  return h("span", { class: "command" }, h("code", null, text), copy);
}

export function empty(text, ...commands) {
  return h("div", { class: "empty" }, h("p", null, text), commands.map(command));
}

// What stands where figures come; `poll` in app.js hides it when they do not.
export function waiting() {
  return h("p", { class: "hint loading" }, "Loading …");
}

export function failure(error) {
  return h("div", { class: "notice bad", role: "alert" }, h("strong", null, error.message), error.remedy ? h("span", null, error.remedy) : null);
}

// A word of a command for a POSIX shell.
export function quoted(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : "'" + word.replaceAll("'", "'\\''") + "'";
}
