// Forms and dialogs of the dashboard.
import { el, fill, showProblem, uid } from "./admin-dom.js";

/**
 * Builds the inputs of a form from definitions and returns { element, read(), refuse(problem), input(name) }.
 *
 * A definition: name (also the name of the API's parameter), label, type ("text", "number", "textarea",
 * "select", "checkbox", "instant" for a time in the local zone, or another type of input), value, required,
 * hint, options (of a select: texts or [value, label]), parse (converts the text; its Error is shown at the
 * input), other attributes such as min, max, maxlength, pattern, placeholder, inputmode.
 *
 * read returns the values by name: numbers for "number", ISO times for "instant", booleans for "checkbox",
 * otherwise trimmed texts. An empty input that is not required is undefined. It returns null, and shows
 * why, if an input is invalid. refuse shows a Problem at the input named by problem.param, or returns false.
 */
export function inputs(definitions) {
  const all = new Map(definitions.map((d) => [d.name, field(d)]));
  const clear = () => all.forEach((f) => f.error(""));
  const refuse = (problem) => {
    const f = all.get(problem.param);
    if (!f) return false;
    f.error(problem.message);
    f.input.focus();
    return true;
  };
  const read = () => {
    clear();
    const values = {};
    let first = null;
    for (const [name, f] of all) {
      try {
        values[name] = f.read();
      } catch (error) {
        f.error(error.message);
        first = first || f.input;
      }
    }
    if (first) first.focus();
    return first ? null : values;
  };
  return {
    element: el("div", { class: "fields" }, [...all.values()].map((f) => f.element)),
    read,
    refuse,
    clear,
    input: (name) => all.get(name).input,
  };
}

const ownKeys = new Set(["name", "label", "type", "value", "required", "hint", "options", "parse", "wide"]);

function field(d) {
  const id = uid("field");
  const hintID = d.hint || d.type === "instant" ? id + "-hint" : "";
  const attributes = { id, name: d.name, required: d.required, "aria-describedby": [hintID, id + "-error"].filter(Boolean).join(" ") };
  for (const [name, value] of Object.entries(d)) if (!ownKeys.has(name)) attributes[name] = value;
  const input = control(d, attributes);
  const error = el("p", { class: "error", id: id + "-error" });
  const hint = hintID ? el("p", { class: "hint", id: hintID }, d.hint || "") : null;
  if (d.type === "instant") followUTC(input, hint, d.hint);
  const label = el("label", { htmlFor: id }, d.label, d.required || d.type === "checkbox" ? null : el("span", { class: "optional" }, " (optional)"));
  const order = d.type === "checkbox" ? [el("div", { class: "check" }, input, label)] : [label, input];
  return {
    input,
    element: el("div", { class: d.wide || d.type === "textarea" ? "field wide" : "field" }, order, hint, error),
    read: () => valueOf(d, input),
    error: (message) => {
      error.textContent = message;
      if (message) input.setAttribute("aria-invalid", "true");
      else input.removeAttribute("aria-invalid");
    },
  };
}

function control(d, attributes) {
  switch (d.type) {
    case "textarea":
      return el("textarea", { rows: 3, ...attributes, value: d.value ?? "" });
    case "select":
      return el("select", attributes, (d.options || []).map((o) => {
        const [value, label] = Array.isArray(o) ? o : [o, o];
        return el("option", { value, selected: value === d.value }, label);
      }));
    case "checkbox":
      return el("input", { ...attributes, type: "checkbox", checked: Boolean(d.value) });
    case "instant":
      return el("input", { ...attributes, type: "datetime-local", step: 1, value: d.value ? localInput(d.value) : "" });
    case "number":
      return el("input", { step: 1, ...attributes, type: "number", inputmode: "numeric", value: d.value ?? "" });
    default:
      return el("input", { autocomplete: "off", ...attributes, type: d.type || "text", value: d.value ?? "" });
  }
}

function valueOf(d, input) {
  if (d.type === "checkbox") return input.checked;
  if (input.validity.badInput) throw new Error("Enter a number or a time in the form that the input shows.");
  const entered = d.type === "textarea" ? input.value.replace(/\r\n/g, "\n") : input.value.trim();
  if (entered === "") {
    if (d.required) throw new Error("This field is required.");
    return d.parse ? d.parse("") : undefined;
  }
  if (d.parse) return d.parse(entered);
  if (!input.validity.valid) throw new Error(input.validationMessage);
  if (d.type === "number") return Number(entered);
  if (d.type === "instant") return new Date(entered).toISOString();
  return entered;
}

/** Writes a time for an input of type datetime-local, in the local zone. */
export function localInput(iso) {
  const t = new Date(iso);
  const two = (n) => String(n).padStart(2, "0");
  return `${t.getFullYear()}-${two(t.getMonth() + 1)}-${two(t.getDate())}T${two(t.getHours())}:${two(t.getMinutes())}:${two(t.getSeconds())}`;
}

function followUTC(input, hint, usual) {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "local time";
  const show = () => {
    const t = input.value ? new Date(input.value) : null;
    const utc = t && !Number.isNaN(t.getTime()) ? "UTC: " + t.toISOString().slice(0, 19).replace("T", " ") : "";
    hint.textContent = [usual, utc || `Time zone: ${zone}`].filter(Boolean).join(" ");
  };
  input.addEventListener("input", show);
  show();
}

/**
 * Makes a form of an element: submit runs run(values) with the button disabled, and shows a refusal at
 * the input that it names, else in a message above the button. Returns the form.
 */
export function form({ fields = [], submit, danger, run, allow, extra, cancel }) {
  const f = inputs(fields);
  const message = el("div", { class: "messages" });
  const button = el("button", { class: danger ? "danger" : "primary", disabled: Boolean(allow) }, submit);
  const check = () => {
    if (allow && button.getAttribute("aria-busy") !== "true") button.disabled = !allow(f);
  };
  const send = async (event) => {
    event.preventDefault();
    if (button.disabled) return;
    showProblem(message, null);
    const values = f.read();
    if (!values) return;
    button.disabled = true;
    button.setAttribute("aria-busy", "true");
    try {
      await run(values);
    } catch (error) {
      if (!f.refuse(error)) showProblem(message, error);
    } finally {
      button.disabled = false;
      button.removeAttribute("aria-busy");
      check();
    }
  };
  return el("form", { novalidate: true, onsubmit: send, oninput: check }, f.element, extra, message,
    el("div", { class: "actions" }, cancel ? el("button", { type: "button", onclick: cancel }, "Cancel") : null, button));
}

/**
 * Opens a dialog with a form and returns a promise: the result of run(values), or undefined if the
 * dialog was closed without it. While run works the button is disabled; a refusal is shown in the
 * dialog, which stays open.
 * options: title, text (a text or elements), fields (see inputs), submit (the button's label), danger,
 * run, allow(inputs) (whether the button is enabled).
 */
export function ask({ title, text: explanation, fields, submit, danger, run, allow }) {
  return new Promise((resolve) => {
    const heading = uid("dialog");
    let result;
    const dialog = el("dialog", { "aria-labelledby": heading });
    const finish = async (values) => {
      result = await run(values);
      dialog.close();
    };
    dialog.append(
      el("h2", { id: heading }, title),
      ...(explanation ? [typeof explanation === "string" ? el("p", {}, explanation) : fill(el("div"), explanation)] : []),
      form({ fields, submit, danger, allow, run: finish, cancel: () => dialog.close() })
    );
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(result);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

/**
 * Opens a dialog for a change that cannot be undone. Its button is enabled once the reader has typed
 * the name exactly. options: title, text, name, submit, run, fields (further inputs, before the name).
 */
export function confirmName({ title, text: explanation, name, submit, run, fields = [] }) {
  const typed = { name: "confirm-name", label: `Type ${name} to confirm`, required: true, spellcheck: "false", autocapitalize: "off", wide: true };
  return ask({
    title, text: explanation, submit, danger: true,
    fields: [...fields, typed],
    allow: (f) => f.input(typed.name).value === name,
    run: ({ [typed.name]: _, ...values }) => run(values),
  });
}
