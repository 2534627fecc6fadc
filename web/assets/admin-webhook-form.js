// What the pages of webhooks share: the form of an endpoint, and the dialog with its secret.
import { el, text } from "./admin.js";

/** The events to which a webhook can subscribe. */
export const events = ["order.confirmed", "order.paid", "order.refunded", "order.cancelled", "order.expired", "order.rejected", "item.sold_out", "payment.late"];

const prefix = "event:"; // of the names of the events' inputs

/** Returns the inputs of a webhook, with the values of one that exists. */
export function webhookFields(webhook = { url: "", description: "", events }) {
  return [
    { name: "url", label: "URL", type: "url", value: webhook.url, required: true, maxlength: 2000, wide: true, spellcheck: "false", placeholder: "https://shop.example/hooks" },
    { name: "description", label: "Description", value: webhook.description, maxlength: 200, wide: true },
    ...events.map((name) => ({ name: prefix + name, label: name, type: "checkbox", value: webhook.events.includes(name) })),
  ];
}

/** Returns the webhook that the inputs describe. */
export function webhookOf(values) {
  const chosen = events.filter((name) => values[prefix + name]);
  if (chosen.length === 0) throw new Error("Select at least one event.");
  return { url: values.url, description: values.description || "", events: chosen };
}

/** Shows a secret, which cannot be read again, until the reader closes the dialog. */
export function showSecret(secret, explanation) {
  const value = el("input", { readonly: true, class: "mono", "aria-label": "Secret", value: secret, autocomplete: "off", onfocus: (event) => event.currentTarget.select() });
  const copied = el("p", { class: "hint", "aria-live": "polite" });
  const copy = el("button", { type: "button", class: "primary", onclick: async () => {
    try {
      await navigator.clipboard.writeText(secret);
      text(copied, "Copied.");
    } catch {
      value.select();
      text(copied, "The browser does not allow it. The secret is selected: copy it with the keyboard.");
    }
  } }, "Copy");
  const close = el("button", { type: "button" }, "I have stored it");
  const dialog = el("dialog", { "aria-labelledby": "secret-title" }, el("h2", { id: "secret-title" }, "Signing secret"), el("p", {}, explanation),
    el("div", { class: "secret" }, value, copy), copied, el("div", { class: "actions" }, close));
  document.body.append(dialog);
  return new Promise((resolve) => {
    close.addEventListener("click", () => dialog.close());
    dialog.addEventListener("cancel", (event) => event.preventDefault()); // Escape would lose the secret
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve();
    });
    dialog.showModal();
  });
}
