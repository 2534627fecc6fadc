// Finds the elements that a selector names, and prepares the first visible one for an action: "click" or
// "fill". Wanted: { selector, action, value, attribute }. The result is the type element in Go.
(wanted) => {
  const plain = (text) => (text ?? "").replace(/\s+/g, " ").trim();
  const [css, ...more] = wanted.selector.split(" >> ");
  const part = more.join(" >> ");
  const isVisible = (e) => e.checkVisibility({ visibilityProperty: true, contentVisibilityAuto: false }) && e.getClientRects().length > 0;
  const names = (e) => [plain(e.innerText), e.getAttribute("aria-label"), e.title, e.type === "submit" ? e.value : null];
  const all = [...document.querySelectorAll(css)].filter((e) => part === "" || names(e).some((name) => name?.includes(part)));
  const visible = all.filter(isVisible);
  const texts = visible.map((e) => plain(e.innerText));
  const first = visible[0] ?? all[0];
  const result = {
    Count: all.length,
    Visible: visible.length,
    Text: texts[0] ?? "",
    Texts: texts,
    Value: typeof first?.value === "string" ? first.value : null,
    Attribute: wanted.attribute && first ? first.getAttribute(wanted.attribute) : null,
    Problem: "",
  };
  const stop = (problem) => Object.assign(result, { Problem: problem });
  if (!wanted.action || all.length === 0) {
    return result;
  }
  if (visible.length === 0) {
    return stop("the element is not visible");
  }
  if (first.matches(":disabled") || first.closest("[aria-disabled=true], [inert]")) {
    return stop("the element is disabled");
  }
  return wanted.action === "fill" ? fill(first) : aim(first);

  // aim brings the element into view and finds its middle, if nothing covers it there.
  function aim(e) {
    const inside = (r) => r.top >= 0 && r.left >= 0 && r.bottom <= innerHeight && r.right <= innerWidth;
    if (!inside(e.getBoundingClientRect())) {
      e.scrollIntoView({ block: "center", inline: "center", behavior: "instant" });
    }
    const box = [...e.getClientRects()].find((r) => r.width > 0 && r.height > 0);
    if (!box) {
      return stop("the element has no size");
    }
    result.X = (Math.max(box.left, 0) + Math.min(box.right, innerWidth)) / 2;
    result.Y = (Math.max(box.top, 0) + Math.min(box.bottom, innerHeight)) / 2;
    let hit = document.elementFromPoint(result.X, result.Y);
    while (hit?.shadowRoot?.elementFromPoint(result.X, result.Y)) {
      hit = hit.shadowRoot.elementFromPoint(result.X, result.Y);
    }
    if (!hit || !(e.contains(hit) || hit.contains(e) && getComputedStyle(e).pointerEvents !== "none" && hit === e.closest("label, button, a"))) {
      return stop(`the element is covered by ${hit?.outerHTML.slice(0, 120) ?? "nothing: it is outside of the window"}`);
    }
    return result;
  }

  // fill sets a field that cannot be typed into, or selects the content of one that can.
  function fill(e) {
    if (e.readOnly) {
      return stop("the field is read-only");
    }
    const changed = () => {
      e.dispatchEvent(new Event("input", { bubbles: true }));
      e.dispatchEvent(new Event("change", { bubbles: true }));
      return result;
    };
    if (e instanceof HTMLSelectElement) {
      const option = [...e.options].find((o) => o.value === wanted.value || plain(o.label) === wanted.value);
      if (!option) {
        return stop(`the list has no option ${JSON.stringify(wanted.value)}`);
      }
      e.focus();
      option.selected = true;
      return changed();
    }
    if (e instanceof HTMLInputElement) {
      if (["checkbox", "radio", "button", "submit", "file"].includes(e.type)) {
        return stop(`a field of the type ${e.type} cannot be filled`);
      }
      if (["date", "time", "datetime-local", "month", "week", "color", "range"].includes(e.type)) {
        e.focus();
        // As by the user: libraries replace the setter of the element itself.
        Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set.call(e, wanted.value);
        return e.value === wanted.value ? changed() : stop(`the field does not accept ${JSON.stringify(wanted.value)}`);
      }
    } else if (!(e instanceof HTMLTextAreaElement) && !e.isContentEditable) {
      return stop("the element is not a form field");
    }
    e.scrollIntoView({ block: "nearest", behavior: "instant" });
    e.focus();
    if (e.select) {
      e.select();
    } else {
      getSelection().selectAllChildren(e);
    }
    result.Typed = true;
    return result;
  }
}
