// Retries or discards many dead letters in bounded steps on the server, and shows the progress.
import { api, duration, el, fill, number, showProblem, text } from "./admin.js";
import { counted } from "./admin-records.js";

const patience = 20; // repeats of one step, while the service does not answer or is overloaded
const longestPause = 30_000; // ms between them

/** A run over one selection of dead letters. It can be stopped, and continued where it stopped. */
export class BulkRun {
  constructor(place, action, selection, done) {
    Object.assign(this, { place, action, selection, done });
    this.verb = action === "retry" ? "retried" : "discarded";
    this.total = selection.exact ? selection.count : 0;
    this.sums = { matched: 0, done: 0, failed: 0, orders: 0 };
    this.cursor = "";
    this.title = el("strong", {});
    this.bar = el("progress", { "aria-label": "Progress" });
    this.counts = el("p", { class: "counts", role: "status" });
    this.note = el("div", { "aria-live": "polite" });
    this.buttons = el("p", { class: "row" });
    fill(place, el("section", { class: "card stack tight", "aria-label": "Progress" }, this.title, this.bar, this.counts, this.note, this.buttons));
  }

  /** Makes steps until the selection is done, the run is stopped, or a step fails. */
  async start() {
    this.stopped = new AbortController();
    this.title.textContent = `${this.action === "retry" ? "Retrying" : "Discarding"} ${this.selection.name}…`;
    this.explain();
    fill(this.buttons, el("button", { type: "button", onclick: () => this.stop() }, "Stop"));
    this.show();
    try {
      do {
        this.add(await this.step());
        this.show();
      } while (this.cursor !== "" && !this.stopped.signal.aborted);
      this.end(this.cursor === "" ? "Finished" : "Stopped", this.cursor !== "", null);
    } catch (error) {
      this.end("Not finished", true, error);
    }
  }

  explain() {
    fill(this.note, el("p", { class: "muted" }, "Keep this page open: it sends one request after the other."));
  }

  /** Ends the run after the step that is under way. */
  stop() {
    if (!this.stopped || this.stopped.signal.aborted) return;
    this.stopped.abort();
    fill(this.note, el("p", { class: "muted" }, "Stopping after this step…"));
    fill(this.buttons);
  }

  /** Makes one step. A repeat of a step whose answer was lost is harmless. */
  async step() {
    const body = { ...this.selection.body };
    if (this.cursor !== "") body.cursor = this.cursor;
    for (let attempt = 1; ; attempt += 1) {
      try {
        const { body: answer } = await api("POST", `/v1/admin/dead/${this.action}`, { body });
        if (attempt > 1 && !this.stopped.signal.aborted) this.explain();
        return answer;
      } catch (error) {
        if (!error.uncertain || attempt === patience || this.stopped.signal.aborted) throw error;
        const pause = Math.min(longestPause, error.retryAfter ? error.retryAfter * 1000 : 250 * 2 ** attempt);
        const what = error.status === 0 ? "The service did not answer." : error.message;
        fill(this.note, el("p", { class: "muted" }, `Request failed, retrying in ${duration(pause)}. ${what}`));
        await wait(pause, this.stopped.signal);
      }
    }
  }

  add(answer) {
    for (const name of Object.keys(this.sums)) this.sums[name] += answer[name];
    this.cursor = answer.next_cursor;
    if (answer.remaining !== undefined) this.total = this.sums.matched + answer.remaining;
    else if (this.total) this.total = Math.max(this.total, this.sums.matched);
  }

  show() {
    const { matched, done, failed, orders } = this.sums;
    if (this.total) {
      this.bar.max = this.total;
      this.bar.value = matched;
    }
    const elsewhere = matched - done - failed;
    text(this.counts, [
      `${number(done)}${this.total ? " of " + number(this.total) : ""} ${this.verb}`,
      `${counted(orders, "order")} in them`,
      failed > 0 && `${number(failed)} failed`,
      elsewhere > 0 && `${number(elsewhere)} resolved by others`,
    ].filter(Boolean).join(", "));
  }

  end(title, isOpen, error) {
    this.stopped.abort();
    this.title.textContent = `${title}: ${this.selection.name}`;
    if (!isOpen) Object.assign(this.bar, { max: 1, value: 1 });
    if (error) showProblem(this.note, error);
    else fill(this.note, this.sums.failed > 0 && el("p", { class: "notice warn" }, `${counted(this.sums.failed, "letter")} could not be ${this.verb}; the errors are in the log of the service.`));
    fill(this.buttons,
      isOpen && el("button", { type: "button", class: "primary", onclick: () => this.start() }, "Continue"),
      el("button", { type: "button", onclick: () => fill(this.place) }, "Close"));
    this.done();
  }
}

/** Waits for a time, or until the signal aborts. */
function wait(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    }, { once: true });
  });
}
