// The checks of the overview: what is wrong, and the page that helps.
import { api, Problem } from "./admin-api.js";
import { duration, number } from "./admin-dom.js";

// An order that has waited this long, in milliseconds, is late.
const late = 5000;

const problem = (title, text, href, link, tone = "bad") => ({ title, text, href, link, tone });

/** Returns the problems in an event of the figures, by key. */
export function liveProblems(f) {
  const found = new Map();
  const { queue, expiries, workers, breakers } = f;
  const dead = (queue?.dead || 0) + (expiries?.dead || 0);
  if (dead) found.set("dead", deadLetters(dead));
  if (queue && queue.oldest_age_ms >= late) {
    found.set("late", problem("Orders wait too long", `The oldest queued order has waited ${duration(queue.oldest_age_ms)}; ${number(queue.orders)} orders are queued.`, "#queue", "See the queue"));
  }
  if (queue?.paused) found.set("queue", problem("Order queue paused", "Accepted orders are not written to the database. flashsale doctor shows how to resume it.", "#queue", "See the queue"));
  if (expiries?.paused) found.set("expiries", problem("Expiry queue paused", "Unpaid orders do not expire. flashsale doctor shows how to resume it.", "#queue", "See the queue"));
  if (workers && (workers.live === 0 || workers.trouble)) found.set("workers", noWorkers(workers.trouble || "none live"));
  if (breakers?.open) {
    found.set("breakers", problem("Circuit breaker open", `${number(breakers.open)} Redis ${breakers.open === 1 ? "node has" : "nodes have"} an open circuit breaker: calls to ${breakers.open === 1 ? "it" : "them"} fail at once.`, "#processes", "See the processes"));
  }
  return found;
}

const deadLetters = (n) => problem("Dead letters", `${number(n)} ${n === 1 ? "task" : "tasks"} failed permanently and ${n === 1 ? "waits" : "wait"} for a decision.`, "/admin/dead", "Retry or discard");
const noWorkers = (why) => problem("No worker commits orders", `Accepted orders stay queued: ${why}.`, "#processes", "See the processes");

/**
 * Runs the checks that need requests, and returns the problems by key. A check that fails is a
 * problem itself; one whose route does not exist is skipped.
 */
export async function check(signal) {
  const found = new Map();
  const checks = { readiness, queue, payments, webhooks };
  await Promise.all(Object.entries(checks).map(async ([name, run]) => {
    try {
      await run(found, signal);
    } catch (error) {
      if (error.name === "AbortError" || error.code === "route_not_found") return;
      found.set("check " + name, problem(`Check failed: ${name}`, error.message + (error.requestID ? ` Request id: ${error.requestID}.` : ""), "#system", "See the system"));
    }
  }));
  return found;
}

async function readiness(found, signal) {
  let state;
  try {
    state = (await api("GET", "/readyz", { signal })).body;
  } catch (error) {
    if (!(error instanceof Problem) || !error.body.failing) throw error;
    state = error.body;
  }
  for (const part of state.failing || []) {
    found.set("ready " + part, problem("Not ready: " + part, "A required part does not work; the service cannot sell. The log has the cause.", "#system", "See the system"));
  }
  for (const part of state.degraded || []) {
    if (part === "workers") found.set("workers", noWorkers(state[part]));
    else if (part === "database") found.set("stopped", problem("Sales stopped for recovery", `The database is ${state[part]}.`, "/admin/reconcile", "Compare Redis with the database"));
    else found.set("ready " + part, problem("Degraded: " + part, `${state[part]}.`, "#system", "See the system", "warn"));
  }
}

async function queue(found, signal) {
  const { body } = await api("GET", "/v1/admin/queue", { signal });
  if (body.dead) found.set("dead", deadLetters(body.dead));
  if (body.workers && (body.workers.live === 0 || body.workers.trouble)) found.set("workers", noWorkers(body.workers.trouble || "none live"));
}

async function payments(found, signal) {
  const { body } = await api("GET", "/v1/admin/payments?needs_refund=true&limit=100", { signal });
  const n = body.payments.length;
  if (n) found.set("refunds", problem("Refunds needed", `${body.next_cursor ? "More than " : ""}${number(n)} received ${n === 1 ? "amount" : "amounts"} did not pay for an order and ${n === 1 ? "has" : "have"} to be refunded.`, "/admin/payments", "See the payments"));
}

// Deliveries that failed this often are a problem although they are retried.
const attempts = 3;

async function webhooks(found, signal) {
  const { body } = await api("GET", "/v1/admin/webhooks", { signal });
  const name = (w) => w.description || w.url;
  for (const w of body.webhooks) {
    const href = "/admin/webhooks/" + w.id;
    if (!w.enabled) {
      const why = w.disabled_reason === "gone" ? "Its server answered 410 Gone, so it was disabled." : "It is disabled: its events are not sent.";
      found.set("webhook " + w.id, problem(`Webhook disabled: ${name(w)}`, why, href, "See the webhook", w.disabled_reason ? "bad" : "warn"));
      continue;
    }
    const list = (status, limit) => api("GET", `/v1/admin/webhooks/${w.id}/deliveries?status=${status}&limit=${limit}`, { signal });
    const [dead, pending] = await Promise.all([list("dead", 1), list("pending", 20)]);
    const failing = pending.body.deliveries.filter((d) => d.attempts >= attempts);
    if (dead.body.deliveries.length) found.set("webhook " + w.id, problem(`Webhook failed: ${name(w)}`, "Some events were given up after all attempts.", href, "Redeliver them"));
    else if (failing.length) found.set("webhook " + w.id, problem(`Webhook failing: ${name(w)}`, "Its server refuses events or does not answer; they are retried.", href, "See the deliveries"));
  }
}
