// What the shop's modules share: texts, the server's clock, requests, money and times in the
// reader's language. Every page loads it; without it the pages work and show the server's texts.

const texts = JSON.parse(document.getElementById("texts")?.textContent || "{}");

/** Returns a text of the page's language, with the arguments in place of %s and %d. */
export function t(key, ...args) {
  let next = 0;
  return (texts[key] ?? key).replace(/%[sd]/g, () => args[next++] ?? "");
}

/** Reports whether the page has a text with the key. */
export const hasText = (key) => key in texts;

/** Returns the element with the id, or null. */
export const byID = (id) => document.getElementById(id);

/** Makes an element with properties, attributes in `attr`, and children. */
export function el(name, props = {}, ...children) {
  const made = document.createElement(name);
  const { attr = {}, ...rest } = props;
  Object.assign(made, rest);
  for (const [key, value] of Object.entries(attr)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** Shows a text if it is new, so that screen readers do not repeat it. */
export function setText(node, text) {
  if (node && node.textContent !== text) node.textContent = text;
}

// The server's clock in milliseconds: the local monotonic time plus the largest offset seen. An
// answer is as old as its way here, so that every sample is at most the true offset.
let offset = -Infinity;

/** Takes a sample of the server's clock that was received at the local time `at`. */
export function sampleClock(serverTime, at = performance.now()) {
  const sample = (typeof serverTime === "number" ? serverTime : Date.parse(serverTime)) - at;
  if (sample > offset) offset = sample;
}

/** Returns the server's time in milliseconds since 1970. */
export const now = () => (offset === -Infinity ? Date.now() : offset + performance.now());

const [navigation] = performance.getEntriesByType("navigation");

/** Reports whether the back or forward button loaded the page. */
export const wentBack = () => navigation?.type === "back_forward";

/** Takes the sample in the page's HTML, unless the page may be an old one from the browser's cache. */
function samplePage() {
  const stamp = document.querySelector("[data-now]")?.dataset.now;
  if (stamp && !wentBack()) sampleClock(stamp, navigation?.responseStart || performance.now());
}

/** The path of this page; the answer to a form has its own path below it. */
const pagePath = () => location.pathname.replace(/\/(buy|pay|cancel)$/, "");

/** Loads the page from the server, never as a repeat of a form. */
export const loadAfresh = () => location.replace(location.origin + pagePath() + location.search);

/** Returns the item's state by the server's clock: a sale opens and closes between two requests. */
export function stateNow({ state, opens, closes }) {
  const at = now();
  if (state !== "closed" && at >= closes) return "closed";
  return state === "scheduled" && at >= opens ? "open" : state;
}

/** Writes a duration as 1:05, 2:03:05, or with days. */
export function clockText(ms) {
  const s = Math.max(0, Math.ceil(ms / 1000));
  const two = (n) => String(n).padStart(2, "0");
  const [d, h, m] = [Math.floor(s / 86400), Math.floor(s / 3600) % 24, Math.floor(s / 60) % 60];
  if (d > 0) return `${t("js.days", d)} ${h}:${two(m)}:${two(s % 60)}`;
  return h > 0 ? `${h}:${two(m)}:${two(s % 60)}` : `${m}:${two(s % 60)}`;
}

/** Calls `tick` at every full second of the server's clock while the page is visible. */
export function everySecond(tick) {
  let timer;
  const run = () => {
    clearTimeout(timer);
    tick();
    if (!document.hidden) timer = setTimeout(run, 1000 - (now() % 1000) + 5);
  };
  document.addEventListener("visibilitychange", run);
  run();
}

/** Waits for `ms`, the signal's abort, or, if `online` is true, a connection that is back. */
export function pause(ms, { signal, online = false } = {}) {
  return new Promise((resolve) => {
    const end = (event) => {
      clearTimeout(timer);
      removeEventListener("online", end);
      signal?.removeEventListener("abort", end);
      resolve(event?.type ?? "time");
    };
    const timer = setTimeout(end, ms);
    if (online) addEventListener("online", end);
    signal?.addEventListener("abort", end);
  });
}

/** Returns a duration within a quarter of `ms`, so that browsers do not all ask at once. */
export const jitter = (ms) => ms * (0.75 + Math.random() / 2);

/**
 * Sends a request to the API as the buyer. Returns {status, ok, body, at}; throws if there is no
 * answer. A body is sent as JSON.
 */
export async function api(path, { method = "GET", body, headers = {}, signal, limit = 20000 } = {}) {
  const all = { Accept: "application/json", "X-Flashsale-Session": "buyer", ...headers };
  if (body !== undefined) all["Content-Type"] = "application/json";
  const signals = [AbortSignal.timeout(limit), ...(signal ? [signal] : [])];
  const answer = await fetch(path, {
    method,
    headers: all,
    body: body === undefined ? undefined : JSON.stringify(body),
    signal: AbortSignal.any(signals),
    cache: "no-store", // the browser's cache would answer with the state and the time of the last poll
  });
  const at = performance.now();
  let content = {};
  const text = await answer.text();
  try {
    content = text ? JSON.parse(text) : {};
  } catch {
    // A proxy's error page: the status says enough.
  }
  const retryAfter = content.retry_after || Number(answer.headers.get("Retry-After")) || 0;
  return { status: answer.status, ok: answer.ok, body: content, retryAfter, at };
}

/** Leads to the login form and from there back to this page. */
export function toLogin() {
  location.assign("/login?next=" + encodeURIComponent(pagePath()));
}

const locale = (() => {
  const page = document.documentElement.lang || "en";
  return navigator.languages?.find((l) => l.toLowerCase().split("-")[0] === page) || page;
})();

/** Shows a price in the reader's language. The server wrote it as a number and a currency. */
export function showMoney(node) {
  const digits = (node.value.split(".")[1] || "").length;
  try {
    const form = new Intl.NumberFormat(locale, {
      style: "currency",
      currency: node.dataset.currency,
      minimumFractionDigits: digits,
      maximumFractionDigits: digits,
    });
    setText(node, form.format(node.value));
  } catch {
    // The server's text stays.
  }
}

/** Shows a time in the reader's language and time zone. */
export function showTime(node) {
  const at = new Date(node.dateTime);
  if (Number.isNaN(at.getTime())) return;
  setText(node, at.toLocaleString(locale, { dateStyle: "medium", timeStyle: "short" }));
}

/** Shows all prices and times below a node in the reader's language. */
export function localize(root) {
  root.querySelectorAll("data.price").forEach(showMoney);
  root.querySelectorAll("time[datetime]").forEach(showTime);
}

samplePage();
localize(document);
// A page of a buyer from the browser's memory may be from before a logout or another login.
const ofBuyer = document.querySelector("header .buyer") !== null;
if (ofBuyer && wentBack() && navigation.transferSize === 0) loadAfresh();
addEventListener("pageshow", (event) => event.persisted && ofBuyer && loadAfresh());
