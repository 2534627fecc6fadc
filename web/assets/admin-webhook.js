// One webhook: its settings, its secret, and its deliveries.
import { announce, api, ask, badge, confirmName, el, fill, form, isUnknown, leaveTo, onPress, pathID, showProblem, stateBadge, table, text, time } from "./admin.js";
import { code, counted, followFilters, itemLink, orderLink, reasonBox, withQuery } from "./admin-records.js";
import { showSecret, webhookFields, webhookOf } from "./admin-webhook-form.js";

const base = "/v1/admin/webhooks/" + encodeURIComponent(pathID());
const settings = document.querySelector("#settings");
const deliveriesPart = document.querySelector("#deliveries-part");
const filter = document.querySelector("#filter");
let deliveries = null;

async function show() {
  try {
    const { body } = await api("GET", base);
    render(body);
    if (deliveries) return;
    deliveriesPart.hidden = false;
    followFilters(filter, ["status"], listDeliveries);
  } catch (error) {
    if (error.status === 404) fill(settings, missing());
    else showProblem(settings, error, show);
  } finally {
    settings.removeAttribute("aria-busy");
  }
}

const missing = () => el("div", { class: "empty" }, el("p", {}, "There is no such webhook."), el("p", {}, el("a", { class: "button", href: "/admin/webhooks" }, "All webhooks")));

function render(webhook) {
  text(document.querySelector("#host"), hostOf(webhook.url));
  text(document.querySelector("#webhook-url"), webhook.url);
  fill(settings, el("div", { class: "panels" }, stateOf(webhook),
    el("section", { class: "panel", "aria-label": "Settings" }, el("h2", {}, "Settings"),
      form({ fields: webhookFields(webhook), submit: "Save changes", run: (values) => change(webhook, webhookOf(values)) }))));
}

function stateOf(w) {
  const problem = el("div", { class: "messages" });
  const button = (label, run, disabled) => onPress(el("button", { type: "button", disabled }, label), problem, run);
  const facts = [["Id", code(w.id)], ["Created", time(w.created_at)], ["Changed", time(w.updated_at)], ["Old secret until", w.old_secret_until && time(w.old_secret_until)]];
  return el("section", { class: "panel", "aria-label": "State" }, el("h2", {}, "State"),
    el("p", { class: "row" }, badge(w.enabled ? "enabled" : "disabled", w.enabled ? "good" : "bad"), w.disabled_reason && el("span", { class: "muted" }, "The server answered 410 Gone.")),
    el("dl", { class: "facts" }, facts.filter(([, value]) => value).map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
    el("div", { class: "row" },
      w.enabled && button("Send test event", test),
      button(w.enabled ? "Disable" : "Enable", () => patch({ enabled: !w.enabled }, w.enabled ? "The webhook is disabled." : "The webhook is enabled.")),
      el("button", { type: "button", onclick: rotate }, "Replace secret…"),
      el("button", { type: "button", class: "danger", onclick: () => remove(w) }, "Delete…")),
    problem);
}

/** Saves what differs from the webhook as it was read. */
async function change(before, after) {
  const same = (name) => JSON.stringify(sorted(after[name])) === JSON.stringify(sorted(before[name]));
  const changed = Object.fromEntries(Object.entries(after).filter(([name]) => !same(name)));
  announce(Object.keys(changed).length === 0 ? "Nothing has changed." : await patch(changed, "The changes are saved."));
}

const sorted = (value) => (Array.isArray(value) ? [...value].sort() : value);

async function patch(body, done) {
  render((await api("PATCH", base, { body })).body);
  return done;
}

async function test() {
  await api("POST", base + "/test");
  deliveries.reload();
  return "A test event is being sent; see the deliveries.";
}

async function rotate() {
  const rotated = await ask({
    title: "Replace the secret?", submit: "Replace the secret",
    text: "From now on, events are signed with the new secret, and for 24 hours also with the current one.",
    run: replaceSecret,
  });
  if (!rotated) return;
  if (!rotated.secret) {
    await show();
    settings.prepend(unknownSecret());
    return;
  }
  await showSecret(rotated.secret, "Events are signed with this secret from now on. It is shown only now.");
  announce("The secret is replaced.");
  await show();
}

/** Replaces the secret. If the outcome is unknown, the result is empty and the dialog closes: a repeat could replace it twice. */
async function replaceSecret() {
  try {
    return (await api("POST", base + "/rotate")).body;
  } catch (error) {
    if (!isUnknown(error)) throw error;
    return {};
  }
}

const unknownSecret = () => el("div", { class: "notice bad", role: "alert" },
  el("p", {}, el("strong", {}, "Outcome unknown."), " The secret may have been replaced. Do not repeat this yet: reload the page after a minute and check \"Old secret until\"."),
  el("p", {}, "If it is about 24 hours from now, the secret was replaced, and the secret that you have is valid until then. A second replacement ends it at once: make it only when you can store the next secret immediately."));

function remove(w) {
  return confirmName({
    title: "Delete this webhook?", name: hostOf(w.url), submit: "Delete",
    text: "The webhook and the record of its deliveries are removed, and pending events are not sent. This cannot be undone.",
    run: async () => {
      try {
        await api("DELETE", base);
      } catch (error) {
        if (error.status !== 404) throw error; // deleted before: also a repeat after a lost answer
      }
      leaveTo("/admin/webhooks", "The webhook is deleted.");
    },
  });
}

function hostOf(url) {
  try {
    return new URL(url).host;
  } catch {
    return url;
  }
}

const columns = [
  { title: "Event", class: "wide", cell: (d) => [el("strong", {}, d.type), el("div", { class: "mono muted note" }, d.event), el("div", { class: "muted note" }, time(d.created_at))] },
  { title: "State", cell: (d) => [stateBadge(d.status), el("div", { class: "muted note" }, counted(d.attempts, "attempt"))] },
  { title: "Concerns", cell: (d) => [d.item_id && el("div", {}, itemLink(d.item_id)), d.order_id && el("div", {}, orderLink(d.order_id)), !d.item_id && !d.order_id && "–"] },
  { title: "Last attempt", class: "wide", cell: lastAttempt },
  { title: "Action", cell: redelivery },
];

function lastAttempt(d) {
  return [
    d.last_attempt_at ? el("div", {}, time(d.last_attempt_at), d.last_status && `, answered ${d.last_status}`) : el("div", { class: "muted" }, "none yet"),
    d.delivered_at && el("div", { class: "muted note" }, "delivered ", time(d.delivered_at)),
    d.next_attempt_at && el("div", { class: "muted note" }, "next attempt ", time(d.next_attempt_at)),
    d.last_error && reasonBox(d.last_error),
  ];
}

function redelivery(d) {
  const problem = el("div");
  return [onPress(el("button", { type: "button", class: "small" }, "Deliver again"), problem, async () => {
    await api("POST", `${base}/deliveries/${encodeURIComponent(d.event)}/redeliver`);
    deliveries.reload();
    return `${d.type} is being sent again.`;
  }), problem];
}

function listDeliveries(query) {
  deliveries = table(document.querySelector("#deliveries"), {
    caption: "Deliveries", columns, empty: "No deliveries match.",
    load: async (cursor, signal) => {
      const { body } = await api("GET", withQuery(base + "/deliveries", { ...query, cursor, limit: 50 }), { signal });
      return { rows: body.deliveries, next: body.next_cursor };
    },
  });
}

filter.elements.status.addEventListener("change", () => filter.requestSubmit());
show();
