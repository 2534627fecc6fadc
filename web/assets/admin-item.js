// One item: its state, its ledger, and what an admin can change.
import {
  announce, api, ask, confirmName, duration, el, fill, follow, money, number, onPress, pathID, Problem, rate, showProblem, stateBadge, table, text, time,
} from "./admin.js";
import { changeFields, changes } from "./admin-item-form.js";

const at = (id) => document.getElementById(id);
const id = pathID(2);
const base = "/v1/admin/items/" + encodeURIComponent(id);

let item = null; // as the API last returned it
let tag = ""; // its version, for If-Match

function take({ body, answer }) {
  if (item && body.version < item.version) return;
  item = body;
  tag = answer.headers.get("ETag");
  show();
}

async function load() {
  try {
    take(await api("GET", base));
    showProblem(at("failure"), null);
    at("item").removeAttribute("aria-busy");
    at("item").hidden = false;
    return true;
  } catch (error) {
    at("item").hidden = item === null;
    showProblem(at("failure"), error, error.code === "item_not_found" ? undefined : begin);
    return false;
  }
}

// Details

const tileNames = ["Stock left", "Stock total", "Accepted per second", "Lock"];
const tiles = tileNames.map((label) => {
  const value = el("dd", { class: "value" }, "–");
  const more = el("dd", { class: "muted" });
  at("tiles").append(el("div", { class: "tile" }, el("dt", {}, label), value, more));
  return { value, more };
});
const meter = el("meter", { min: 0, max: 1, value: 0, "aria-label": "Stock left" });
tiles[0].more.append(meter);

function showStock(left, total) {
  text(tiles[0].value, number(left));
  text(tiles[1].value, number(total));
  meter.max = Math.max(1, total);
  meter.value = Math.max(0, left);
  meter.setAttribute("aria-label", `Stock left: ${number(left)} of ${number(total)}`);
}

function show() {
  document.title = `${item.name} · flashsale`;
  text(at("name"), item.name);
  showState(item.state);
  showStock(item.stock_left, item.stock_total);
  const image = item.image_url ? [[el("dt", {}, "Image"), el("dd", {}, el("a", { href: item.image_url, rel: "noreferrer" }, item.image_url))]] : [];
  const facts = [
    ["Id", el("code", {}, item.id)], ["Description", item.description || "–"], ["Price", money(item.price_minor, item.currency)],
    ["Units per buyer", number(item.per_user_limit)], ["Opens", time(item.opens_at)], ["Closes", item.closes_at ? time(item.closes_at) : "no end"],
    ["Time to pay", item.payment_window_seconds ? duration(item.payment_window_seconds * 1000) : "no payment needed"], ["Version", number(item.version)],
    ...(item.buckets > 1 ? [["Buckets of the stock", number(item.buckets)]] : []),
  ];
  fill(at("details"), facts.map(([name, value]) => [el("dt", {}, name), el("dd", { class: name === "Description" ? "lines" : null }, value)]), image);
  showActions();
}

let shownState = "";

function showState(state) {
  if (state === shownState) return;
  shownState = state;
  fill(at("state"), stateBadge(state));
  fill(at("notice"), state === "paused" ? el("p", { class: "notice warn" }, el("strong", {}, "This sale is paused."), " Purchases are refused until it is resumed.") : null);
}

// Changes

const fresh = (message) => async (result) => {
  take(result);
  announce(message);
  showLedger();
  entries.reload();
};

const post = (name) => () => api("POST", `${base}/${name}`, { body: {} });

const buttons = {
  change: el("button", { type: "button", onclick: change }, "Change"),
  restock: el("button", { type: "button", onclick: restock }, "Restock"),
  pause: onPress(el("button", { type: "button" }, "Pause"), at("failure"), () => post("pause")().then(fresh("The sale is paused."))),
  resume: onPress(el("button", { type: "button", class: "primary" }, "Resume"), at("failure"), () => post("resume")().then(fresh("The sale is resumed."))),
  warm: onPress(el("button", { type: "button" }, "Load before the sale"), at("failure"), () => post("warm")().then(fresh("The item is loaded in every process."))),
  close: el("button", { type: "button", class: "danger", onclick: close }, "Close for good"),
};
fill(at("actions"), Object.values(buttons));

// The API does not return the operator's switch; the state shows it, except before the opening.
function showActions() {
  const state = item.state;
  buttons.pause.hidden = state === "closed" || state === "paused";
  buttons.resume.hidden = state !== "paused" && state !== "scheduled";
  buttons.resume.className = state === "paused" ? "primary" : "";
  buttons.warm.hidden = state === "closed";
  buttons.close.hidden = state === "closed";
}

function change() {
  ask({
    title: `Change ${item.name}`,
    fields: changeFields(item),
    submit: "Save",
    run: (values) => save(item, tag, values),
  }).then((done) => done && done.conflict && change());
}

async function save(from, version, values) {
  const body = changes(from, values);
  if (!Object.keys(body).length) throw new Problem(422, { title: "Nothing to save", detail: "No field was changed." });
  try {
    await fresh("The item was changed.")(await api("PATCH", base, { body, match: version }));
    return {};
  } catch (error) {
    if (error.code !== "version_conflict") throw error;
    return conflict(body);
  }
}

// Another admin changed the item: show both values of each field, and let the reader decide.
async function conflict(mine) {
  const before = item;
  await load();
  const shown = (name, value) => (name === "price_minor" ? money(value, item.currency) : name.endsWith("_at") ? time(value) : String(value ?? "–"));
  const label = (name) => name.replace("_minor", "").replaceAll("_", " ");
  const theirs = Object.keys(before).filter((n) => n !== "server_time" && n !== "version" && n !== "stock_left" && n !== "state" && before[n] !== item[n]);
  const names = [...new Set([...Object.keys(mine), ...theirs])];
  const rows = names.map((n) => el("tr", {}, el("th", { scope: "row" }, label(n)), el("td", {}, shown(n, item[n])), el("td", {}, n in mine ? shown(n, mine[n]) : "not changed by you")));
  return ask({
    title: "The item has changed in the meantime",
    text: [
      el("p", {}, "Your change was not saved, because the item now has version ", String(item.version), "."),
      el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Values" }, el("table", {}, el("thead", {}, el("tr", {}, el("th", {}, "Field"), el("th", {}, "Now"), el("th", {}, "Yours"))), el("tbody", {}, rows))),
    ],
    fields: [],
    submit: "Overwrite with my change",
    run: async () => {
      await fresh("The item was changed.")(await api("PATCH", base, { body: mine, match: tag }));
      return {};
    },
  });
}

function restock() {
  ask({
    title: `Restock ${item.name}`,
    text: "Added units can be bought immediately. A negative number takes back unsold units.",
    fields: [
      { name: "quantity", label: "Units to add", type: "number", required: true, min: -1000000000, max: 1000000000 },
      { name: "reason", label: "Reason, recorded in the audit log", required: true, maxlength: 200, wide: true },
    ],
    submit: "Continue",
    run: (values) => (values.quantity < 0 ? values : sendRestock(values).then(() => ({}))),
  }).then((values) => {
    if (!values || values.quantity === undefined) return;
    confirmName({
      title: `Take back ${number(-values.quantity)} units`,
      text: `Stock left: ${number(item.stock_left)}. The units can no longer be bought.`,
      name: item.name,
      submit: "Take back",
      run: () => sendRestock(values).then(() => true),
    });
  });
}

async function sendRestock(body) {
  const result = await api("POST", base + "/restock", { body, keyed: true });
  const done = body.quantity < 0 ? `${number(-body.quantity)} units were taken back` : `${number(body.quantity)} units were added`;
  // A repeat of a request whose answer was lost.
  const replayed = result.answer.headers.get("Idempotent-Replayed") === "true";
  await fresh(replayed ? `${done} by the earlier attempt; this one changed nothing.` : `${done}.`)(result);
}

function close() {
  confirmName({
    title: `Close ${item.name} for good`,
    text: "Nothing more is sold, and the sale cannot be opened again. Existing orders can be paid and cancelled.",
    name: item.name,
    submit: "Close for good",
    run: () => post("close")().then(fresh("The sale is closed.")).then(() => true),
  });
}

// Ledger

async function showLedger() {
  try {
    const { body: l } = await api("GET", base + "/ledger");
    const part = (name, value) => el("div", {}, el("dt", {}, name), el("dd", {}, number(value)));
    const sign = (s) => el("div", { class: "sign", "aria-hidden": "true" }, el("dt"), el("dd", {}, s));
    fill(at("ledger"),
      el("dl", { class: "equation" }, part("Initial", l.initial), sign("+"), part("Restocked", l.restocked), sign("="), part("Left", l.left), sign("+"), part("Held", l.held), sign("+"), part("Sold", l.sold)),
      l.balanced
        ? el("p", { class: "notice good" }, el("strong", {}, "Balanced."), " Every unit is accounted for.")
        : el("p", { class: "notice bad" }, el("strong", {}, "Not balanced."), ` The difference is ${number(Math.abs(l.initial + l.restocked - l.left - l.held - l.sold))} units. `, el("a", { href: "/admin/reconcile?item_id=" + encodeURIComponent(id) }, "Compare Redis with the database")));
  } catch (error) {
    showProblem(at("ledger"), error, showLedger);
  }
}

// Audit log

const lastEntries = 10;
let entries = null;

function showAudit() {
  entries = table(at("audit"), {
    caption: "Last changes",
    columns: [
      { title: "Time", cell: (e) => time(e.at) },
      { title: "By", cell: (e) => e.actor || "the service" },
      { title: "Action", cell: (e) => el("code", {}, e.action) },
      { title: "Before", class: "wide", cell: (e) => fields(e.before, e.before) },
      { title: "After", class: "wide", cell: (e) => fields(e.after, e.before) },
    ],
    empty: "Nothing has changed since its creation.",
    load: async (_, signal) => ({ rows: (await api("GET", `/v1/admin/audit?limit=${lastEntries}&item_id=${encodeURIComponent(id)}`, { signal })).body.entries, next: "" }),
  });
  fill(at("audit-more"), el("a", { href: "/admin/audit?item_id=" + encodeURIComponent(id) }, "All changes of this item"));
}

// A value that is not set has an entry only where a change has removed or added it.
function fields(o, before) {
  if (!o || typeof o !== "object") return "–";
  const set = (value) => value !== null && value !== "";
  const shown = (value) => (set(value) ? (typeof value === "object" ? JSON.stringify(value) : value) : "(empty)");
  return Object.entries(o).filter(([, value]) => before || set(value)).map(([name, value]) => `${name}: ${shown(value)}`).join(", ");
}

// Live stock

const streamTexts = { connecting: ["Connecting", "info"], live: ["Live", "good"], lost: ["Disconnected, reconnecting", "bad"] };

function showStream(state) {
  const [label, tone] = streamTexts[state];
  at("stream").className = "badge " + tone;
  text(at("stream"), label);
  at("tiles").classList.toggle("stale", state === "lost");
}

function showFigures(f) {
  const i = f.items.find((one) => one.id === id);
  if (!i) return;
  if (i.stock_left !== null && i.stock_total !== null) showStock(i.stock_left, i.stock_total);
  text(tiles[2].value, rate(i.accepted_per_second));
  text(tiles[3].value, i.lock ? (i.lock.holder ? "held" : "free") : "–");
  text(tiles[3].more, i.lock ? [item.buckets > 1 && "first bucket", i.lock.holder, `fence ${i.lock.fence}`, `${number(i.lock.waiting)} waiting`].filter(Boolean).join(", ") : "");
  if (i.state && i.state !== shownState) load(); // changed by the clock or by another admin
}

async function begin() {
  if (!(await load()) || entries) return;
  showAudit();
  showLedger();
  follow("/v1/admin/events?item=" + encodeURIComponent(id), showFigures, showStream);
}

onPress(at("check-ledger"), at("ledger"), showLedger);
begin();
