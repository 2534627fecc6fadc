// Received amounts: those that need a refund first.
import { api, el, money, table, time } from "./admin.js";
import { buyerLink, followFilters, isDue, itemLink, markRefunded, orderLink, outcomeBadge, withQuery } from "./admin-records.js";

const due = document.querySelector("#due-part");
let tables = [];

const columns = [
  { title: "Amount", cell: (p) => money(p.amount_minor, p.currency), numeric: true },
  { title: "Outcome", cell: outcome },
  { title: "Reference", class: "wide", cell: (p) => el("span", { class: "mono" }, p.reference) },
  { title: "Order, item, buyer", cell: (p) => [orderLink(p.order_id), el("div", { class: "note" }, itemLink(p.item_id)), el("div", { class: "note" }, buyerLink(p.user_id))] },
  { title: "Received", cell: (p) => [time(p.received_at), p.refunded_at && el("div", { class: "muted note" }, "refunded ", time(p.refunded_at))] },
];

function outcome(p) {
  return [
    outcomeBadge(p),
    p.received_as !== p.outcome && el("div", { class: "muted note" }, `received as ${p.received_as}`),
    isDue(p) && el("div", { class: "below-badge" }, el("button", { type: "button", class: "small", onclick: () => markRefunded(p, reload) }, "Mark as refunded…")),
  ];
}

const reload = () => tables.forEach((t) => t.reload());

function list(place, caption, query, empty) {
  return table(document.querySelector(place), {
    caption, columns, empty,
    load: async (cursor, signal) => {
      const { body } = await api("GET", withQuery("/v1/admin/payments", { ...query, cursor, limit: 50 }), { signal });
      return { rows: body.payments, next: body.next_cursor };
    },
  });
}

function show(query) {
  due.hidden = Boolean(query.reference || query.outcome);
  tables = [list("#payments", "Received amounts", query, Object.keys(query).length ? "No amounts match." : "No amounts were received yet.")];
  if (!due.hidden) tables.push(list("#due", "Amounts that need a refund", { needs_refund: "true" }, "No amount needs a refund."));
}

followFilters(document.querySelector("#filter"), ["reference", "outcome"], show);
