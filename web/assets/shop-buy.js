// The button that buys. A purchase has one key from the press to the order: whatever happens in
// between (a second click, a reload, a lost connection, a refusal for lack of capacity), the same
// request is sent again, and the service makes one order at most.

import { api, byID, el, hasText, pause, setText, t, toLogin, wentBack } from "./shop.js";

/** An attempt that is older, in milliseconds, is not sent again. */
const tooOld = 10 * 60 * 1000;
/** A sale that opens within so many seconds is waited for. */
const atOpening = 10;
/** How often an internal error is retried. */
const maxInternal = 4;

/** Returns the milliseconds for which an attempt may be sent. */
const left = (attempt) => attempt.at + tooOld - Date.now();

const random = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, "0")).join("");

/** A value in sessionStorage, which a browser may refuse to store. */
class Kept {
  constructor(name) {
    this.name = "flashsale." + name;
  }

  get() {
    try {
      return JSON.parse(sessionStorage.getItem(this.name));
    } catch {
      return null;
    }
  }

  set(value) {
    try {
      if (value === null) sessionStorage.removeItem(this.name);
      else sessionStorage.setItem(this.name, JSON.stringify(value));
    } catch {
      // The page then only survives what happens while it is open.
    }
  }
}

/**
 * Returns the seconds after which an answer is worth a repeat with the same key; 0: it is final.
 * Status 0 is a lost connection.
 */
function retryIn({ status, body, retryAfter }, repeats) {
  if (body.code === "sale_not_open") return retryAfter <= atOpening ? later(Math.max(1, retryAfter)) : 0;
  if (status === 0) return backoff(repeats);
  if (status === 500) return repeats < maxInternal ? later(retryAfter) || backoff(repeats) : 0;
  return status > 500 || status === 429 || status === 408 ? later(retryAfter) || backoff(repeats) : 0;
}

/** Adds up to a quarter to the server's seconds: never earlier, and not all browsers at once. */
const later = (seconds) => seconds * (1 + Math.random() / 4);

const backoff = (repeats) => Math.min(15, 2 ** repeats) * (0.75 + Math.random() / 2);

/** Serves the form of an item's page. */
export class Buying {
  constructor({ form, item, buyer, refresh }) {
    Object.assign(this, { form, item, buyer, refresh, state: "", attempt: null, left: false });
    this.pending = new Kept("pending." + item);
    this.made = new Kept("made." + item);
    this.button = byID("press");
    this.stopButton = byID("stop");
    this.full = !byID("full").hidden; // the buyer holds as many units as one buyer may
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.press();
    });
    this.stopButton.addEventListener("click", () => this.stop());
    addEventListener("pageshow", (event) => event.persisted && this.dropLogin()); // and shop.js loads the page
    this.open();
  }

  /** Follows the state of the sale. */
  follow(state) {
    this.state = state;
    this.render();
  }

  /** Continues with what happened before the page was loaded. */
  open() {
    if (wentBack()) this.dropLogin();
    this.render();
    const pending = this.pending.get();
    if (pending && pending.buyer === this.buyer) {
      if (left(pending) > 0) {
        delete pending.login;
        this.pending.set(pending);
        this.form.elements.key.value = pending.key;
        this.form.elements.quantity.value = pending.quantity;
        this.run(pending, t("js.resuming"));
        return;
      }
      return this.expire();
    }
    this.pending.set(null);
    if (this.showMade()) this.form.elements.key.value = random(); // the next press makes another order
  }

  /** Forgets an attempt that was led to the login form: the way back from there is no login. */
  dropLogin() {
    if (this.pending.get()?.login) this.pending.set(null);
  }

  press() {
    if (this.busy() || this.full || this.state !== "open") return;
    const { key, quantity } = this.form.elements;
    const attempt = { key: key.value, quantity: Number(quantity.value), buyer: this.buyer, at: Date.now() };
    this.pending.set(attempt);
    this.made.set(null);
    this.notice();
    this.run(attempt, t("js.sending"));
  }

  stop() {
    if (!this.attempt) return;
    this.end();
    this.notice("warn", t("js.stopped"), t("js.stopped_text"), el("a", { href: "/orders" }, t("buy.my_orders")));
  }

  /** Sends an attempt until it has an answer that is final. */
  async run(attempt, text) {
    this.attempt = attempt;
    this.abort = new AbortController();
    this.render();
    const { signal } = this.abort;
    for (let repeats = 0; left(attempt) > 0; repeats++) {
      this.progress(text);
      const answer = await this.send(attempt, signal);
      if (this.attempt !== attempt) return; // stopped
      text = t("js.sending");
      if (answer.ok) return this.succeed(answer.body.id);
      if (answer.status === 401) return this.logIn(attempt);
      const seconds = retryIn(answer, repeats);
      if (seconds === 0) return this.refused(answer);
      this.explain(answer);
      await this.wait(Math.min(seconds, left(attempt) / 1000), signal, answer.status === 0);
      if (this.attempt !== attempt) return;
    }
    this.expire();
  }

  /** Ends an attempt that is too old to be sent again. */
  expire() {
    this.end();
    this.notice("warn", t("js.old"), t("js.stopped_text"), el("a", { href: "/orders" }, t("buy.my_orders")));
  }

  /** Sends an attempt once. Status 0: there was no answer. */
  async send({ key, quantity }, signal) {
    try {
      const headers = { "Idempotency-Key": key, "X-Flashsale-Buyer": this.buyer };
      return await api(`/v1/items/${this.item}/orders`, { method: "POST", body: { quantity }, headers, signal });
    } catch {
      return { status: 0, ok: false, body: {}, retryAfter: 0 };
    }
  }

  /** Says why the attempt is repeated. */
  explain({ status, body }) {
    if (status === 0) this.notice("warn", t("js.lost"), t("js.lost_text"));
    else this.notice("warn", titleOf(body, t("js.failed")), textOf(body), t("js.kept"));
  }

  /** Counts down the seconds until the next repeat; a connection that is back ends the wait. */
  async wait(seconds, signal, online) {
    const until = performance.now() + seconds * 1000;
    for (let left = seconds * 1000; left > 0; left = until - performance.now()) {
      this.progress(t("js.retry_in", t("unit.seconds", Math.ceil(left / 1000))));
      const woken = await pause(Math.min(left, 1000), { signal, online });
      if (woken !== "time") return;
    }
  }

  /** Leaves for the order's page. Until then the button stays busy, however long that takes. */
  succeed(order) {
    this.left = true;
    this.made.set({ order, buyer: this.buyer });
    this.end();
    this.showMade();
    location.assign("/orders/" + order);
  }

  /** A page that the same buyer's login leads to continues; one that the back button shows does not. */
  logIn(attempt) {
    this.end();
    this.pending.set({ ...attempt, login: true });
    toLogin();
  }

  refused({ body }) {
    this.full ||= body.code === "user_limit" && this.attempt.quantity === 1;
    this.end();
    if (body.code === "idempotency_key_reused") this.form.elements.key.value = random();
    const parts = [textOf(body)];
    if (["idempotency_key_reused", "user_limit"].includes(body.code)) parts.push(el("a", { href: "/orders" }, t("buy.my_orders")));
    if (!hasText("problem." + body.code) || body.code === "internal") parts.push(t("js.request", body.request_id || "–"));
    this.notice("bad", titleOf(body, t("js.failed")), ...parts);
    this.refresh();
  }

  /** Ends the attempt: nothing of it is sent again. */
  end() {
    this.attempt = null;
    this.abort?.abort();
    this.pending.set(null);
    this.render();
  }

  /** Shows the order that was made from this tab, and reports whether there is one. */
  showMade() {
    const made = this.made.get();
    if (!made || made.buyer !== this.buyer) return false;
    this.notice("good", t("js.made"), el("a", { href: "/orders/" + made.order }, t("js.view_order")));
    return true;
  }

  busy() {
    return this.attempt !== null || this.left;
  }

  render() {
    const busy = this.busy();
    this.button.disabled = !busy && (this.full || this.state !== "open");
    this.button.setAttribute("aria-disabled", String(busy));
    this.stopButton.hidden = this.attempt === null;
    if (!this.attempt) this.progress("");
    const quantity = this.form.elements.quantity;
    quantity.readOnly = busy;
    byID("full").hidden = !this.full;
    const open = this.full ? t("buy.limit") : this.made.get()?.buyer === this.buyer ? t("js.buy_again") : t("buy.buy");
    setText(this.button, this.state === "open" || this.state === "" ? open : t("buy." + this.state));
  }

  progress(text) {
    byID("progress").hidden = text === "";
    setText(byID("progress-text"), text);
  }

  /** Shows a notice instead of the one before; without arguments, none. */
  notice(tone, title, ...parts) {
    const place = byID("notices");
    if (!tone) return place.replaceChildren();
    const line = el("p", {}, el("strong", {}, title));
    for (const part of parts) line.append(" ", part);
    if (place.textContent.trim() === line.textContent) return; // said already
    place.replaceChildren(el("div", { className: "notice " + tone }, line));
  }
}

const titleOf = ({ code, title }, usual) => (hasText(`problem.${code}.title`) ? t(`problem.${code}.title`) : title || usual);
const textOf = ({ code, detail }) => (hasText("problem." + code) ? t("problem." + code) : detail || "");
