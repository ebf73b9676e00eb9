// A part of the page that is fetched anew for as long as it says so.
async function refresh() {
  const part = document.getElementById("live");
  if (!part?.dataset.every) return;
  try {
    const text = await (await fetch(location.href)).text();
    const fresh = new DOMParser().parseFromString(text, "text/html").getElementById("live");
    if (fresh !== null) replace(part, fresh);
  } catch { /* the server is gone: what is there stays */ }
  schedule();
}

// The link that has the focus keeps it, so that keys work while the page is live.
function replace(part, fresh) {
  const focused = part.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  part.replaceWith(fresh);
  if (focused !== null) fresh.querySelector(`[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

function schedule() {
  const seconds = document.getElementById("live")?.dataset.every;
  if (seconds) setTimeout(refresh, 1000 * seconds);
}

schedule();
