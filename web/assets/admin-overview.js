// The overview: what is wrong, and what the whole deployment does at present.
import { api, follow, el, fill, text, number, rate, percent, duration, time, clock, ago, stateBadge, liveTable, onPress, showProblem } from "./admin.js";
import { chart, History } from "./admin-charts.js";
import { check, liveProblems } from "./admin-problems.js";

const at = (id) => document.getElementById(id);
// How often the checks run, in milliseconds. A hidden page does not check.
const checkEvery = 15000;

// Problems: those of the checks and those of the stream, which is newer.

let checked = new Map();
let live = new Map();
let shownProblems = "";
let checkedAt = null;

function showProblems() {
  const all = [...new Map([...checked, ...live]).values()].sort((a, b) => (a.tone === "warn") - (b.tone === "warn"));
  const sign = JSON.stringify([all, checkedAt === null]);
  if (sign === shownProblems) return;
  shownProblems = sign;
  if (!all.length) {
    fill(at("problem-list"), checkedAt === null ? el("p", { class: "muted" }, "Checking…") : el("p", { class: "notice good" }, el("strong", {}, "No problems found")));
    return;
  }
  fill(at("problem-list"), all.map((p) => el("div", { class: "notice spread " + p.tone },
    el("p", {}, el("strong", {}, p.title), " ", p.text), el("a", { class: "button small", href: p.href }, p.link))));
}

let checking = null;

async function runChecks() {
  if (checking) return checking;
  checking = (async () => {
    const [found] = await Promise.all([check(), showPaused(), showSystem()]);
    checked = found;
    checkedAt = new Date();
    fill(at("checked"), "Last check ", time(checkedAt.toISOString()));
    at("problems").removeAttribute("aria-busy");
    showProblems();
  })().finally(() => {
    checking = null;
  });
  return checking;
}

async function showPaused() {
  let page;
  try {
    page = (await api("GET", "/v1/admin/items?state=paused&limit=20")).body;
  } catch {
    return; // the checks report a service that does not answer
  }
  at("paused").hidden = page.items.length === 0;
  const sign = page.items.map((i) => i.id + i.name).join();
  if (at("paused-list").dataset.sign === sign) return;
  at("paused-list").dataset.sign = sign;
  fill(at("paused-list"), page.items.map((i) => el("li", {}, el("a", { href: "/admin/items/" + i.id }, i.name))),
    page.next_cursor ? el("li", {}, el("a", { href: "/admin/items?state=paused" }, "All paused items")) : null);
}

// Figures

// The processes count only while someone watches.
const since = (f) => ` since ${clock(f.since)}`;

// waiting says what the queued orders wait for. Only those that are ready have an age.
const waiting = (f) => {
  const q = f.queue;
  if (!q) return "";
  if (q.paused) return "queue paused";
  if (q.ready) return "waiting";
  if (q.leased) return "held by workers";
  if (q.delayed) return "waiting for a retry";
  return "no orders waiting";
};

const tiles = [
  ["Accepted per second", (f) => rate(f.accepted_per_second), (f) => number(f.totals.accepted) + since(f)],
  ["Committed per second", (f) => rate(f.committed_per_second), (f) => number(f.totals.committed) + since(f)],
  ["Refused per second", (f) => rate(f.refused_per_second), (f) => number(f.totals.refused) + since(f)],
  ["Orders in the queue", (f) => number(f.queue?.orders), (f) => (f.queue?.dead ? `including ${number(f.queue.dead)} dead` : "no dead letters")],
  ["Oldest queued order", (f) => (f.queue?.ready ? duration(f.queue.oldest_age_ms) : "–"), waiting],
  ["Live workers", (f) => number(f.workers?.live), (f) => f.workers?.trouble || `${number(f.processes.length)} ${f.processes.length === 1 ? "process" : "processes"}`],
  ["Latency p99", (f) => duration(f.latency["201"].p99_ms), (f) => `p50 ${duration(f.latency["201"].p50_ms)}`],
];

const tileParts = tiles.map(([label]) => {
  const value = el("dd", { class: "value" }, "–");
  const more = el("dd", { class: "muted" }, "");
  at("tiles").append(el("div", { class: "tile" }, el("dt", {}, label), value, more));
  return { value, more };
});

const history = new History(["accepted", "committed", "refused", "p50", "p90", "p99", "queued", "dead", "age"]);
const charts = [
  chart(at("chart-orders"), {
    title: "Orders per second", history, format: rate,
    lines: [{ name: "accepted", label: "Accepted", tone: "info" }, { name: "committed", label: "Committed", tone: "good" }, { name: "refused", label: "Refused", tone: "bad" }],
  }),
  chart(at("chart-latency"), {
    title: "Latency of committed purchases", history, format: duration,
    lines: [{ name: "p50", label: "p50", tone: "good" }, { name: "p90", label: "p90", tone: "info" }, { name: "p99", label: "p99", tone: "bad" }],
  }),
  chart(at("queue"), {
    title: "Queue of accepted orders", history, format: number,
    lines: [{ name: "queued", label: "Orders", tone: "info" }, { name: "dead", label: "Dead letters", tone: "bad" }],
  }),
  chart(at("chart-age"), { title: "Age of the oldest queued order", history, format: duration, lines: [{ name: "age", label: "Age", tone: "warn" }] }),
];

const tables = {
  items: liveTable({
    caption: "Items with most purchases", key: (i) => i.id, empty: "No item had purchases recently.",
    columns: [
      { title: "Item", class: "wide", sign: (i) => i.name, cell: (i) => el("a", { href: "/admin/items/" + i.id }, i.name || i.id) },
      { title: "State", sign: (i) => i.state, cell: (i) => stateBadge(i.state) },
      { title: "Stock left", sign: (i) => `${i.stock_left} ${i.stock_total}`, cell: stock, class: "stock" },
      { title: "Accepted/s", numeric: true, cell: (i) => rate(i.accepted_per_second) },
      { title: "Lock holder", cell: (i) => i.lock?.holder || "–" },
      { title: "Fence", numeric: true, cell: (i) => String(i.lock?.fence ?? "–") },
      { title: "Waiting", numeric: true, cell: (i) => number(i.lock?.waiting) },
    ],
  }),
  refused: liveTable({
    caption: "Refused purchases by reason", key: (r) => r.code, empty: "No purchase was refused.",
    columns: [
      { title: "Reason", sign: (r) => r.code, cell: (r) => el("a", { href: "/docs#" + r.code }, r.code.replaceAll("_", " ")) },
      { title: "Per second", numeric: true, cell: (r) => rate(r.now) },
      { title: "In total", numeric: true, cell: (r) => number(r.total) },
    ],
  }),
  latency: liveTable({
    caption: "Latency of purchases", key: (l) => l.status,
    columns: [
      { title: "Answer", cell: (l) => (l.status === "201" ? "201 committed" : "202 queued") },
      { title: "Per second", numeric: true, cell: (l) => rate(l.per_second) },
      { title: "p50", numeric: true, cell: (l) => duration(l.p50_ms) },
      { title: "p90", numeric: true, cell: (l) => duration(l.p90_ms) },
      { title: "p99", numeric: true, cell: (l) => duration(l.p99_ms) },
      { title: "Max", numeric: true, cell: (l) => duration(l.max_ms) },
    ],
  }),
  queues: liveTable({
    caption: "Queues", key: (q) => q.name, empty: "Not known.",
    columns: [
      { title: "Queue", cell: (q) => q.name + (q.paused ? " (paused)" : "") },
      { title: "Orders", numeric: true, cell: (q) => number(q.orders) },
      { title: "Ready", numeric: true, cell: (q) => number(q.ready) },
      { title: "Leased", numeric: true, cell: (q) => number(q.leased) },
      { title: "Delayed", numeric: true, cell: (q) => number(q.delayed) },
      { title: "Dead", numeric: true, cell: (q) => number(q.dead) },
    ],
  }),
  "process-table": liveTable({
    caption: "Processes", key: (p) => p.id, empty: "No process has reported.",
    columns: [
      { title: "Process", cell: (p) => p.host },
      { title: "Kind", cell: (p) => p.kind },
      { title: "Version", cell: (p) => p.version },
      { title: "Started", cell: (p) => ago(p.started_at) },
      { title: "Accepted/s", numeric: true, cell: (p) => rate(p.accepted_per_second) },
      { title: "Share", numeric: true, cell: (p) => percent(p.accepted_share) },
      { title: "Committed/s", numeric: true, cell: (p) => rate(p.committed_per_second) },
      { title: "Refused/s", numeric: true, cell: (p) => rate(p.refused_per_second) },
      { title: "Locks held", numeric: true, cell: (p) => number(p.locks_held) },
      { title: "Waiting", numeric: true, cell: (p) => number(p.locks_waiting) },
      { title: "Handovers/s", numeric: true, cell: (p) => rate(p.handovers_per_second) },
      { title: "Breakers open", numeric: true, cell: (p) => number(p.breakers_open) },
    ],
  }),
};
for (const [id, table] of Object.entries(tables)) fill(at(id), table.element);

function stock(i) {
  if (i.stock_left === null || i.stock_total === null) return "–";
  const label = `${number(i.stock_left)} of ${number(i.stock_total)}`;
  return [el("span", {}, label), el("meter", { min: 0, max: Math.max(1, i.stock_total), value: Math.max(0, i.stock_left), "aria-label": "Stock left: " + label })];
}

const facts = (element, pairs) => {
  if (element.children.length !== pairs.length * 2) fill(element, pairs.map(([name]) => [el("dt", {}, name), el("dd", {}, "")]));
  pairs.forEach(([, value], i) => text(element.children[i * 2 + 1], value));
};

function show(f) {
  tiles.forEach(([, value, more], i) => {
    text(tileParts[i].value, value(f));
    text(tileParts[i].more, more(f));
  });
  const l = f.latency["201"];
  history.add(Math.round(Date.parse(f.at) / 1000), {
    accepted: f.accepted_per_second, committed: f.committed_per_second, refused: f.refused_per_second,
    p50: l.p50_ms, p90: l.p90_ms, p99: l.p99_ms, queued: f.queue?.orders, dead: f.queue?.dead, age: f.queue?.oldest_age_ms,
  });
  charts.forEach((c) => c.update());
  tables.items.update(f.items);
  const now = f.refused_by_code_per_second || {};
  const codes = new Set([...Object.keys(f.totals.refused_by_code), ...Object.keys(now)]);
  tables.refused.update([...codes].sort().map((code) => ({ code, now: now[code] ?? 0, total: f.totals.refused_by_code[code] ?? null })));
  tables.latency.update(Object.entries(f.latency).map(([status, values]) => ({ status, ...values })));
  tables.queues.update([{ name: "Accepted orders", ...f.queue }, { name: "Unpaid orders to expire", ...f.expiries }].filter((q) => "orders" in q));
  tables["process-table"].update(f.processes);
  facts(at("locks"), [
    ["Locks held", number(f.locks.held)], ["Waiting for a lock", number(f.locks.waiting)], ["Handovers per second", rate(f.locks.handovers_per_second)],
    ["Items with purchases", number(f.items_active)], ["Circuit breakers open", number(f.breakers.open)], ["Calls refused by them per second", rate(f.breakers.refused_per_second)],
    ["Figures", f.complete ? "of all processes" : "still incomplete: some processes have not reported"],
  ]);
  live = liveProblems(f);
  showProblems();
}

const streamTexts = { connecting: ["Connecting", "info"], live: ["Live", "good"], lost: ["Disconnected, reconnecting", "bad"] };

function showStream(state) {
  const [label, tone] = streamTexts[state];
  at("stream").className = "badge " + tone;
  text(at("stream"), label);
  at("figures").classList.toggle("stale", state === "lost");
  if (state === "lost") {
    live = new Map(); // what they said is no longer known
    showProblems();
    runChecks();
  }
}

// System

const bytes = (n) => (n === null ? "unknown" : n >= 2 ** 30 ? (n / 2 ** 30).toFixed(1) + " GiB" : (n / 2 ** 20).toFixed(1) + " MiB");

async function showSystem() {
  let s;
  try {
    s = (await api("GET", "/v1/admin/system")).body;
  } catch (error) {
    showProblem(at("system-problem"), error);
    return;
  }
  showProblem(at("system-problem"), null);
  const settings = (e) => Object.entries(e.settings).map(([name, value]) => [name, value]);
  facts(at("facts"), [
    ["Service", `${s.version}, revision ${s.revision || "unknown"}, ${s.go_version}`],
    ["Database", `${s.database.engine} ${s.database.version}`], ...settings(s.database),
    ["Redis", s.redis.mode === "embedded" ? "embedded in the process" : `${s.redis.engine} ${s.redis.version}, ${s.redis.mode}` + (s.redis.nodes > 1 ? `, ${s.redis.nodes} masters` : "")], ...settings(s.redis),
    ...(s.redis.mode === "embedded" ? [] : [["Redis memory", bytes(s.redis.memory_used_bytes) + (s.redis.memory_limit_bytes ? ` of ${bytes(s.redis.memory_limit_bytes)}` : s.redis.memory_limit_bytes === 0 ? ", no limit" : "")]]),
  ]);
}

onPress(at("check"), at("system-problem"), runChecks);
showProblems();
runChecks();
setInterval(() => document.hidden || runChecks(), checkEvery);
follow("/v1/admin/events", show, showStream);
