// The frame around the pages: which one is shown, how it is refreshed, keys, login.

import { get, MEMBER } from "./api.js";
import { clients, cluster, store } from "./system.js";
import { deadLetters } from "./deadletters.js";
import { delayed } from "./delayed.js";
import { command, failure, h, link, put, say } from "./dom.js";
import { group, groups } from "./groups.js";
import { doubt, live, start, watch } from "./live.js";
import { logIn, logOut, needsLogin, session, showKeys } from "./dialogs.js";
import { messages } from "./messages.js";
import { overview } from "./overview.js";
import { chooseZone, clock, span, zone, zoneName } from "./format.js";
import { topic, topics } from "./topics.js";
import { transactions } from "./transactions.js";
import { users } from "./users.js";

const PAGES = [
  ["", "Overview", "o", overview],
  ["topics", "Topics", "t", (page) => (page.parts.length > 1 ? topic(page) : topics(page))],
  ["groups", "Groups", "g", (page) => (page.parts.length > 1 ? group(page) : groups(page))],
  ["messages", "Messages", "m", messages],
  ["dead-letters", "Dead letters", "d", deadLetters],
  ["delayed", "Delayed", "l", delayed],
  ["transactions", "Transactions", "x", transactions],
  ["clients", "Clients", "c", clients],
  ["store", "Store", "s", store],
  ["cluster", "Cluster", "b", cluster],
  ["users", "Users", "u", users],
];
const isShown = (name) => name !== "users" || session.is_admin;
const KEYS = [
  ...PAGES.map(([, name, key]) => ["g " + key, name]),
  ["/", "To the search field"],
  ["j", "To the next row"],
  ["k", "To the row before"],
  ["x", "Select the row, or not"],
  ["n", "To newer messages, or the next one"],
  ["p", "To older messages, or the one before"],
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
    // Marks the page as one whose figures do not come; returns what says so, which is in one place if the broker is away.
    failed(error) {
      page.main.classList.add("failed");
      if (error.status !== 0) return failure(error);
      doubt();
      return h("div");
    },
    // Loads now, and again and again while the page is visible; returns what loads at once. `every` is in milliseconds, or
    // returns them. `missing` stands on the page while what it is about does not exist.
    poll(load, every = REFRESH_MS, missing = null) {
      let timer;
      let run = 0;
      let hasLoaded = false;
      const refresh = async () => {
        const mine = ++run;
        clearTimeout(timer);
        try {
          await load();
          hasLoaded = true;
          put(trouble);
          page.main.classList.remove("failed", "missing");
        } catch (error) {
          if (error.name === "AbortError" || leaving.signal.aborted) return;
          if (!error.remedy && !error.status) console.error(error);
          const said = h("div", null, page.failed(error));
          if (error.status === 0 && !hasLoaded) put(said, h("p", { class: "hint" }, "This page was opened since then. It shows its figures once the broker responds."));
          page.main.classList.toggle("missing", error.status === 404);
          if (error.status === 404) said.append(missing ?? "");
          if (!trouble.firstElementChild?.isEqualNode(said)) put(trouble, said);
          if (error.status === 401) return void logIn();
        }
        if (mine === run && !leaving.signal.aborted) timer = setTimeout(() => (document.hidden ? wait() : refresh()), typeof every === "function" ? every() : every);
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
  put(document.getElementById("page"), trouble, page.main);
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
  else put(page.main, failure({ message: "There is no such page.", remedy: "Choose one of the pages in the menu." }));
  if (!isFirst) {
    scrollTo(0, 0);
    main.focus({ preventScroll: true });
    say(document.title);
  }
}

let wasAway = false;
function showState() {
  const state = document.getElementById("state");
  const isAway = !live.isConnected && !live.isRefused;
  const now = live.facts;
  const hasFacts = live.isConnected && now !== null;
  const kind = isAway || (hasFacts && !now.ready) ? "bad" : hasFacts && now.state === "running" ? "ok" : "warn";
  const name = isAway ? "no response" : hasFacts ? now.state : "no live figures";
  state.className = "state " + kind;
  // Read aloud when it changes; not so the seconds, which always do.
  if (state.firstChild?.textContent !== name) put(state, h("span", null, name), h("span", { class: "up", "aria-hidden": "true" }));
  state.lastChild.textContent = isAway ? silence() : hasFacts ? ", up " + span(now.uptime_s * 1000) : "";
  showAway(isAway);
  if (wasAway && !isAway) refreshLast();
  wasAway = isAway;
}

function silence() {
  if (live.heardAt === null) return "";
  const seconds = Math.max(1, Math.floor((Date.now() - live.heardAt) / 1000));
  return ", for " + (seconds < 60 ? seconds + " s" : span(seconds * 1000));
}

// One notice for all pages; what they show is grey until the broker answers again.
function showAway(isAway) {
  document.body.classList.toggle("away", isAway);
  const notice = document.getElementById("away");
  if (!isAway) {
    if (notice.firstChild) put(notice);
    return;
  }
  const since = String(live.heardAt);
  if (notice.firstChild?.dataset.since === since) return;
  const said = failure({ message: live.heardAt === null ? "The broker does not respond." : "The broker has not responded since " + clock(live.heardAt) + ".", remedy: live.heardAt === null ? null : "What is shown in grey is from before." });
  said.dataset.since = since;
  said.append(h("span", null, "Check that it runs: ", command("reput health")));
  put(notice, said);
}

function showZone() {
  const button = document.getElementById("zone-button");
  button.textContent = zoneName();
  button.setAttribute("aria-pressed", String(zone.isUtc));
  button.title = zone.isUtc ? "Times are in UTC. Show them in the time zone of this browser" : "Times are in the time zone of this browser. Show them in UTC";
}

function showMember() {
  const where = document.getElementById("where");
  where.textContent = session.broker ? session.broker + " in " + session.cluster : "";
  if (!MEMBER) return;
  document.body.classList.add("elsewhere");
  put(where, "The broker at " + MEMBER + ", asked by " + (session.broker ?? "another one") + ". ", h("a", { href: "./" + location.hash }, "Back to " + (session.address || "this broker")));
}

function showLogin() {
  const button = document.getElementById("login-button");
  button.textContent = session.is_logged_in ? "Log out" : "Log in";
  button.title = session.user === null ? "" : "Logged in as " + session.user;
}

async function toggleLogin() {
  if (!session.is_logged_in) return logIn();
  await logOut().catch(() => null);
  if (needsLogin()) return logIn();
  showLogin();
  show(false);
}

function moveRow(step) {
  const rows = [...document.querySelectorAll("main tbody tr")].filter((row) => row.offsetParent !== null);
  const links = rows.map((row) => row.querySelector("a") ?? row.querySelector("button, input")).filter(Boolean);
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
  else if (event.key === "x") document.activeElement.closest("main tbody tr")?.querySelector("input[type=checkbox]")?.click();
  else if (event.key === "r") refreshLast();
  else if (event.key === "n" || event.key === "p") document.querySelector("main [data-key=" + event.key + "]:not(:disabled)")?.click();
  else return;
  event.preventDefault();
}

async function begin() {
  document.getElementById("keys-button").addEventListener("click", () => showKeys(KEYS));
  document.getElementById("login-button").addEventListener("click", toggleLogin);
  document.getElementById("zone-button").addEventListener("click", () => {
    chooseZone(!zone.isUtc);
    showZone();
    show(true);
  });
  document.getElementById("skip").addEventListener("click", (event) => {
    event.preventDefault();
    main.focus();
  });
  document.addEventListener("keydown", press);
  addEventListener("hashchange", () => show(false));
  try {
    Object.assign(session, await get("session"));
  } catch {
    // The page says why, when it loads.
  }
  showMember();
  showZone();
  if (needsLogin()) return logIn();
  put(document.getElementById("pages"), h("ul", null, PAGES.filter(([name]) => isShown(name)).map(([name, text, key]) => {
    const to = link(name, text);
    to.dataset.page = name;
    to.title = "g " + key;
    return h("li", null, to);
  })));
  showLogin();
  watch(() => { if (live.facts || live.hasFailed || live.isRefused) showState(); });
  setInterval(showLogin, 2000);
  if (session.may_watch) start();
  show(true);
}

begin();
