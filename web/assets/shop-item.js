// The page of an item: its live state and stock, the countdown by the server's clock, and the
// button, which shop-buy.js serves.

import { api, byID, clockText, everySecond, jitter, now, sampleClock, setText, stateNow, t } from "./shop.js";
import { Buying } from "./shop-buy.js";

const page = byID("item");
const item = {
  id: page.dataset.item,
  state: page.dataset.state,
  opens: Date.parse(page.dataset.opens),
  closes: page.dataset.closes ? Date.parse(page.dataset.closes) : Infinity,
};
const often = 3000;
const seldom = 15000;
const soon = 60000;
const atLoad = 1000; // the first poll's largest delay
let failures = 0;
let timer; // of the next poll
let turn; // of the opening or the closing

const buying = byID("press") && new Buying({ form: byID("buy"), item: item.id, buyer: page.dataset.buyer, refresh: () => poll() });

function show() {
  const state = stateNow(item);
  const badge = byID("state");
  if (badge.dataset.state !== state) {
    badge.dataset.state = state;
    setText(badge, t("state." + state));
  }
  page.dataset.state = state;
  if (buying) buying.follow(state);
  else showLogin(state);
  countDown(state);
  clearTimeout(turn);
  const left = (state === "scheduled" ? item.opens : item.closes) - now();
  if (state !== "closed" && left < 1500) turn = setTimeout(show, Math.max(0, left) + 5); // between two ticks
}

// Without a session, the link to the login form has the place of the button while the sale can lead to an order.
function showLogin(state) {
  const buyable = state === "open" || state === "scheduled";
  byID("login").hidden = !buyable;
  byID("unsold").hidden = buyable;
  setText(byID("unsold"), buyable ? "" : t("buy." + state));
}

function countDown(state) {
  const line = byID("countdown");
  const until = state === "scheduled" ? item.opens : item.closes;
  const running = state !== "closed" && Number.isFinite(until);
  line.hidden = !running;
  if (!running) return;
  setText(byID("countdown-label"), t(state === "scheduled" ? "js.opens_in" : "js.closes_in"));
  setText(line.querySelector(".countdown"), clockText(until - now()));
}

function showStock(left, total) {
  const meter = byID("meter");
  meter.max = total;
  meter.low = Math.max(1, Math.floor(total / 5));
  meter.optimum = total;
  meter.value = Math.max(0, left);
  setText(byID("left"), left > 0 ? t("stock.left", left, total) : t("stock.none"));
}

async function poll() {
  clearTimeout(timer);
  if (document.hidden) return;
  try {
    const answer = await api("/v1/items/" + item.id);
    if (!answer.ok) throw new Error(String(answer.status));
    const read = answer.body;
    sampleClock(read.server_time, answer.at);
    item.state = read.state;
    item.opens = Date.parse(read.opens_at);
    item.closes = read.closes_at ? Date.parse(read.closes_at) : Infinity;
    showStock(read.stock_left, read.stock_total);
    failures = 0;
    byID("stale")?.remove();
  } catch {
    if (++failures === 2) {
      const note = document.createElement("p");
      note.id = "stale";
      note.className = "hint";
      note.textContent = t("js.stale");
      byID("left").after(note);
    }
  }
  show();
  schedule();
}

function schedule() {
  clearTimeout(timer);
  const state = stateNow(item);
  if (document.hidden || state === "closed") return;
  const near = state === "open" || (state === "scheduled" && item.opens - now() < soon);
  timer = setTimeout(poll, jitter(Math.min(60000, (near ? often : seldom) * 2 ** Math.min(failures, 4))));
}

everySecond(show);
document.addEventListener("visibilitychange", () => {
  if (document.hidden) return clearTimeout(timer);
  poll();
});
addEventListener("pageshow", (event) => event.persisted && poll());
addEventListener("online", poll);
if (stateNow(item) !== "closed") timer = setTimeout(poll, Math.random() * atLoad);
