// The list of items: countdowns, states that change with the server's clock, and stock that follows
// the sales.

import { api, clockText, everySecond, jitter, now, sampleClock, setText, stateNow, t } from "./shop.js";

/** A visible item is read this often, but no two items within `gap`. */
const interval = 15000;
const gap = 3000;
const visible = new Set();
let failures = 0;
let timer; // of the next read
let turn; // of the next opening or closing

const cards = [...document.querySelectorAll("[data-item]")].map((node) => ({
  node,
  id: node.dataset.item,
  state: node.dataset.state,
  opens: Date.parse(node.dataset.opens),
  closes: node.dataset.closes ? Date.parse(node.dataset.closes) : Infinity,
  readAt: 0,
}));

/** Shows a card's state and its countdown. */
function show(card) {
  const { node } = card;
  const state = stateNow(card);
  if (node.dataset.state !== state) {
    node.dataset.state = state;
    const badge = node.querySelector(".badge");
    badge.dataset.state = state;
    setText(badge, t("state." + state));
  }
  const waiting = state === "scheduled";
  node.querySelector(".when").hidden = !waiting;
  const countdown = node.querySelector(".countdown");
  countdown.hidden = !waiting;
  if (waiting) setText(countdown, " · " + t("js.in", clockText(card.opens - now())));
}

function showAll() {
  cards.forEach(show);
  clearTimeout(turn);
  const left = Math.min(...cards.flatMap(({ opens, closes }) => [opens - now(), closes - now()]).filter((ms) => ms > 0));
  if (left < 1500) turn = setTimeout(showAll, left + 5); // between two ticks
}

/** Takes an item of the API. */
function take(card, item) {
  card.state = item.state;
  card.opens = Date.parse(item.opens_at);
  card.closes = item.closes_at ? Date.parse(item.closes_at) : Infinity;
  setText(card.node.querySelector(".stock"), t("stock.left", Math.max(0, item.stock_left), item.stock_total));
  show(card);
}

/** Reads the visible item that was read first. */
async function read() {
  const due = cards.filter((card) => visible.has(card.node) && stateNow(card) !== "closed").sort((a, b) => a.readAt - b.readAt);
  if (document.hidden || due.length === 0) return schedule(1);
  const [card] = due;
  card.readAt = performance.now();
  try {
    const answer = await api("/v1/items/" + card.id);
    if (answer.ok) {
      sampleClock(answer.body.server_time, answer.at);
      take(card, answer.body);
    } else if (answer.status !== 404) throw new Error(String(answer.status));
    failures = 0;
  } catch {
    failures++;
  }
  schedule(due.length);
}

function schedule(due) {
  clearTimeout(timer);
  if (!document.hidden) timer = setTimeout(read, jitter(Math.max(gap, interval / due) * 2 ** Math.min(failures, 4)));
}

const watch = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) isIntersecting ? visible.add(target) : visible.delete(target);
});
for (const { node } of cards) watch.observe(node);
everySecond(showAll);
document.addEventListener("visibilitychange", () => schedule(cards.length));
addEventListener("pageshow", (event) => event.persisted && schedule(cards.length));
if (cards.length > 0) schedule(cards.length);
