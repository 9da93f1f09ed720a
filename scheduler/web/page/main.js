// Starts the page: polls the scheduler, shows the page that the URL names, and says when the data are old.
import {startAppearance} from "./appearance.js";
import {ask, forgetToken, keepToken, Refused, token} from "./client.js";
import {make, name, set, write} from "./dom.js";
import {age, local, time} from "./format.js";
import {LeasePage} from "./lease.js";
import {NodePage} from "./node.js";
import {Overview, TablePage} from "./overview.js";
import {Pool} from "./pool.js";
import {hashOf, parse} from "./route.js";
import {Leases, Queue, Tenants} from "./tables.js";

const REFRESH_MS = 2000, HIDDEN_MS = 30000, MORE_MS = {history: 60000, events: 10000};
const STALE_MS = 10000;  // since the last answer, if answers are to come every few seconds
const $ = id => document.getElementById(id);

let pool = null, page = null, pageKey = "", answeredAt = 0, answeredWall = 0, interval = REFRESH_MS, failure = "", timer = 0, asking = false, refused = false;
const more = {history: null, events: null}, askedAt = {history: -Infinity, events: -Infinity};

function change(part) {
  const next = hashOf({...parse(location.hash), ...part});
  history.replaceState(null, "", next);
  show();
}

function pageOf(route) {
  const context = {change};
  if (route.page === "nodes" && route.id) return new NodePage(context, route.id);
  if (route.page === "leases" && route.id) return new LeasePage(context, route.id);
  if (route.page === "queue") return new TablePage("Queue", new Queue());
  if (route.page === "leases") return new TablePage("Leases", new Leases());
  if (route.page === "tenants") return new TablePage("Tenants", new Tenants());
  return new Overview(context);
}

// Shows what the URL names with the last state.
function show() {
  const route = parse(location.hash);
  if ($("filter").value !== route.q && document.activeElement !== $("filter")) $("filter").value = route.q;
  for (const one of document.querySelectorAll("nav a")) {
    const its = parse(one.getAttribute("href").replace(/^[^#]*/, ""));
    set(one, "aria-current", its.page === route.page && !route.id ? "page" : null);
    set(one, "href", hashOf({...route, page: its.page, id: ""}));
  }
  if (!pool || refused) return;
  const key = `${route.page}/${route.id}`;
  if (!page || key !== pageKey) {
    const isFirst = page === null;
    page = pageOf(route);
    pageKey = key;
    $("main").replaceChildren(page.element);
    document.title = `${page.title} - gpupool`;
    if (!isFirst) {
      scrollTo(0, 0);
      $("main").focus({preventScroll: true});
    }
  }
  page.show(pool, route, more);
  $("footer").replaceChildren(`State of `, time(make, pool.now), `. pool-scheduler `, name(pool.totals.version), `, leader since `, time(make, pool.totals.started_ms), ".");
}

async function refresh() {
  if (asking) return;
  clearTimeout(timer);
  asking = true;
  const begun = performance.now();
  try {
    const state = await ask("pool.json");
    refused = false;
    pool = new Pool(state);
    answeredAt = performance.now();
    answeredWall = Date.now();
    failure = "";
    show();
    await refreshMore();
  } catch (error) {
    if (error instanceof Refused) return showLogin(error.message);
    failure = error.name === "TimeoutError" ? "no answer in time" : error.message;
  } finally {
    asking = false;
    $("forget").hidden = !token();
    tellAge();
    // A slow network is used for a part of the time only.
    const took = performance.now() - begun, pause = document.hidden ? HIDDEN_MS : Math.max(REFRESH_MS, 2 * took);
    interval = pause + took;
    if (!refused) timer = setTimeout(refresh, pause);
  }
}

async function refreshMore() {
  const due = (page?.wants || []).filter(what => performance.now() - askedAt[what] >= MORE_MS[what]);
  if (!due.length) return;
  for (const what of due) {
    more[what] = await ask(`${what}.json`);
    askedAt[what] = performance.now();
  }
  show();
}

// Only the beginning of an outage is announced to screen readers; the seconds that follow are beside it.
function tellAge() {
  // The first clock stands still while some machines sleep, the second one may be set.
  const old = Math.max(performance.now() - answeredAt, Date.now() - answeredWall);
  const isStale = !refused && (failure !== "" || (pool !== null && old > Math.max(STALE_MS, 2 * interval)));
  $("notice").hidden = !isStale;
  document.body.classList.toggle("is-stale", isStale && pool !== null);
  if (!isStale) return write($("notice-text"), "");
  write($("notice-text"), `No state from the scheduler${failure ? `: ${failure}` : ""}.`);
  write($("notice-age"), pool ? `No answer for ${age(old)}; below is the state of ${local(pool.now)}.` : "Trying again.");
}

function showLogin(reason) {
  refused = true;
  const hadToken = token() !== "";
  forgetToken();
  pool = page = null;
  Object.assign(more, {history: null, events: null});
  Object.assign(askedAt, {history: -Infinity, events: -Infinity});
  const input = make("input", {id: "token", type: "password", autocomplete: "off", required: true, "aria-describedby": "token-help"});
  const form = make("form", {}, make("label", {for: "token"}, "Operator's token"), input, make("button", {type: "submit"}, "Show the pool"));
  form.addEventListener("submit", event => {
    event.preventDefault();
    keepToken(input.value.trim());
    refused = false;
    $("main").replaceChildren(make("p", {}, "Loading the pool's state."));
    refresh();
  });
  const warning = isSecureContext ? null : make("p", {class: "bad"}, "This connection is not encrypted: others on the network can read the token. Use https through a reverse proxy, or an SSH tunnel.");
  $("main").replaceChildren(make("div", {class: "login"}, make("h1", {}, "A token is needed"), hadToken ? make("p", {class: "bad"}, name(reason)) : null, warning, form,
    make("p", {class: "quiet", id: "token-help"}, "The token of an [[operator]] of the scheduler's configuration. It is kept until this tab is closed, and sent to this server only.")));
  write($("footer"), "");
  input.focus();
}

function start() {
  startAppearance($("theme"));
  addEventListener("hashchange", () => {
    show();
    refresh();
  });
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && !refused) refresh();
  });
  $("filter").addEventListener("input", event => change({q: event.target.value}));
  $("skip").addEventListener("click", event => {
    event.preventDefault();
    $("main").focus();
  });
  $("forget").addEventListener("click", () => {
    forgetToken();
    location.reload();
  });
  setInterval(tellAge, 1000);
  refresh();
}

start();
