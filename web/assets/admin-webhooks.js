// The list of webhooks, and new ones.
import { Problem, api, ask, badge, el, fill, isUnknown, plainTable, showProblem, time } from "./admin.js";
import { counted, webhookLink } from "./admin-records.js";
import { events, showSecret, webhookFields, webhookOf } from "./admin-webhook-form.js";

const list = document.querySelector("#webhooks");
const message = document.querySelector("#message");

const columns = [
  { title: "URL", class: "wide", cell: (w) => [webhookLink(w.id, w.url), w.description && el("div", { class: "muted" }, w.description)] },
  { title: "State", cell: (w) => [badge(w.enabled ? "enabled" : "disabled", w.enabled ? "good" : "bad"), w.disabled_reason && el("div", { class: "muted note" }, "answered 410 Gone")] },
  { title: "Events", cell: (w) => (w.events.length === events.length ? "All" : el("span", { title: w.events.join(", ") }, counted(w.events.length, "event"))) },
  { title: "Created", cell: (w) => time(w.created_at) },
];

async function show() {
  list.setAttribute("aria-busy", "true");
  try {
    const { body } = await api("GET", "/v1/admin/webhooks");
    fill(list, body.webhooks.length === 0 ? nothing() : plainTable({ caption: "Webhooks", columns, rows: body.webhooks }));
  } catch (error) {
    showProblem(list, error, show);
  } finally {
    list.removeAttribute("aria-busy");
  }
}

const nothing = () => el("div", { class: "empty" }, el("p", {}, "There are no webhooks."),
  el("p", {}, "A webhook sends signed events about orders, items and payments to a server of the shop."));

async function create() {
  message.replaceChildren();
  const created = await ask({ title: "New webhook", fields: webhookFields(), submit: "Create", run: add });
  if (!created) return;
  await showSecret(created.secret, `Events to ${created.url} are signed with this secret. It is shown only now.`);
  fill(message, el("p", { class: "notice good" }, el("strong", {}, "Created."), " ", webhookLink(created.id, "Open the webhook"), " to send a test event."));
  await show();
}

async function add(values) {
  try {
    return (await api("POST", "/v1/admin/webhooks", { body: webhookOf(values) })).body;
  } catch (error) {
    if (!isUnknown(error)) throw error;
    // A repeat would create a second webhook: the reader decides.
    await show();
    const detail = "The webhook may have been created. Do not repeat this before you have checked the list of webhooks behind this dialog. If it is there, open it and replace its secret.";
    throw new Problem(error.status, { title: "Outcome unknown", detail, code: error.code, request_id: error.requestID });
  }
}

const button = document.querySelector("#create");
button.addEventListener("click", create);
button.disabled = false;
show();
