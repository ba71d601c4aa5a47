// Runs in a world of its own beside the page's scripts, which can neither see nor change it.
(() => {
  if (globalThis.caisson) return;
  const USABLE = "a[href],button,input,select,textarea,summary,[role=button],[role=link],[role=checkbox],[role=tab],[role=menuitem],[contenteditable=true],[onclick]";
  const HEADINGS = "h1,h2,h3,h4,h5,h6";
  const MOST = 2000;
  let references = new Map();
  const words = (text, most = 160) => (text ?? "").replace(/\s+/g, " ").trim().slice(0, most);
  const isVisible = (element) => {
    const box = element.getBoundingClientRect();
    if (box.width === 0 || box.height === 0) return false;
    const style = getComputedStyle(element);
    return style.visibility !== "hidden" && style.display !== "none";
  };
  const nameOf = (element) => words(
    element.getAttribute("aria-label") || element.labels?.[0]?.innerText || element.innerText ||
    element.getAttribute("placeholder") || element.getAttribute("title") || element.getAttribute("alt") ||
    (["submit", "button", "reset"].includes(element.type) ? element.value : "") || element.getAttribute("name"));
  const kindOf = (element) => {
    const tag = element.tagName.toLowerCase();
    if (element.getAttribute("role")) return element.getAttribute("role");
    if (tag === "a") return "link";
    if (tag === "input") return ["submit", "button", "reset", "image"].includes(element.type) ? "button" : `input ${element.type}`;
    return tag;
  };
  globalThis.caisson = {
    text() {
      return document.body ? document.body.innerText : "";
    },
    outline() {
      references = new Map();
      const lines = [];
      for (const element of document.querySelectorAll(`${HEADINGS},${USABLE}`)) {
        if (lines.length === MOST) {
          lines.push("...");
          break;
        }
        if (!isVisible(element)) continue;
        if (element.matches(HEADINGS)) {
          lines.push(`${"#".repeat(Number(element.tagName[1]))} ${words(element.innerText)}`);
          continue;
        }
        const reference = `e${references.size + 1}`;
        references.set(reference, new WeakRef(element));
        let line = `[${reference}] ${kindOf(element)} "${nameOf(element)}"`;
        if (element.href) line += ` -> ${element.href.slice(0, 200)}`;
        if (["checkbox", "radio"].includes(element.type)) line += element.checked ? " (checked)" : "";
        else if ("value" in element && element.value && element.type !== "password") line += ` = "${words(element.value, 80)}"`;
        if (element.disabled) line += " (disabled)";
        lines.push(line);
      }
      return lines.join("\n");
    },
    find({ reference, selector, text }) {
      if (reference) return references.get(reference)?.deref() ?? null;
      if (selector) return document.querySelector(selector);
      const wanted = text.toLowerCase();
      const named = [...document.querySelectorAll(`${USABLE},label,option`)].filter(isVisible);
      return named.find((element) => nameOf(element).toLowerCase() === wanted) ??
        named.find((element) => nameOf(element).toLowerCase().includes(wanted)) ?? null;
    },
    place(choice) {
      let element;
      try {
        element = this.find(choice);
      } catch (error) {
        return { problem: String(error.message) };
      }
      if (!element?.isConnected) return { problem: "there is no such element on the page" };
      element.scrollIntoView({ block: "center", inline: "center", behavior: "instant" });
      const box = element.getBoundingClientRect();
      if (box.width === 0 || box.height === 0) return { problem: "the element is not visible" };
      if (element.disabled) return { problem: "the element is disabled" };
      return { x: box.x + box.width / 2, y: box.y + box.height / 2, name: nameOf(element) };
    },
    focus(choice) {
      const place = this.place(choice);
      if (place.problem) return place;
      const element = this.find(choice);
      if (element.tagName === "SELECT") return { isSelect: true, name: place.name };
      const isField = "value" in element || element.isContentEditable;
      if (!isField || element.readOnly) return { problem: "the element takes no text" };
      element.focus();
      if (element.select) element.select();
      else getSelection().selectAllChildren(element);
      return { name: place.name };
    },
    choose(choice, value) {
      const element = this.find(choice);
      const option = [...element.options].find((option) => option.value === value || words(option.text) === value);
      if (!option) return { problem: `there is no choice "${value}"; there are: ${[...element.options].map((option) => words(option.text, 40)).join(", ")}` };
      element.value = option.value;
      element.dispatchEvent(new Event("input", { bubbles: true }));
      element.dispatchEvent(new Event("change", { bubbles: true }));
      return {};
    },
    has(selector, text) {
      if (selector && !document.querySelector(selector)) return false;
      return !text || (document.body?.innerText ?? "").includes(text);
    },
    network() {
      const entries = [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")];
      // Of another origin nothing is known, so a status of 0 says nothing there.
      const isOwn = (entry) => location.origin !== "null" && URL.canParse(entry.name) && new URL(entry.name).origin === location.origin;
      const hasFailed = (entry) => !entry.responseStatus && !entry.transferSize && !entry.decodedBodySize && isOwn(entry);
      return entries.slice(-500).map((entry) => ({
        url: entry.name.slice(0, 500), kind: entry.initiatorType, status: entry.responseStatus ?? 0,
        duration_ms: Math.round(entry.duration), bytes: entry.transferSize ?? 0,
        ...(hasFailed(entry) ? { failed: true } : {}),
      }));
    },
  };
})();
