// The page of an order: its state as it changes, the time that is left to pay, and the question
// before a cancellation.

import { api, byID, clockText, el, everySecond, hasText, jitter, loadAfresh, now, sampleClock, setText, showTime, t } from "./shop.js";

const page = byID("order");
const { order: id } = page.dataset;
const needsPayment = "payment" in page.dataset;
const steps = byID("steps");
const maxFailures = 3;
const interval = 4000;
/** After polling for so long, in milliseconds, the page tries the event stream again. */
const pollFor = 60000;
let expires = page.dataset.expires ? Date.parse(page.dataset.expires) : 0;
let state = page.dataset.status;
let source = null;
let failures = 0;
let polling = false;
let pollUntil = 0;
let timer;

const settled = () => !(state === "queued" || (state === "confirmed" && expires > 0));

/** The steps of an order's life: name, state and time. Package pages has the same rules. */
function stepsOf(o) {
  const list = [["received", "done", o.created_at]];
  const confirmed = ["confirmed", "done", o.confirmed_at];
  switch (o.status) {
    case "queued":
      list.push(["confirmed", ""]);
      if (needsPayment) list.push(["paid", ""]);
      break;
    case "rejected":
      return [...list, ["rejected", "failed", o.closed_at]];
    case "confirmed":
      list.push(confirmed);
      if (o.expires_at) list.push(["paid", ""]);
      break;
    case "cancelled":
    case "expired":
      return [...list, confirmed, [o.status, "failed", o.closed_at]];
    default:
      list.push(confirmed, ["paid", "done", o.paid_at]);
      if (o.status === "refunded") list.push(["refunded", "done", o.closed_at]);
  }
  list.findLast((step) => step[1] === "done")[1] = "current";
  return list;
}

function explanation(o) {
  if (o.reason && hasText("reason." + o.reason)) return t("reason." + o.reason);
  if (o.status === "confirmed" && !o.expires_at) return t("order.no_payment");
  if (o.status === "refunded" && o.restocked) return t("order.restocked");
  return t("order.is_" + o.status);
}

function timeOf(at) {
  const node = el("time", { dateTime: at });
  showTime(node);
  return node;
}

/** Shows the order in its new state. */
function show(o) {
  if (o.status === state && !(o.expires_at && !expires)) return;
  state = page.dataset.status = o.status;
  expires = o.expires_at ? Date.parse(o.expires_at) : 0;
  byID("status").dataset.state = o.status;
  setText(byID("status"), t("status." + o.status));
  steps.replaceChildren(
    ...stepsOf(o).map(([name, step, at]) => {
      const row = el("li", {}, el("span", { className: "step" }, t("step." + name)));
      row.dataset.state = step;
      if (step === "current" || step === "failed") row.setAttribute("aria-current", "step");
      if (at) row.append(" ", timeOf(at));
      return row;
    }),
  );
  byID("cancel").hidden = !(state === "queued" || state === "confirmed");
  if (byID("cancel").hidden) byID("confirm").close();
  if (o.expires_at) {
    byID("expires").dateTime = o.expires_at;
    showTime(byID("expires"));
  }
  byID("notices").replaceChildren();
  setText(byID("explanation"), explanation(o));
  showDue();
}

function showDue() {
  const left = expires - now();
  const due = state === "confirmed" && expires > 0;
  byID("due").hidden = !due || left <= 0;
  const countdown = byID("due").querySelector(".countdown");
  countdown.hidden = !due;
  if (due) setText(countdown, `(${clockText(left)})`);
  if (due && left <= 0) setText(byID("explanation"), t("js.time_over"));
}

function live(text) {
  byID("live").hidden = text === "";
  setText(byID("live"), text);
}

/** Follows the order by its event stream. */
function follow() {
  stopFollowing();
  if (settled() || document.hidden) return;
  if (polling) return poll();
  source = new EventSource(`/v1/orders/${id}/events`);
  source.addEventListener("open", () => {
    failures = 0;
    live("");
  });
  source.addEventListener("order", (event) => {
    show(JSON.parse(event.data));
    if (settled()) stopFollowing();
  });
  source.addEventListener("error", () => {
    if (settled()) return stopFollowing();
    const refused = source.readyState === EventSource.CLOSED;
    if (!refused && ++failures < maxFailures) return; // the browser reconnects
    stopFollowing();
    polling = true;
    pollUntil = performance.now() + pollFor;
    failures = 0;
    poll();
  });
}

function stopFollowing() {
  clearTimeout(timer);
  source?.close();
  source = null;
}

/** Reports whether the session has ended or is another buyer's: the page itself then says so. */
const notMine = ({ status }) => [401, 403, 404].includes(status);

/** Reads the order at intervals, because the stream is refused or keeps failing. */
async function poll() {
  clearTimeout(timer);
  if (settled() || document.hidden) return live("");
  if (performance.now() >= pollUntil) {
    polling = false;
    return follow();
  }
  let wait = interval;
  try {
    const answer = await api("/v1/orders/" + id);
    if (notMine(answer)) return loadAfresh();
    if (!answer.ok) {
      wait = Math.max(wait, answer.retryAfter * 1000);
      throw new Error(String(answer.status));
    }
    failures = 0;
    show(answer.body);
    live(settled() ? "" : t("js.polling"));
  } catch {
    failures++;
    live(t("js.offline"));
  }
  clearTimeout(timer);
  if (!settled()) timer = setTimeout(poll, jitter(Math.min(60000, wait * 2 ** Math.min(failures, 4))));
}

/** Reads the order once: it may have changed while the page was hidden. */
async function refresh() {
  try {
    const answer = await api("/v1/orders/" + id);
    if (notMine(answer)) return loadAfresh();
    if (!answer.ok) throw new Error(String(answer.status));
    show(answer.body);
    const item = await api("/v1/items/" + answer.body.item_id);
    if (item.ok) sampleClock(item.body.server_time, item.at);
  } catch {
    // The stream or the next poll shows the order.
  }
  follow();
}

byID("cancel").addEventListener("submit", (event) => {
  event.preventDefault();
  byID("confirm").showModal();
});
document.addEventListener("visibilitychange", () => (document.hidden ? stopFollowing() : refresh()));
addEventListener("pagehide", stopFollowing);
addEventListener("online", () => polling && poll());
if (location.search.includes("paying")) history.replaceState(null, "", location.pathname);
everySecond(showDue);
follow();
