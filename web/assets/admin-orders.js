// The list of orders, and the search for one by its id.
import { Problem, api, fill, el, money, number, showProblem, stateBadge, table, time } from "./admin.js";
import { buyerLink, followFilters, itemLink, orderLink, withQuery } from "./admin-records.js";

const orderID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;
const message = document.querySelector("#message");

const columns = [
  { title: "Order", cell: (o) => orderLink(o.id) },
  { title: "Status", cell: (o) => stateBadge(o.status) },
  { title: "Item", cell: (o) => itemLink(o.item_id) },
  { title: "Buyer", cell: (o) => buyerLink(o.user_id) },
  { title: "Units", cell: (o) => number(o.quantity), numeric: true },
  { title: "Total", cell: (o) => money(o.unit_price_minor * o.quantity, o.currency), numeric: true },
  { title: "Created", cell: (o) => time(o.created_at) },
];

function show(query) {
  message.replaceChildren();
  table(document.querySelector("#orders"), {
    caption: "Orders", columns, empty: Object.keys(query).length ? "No orders match." : "No orders yet.",
    load: async (cursor, signal) => {
      const { body } = await api("GET", withQuery("/v1/orders", { ...query, cursor, limit: 50 }), { signal });
      if (body.incomplete) fill(message, el("p", { class: "notice warn" }, el("strong", {}, "Queued orders are missing: "), "Redis does not answer."));
      return { rows: body.orders, next: body.next_cursor };
    },
  });
}

/** Opens the order if the text is an order's id; any other text is a buyer's id. */
async function search({ user_id: text, ...rest }) {
  showProblem(message, null);
  try {
    if (orderID.test((text || "").toLowerCase()) && (await open(text.toLowerCase()))) return null;
  } catch (error) {
    showProblem(message, error);
    return null;
  }
  return { user_id: text, ...rest };
}

async function open(id) {
  try {
    await api("GET", "/v1/orders/" + id);
  } catch (error) {
    if (error instanceof Problem && error.status === 404) return false; // buyers may have such ids, too
    throw error;
  }
  location.assign("/admin/orders/" + id);
  return true;
}

followFilters(document.querySelector("#search"), ["user_id", "item_id", "status"], show, search);
