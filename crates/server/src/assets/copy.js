// Puts a button that copies onto every block marked for it, and the real address into examples.

export function makeCopyable(block) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    const text = block.querySelector("pre").textContent;
    const done = await copy(text);
    button.textContent = done ? "Copied" : "Press Ctrl+C";
    if (!done) select(block.querySelector("pre"));
    setTimeout(() => { button.textContent = "Copy"; }, 1800);
  });
  block.append(button);
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false; // Browsers allow it only on localhost and over HTTPS.
  }
}

function select(element) {
  const range = document.createRange();
  range.selectNodeContents(element);
  const selection = getSelection();
  selection.removeAllRanges();
  selection.addRange(range);
}

for (const place of document.querySelectorAll("[data-origin]")) place.textContent = location.origin;
for (const block of document.querySelectorAll(".copyable")) makeCopyable(block);
