// What the pages about records share: orders, payments, dead letters, reconciliation, webhooks, audit.
import { announce, api, ask, badge, el, money, number, stateBadge } from "./admin.js";

/** A number and its noun, such as "1 order" and "2 orders". */
export const counted = (n, one, many = one + "s") => `${number(n)} ${n === 1 ? one : many}`;

/** Returns a link to an order. */
export const orderLink = (id) => el("a", { class: "mono id", href: "/admin/orders/" + encodeURIComponent(id) }, id);

/** Returns a link to an item. */
export const itemLink = (id) => el("a", { class: "name", href: "/admin/items/" + encodeURIComponent(id) }, id);

/** Returns a link to the orders of a buyer. */
export const buyerLink = (id) => el("a", { class: "name", href: "/admin/orders?user_id=" + encodeURIComponent(id) }, id);

/** Returns a link to a webhook. */
export const webhookLink = (id, label = id) => el("a", { class: label === id ? "mono id" : "name", href: "/admin/webhooks/" + encodeURIComponent(id) }, label);

/** Returns a word in a machine's type, such as an id. */
export const code = (word) => el("code", {}, word);

/** Returns an error of a task or a delivery, with its lines. */
export const reasonBox = (reason) => el("pre", { class: "reason" }, reason || "(no reason is recorded)");

/** Joins a path of the API and a query; empty values are left out. */
export function withQuery(path, query) {
  const text = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== undefined && value !== "")).toString();
  return text ? path + "?" + text : path;
}

/** Returns the values of the page's query that have the given names and are not empty. */
export function readQuery(names) {
  const query = new URLSearchParams(location.search);
  return Object.fromEntries(names.map((name) => [name, (query.get(name) || "").trim()]).filter(([, value]) => value));
}

/** Puts a query into the page's address, as a new entry of the history. */
export function writeQuery(query) {
  const address = withQuery(location.pathname, query);
  if (address !== location.pathname + location.search) history.pushState(null, "", address);
}

/**
 * Keeps a form of filters and the page's query the same, and calls show(query) now and after each change.
 * names are the fields. translate(values), if given, returns the query for the values of a submitted form, or null if
 * the page is being left.
 */
export function followFilters(form, names, show, translate = (values) => values) {
  const fromAddress = () => {
    const query = readQuery(names);
    for (const name of names) if (form.elements[name]) form.elements[name].value = query[name] || "";
    show(query);
  };
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const values = Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, String(value).trim()]).filter(([, value]) => value));
    const query = await translate(values);
    if (!query) return;
    writeQuery(query);
    fromAddress();
  });
  addEventListener("popstate", fromAddress);
  fromAddress();
}

/** Reports whether an amount paid no order and was not returned yet. */
export const isDue = (payment) => ["late", "duplicate", "mismatch"].includes(payment.outcome);

/** Returns the badge of an amount's outcome; one that needs a refund stands out. */
export const outcomeBadge = (payment) => (isDue(payment) ? badge(payment.outcome, "warn") : stateBadge(payment.outcome));

/** Asks whether an amount was returned, records it, and calls done. */
export function markRefunded(payment, done) {
  const sum = money(payment.amount_minor, payment.currency);
  return ask({
    title: "Mark this amount as refunded?",
    text: `${sum} with the reference ${payment.reference} paid no order (${payment.outcome}). Mark it after the payment provider has returned it.`,
    submit: "Mark as refunded",
    run: async () => {
      await api("POST", `/v1/admin/payments/${payment.id}/refunded`);
      announce(`${sum} is marked as refunded.`);
      done();
    },
  });
}

/** Returns what an entry of the audit log changed, field by field; null for nothing. */
export function changes(before, after) {
  const rows = differences(before, after);
  if (rows.length === 0) return null;
  return el("ul", { class: "changes plain" }, rows.map((row) => el("li", {}, row.field && el("span", { class: "field" }, row.field + ": "),
    row.before !== undefined && [el("span", { class: "visually-hidden" }, "before "), el("del", {}, write(row.before))],
    row.before !== undefined && row.after !== undefined && el("span", { "aria-hidden": "true" }, " → "),
    row.after !== undefined && [el("span", { class: "visually-hidden" }, " after "), el("ins", {}, write(row.after))])));
}

function write(value) {
  if (typeof value === "string") return value || "(empty)";
  if (Array.isArray(value) && value.every((v) => typeof v === "string")) return value.join(", ");
  return JSON.stringify(value);
}

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

function differences(before, after) {
  if (!isObject(before ?? {}) || !isObject(after ?? {})) return [{ field: "", before: before ?? undefined, after: after ?? undefined }];
  const names = [...new Set([...Object.keys(before ?? {}), ...Object.keys(after ?? {})])];
  return names.map((field) => ({ field, before: before?.[field], after: after?.[field] }))
    .filter((row) => JSON.stringify(row.before) !== JSON.stringify(row.after));
}
