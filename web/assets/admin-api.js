// Requests of the dashboard to the API, and the stream of live figures.

/** A refusal of the API, in the form of RFC 9457. status is 0 if no answer arrived. */
export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || `The service answered with status ${status}.`);
    this.status = status;
    this.title = body.title || "Request failed";
    this.code = body.code || "";
    this.param = body.param || "";
    this.retryAfter = body.retry_after || 0;
    this.requestID = body.request_id || "";
    this.body = body;
  }

  /** Whether the change may have been applied, so that only a repeat with the same key is safe. */
  get uncertain() {
    return this.status === 0 || this.status === 408 || this.status === 429 || this.status >= 500;
  }
}

/**
 * Reports whether the change of a request without a key may have been applied. Unless a repeat is
 * harmless, the admin must check first.
 */
export const isUnknown = (error) => error instanceof Problem && error.uncertain && error.status !== 429;

// How long a request waits for its answer, in milliseconds.
const patience = 20_000;

/**
 * Sends a request to the API and returns the body of its answer and the answer itself.
 * options: body (sent as JSON), keyed (sends an Idempotency-Key; a repeat of the same request after
 * an uncertain outcome, even after a reload of the page, has the same key), key (a key of the
 * caller's choice), match (If-Match), signal, timeout (in milliseconds, by default 20,000).
 */
export async function api(method, path, options = {}) {
  const body = options.body === undefined ? undefined : JSON.stringify(options.body);
  const slot = options.keyed ? keySlot(method, path, body) : "";
  const headers = { Accept: "application/json", "X-Flashsale-Session": "admin" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const key = slot ? keyIn(slot) : options.key;
  if (key) headers["Idempotency-Key"] = key;
  if (options.match) headers["If-Match"] = options.match;
  const expiry = AbortSignal.timeout(options.timeout ?? patience);
  const signal = options.signal ? AbortSignal.any([options.signal, expiry]) : expiry;
  const answer = await send(path, { method, headers, body, signal, cache: "no-store" });
  if (answer.status === 401) {
    login();
    return new Promise(() => {}); // the page is being left
  }
  const value = await parse(answer, method, key);
  const refusal = answer.ok ? null : new Problem(answer.status, value);
  if (slot && !refusal?.uncertain) forget(slot);
  if (refusal) throw refusal;
  return { body: value, answer };
}

async function send(path, request) {
  try {
    return await fetch(path, request);
  } catch (error) {
    throw lost(error, request.method, request.headers["Idempotency-Key"]);
  }
}

async function parse(answer, method, key) {
  let text;
  try {
    text = await answer.text();
  } catch (error) {
    throw lost(error, method, key);
  }
  try {
    return text ? JSON.parse(text) : {};
  } catch {
    return {}; // a proxy's error page; the status says enough
  }
}

function lost(error, method, key) {
  if (error.name === "AbortError") return error;
  const cause = error.name === "TimeoutError" ? "The service did not answer in time." : "The connection failed before the answer arrived.";
  let advice = "The change may have been applied: reload the page and check before you repeat it.";
  if (method === "GET") advice = "Check the connection, then retry.";
  else if (key || method === "DELETE") advice = "The change may have been applied; a repeat is safe.";
  return new Problem(0, { title: "No answer", detail: `${cause} ${advice}` });
}

/** Opens the login form, which leads back to this page. */
export function login() {
  location.assign("/admin/login?next=" + encodeURIComponent(location.pathname + location.search));
}

// Keys of requests with an unknown outcome, by admin and request. They survive a reload of the page.
// One that was not repeated for ten minutes is forgotten: the same request is then a new change.

const slotPrefix = "flashsale key ";
const keyLife = 10 * 60_000;
const subject = () => document.querySelector("form[action='/admin/logout'] span")?.textContent ?? "";
const keySlot = (method, path, body) => slotPrefix + JSON.stringify([subject(), method, path, body]);

function keyIn(slot) {
  forgetOld();
  const key = storedKey(slot)?.key || newKey();
  const stored = { key, at: Date.now() };
  memoryKeys.set(slot, stored);
  try {
    sessionStorage.setItem(slot, JSON.stringify(stored));
  } catch {
    // Storage is disabled or full; the key is in memory.
  }
  return key;
}

function storedKey(slot) {
  try {
    return JSON.parse(sessionStorage.getItem(slot)) || memoryKeys.get(slot);
  } catch {
    return memoryKeys.get(slot);
  }
}

function forgetOld() {
  let slots = [...memoryKeys.keys()];
  try {
    slots = slots.concat(Object.keys(sessionStorage).filter((name) => name.startsWith(slotPrefix)));
  } catch {
    // Storage is disabled.
  }
  for (const slot of slots) if (!(storedKey(slot)?.at > Date.now() - keyLife)) forget(slot);
}

function forget(slot) {
  memoryKeys.delete(slot);
  try {
    sessionStorage.removeItem(slot);
  } catch {
    // Storage is disabled; the key was in memory.
  }
}

const memoryKeys = new Map();

function newKey() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, "0")).join("");
}

// The stream reports every second. Without an event for that long, it is taken as lost.
const silence = 6000;
// A hidden page gives its connection back after that time.
const hiddenFor = 60000;

/**
 * Follows the live figures. path is /v1/admin/events with its query; onFigures gets the data of each
 * event, and onState "connecting", "live" or "lost" when the state of the stream changes. The stream
 * reconnects until the returned function is called; a hidden page pauses it.
 */
export function follow(path, onFigures, onState) {
  let source = null;
  let watchdog = 0;
  let again = 0;
  let asleep = 0;
  let delay = 1000;
  let state = "";
  let seen = false;
  const tell = (now) => {
    if (now !== state) onState((state = now));
  };
  const shut = () => {
    clearTimeout(watchdog);
    clearTimeout(again);
    if (source) source.close();
    source = null;
  };
  const retry = () => {
    shut();
    tell(seen ? "lost" : "connecting");
    again = setTimeout(open, delay);
    delay = Math.min(delay * 2, 10000);
  };
  const watch = () => {
    clearTimeout(watchdog);
    watchdog = setTimeout(retry, silence);
  };
  const open = () => {
    shut();
    if (!state) tell("connecting");
    source = new EventSource(path);
    source.addEventListener("figures", (event) => {
      seen = true;
      delay = 1000;
      watch();
      tell("live");
      onFigures(JSON.parse(event.data));
    });
    source.onerror = () => {
      const refused = source.readyState === EventSource.CLOSED;
      if (seen) tell("lost");
      if (!refused) return; // the browser reconnects
      retry();
      api("GET", "/v1/admin/audit?limit=1").catch(() => {}); // leads to the login form if the session has ended
    };
    watch();
  };
  const visibility = () => {
    clearTimeout(asleep);
    if (document.hidden) asleep = setTimeout(shut, hiddenFor);
    else if (!source) open();
  };
  const leave = () => shut();
  const back = (event) => event.persisted && open();
  document.addEventListener("visibilitychange", visibility);
  addEventListener("pagehide", leave);
  addEventListener("pageshow", back);
  open();
  return () => {
    clearTimeout(asleep);
    document.removeEventListener("visibilitychange", visibility);
    removeEventListener("pagehide", leave);
    removeEventListener("pageshow", back);
    shut();
  };
}
