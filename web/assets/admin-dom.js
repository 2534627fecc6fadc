// Elements, texts and messages of the dashboard.

/**
 * Returns a new element. attributes: class, attributes by name (true: without a value; false, null
 * and undefined: absent), properties (value, checked, disabled, hidden), onclick and other handlers
 * as functions, data-… . children: elements, texts, numbers, lists of them; null and false are skipped.
 */
export function el(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) set(element, name, value);
  element.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
  return element;
}

const properties = new Set(["value", "checked", "disabled", "hidden", "textContent", "htmlFor", "selected", "open"]);

function set(element, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (typeof value === "function") element.addEventListener(name.replace(/^on/, ""), value);
  else if (properties.has(name)) element[name] = value;
  else element.setAttribute(name, value === true ? "" : value);
}

/** Replaces the children of an element. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
  return element;
}

/** Sets an element's text if it differs, so that screen readers are not disturbed by repeats. */
export function text(element, value) {
  const now = String(value);
  if (element.textContent !== now) element.textContent = now;
}

let ids = 0;
/** Returns an id that no other element of the page has. */
export const uid = (prefix = "e") => `${prefix}-${++ids}`;

/** Returns segment n of the page's path, decoded: pathID(2) of /admin/items/demo is "demo". */
export const pathID = (n = 2) => decodeURIComponent(location.pathname.split("/")[n + 1] || "");

const unknown = "–";
const integers = new Intl.NumberFormat("en");
const decimals = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

/** Writes an integer with separators; null: "–". */
export const number = (n) => (n === null || n === undefined ? unknown : integers.format(n));

/** Writes a rate: one decimal below 100. */
export const rate = (n) => (n === null || n === undefined ? unknown : n < 100 ? decimals.format(n) : integers.format(Math.round(n)));

/** Writes a share (0 to 1) as a percentage. */
export const percent = (n) => (n === null || n === undefined ? unknown : decimals.format(n * 100) + " %");

/** Returns the number of decimals of a currency. */
export function digitsOf(currency) {
  try {
    return new Intl.NumberFormat("en", { style: "currency", currency }).resolvedOptions().maximumFractionDigits;
  } catch {
    return 2;
  }
}

/** Writes an amount in the currency's minor unit: money(4900, "EUR") is "EUR 49.00". */
export function money(minor, currency) {
  if (minor === null || minor === undefined) return unknown;
  const digits = digitsOf(currency);
  return currency + " " + new Intl.NumberFormat("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }).format(minor / 10 ** digits);
}

/** Writes an amount for an input: amount(4900, "EUR") is "49.00". */
export function amount(minor, currency) {
  const digits = digitsOf(currency);
  return (minor / 10 ** digits).toFixed(digits);
}

/** Reads an amount into the currency's minor unit: minor("49.00", "EUR") is 4900. Throws an Error with a text for the reader. */
export function minor(entered, currency) {
  const digits = digitsOf(currency);
  const found = /^(\d{1,15})(?:[.,](\d+))?$/.exec(entered.trim());
  if (!found || (found[2] || "").length > digits) {
    throw new Error(digits ? `Enter an amount with up to ${digits} decimals, such as ${amount(4900, currency)}.` : "Enter an amount without decimals.");
  }
  return Number(found[1] + (found[2] || "").padEnd(digits, "0"));
}

/** Writes a time in milliseconds with a fitting unit: "0.4 ms", "3.7 ms", "2.5 s", "4 min 32 s", "3 h 5 min", "2 d 4 h". */
export function duration(ms) {
  if (ms === null || ms === undefined) return unknown;
  if (ms < 1) return decimals.format(Math.ceil(ms * 10) / 10) + " ms";
  if (ms < 100) return decimals.format(ms) + " ms";
  if (ms < 1000) return integers.format(Math.round(ms)) + " ms";
  const s = ms / 1000;
  if (s < 60) return decimals.format(s) + " s";
  const pair = (big, bigUnit, small, smallUnit) => `${integers.format(big)} ${bigUnit}` + (small ? ` ${small} ${smallUnit}` : "");
  const minutes = Math.floor(s / 60);
  if (minutes < 60) return pair(minutes, "min", Math.round(s % 60) % 60, "s");
  if (minutes < 24 * 60) return pair(Math.floor(minutes / 60), "h", minutes % 60, "min");
  return pair(Math.floor(minutes / 1440), "d", Math.floor((minutes % 1440) / 60), "h");
}

const localTime = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });

/** Returns a <time> element: local time as the text, ISO in UTC as the title. An empty time: "–". */
export function time(iso) {
  if (!iso) return el("span", {}, unknown);
  return el("time", { datetime: iso, title: new Date(iso).toISOString() }, localTime.format(new Date(iso)));
}

const localClock = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });

/** Writes the local time of day. */
export const clock = (iso) => localClock.format(new Date(iso));

/** Writes how long ago a time was, by this machine's clock. */
export const ago = (iso) => duration(Math.max(0, Date.now() - Date.parse(iso))) + " ago";

/** Returns a badge with a tone: "good", "warn", "bad", "info", or "" for neutral. */
export const badge = (label, tone = "") => el("span", { class: ("badge " + tone).trim() }, label);

/** Returns the badge of a state of the API, such as "sold_out", in its colour. */
export const stateBadge = (state) => el("span", { class: "badge", "data-state": state || "unknown" }, (state || "unknown").replaceAll("_", " "));

/**
 * Shows a refusal in a container: title, detail, code, request id, when to retry. retry: a function
 * for a button "Retry". An Error that is not a Problem shows its text. null clears the container.
 */
export function showProblem(container, problem, retry) {
  if (!problem) {
    container.replaceChildren();
    return;
  }
  if (problem.name === "AbortError") return;
  const after = problem.retryAfter ? `Retry after ${duration(problem.retryAfter * 1000)}.` : "";
  const facts = [
    problem.code && ["Code: ", el("a", { href: "/docs#" + problem.code }, el("code", {}, problem.code))],
    problem.requestID && ["Request id: ", el("code", {}, problem.requestID)],
  ].filter(Boolean);
  fill(
    container,
    el("div", { class: "notice bad", role: "alert" },
      el("p", {}, el("strong", {}, problem.title || "This page failed"), " ", problem.message, after && " " + after),
      facts.length ? el("p", { class: "problem-facts muted" }, facts.map((f) => el("span", {}, f))) : null,
      retry ? el("p", {}, el("button", { type: "button", class: "small", onclick: retry }, "Retry")) : null)
  );
}

const carried = "flashsale announcement";
let fading = 0;

/** Announces a change in the page's live region. */
export function announce(message) {
  const region = document.getElementById("status");
  if (!region) return;
  clearTimeout(fading);
  region.textContent = message;
  region.classList.add("shown");
  fading = setTimeout(() => region.classList.remove("shown"), 6000);
}

/** Opens another page of the dashboard, which announces the message. */
export function leaveTo(path, message) {
  try {
    sessionStorage.setItem(carried, message);
  } catch {
    // Storage is disabled: the page opens without the message.
  }
  location.assign(path);
}

try {
  const message = sessionStorage.getItem(carried);
  if (message) {
    sessionStorage.removeItem(carried);
    setTimeout(() => announce(message), 100); // after the live region is known to screen readers
  }
} catch {
  // Storage is disabled.
}

/**
 * Runs a change when a button is pressed: the button is disabled and marked busy while run() works,
 * a refusal is shown in container, and the message, if run returns one, is announced.
 */
export function onPress(button, container, run) {
  button.disabled = false; // in the page it is disabled until its module has loaded
  button.addEventListener("click", async () => {
    button.disabled = true;
    button.setAttribute("aria-busy", "true");
    showProblem(container, null);
    try {
      const message = await run();
      if (typeof message === "string" && message) announce(message);
    } catch (error) {
      showProblem(container, error);
    } finally {
      button.disabled = false;
      button.removeAttribute("aria-busy");
    }
  });
  return button;
}
