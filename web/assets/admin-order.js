// One order: its facts, what has happened to it, and the changes that an admin can make.
import { announce, api, ask, confirmName, duration, el, fill, money, number, onPress, pathID, showProblem, stateBadge, text, time } from "./admin.js";
import { buyerLink, changes, code, counted, isDue, itemLink, markRefunded, outcomeBadge, reasonBox, webhookLink } from "./admin-records.js";

const id = pathID();
const content = document.querySelector("#order");
const message = document.querySelector("#message");
const live = document.querySelector("#live");
// The pauses between two polls, in ms: while something is about to happen, and while something will happen later.
const often = 3000;
const seldom = 30_000;
const longest = 60_000; // after failures
let timer = 0;
let failures = 0;
let due = 0; // the time of the next poll
let shown = "";

/** Loads the timeline. Without a change, the page stays as it is. */
async function refresh() {
  clearTimeout(timer);
  try {
    const { body } = await api("GET", `/v1/admin/orders/${encodeURIComponent(id)}/timeline`);
    const read = JSON.stringify(body);
    if (read !== shown) render(body);
    shown = read;
    failures = 0;
    follow(nextPoll(body), "This page is updated automatically.");
  } catch (error) {
    if (error.status === 404) fill(content, missing());
    else if (shown === "") showProblem(content, error, refresh);
    else retryLater(error);
  } finally {
    content.removeAttribute("aria-busy");
  }
}

/** Loads the timeline again after a while, unless the page is hidden. */
function follow(pause, words) {
  clearTimeout(timer);
  text(live, pause ? words : "");
  due = Date.now() + pause;
  if (pause && !document.hidden) timer = setTimeout(refresh, pause);
}

/** Polls again after a failure: at growing intervals, and not before the time that the service asks for. */
function retryLater(error) {
  const pause = Math.max(Math.min(often * 2 ** failures, longest), (error.retryAfter || 0) * 1000);
  failures += 1;
  follow(pause, `Request failed, retrying in ${duration(pause)}.`);
}

/** How long to wait before the next poll, in ms; 0: nothing is under way. */
function nextPoll({ order, tasks, events }) {
  const soon = (at) => !at || Date.parse(at) < Date.now() + 10 * often;
  const waits = [
    ...tasks.filter((t) => t.state !== "dead").map((t) => (t.state === "delayed" ? t.at : "")),
    ...events.filter((e) => e.kind === "webhook" && e.detail.status === "pending").map((e) => e.detail.next_attempt_at),
    ...events.filter((e) => e.kind === "release" && e.detail.state === "pending").map(() => ""),
    ...(order.status === "queued" && tasks.every((t) => t.state !== "dead") ? [""] : []),
  ];
  if (waits.length === 0) return 0;
  return waits.some(soon) ? often : seldom;
}

function missing() {
  return el("div", { class: "empty" }, el("p", {}, "There is no order ", code(id), ", neither in the database nor in a queue."),
    el("p", {}, el("a", { class: "button", href: "/admin/orders" }, "Search orders")));
}

function render({ order, events, tasks, truncated, incomplete }) {
  fill(content,
    head(order),
    incomplete && el("p", { class: "notice warn" }, el("strong", {}, "Tasks in progress are missing: "), "Redis does not answer."),
    facts(order),
    tasks.length > 0 && section("In progress", tasks.map(taskCard)),
    order.payments?.length > 0 && section("Received amounts", el("ul", { class: "plain stack" }, order.payments.map(payment))),
    section("Timeline", truncated && el("p", { class: "notice info" }, "There are more entries of one kind than are shown here; these are the latest."),
      el("ol", { class: "timeline" }, events.map((e) => entry(e, events[0].at)))));
}

const section = (title, ...children) => el("section", { "aria-label": title }, el("h2", {}, title), children);

function head(order) {
  const action = (label, kind, run) => el("button", { type: "button", class: kind, onclick: run }, label);
  return el("div", { class: "spread" },
    el("div", { class: "row" }, stateBadge(order.status), order.reason && el("span", { class: "muted" }, reasonOf(order.reason))),
    el("div", { class: "row" },
      ["queued", "confirmed"].includes(order.status) && action("Cancel order…", "danger", () => cancel(order)),
      order.status === "paid" && action("Refund order…", "", () => refund(order)),
      onPress(el("button", { type: "button" }, "Refresh"), message, refresh)));
}

function facts(o) {
  const total = money(o.unit_price_minor * o.quantity, o.currency);
  const rows = [
    ["Item", itemLink(o.item_id)],
    ["Buyer", buyerLink(o.user_id)],
    ["Units", number(o.quantity)],
    ["Total", o.quantity > 1 ? `${total} (${money(o.unit_price_minor, o.currency)} each)` : total],
    ["Created", time(o.created_at)],
    ["Confirmed", o.confirmed_at && time(o.confirmed_at)],
    ["To be paid by", o.status === "confirmed" && o.expires_at && time(o.expires_at)],
    ["Paid", o.paid_at && time(o.paid_at)],
    ["Payment", o.payment_reference && el("a", { class: "mono", href: "/admin/payments?reference=" + encodeURIComponent(o.payment_reference) }, o.payment_reference)],
    ["Closed", o.closed_at && time(o.closed_at)],
    ["Units returned", o.restocked !== undefined && (o.restocked ? "yes" : "no")],
    ["Audit log", el("a", { href: "/admin/audit?order_id=" + o.id }, "Changes of this order")],
  ];
  return el("dl", { class: "facts card" }, rows.filter(([, value]) => value).map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

function payment(p) {
  return el("li", { class: "card spread" },
    el("div", {},
      el("div", { class: "row" }, el("strong", {}, money(p.amount_minor, p.currency)), outcomeBadge(p), p.received_as !== p.outcome && el("span", { class: "muted" }, `received as ${p.received_as}`)),
      el("div", {}, el("span", { class: "mono" }, p.reference), " ", el("span", { class: "muted" }, time(p.received_at)))),
    isDue(p) && el("button", { type: "button", onclick: () => markRefunded(p, refresh) }, "Mark as refunded…"));
}

const taskTimes = { ready: "waiting since", delayed: "next attempt", leased: "a worker has it until", dead: "failed for good" };

function taskCard(task) {
  const problem = el("div");
  const retry = onPress(el("button", { type: "button" }, "Retry"), problem, () => resolve(task, "retry", "The task is queued again."));
  return el("div", { class: "card stack tight" },
    el("div", { class: "spread" },
      el("div", { class: "row" }, el("strong", {}, task.type), stateBadge(task.state), el("span", { class: "muted" }, `${counted(task.attempts, "attempt")}, ${counted(task.orders, "order")} in the task`)),
      task.state === "dead" && el("div", { class: "row" }, retry, el("button", { type: "button", class: "danger", onclick: () => discard(task) }, "Discard…"))),
    el("div", { class: "muted" }, "Task ", code(task.task), ` in ${task.queue}, ${taskTimes[task.state] || "at"} `, time(task.at)),
    task.reason && reasonBox(task.reason), problem);
}

// Why an order was closed, in words.
const reasons = { buyer: "by the buyer", admin: "by an admin", unpaid: "not paid in time", recovered: "closed after a backup was restored", failed: "its task failed for good" };
const reasonOf = (reason) => reasons[reason] || reason.replaceAll("_", " ");

// What each kind of event shows: the title, the tone, the details, and what is below them.
const kinds = {
  requested: (d) => ["Requested", "info", [counted(d.quantity, "unit"), d.idempotency_key && [", key ", code(d.idempotency_key)], d.request_id && [", request ", code(d.request_id)]]],
  queued: (d) => ["Queued", "", ["task ", code(d.task), " in ", d.queue]],
  dead_letter: (d) => ["Dead letter", "bad", [`${counted(d.attempts, "attempt")} in ${d.queue}`], reasonBox(d.reason)],
  committed: (d) => ["Committed", "good", [`${duration(d.latency_ms)} after the request`, d.expires_at && ["; to be paid by ", time(d.expires_at)]]],
  rejected: (d) => ["Rejected", "bad", [`${reasonOf(d.reason)}, ${duration(d.latency_ms)} after the request`]],
  payment: (d) => [`Payment of ${money(d.amount_minor, d.currency)}`, d.received_as === "accepted" ? "good" : "warn",
    [outcomeBadge(d), " reference ", code(d.reference), d.received_as !== d.outcome && `, received as ${d.received_as}`]],
  paid: (d) => ["Paid", "good", ["reference ", code(d.reference)]],
  payment_refunded: (d) => [`Payment of ${money(d.amount_minor, d.currency)} refunded`, "", ["reference ", code(d.reference)]],
  cancelled: (d) => ["Cancelled", "bad", [reasonOf(d.reason)]],
  expired: (d) => ["Expired", "bad", [reasonOf(d.reason)]],
  refunded: (d) => ["Refunded", "warn", [d.restocked ? "the units return to the stock" : "the units stay sold"]],
  release: (d) => ["Units released", d.state === "pending" ? "warn" : "", [`${counted(d.quantity, "unit")}, ${d.state === "returned" ? "back in the stock" : "not yet back in the stock"}`]],
  webhook: (d) => [`Webhook ${d.type}`, { delivered: "good", dead: "bad" }[d.status] || "warn", webhookDetails(d), d.last_error && reasonBox(d.last_error)],
  audit: (d) => [`Audit: ${d.action}`, "", [d.actor ? `by ${d.actor}` : "by the service", d.request_id && [", request ", code(d.request_id)]], changes(d.before, d.after)],
};

function webhookDetails(d) {
  return [stateBadge(d.status), " to ", webhookLink(d.webhook), `, ${counted(d.attempts, "attempt")}`, d.last_status && `, answered ${d.last_status}`,
    d.delivered_at && [", delivered ", time(d.delivered_at)], d.next_attempt_at && [", next attempt ", time(d.next_attempt_at)]];
}

function entry(event, start) {
  const [title, tone, details, below] = kinds[event.kind]?.(event.detail) || [event.kind, "", [JSON.stringify(event.detail)]];
  const after = Date.parse(event.at) - Date.parse(start);
  return el("li", { "data-tone": tone || null, "data-kind": event.kind },
    el("div", { class: "spread" }, el("strong", {}, title),
      el("span", { class: "when" }, el("b", {}, after > 0 ? "+" + duration(after) : "start"), " ", el("span", { class: "muted" }, time(event.at)))),
    el("div", { class: "detail" }, details), below);
}

function cancel(order) {
  return confirmName({
    title: "Cancel this order?", name: order.item_id, submit: "Cancel the order",
    text: `${counted(order.quantity, "unit")} of ${order.item_id}, ordered by ${order.user_id}, can then be bought again. This cannot be undone.`,
    run: async () => {
      await api("POST", `/v1/orders/${order.id}/cancel`);
      announce("The order is cancelled.");
      await refresh();
    },
  });
}

function refund(order) {
  const sum = money(order.unit_price_minor * order.quantity, order.currency);
  return ask({
    title: "Record a refund?", submit: "Record the refund", danger: true,
    text: `This records that ${sum} went back to ${order.user_id}. The payment provider returns the money itself.`,
    fields: [{ name: "restock", label: "The units", type: "select", required: true, wide: true,
      options: [["", "Choose…"], ["yes", "return to the stock, and can be bought again"], ["no", "stay sold, for example because they are damaged"]] }],
    run: async ({ restock }) => {
      await api("POST", `/v1/admin/orders/${order.id}/refund`, { body: { restock: restock === "yes" } });
      announce("The refund is recorded.");
      await refresh();
    },
  });
}

function discard(task) {
  return confirmName({
    title: "Discard this task?", name: "discard", submit: "Discard",
    text: task.type === "purchase" ? `${counted(task.orders, "order")} in it will be rejected, and the units return to the stock. This cannot be undone.` : "This cannot be undone.",
    run: async () => announce(await resolve(task, "discard", "The task is discarded.")),
  });
}

/** Retries or discards a dead task. One that is not dead any more was resolved meanwhile. */
async function resolve(task, action, done) {
  try {
    await api("POST", `/v1/admin/dead/${encodeURIComponent(task.task)}/${action}`);
  } catch (error) {
    if (error.code !== "task_not_found") throw error;
    done = "The task was resolved in the meantime.";
  }
  await refresh();
  return done;
}

document.querySelector("#order-id").textContent = id;
document.addEventListener("visibilitychange", () => {
  clearTimeout(timer);
  if (document.hidden) return;
  if (failures > 0) timer = setTimeout(refresh, Math.max(0, due - Date.now()));
  else refresh();
});
refresh();
