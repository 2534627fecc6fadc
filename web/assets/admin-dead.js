// Dead letters: grouped by error; retried or discarded singly, by group, or all.
import { api, ask, badge, confirmName, el, fill, money, number, onPress, showProblem, table, time } from "./admin.js";
import { BulkRun } from "./admin-dead-run.js";
import { buyerLink, code, counted, itemLink, orderLink, readQuery, reasonBox, withQuery } from "./admin-records.js";

const overview = document.querySelector("#overview");
const letters = document.querySelector("#letters");
const running = document.querySelector("#running");
const everything = "all"; // the value of ?group= for all letters
const open = readQuery(["group"]).group;
let run = null;
let list = null;

async function showGroups() {
  overview.setAttribute("aria-busy", "true");
  try {
    const { body } = await api("GET", "/v1/admin/dead/groups");
    fill(overview, body.total === 0 ? nothing() : groupList(body));
  } catch (error) {
    showProblem(overview, error, showGroups);
  } finally {
    overview.removeAttribute("aria-busy");
  }
}

const nothing = () => el("div", { class: "empty" }, el("p", {}, "There are no dead letters."),
  el("p", {}, "A task that fails permanently appears here, with the error of its last attempt."));

function groupList(all) {
  const everyLetter = { body: { all: true, before: all.counted_at }, count: all.total, exact: true, word: "discard all", name: "all dead letters" };
  const notes = [
    !all.complete && `The groups count only the newest ${counted(all.counted, "letter")} of ${number(all.total)}.`,
    all.omitted > 0 && `${counted(all.omitted, "smaller group")} not listed.`,
  ].filter(Boolean);
  return [
    el("div", { class: "spread" },
      el("p", { class: "total" }, el("strong", {}, counted(all.total, "dead letter")), ` in ${counted(all.groups.length + all.omitted, "group")}`),
      el("div", { class: "row" }, el("a", { class: "button small", href: "/admin/dead?group=" + everything }, "Show all tasks"), bulkButtons(everyLetter, "all"))),
    notes.length > 0 && el("p", { class: "notice info" }, notes.join(" ")),
    el("ul", { class: "plain stack" }, all.groups.map((g) => groupCard(g, all))),
  ];
}

function groupCard(group, { complete: isComplete, counted_at: before }) {
  // Letters that died after the count are not shown, so they are not selected either.
  const selection = { body: { group: group.id, before }, count: group.count, exact: isComplete, name: "the group" };
  return el("li", { class: "card stack tight", "data-group": group.id, "aria-current": group.id === open },
    el("div", { class: "spread" },
      el("div", { class: "row" }, el("strong", { class: "big" }, (isComplete ? "" : "at least ") + number(group.count)),
        el("span", { class: "muted" }, isComplete ? "first " : "first known ", time(group.first_at), ", last ", time(group.last_at))),
      el("div", { class: "row" }, el("a", { class: "button small", href: "/admin/dead?group=" + group.id }, "Show tasks"), bulkButtons(selection, "group"))),
    reasonBox(group.reason));
}

function bulkButtons(selection, what) {
  return [
    el("button", { type: "button", class: "small", onclick: () => retryMany(selection) }, `Retry ${what}…`),
    el("button", { type: "button", class: "small danger", onclick: () => discardMany(selection) }, `Discard ${what}…`),
  ];
}

const amount = (s) => (s.exact ? "" : "At least ") + counted(s.count, "dead letter");

async function retryMany(selection) {
  const sure = await ask({
    title: `Retry ${selection.name}?`, submit: "Retry",
    text: `${amount(selection)} will be queued again. A task that fails permanently again returns to this page.`,
    run: async () => true,
  });
  if (sure) begin("retry", selection);
}

async function discardMany(selection) {
  const sure = await confirmName({
    title: `Discard ${selection.name}?`, name: selection.word || (await onlyItem(selection)) || "discard group", submit: "Discard",
    text: `${amount(selection)} will be removed permanently: orders in them are rejected, and their units return to the stock. This cannot be undone.`,
    run: async () => true,
  });
  if (sure) begin("discard", selection);
}

/** The id of the item that all letters of a group concern, as far as one page shows it. */
async function onlyItem(selection) {
  try {
    const { body } = await api("GET", withQuery("/v1/admin/dead", { group: selection.body.group, limit: 100 }));
    const items = new Set(body.dead.map((d) => d.item_id));
    return items.size === 1 && body.next_cursor === "" ? [...items][0] : "";
  } catch {
    return ""; // the change itself shows what is wrong
  }
}

/** Starts to retry or discard many letters; one such run at a time. */
async function begin(action, selection) {
  run?.stop();
  run = new BulkRun(running, action, selection, () => Promise.all([showGroups(), list?.reload()]));
  running.scrollIntoView({ block: "nearest" });
  await run.start();
}

function showLetters() {
  if (!open) return;
  const all = open === everything;
  document.querySelector("#letters-part").hidden = false;
  document.querySelector("#letters-title").textContent = all ? "All tasks" : "Tasks of the group";
  list = table(letters, {
    caption: "Dead letters", empty: "No dead letters.",
    columns: [
      { title: "Order or task", class: "wide", cell: (d) => [d.order_id ? orderLink(d.order_id) : code(d.task), all && reasonBox(d.reason)] },
      { title: "Item", cell: (d) => (d.item_id ? itemLink(d.item_id) : "–") },
      { title: "Type", cell: (d) => d.type },
      { title: "Orders", cell: (d) => number(d.orders), numeric: true },
      { title: "Attempts", cell: (d) => number(d.attempts), numeric: true },
      { title: "Died", cell: (d) => time(d.died_at) },
      { title: "Actions", cell: letterActions },
    ],
    load: async (cursor, signal) => {
      const { body } = await api("GET", withQuery("/v1/admin/dead", { group: all ? "" : open, cursor, limit: 50 }), { signal });
      return { rows: body.dead, next: body.next_cursor };
    },
  });
}

function letterActions(letter) {
  const problem = el("div");
  const place = el("div", {});
  const done = (label) => fill(place, badge(label, "good"));
  const payload = el("button", { type: "button", class: "small", "aria-expanded": "false" }, "Payload");
  onPress(payload, problem, () => togglePayload(payload, letter));
  const retry = onPress(el("button", { type: "button", class: "small" }, "Retry"), problem, async () => done(await resolve(letter, "retry", "queued again")));
  const discard = el("button", { type: "button", class: "small danger", onclick: () => discardOne(letter, done) }, "Discard…");
  return fill(place, el("div", { class: "row actions-cell" }, payload, retry, discard), problem);
}

/** Shows the content of a letter below its row, or hides it. */
async function togglePayload(button, letter) {
  const row = button.closest("tr");
  const shown = row.nextElementSibling?.classList.contains("below") ? row.nextElementSibling : null;
  button.setAttribute("aria-expanded", String(!shown));
  if (shown) {
    shown.remove();
    return;
  }
  try {
    const { body } = await api("GET", `/v1/admin/dead/${encodeURIComponent(letter.task)}/payload`);
    row.after(el("tr", { class: "below" }, el("td", { colspan: row.cells.length }, payloadOf(body))));
  } catch (error) {
    button.setAttribute("aria-expanded", "false");
    throw error;
  }
}

function payloadOf(letter) {
  const { orders, omitted, unreadable, raw, bytes } = letter.payload;
  const row = (o) => [orderLink(o.order_id), itemLink(o.item_id), o.user_id ? buyerLink(o.user_id) : "–", number(o.quantity),
    o.currency ? money(o.unit_price_minor, o.currency) : "–", time(o.created_at)];
  return el("div", { class: "stack tight" },
    el("div", { class: "muted" }, "Task ", code(letter.task), ` in ${letter.queue}, ${counted(bytes, "byte")}`),
    reasonBox(letter.reason),
    orders.length > 0 && el("table", {},
      el("thead", {}, el("tr", {}, ["Order", "Item", "Buyer", "Units", "Price", "Created"].map((title) => el("th", { scope: "col" }, title)))),
      el("tbody", {}, orders.map((o) => el("tr", {}, row(o).map((cell) => el("td", {}, cell)))))),
    omitted > 0 && el("p", { class: "muted" }, `${counted(omitted, "more order")} not shown.`),
    unreadable > 0 && el("p", { class: "notice warn" }, `${counted(unreadable, "order")} cannot be read.`),
    raw && reasonBox(raw));
}

function discardOne(letter, done) {
  return confirmName({
    title: "Discard this task?", name: letter.item_id || "discard", submit: "Discard",
    text: letter.type === "purchase" ? `${counted(letter.orders, "order")} in it will be rejected, and the units return to the stock. This cannot be undone.` : "This cannot be undone.",
    run: async () => done(await resolve(letter, "discard", "discarded")),
  });
}

/** Retries or discards one letter and returns what became of it. */
async function resolve(letter, action, done) {
  try {
    await api("POST", `/v1/admin/dead/${encodeURIComponent(letter.task)}/${action}`);
    return done;
  } catch (error) {
    if (error.code !== "task_not_found") throw error;
    return "resolved meanwhile"; // also a repeat after a lost answer
  }
}

showGroups();
showLetters();
