// Light, dark, or as the system has it. Runs before anything is drawn, so that nothing flashes.
const THEMES = ["system", "light", "dark"];

function theme() {
  try { return localStorage.getItem("theme") ?? "system"; } catch { return "system"; }
}

function applyTheme(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  dispatchEvent(new Event("themechange"));
}

applyTheme(theme());
addEventListener("DOMContentLoaded", () => {
  const button = document.getElementById("theme");
  const label = () => button.setAttribute("aria-label", `Colours: ${theme()}`);
  label();
  button.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length];
    try { localStorage.setItem("theme", next); } catch { /* kept for this page only */ }
    applyTheme(next);
    label();
  });
});
