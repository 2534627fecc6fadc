// The fields of an item, for its creation and its change.
import { amount, minor } from "./admin-dom.js";

const text = (entered) => entered; // an empty text is a value

/** Returns the inputs (see inputs) for a change of an item. */
export function changeFields(item) {
  return [
    { name: "name", label: "Name", value: item.name, required: true, maxlength: 200, wide: true },
    { name: "description", label: "Description", type: "textarea", value: item.description, maxlength: 4000, parse: text },
    image(item.image_url),
    { name: "price_minor", label: `Price (${item.currency})`, value: amount(item.price_minor, item.currency), required: true, inputmode: "decimal", parse: (e) => minor(e, item.currency) },
    ...common(item),
  ];
}

const image = (value) => ({ name: "image_url", label: "Image", value, maxlength: 512, placeholder: "/images/drop-1.jpg", hint: "A path on the shop's own address. Empty: a generated picture.", wide: true });

const common = (item) => [
  { name: "per_user_limit", label: "Units per buyer", type: "number", value: item.per_user_limit, min: 1, max: 1000000, required: true },
  { name: "opens_at", label: "Opens", type: "instant", value: item.opens_at, hint: item.id ? "" : "Empty: now." },
  { name: "closes_at", label: "Closes", type: "instant", value: item.closes_at, hint: "Empty: no end." },
  { name: "payment_window_seconds", label: "Time to pay, in seconds", type: "number", value: item.payment_window_seconds, min: 0, max: 2592000, required: true, hint: "0: orders need no payment." },
];

/** Returns the inputs for a new item. The price is read in the currency that the form states. */
export const newFields = () => [
  { name: "id", label: "Id", required: true, maxlength: 64, pattern: "[a-z0-9][a-z0-9\\-]*", hint: "a-z, 0-9 and -, for example drop-1. It cannot change.", autocapitalize: "off", spellcheck: "false" },
  { name: "name", label: "Name", required: true, maxlength: 200 },
  { name: "description", label: "Description", type: "textarea", maxlength: 4000 },
  image(),
  { name: "price_minor", label: "Price", required: true, inputmode: "decimal", placeholder: "49.00" },
  { name: "currency", label: "Currency", value: "EUR", required: true, maxlength: 3, hint: "ISO 4217, for example EUR.", parse: (e) => e.toUpperCase() },
  { name: "stock", label: "Stock", type: "number", required: true, min: 0, max: 1000000000 },
  ...common({ per_user_limit: 1, payment_window_seconds: 0 }),
];

/** Returns the fields that differ from the item's, for PATCH. A closes_at without a value removes the end. */
export function changes(item, values) {
  const same = (name, a, b) => (name.endsWith("_at") && a && b ? Math.floor(Date.parse(a) / 1000) === Math.floor(Date.parse(b) / 1000) : a === b);
  const changed = {};
  for (const [name, value] of Object.entries(values)) {
    const wanted = value === undefined ? null : value;
    if (name === "opens_at" && wanted === null) continue; // a sale has an opening
    if (!same(name, item[name] ?? null, wanted)) changed[name] = wanted;
  }
  return changed;
}
