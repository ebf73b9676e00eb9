// Keys: an element says which one presses it (data-key); j and k go through those that are stops (data-stop).

function typing(target) {
  return target.closest("input:not([type=file]), dialog[open]") !== null;
}

function move(step) {
  const stops = [...document.querySelectorAll("[data-stop]")];
  if (stops.length === 0) return;
  const now = stops.findIndex((stop) => stop.classList.contains("on"));
  const next = stops[now < 0 ? (step > 0 ? 0 : stops.length - 1) : Math.min(Math.max(now + step, 0), stops.length - 1)];
  stops[now]?.classList.remove("on");
  next.classList.add("on");
  next.scrollIntoView({ block: "nearest" });
  (next.querySelector("h2 a, a, input") ?? next).focus({ preventScroll: true });
}

addEventListener("keydown", (event) => {
  if (event.key === "Escape" && event.target.matches("input")) event.target.blur();
  if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
  if (event.key === "j" || event.key === "k") move(event.key === "j" ? 1 : -1);
  else if (event.key === " " && event.target.matches("[role=switch]")) event.target.click();
  else {
    const named = document.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
    if (named === null) return;
    if (named.matches("input")) named.focus();
    else named.click();
  }
  event.preventDefault();
});

// Browsers leave what is seen in part where it is.
addEventListener("focusin", ({ target }) => {
  if (target.matches(":focus-visible")) target.scrollIntoView({ block: "nearest", inline: "nearest" });
});

document.getElementById("help").addEventListener("click", () => document.getElementById("keys").showModal());

for (const button of document.querySelectorAll("[data-copy]")) {
  button.addEventListener("click", async () => {
    const text = document.getElementById(button.dataset.copy);
    try {
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = "Copied";
    } catch { // no permission, or no secure page: select it instead
      getSelection().selectAllChildren(text);
    }
  });
}
