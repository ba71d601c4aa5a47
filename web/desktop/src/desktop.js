// The desktop page: the screen by noVNC, and a bar with the controls.
//
// The page's URL determines the desktop; the WebSocket is below it. Everything that comes from the desktop is
// treated as data: pixels on a canvas and text for the clipboard, never markup.
import RFB from "@novnc/novnc";
import "./desktop.css";

const find = (id) => document.getElementById(id);
const screen = find("screen");
const bar = find("bar");
const state = find("state");
const notice = find("notice");
const noticeText = find("notice-text");
const again = find("again");
const viewOnly = find("view-only");
const fit = find("fit");
const fullScreen = find("full-screen");
const clipboardButton = find("clipboard");
const clipboardPanel = find("clipboard-panel");
const clipboardText = find("clipboard-text");
const sendText = find("send-text");
const keys = find("keys");

/** Pauses between reconnection attempts, in milliseconds. */
const PAUSES = [500, 1000, 2000, 4000, 8000];
const SYMBOLS = { control: 0xffe3, alt: 0xffe9, delete: 0xffff };

let rfb = null;
let failures = 0;
let timer = null;

function remembered(name, fallback) {
  try {
    return localStorage.getItem(`caisson-desktop-${name}`) ?? fallback;
  } catch {
    return fallback;
  }
}

function remember(name, value) {
  try {
    localStorage.setItem(`caisson-desktop-${name}`, value);
  } catch {
    // Storage is disabled; the setting is not kept.
  }
}

function show(word, text) {
  state.dataset.state = word;
  state.textContent = text;
}

function say(text, canRetry) {
  noticeText.textContent = text;
  again.hidden = !canRetry;
  notice.hidden = false;
}

function socketAddress() {
  const address = new URL(`${location.pathname.replace(/\/+$/, "")}/socket`, location.href);
  address.protocol = location.protocol === "https:" ? "wss:" : "ws:";
  return address.href;
}

/** Asks the server why there is no desktop, because a rejected WebSocket does not tell the reason. */
async function explain() {
  try {
    const answer = await fetch(`${location.pathname.replace(/\/+$/, "")}/state`, { cache: "no-store" });
    if (answer.ok) return { text: null, isFinal: false };
    const problem = await answer.json();
    return { text: problem.detail ?? problem.title, isFinal: answer.status >= 400 && answer.status < 500 };
  } catch {
    return { text: "The server cannot be reached.", isFinal: false };
  }
}

function connect() {
  clearTimeout(timer);
  rfb?.removeEventListener("disconnect", lost);
  rfb?.disconnect();
  screen.replaceChildren();
  show("connecting", "connecting");
  rfb = new RFB(screen, socketAddress(), { shared: true });
  rfb.background = "transparent";
  rfb.qualityLevel = 8;
  rfb.compressionLevel = 2;
  apply();
  rfb.addEventListener("connect", () => {
    failures = 0;
    notice.hidden = true;
    show("connected", viewOnly.checked ? "watching" : "connected");
    rfb.focus();
  });
  rfb.addEventListener("disconnect", lost);
  rfb.addEventListener("clipboard", (event) => {
    clipboardText.value = event.detail.text;
    clipboardButton.dataset.news = "yes";
    // Works if the browser allows it; the panel always works. In view-only mode the user's clipboard is not
    // overwritten.
    if (!viewOnly.checked) navigator.clipboard?.writeText(event.detail.text).catch(() => {});
  });
}

async function lost() {
  rfb = null;
  show("lost", "disconnected");
  const { text, isFinal } = await explain();
  if (isFinal) {
    say(text, true);
    return;
  }
  const pause = PAUSES[Math.min(failures, PAUSES.length - 1)];
  failures += 1;
  say(`${text ?? "The connection to the desktop was lost."} Trying again in a moment.`, true);
  timer = setTimeout(connect, pause);
}

function apply() {
  if (!rfb) return;
  rfb.viewOnly = viewOnly.checked;
  rfb.scaleViewport = fit.checked;
  rfb.clipViewport = !fit.checked;
  rfb.dragViewport = false;
  rfb.showDotCursor = true;
  keys.disabled = viewOnly.checked;
  sendText.disabled = viewOnly.checked;
  if (state.dataset.state === "connected") show("connected", viewOnly.checked ? "watching" : "connected");
}

viewOnly.checked = remembered("view-only", "no") === "yes";
fit.checked = remembered("fit", "yes") === "yes";
viewOnly.addEventListener("change", () => {
  remember("view-only", viewOnly.checked ? "yes" : "no");
  apply();
});
fit.addEventListener("change", () => {
  remember("fit", fit.checked ? "yes" : "no");
  apply();
});
again.addEventListener("click", () => {
  failures = 0;
  connect();
});
// After the computer slept or changed its network, the old socket may only appear to be open.
window.addEventListener("online", () => {
  failures = 0;
  connect();
});
fullScreen.addEventListener("click", () => {
  if (document.fullscreenElement) document.exitFullscreen();
  else document.documentElement.requestFullscreen().catch(() => {});
});
document.addEventListener("fullscreenchange", () => {
  document.body.classList.toggle("full", document.fullscreenElement !== null);
});
clipboardButton.addEventListener("click", () => {
  clipboardPanel.hidden = !clipboardPanel.hidden;
  clipboardButton.setAttribute("aria-expanded", String(!clipboardPanel.hidden));
  delete clipboardButton.dataset.news;
  if (!clipboardPanel.hidden) clipboardText.focus();
});
sendText.addEventListener("click", () => {
  rfb?.clipboardPasteFrom(clipboardText.value);
  clipboardPanel.hidden = true;
  rfb?.focus();
});
keys.addEventListener("click", () => {
  if (!rfb) return;
  rfb.sendKey(SYMBOLS.control, "ControlLeft", true);
  rfb.sendKey(SYMBOLS.alt, "AltLeft", true);
  rfb.sendKey(SYMBOLS.delete, "Delete");
  rfb.sendKey(SYMBOLS.alt, "AltLeft", false);
  rfb.sendKey(SYMBOLS.control, "ControlLeft", false);
  rfb.focus();
});
bar.hidden = false;
connect();
