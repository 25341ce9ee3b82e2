// The frame around the pages: which one is shown, how it is refreshed, keys, login.

import { get } from "./api.js";
import { clients, cluster, store } from "./system.js";
import { deadLetters } from "./deadletters.js";
import { delayed } from "./delayed.js";
import { failure, h, link, put, say } from "./dom.js";
import { group, groups } from "./groups.js";
import { live, start, watch } from "./live.js";
import { logIn, logOut, session, showKeys } from "./dialogs.js";
import { messages } from "./messages.js";
import { overview } from "./overview.js";
import { span } from "./format.js";
import { topic, topics } from "./topics.js";

const PAGES = [
  ["", "Overview", "o", overview],
  ["topics", "Topics", "t", (page) => (page.parts.length > 1 ? topic(page) : topics(page))],
  ["groups", "Groups", "g", (page) => (page.parts.length > 1 ? group(page) : groups(page))],
  ["messages", "Messages", "m", messages],
  ["dead-letters", "Dead letters", "d", deadLetters],
  ["delayed", "Delayed", "l", delayed],
  ["clients", "Clients", "c", clients],
  ["store", "Store", "s", store],
  ["cluster", "Cluster", "b", cluster],
];
const KEYS = [
  ...PAGES.map(([, name, key]) => ["g " + key, name]),
  ["/", "To the search field"],
  ["j", "To the next row"],
  ["k", "To the row before"],
  ["r", "Refresh"],
  ["Esc", "Close a dialog, leave a field"],
  ["?", "This list"],
];
const REFRESH_MS = 5000;
const INPUT_MS = 250;

const main = document.getElementById("main");
let leaveLast = () => {};
let refreshLast = () => {};

function address() {
  const [places, search = ""] = location.hash.replace(/^#\/?/, "").split("?");
  let parts;
  try {
    parts = places.split("/").map(decodeURIComponent);
  } catch {
    parts = [""];
  }
  return { parts, query: new URLSearchParams(search) };
}

// What a page gets: where it is, where to draw, and how to stay up to date until it is left.
function makePage() {
  const leaving = new AbortController();
  const ends = [];
  const trouble = h("div");
  const page = {
    ...address(),
    main: h("div", { class: "page" }),
    signal: leaving.signal,
    title: (text) => { document.title = text + " · Reput"; },
    go(to) {
      if (location.hash === "#/" + to) show(false);
      else location.hash = "#/" + to;
    },
    onLeave: (end) => ends.push(end),
    trail: ([to, text], here) => h("div", { class: "trail" }, link(to, text), h("span", { "aria-hidden": "true" }, "/"), h("h1", null, here)),
    onInput(field, work) {
      let waiting;
      field.addEventListener("input", () => {
        clearTimeout(waiting);
        waiting = setTimeout(work, INPUT_MS);
      });
    },
    // Loads now, and again and again while the page is visible; returns what loads at once.
    poll(load, every = REFRESH_MS) {
      let timer;
      let run = 0;
      const refresh = async () => {
        const mine = ++run;
        clearTimeout(timer);
        try {
          await load();
          put(trouble);
        } catch (error) {
          if (error.name === "AbortError" || leaving.signal.aborted) return;
          if (!error.remedy && !error.status) console.error(error);
          const said = failure(error);
          if (!trouble.firstElementChild?.isEqualNode(said)) put(trouble, said);
          if (error.status === 401 && !session.is_logged_in) {
            if (await logIn()) refresh();
            return;
          }
        }
        if (mine === run && !leaving.signal.aborted) timer = setTimeout(() => (document.hidden ? wait() : refresh()), every);
      };
      const wait = () => document.addEventListener("visibilitychange", refresh, { once: true, signal: leaving.signal });
      ends.push(() => clearTimeout(timer));
      refreshLast = refresh;
      refresh();
      return refresh;
    },
    leave() {
      leaving.abort();
      ends.forEach((end) => end());
    },
  };
  put(main, trouble, page.main);
  return page;
}

function show(isFirst) {
  leaveLast();
  refreshLast = () => {};
  const page = makePage();
  leaveLast = page.leave;
  const found = PAGES.find(([name]) => name === page.parts[0]);
  for (const one of document.querySelectorAll("#pages a")) {
    if (one.dataset.page === page.parts[0]) one.setAttribute("aria-current", "page");
    else one.removeAttribute("aria-current");
  }
  document.querySelector("#pages [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  if (found) found[3](page);
  else put(page.main, failure({ message: "There is no such page.", remedy: "Choose one of the list." }));
  if (!isFirst) {
    scrollTo(0, 0);
    main.focus({ preventScroll: true });
    say(document.title);
  }
}

function showState() {
  const state = document.getElementById("state");
  const now = live.facts;
  const name = !live.isConnected ? "no connection" : now.state;
  const kind = !live.isConnected || !now.ready ? "bad" : now.state === "running" ? "ok" : "warn";
  state.className = "state " + kind;
  const up = live.isConnected ? ", up " + span(now.uptime_s * 1000) : "";
  if (state.textContent !== name + up) put(state, name, h("span", { class: "up" }, up));
}

function showLogin() {
  document.getElementById("login-button").textContent = session.is_logged_in ? "Log out" : "Log in";
}

async function toggleLogin() {
  if (session.is_logged_in) await logOut().catch(() => null);
  else await logIn();
  showLogin();
}

function moveRow(step) {
  const rows = [...document.querySelectorAll("main tbody tr")].filter((row) => row.offsetParent !== null);
  const links = rows.map((row) => row.querySelector("a, button, input")).filter(Boolean);
  const at = links.findIndex((one) => one.closest("tr") === document.activeElement?.closest("tr"));
  links[Math.max(0, Math.min(links.length - 1, at + step))]?.focus();
}

let afterG = 0;
function press(event) {
  const field = event.target.closest?.("input, select, textarea");
  if (event.key === "Escape" && field) field.blur();
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || document.querySelector("dialog[open]")) return;
  if (field && field.type !== "checkbox") return;
  const isAfterG = Date.now() - afterG < 1500;
  afterG = 0;
  if (isAfterG) {
    const found = PAGES.find(([, , key]) => key === event.key);
    if (found) {
      event.preventDefault();
      location.hash = "#/" + found[0];
      return;
    }
  }
  if (event.key === "g") afterG = Date.now();
  else if (event.key === "?") showKeys(KEYS);
  else if (event.key === "/") document.querySelector("main input")?.focus();
  else if (event.key === "j") moveRow(1);
  else if (event.key === "k") moveRow(-1);
  else if (event.key === "r") refreshLast();
  else return;
  event.preventDefault();
}

async function begin() {
  put(document.getElementById("pages"), h("ul", null, PAGES.map(([name, text, key]) => {
    const to = link(name, text);
    to.dataset.page = name;
    to.title = "g " + key;
    return h("li", null, to);
  })));
  document.getElementById("keys-button").addEventListener("click", () => showKeys(KEYS));
  document.getElementById("login-button").addEventListener("click", toggleLogin);
  document.getElementById("skip").addEventListener("click", (event) => {
    event.preventDefault();
    main.focus();
  });
  document.addEventListener("keydown", press);
  addEventListener("hashchange", () => show(false));
  try {
    Object.assign(session, await get("session"));
    document.getElementById("where").textContent = session.broker + " in " + session.cluster;
  } catch {
    document.getElementById("where").textContent = "";
  }
  showLogin();
  watch(() => { if (live.facts) showState(); });
  setInterval(showLogin, 2000);
  start();
  show(true);
}

begin();
