// A box that is drawn on the picture is the part of it that is searched for.
const area = document.getElementById("boxed");
const rect = area.querySelector("rect");
const field = document.getElementById("box");
const width = Number(area.dataset.width);
const height = Number(area.dataset.height);
const LEAST = 0.02; // of the picture: less is a click
let corner = null;

function position(event) {
  const bounds = area.getBoundingClientRect();
  const inside = (value, most) => Math.min(Math.max(value, 0), most);
  return [
    inside(((event.clientX - bounds.left) / bounds.width) * width, width),
    inside(((event.clientY - bounds.top) / bounds.height) * height, height),
  ];
}

function boxTo([x, y]) {
  const left = Math.min(x, corner[0]), top = Math.min(y, corner[1]);
  return [left, top, Math.max(x, corner[0]), Math.max(y, corner[1])].map(Math.round);
}

area.addEventListener("pointerdown", (event) => {
  corner = position(event);
  area.setPointerCapture(event.pointerId);
  event.preventDefault();
});

area.addEventListener("pointermove", (event) => {
  if (corner === null) return;
  const [left, top, right, bottom] = boxTo(position(event));
  rect.removeAttribute("hidden");
  for (const [name, value] of Object.entries({ x: left, y: top, width: right - left, height: bottom - top })) {
    rect.setAttribute(name, value);
  }
});

area.addEventListener("pointerup", (event) => {
  if (corner === null) return;
  const [left, top, right, bottom] = boxTo(position(event));
  corner = null;
  if (right - left < LEAST * width || bottom - top < LEAST * height) return;
  field.value = [left, top, right, bottom].join(",");
  document.getElementById("ask").requestSubmit();
});
