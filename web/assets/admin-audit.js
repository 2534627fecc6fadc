// The audit log.
import { api, el, table, time } from "./admin.js";
import { changes, code, followFilters, itemLink, orderLink, withQuery } from "./admin-records.js";

const none = () => el("span", { class: "muted" }, "–");

const columns = [
  { title: "When, by", cell: (e) => [time(e.at), el("div", {}, el("span", { class: "name" }, e.actor || "the service")), e.request_id && el("div", { class: "muted note" }, "request ", code(e.request_id))] },
  { title: "Action", cell: (e) => el("span", { class: "badge" }, e.action) },
  { title: "Concerns", cell: (e) => [e.item_id && el("div", {}, itemLink(e.item_id)), e.order_id && el("div", {}, orderLink(e.order_id)), !e.item_id && !e.order_id && none()] },
  { title: "Change", class: "wide", cell: (e) => changes(e.before, e.after) || none() },
];

function show(query) {
  table(document.querySelector("#audit"), {
    caption: "Audit log", columns, empty: Object.keys(query).length ? "No entries match." : "No changes yet.",
    load: async (cursor, signal) => {
      const { body } = await api("GET", withQuery("/v1/admin/audit", { ...query, cursor, limit: 50 }), { signal });
      return { rows: body.entries, next: body.next_cursor };
    },
  });
}

followFilters(document.querySelector("#filter"), ["item_id", "order_id"], show);
