// The list of items, and the creation of one.
import { api, ask, el, leaveTo, minor, money, number, stateBadge, table, time, Problem } from "./admin.js";
import { newFields } from "./admin-item-form.js";

const form = document.getElementById("open");
const state = form.elements.state;
const failure = document.getElementById("open-error");
state.value = new URLSearchParams(location.search).get("state") || "";

const path = (id) => "/admin/items/" + encodeURIComponent(id);

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const id = form.elements.id.value.trim();
  failure.textContent = "";
  try {
    await api("GET", "/v1/admin/items/" + encodeURIComponent(id));
    location.assign(path(id));
  } catch (error) {
    failure.textContent = error.message;
    form.elements.id.setAttribute("aria-invalid", "true");
    form.elements.id.focus();
  }
});
form.elements.id.addEventListener("input", () => {
  failure.textContent = "";
  form.elements.id.removeAttribute("aria-invalid");
});

const list = table(document.getElementById("list"), {
  caption: "Items",
  columns: [
    { title: "Item", class: "wide", cell: (i) => [el("a", { href: path(i.id) }, i.name), el("br"), el("span", { class: "muted mono" }, i.id)] },
    { title: "State", cell: (i) => stateBadge(i.state) },
    { title: "Left", numeric: true, cell: (i) => number(i.stock_left) },
    { title: "Total", numeric: true, cell: (i) => number(i.stock_total) },
    { title: "Price", numeric: true, cell: (i) => money(i.price_minor, i.currency) },
    { title: "Opens", cell: (i) => time(i.opens_at) },
    { title: "Closes", cell: (i) => time(i.closes_at) },
  ],
  empty: el("span", {}, "No item is in this list."),
  load: async (cursor, signal) => {
    const query = new URLSearchParams({ limit: "50" });
    if (state.value) query.set("state", state.value);
    if (cursor) query.set("cursor", cursor);
    const { body } = await api("GET", "/v1/admin/items?" + query, { signal });
    return { rows: body.items, next: body.next_cursor };
  },
});

state.addEventListener("change", () => {
  history.replaceState(null, "", state.value ? "?state=" + state.value : location.pathname);
  list.reload();
});

const create = document.getElementById("create");
create.disabled = false; // it works from now on
create.addEventListener("click", () => {
  ask({
    title: "Create an item",
    text: "Its sale opens at the time that you set, or now.",
    fields: newFields(),
    submit: "Create",
    run: async (values) => {
      let price;
      try {
        price = minor(values.price_minor, values.currency);
      } catch (error) {
        throw new Problem(422, { detail: error.message, param: "price_minor", title: "Invalid price" });
      }
      const { body } = await api("POST", "/v1/admin/items", { body: { ...values, price_minor: price } });
      leaveTo(path(body.id), `${body.name} was created.`);
    },
  });
});
