// Compares Redis with the database, and repairs.
import { api, badge, confirmName, duration, el, fill, number, showProblem, text, time } from "./admin.js";
import { code, counted, itemLink, readQuery, withQuery } from "./admin-records.js";

const form = document.querySelector("#run");
const report = document.querySelector("#report");
const pageLength = 200; // rows that are shown at once
const patience = 330_000; // ms; the service ends a comparison after five minutes

// What differs, in words. The meaning of the two numbers depends on it.
const kinds = {
  database_old: "The database is older than Redis (revisions)",
  total: "The item's total and its record of changes",
  sold: "The item's units sold and its orders",
  buyers: "Units per buyer and the buyers' orders",
  oversold: "Orders hold more than the total",
  damaged: "The sale in Redis cannot be read",
  left: "Units left in Redis",
  version: "The sale's version or terms in Redis",
  holds: "Records of orders and buyers in Redis",
};

/** Runs a comparison, which may take minutes, and shows how long it has been running. */
async function run(values, repair) {
  const since = Date.now();
  const stop = new AbortController();
  const clock = el("span", { class: "muted" }, "0 s");
  const what = values.item_id || "all items";
  busy(true);
  fill(report, el("div", { class: "card stack tight" },
    el("p", { class: "spread", role: "status" }, el("strong", {}, repair ? `Repairing ${what}…` : `Comparing ${what}…`), clock),
    el("progress", { "aria-label": "Comparison" }),
    el("p", {}, el("button", { type: "button", onclick: () => stop.abort() }, "Stop waiting"))));
  const tick = setInterval(() => text(clock, duration(Math.round((Date.now() - since) / 1000) * 1000)), 1000);
  try {
    const query = { item_id: values.item_id, deep: String(values.deep), repair: String(repair) };
    const { body } = await api("POST", withQuery("/v1/admin/reconcile", query), { signal: stop.signal, timeout: patience });
    fill(report, resultOf(body));
  } catch (error) {
    if (error.name === "AbortError") fill(report, el("p", { class: "notice info" }, "Stopped.", repair && " What was repaired until then is in the audit log."));
    else showProblem(report, error, repair ? undefined : () => run(values, false));
  } finally {
    clearInterval(tick);
    busy(false);
  }
}

function busy(now) {
  for (const button of form.querySelectorAll("button")) button.disabled = now;
}

function resultOf(r) {
  const verdict = r.balanced ? "Balanced." : r.failed > 0 && r.differing === 0 ? "Not everything could be examined." : "Differences remain.";
  return [
    el("div", { class: "notice " + (r.balanced ? "good" : "bad"), role: "status" },
      el("p", {}, el("strong", {}, verdict), ` ${counted(r.examined, "item")} examined in ${duration(r.took_ms)}${r.deep ? "" : ", counters only"}.`)),
    el("dl", { class: "sums" }, [["Examined", r.examined], ["With differences", r.differing], ["Repaired", r.repaired], ["Failed", r.failed]]
      .map(([name, n]) => el("div", { class: "card" }, el("dt", {}, name), el("dd", {}, number(n))))),
    r.items.length > 0 && itemTable(r),
    r.omitted > 0 && el("p", { class: "muted" }, `${number(r.omitted)} more not listed.`),
  ];
}

/** The items, those with differences first; a part of them at once. */
function itemTable(r) {
  const divided = new Set(r.items.filter((i) => i.bucket > 0).map((i) => i.item_id));
  const rest = [...r.items].sort((a, b) => rank(b) - rank(a));
  const body = el("tbody");
  const more = el("p", { class: "row" });
  const add = () => {
    body.append(...rest.splice(0, pageLength).flatMap((i) => rows(i, divided.has(i.item_id))));
    fill(more, rest.length > 0 && [el("button", { type: "button", onclick: add }, "Show more"), el("span", { class: "muted" }, counted(rest.length, "more item"))]);
  };
  add();
  const titles = ["Item", "State", "Initial", "Restocked", "Left in Redis", "Held", "Sold"];
  return [
    el("p", { class: "muted" }, "For each item, initial + restocked = left in Redis + held + sold. Started ", time(r.started_at), "."),
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Report" }, el("table", {},
      el("thead", {}, el("tr", {}, titles.map((title, i) => el("th", { scope: "col", class: i > 1 ? "number" : "" }, title)))), body)),
    more,
  ];
}

const rank = (i) => (i.error ? 4 : 0) + (i.drifts.length > 0 ? 8 : 0) + (i.ledger && !i.ledger.balanced ? 8 : 0) + (i.partial ? 2 : 0) + (i.late_returns > 0 ? 1 : 0);

function rows(item, divided) {
  const l = item.ledger;
  const cell = (text, sign) => el("td", { class: "number" }, sign && el("span", { class: "sign", "aria-hidden": "true" }, sign), text);
  const numbers = l ? [cell(number(l.initial)), cell(number(l.restocked), "+ "), cell(number(l.left), l.balanced ? "= " : "≠ "), cell(number(l.held), "+ "), cell(number(l.sold), "+ ")]
    : [el("td", { colspan: 5, class: "muted" }, "unknown")];
  const main = el("tr", {}, el("th", { scope: "row" }, itemLink(item.item_id), divided && ` bucket ${item.bucket || 0}`), el("td", {}, state(item)), numbers);
  const notes = remarks(item);
  if (notes.length === 0) return [main];
  return [main, el("tr", { class: "remarks" }, el("td", { colspan: 7 }, el("ul", { class: "plain stack tight" }, notes)))];
}

function state(item) {
  if (item.error) return badge("failed", "bad");
  if (item.drifts.some((d) => !d.repaired) || (item.ledger && !item.ledger.balanced)) return badge("differs", "bad");
  if (item.drifts.length > 0) return badge("repaired", "good");
  if (item.partial) return badge("partly compared", "warn");
  return badge("balanced", "good");
}

function remarks(item) {
  const all = item.drifts.map((d) => el("li", { class: "drift " + (d.repaired ? "good" : "bad") },
    el("strong", {}, kinds[d.kind] || d.kind), d.repaired && [" ", badge("repaired", "good")],
    el("div", {}, "expected ", el("b", {}, number(d.expected)), ", found ", el("b", {}, number(d.found)), ` (off by ${number(d.units)}, ${counted(d.count, "record")})`),
    d.note && el("div", { class: "muted" }, d.note)));
  if (item.error) all.push(el("li", { class: "drift bad" }, "Could not be examined: ", code(item.error)));
  if (item.ledger && !item.ledger.balanced) all.push(el("li", { class: "drift bad" }, "The equation does not hold: ", equation(item.ledger)));
  if (item.partial) all.push(el("li", { class: "muted" }, "Not everything could be compared: the item keeps changing, or too much is queued."));
  if (item.late_returns > 0) all.push(el("li", { class: "muted" }, `${counted(item.late_returns, "closed order")} waited for minutes for the return of the units; the sweeper retries them.`));
  if (item.loaded === false && !item.error) all.push(el("li", { class: "muted" }, "The sale is not in Redis; the next purchase loads it."));
  return all;
}

const equation = (l) => `${number(l.initial)} + ${number(l.restocked)} = ${number(l.initial + l.restocked)}, and ${number(l.left)} + ${number(l.held)} + ${number(l.sold)} = ${number(l.left + l.held + l.sold)}`;

function values() {
  const read = { item_id: form.elements.item_id.value.trim(), deep: form.elements.deep.checked };
  history.replaceState(null, "", withQuery(location.pathname, { item_id: read.item_id, deep: read.deep ? "" : "false" }));
  return read;
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  run(values(), false);
});

document.querySelector("#repair").addEventListener("click", async () => {
  const wanted = values();
  const sure = await confirmName({
    title: wanted.item_id ? `Repair ${wanted.item_id}?` : "Repair all items?", name: wanted.item_id || "repair all", submit: "Repair",
    text: "Differences are repaired only in the direction that cannot sell a unit twice. The audit log records each repair.",
    run: async () => true,
  });
  if (sure) run(wanted, true);
});

const first = readQuery(["item_id", "deep"]);
form.elements.item_id.value = first.item_id || "";
form.elements.deep.checked = first.deep !== "false";
busy(false);
