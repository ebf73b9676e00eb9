// The map: every cluster a disc, where its centre is. Many small discs are written as pixels, few as circles.
const canvas = document.getElementById("map");
const pointed = document.getElementById("pointed");
const brush = canvas.getContext("2d");
const MANY = 15000; // discs in sight from which on they are written as pixels
const CLASSES = 8;
const STEP = 60; // pixels that an arrow key moves
let x, y, sizes, classes, radii, bySize;
let view = { scale: 1, left: 0, top: 0 }; // a position p is drawn at p * scale + left, top
let colors = [];
let waiting = false;

async function start() {
  const table = new Float32Array(await (await fetch(canvas.dataset.source)).arrayBuffer());
  const n = table.length / 4;
  [x, y, sizes, classes] = [0, 1, 2, 3].map((column) => Float32Array.from({ length: n }, (_, i) => table[4 * i + column]));
  y = y.map((value) => 1 - value);
  const largest = sizes.reduce((a, b) => Math.max(a, b), 1);
  const scale = 0.035 * Math.min(1, Math.sqrt(60 / n)) + 0.0006;
  radii = sizes.map((size) => scale * Math.sqrt(size / largest));
  bySize = Uint32Array.from({ length: n }, (_, i) => i).sort((a, b) => sizes[b] - sizes[a]); // small ones on top
  readColors();
  fit();
}

function readColors() {
  const probe = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  canvas.after(probe);
  colors = Array.from({ length: CLASSES }, (_, i) => {
    probe.setAttribute("class", `t${i}`);
    return getComputedStyle(probe).fill;
  });
  probe.remove();
}

function fit() {
  const ratio = devicePixelRatio;
  canvas.width = canvas.clientWidth * ratio;
  canvas.height = canvas.clientHeight * ratio;
  const scale = 0.92 * Math.min(canvas.width, canvas.height);
  view = { scale, left: (canvas.width - scale) / 2, top: (canvas.height - scale) / 2 };
  hide();
  redraw();
}

function redraw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; draw(); });
}

function inSight() {
  const seen = new Uint32Array(bySize.length);
  let n = 0;
  for (const i of bySize) {
    const r = radii[i] * view.scale, px = x[i] * view.scale + view.left, py = y[i] * view.scale + view.top;
    if (px > -r && px < canvas.width + r && py > -r && py < canvas.height + r) seen[n++] = i;
  }
  return seen.subarray(0, n);
}

function draw() {
  brush.clearRect(0, 0, canvas.width, canvas.height);
  const seen = inSight();
  if (seen.length > MANY) drawPixels(seen);
  else drawDiscs(seen);
}

function drawDiscs(seen) {
  brush.globalAlpha = 0.75;
  for (const i of seen) {
    brush.fillStyle = colors[classes[i]];
    brush.beginPath();
    brush.arc(x[i] * view.scale + view.left, y[i] * view.scale + view.top, Math.max(radii[i] * view.scale, 1.2), 0, 7);
    brush.fill();
  }
  brush.globalAlpha = 1;
}

function drawPixels(seen) {
  const { width, height } = canvas;
  const image = brush.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  const inks = colors.map((color) => {
    const [r, g, b] = color.match(/\d+/g).map(Number);
    return (0xe6000000 | (b << 16) | (g << 8) | r) >>> 0;
  });
  for (const i of seen) {
    const r = Math.max(radii[i] * view.scale, 0.8), reach = Math.round(r), ink = inks[classes[i]];
    const px = Math.round(x[i] * view.scale + view.left), py = Math.round(y[i] * view.scale + view.top);
    for (let dy = -reach; dy <= reach; dy++) {
      const row = py + dy;
      if (row < 0 || row >= height) continue;
      const half = Math.round(Math.sqrt(Math.max(r * r - dy * dy, 0)));
      for (let at = Math.max(px - half, 0); at <= Math.min(px + half, width - 1); at++) pixels[row * width + at] = ink;
    }
  }
  brush.putImageData(image, 0, 0);
}

function zoom(factor, px, py) {
  const scale = Math.min(Math.max(view.scale * factor, 100), 4e7), change = scale / view.scale;
  view = { scale, left: px - (px - view.left) * change, top: py - (py - view.top) * change };
  hide();
  redraw();
}

function at(event) {
  const bounds = canvas.getBoundingClientRect();
  return [(event.clientX - bounds.left) * devicePixelRatio, (event.clientY - bounds.top) * devicePixelRatio];
}

// The cluster nearest to a position, if its disc or a few pixels around it reach there.
function find(px, py, reach = 8 * devicePixelRatio) {
  let best = -1, least = Infinity;
  for (let i = 0; i < x.length; i++) {
    const away = Math.hypot(x[i] * view.scale + view.left - px, y[i] * view.scale + view.top - py);
    if (away < least && away < Math.max(radii[i] * view.scale, reach)) [best, least] = [i, away];
  }
  return best;
}

let shown = -1;
function hide() {
  shown = -1;
  pointed.hidden = true;
}

// A few items of a cluster, beside its disc.
async function show(cluster) {
  if (cluster === shown) return;
  hide();
  if (cluster < 0) return;
  shown = cluster;
  const answer = await fetch(`/clusters/${cluster}/glance`);
  const text = await answer.text();
  if (shown !== cluster || !answer.ok) return;
  pointed.replaceChildren(...new DOMParser().parseFromString(text, "text/html").body.childNodes);
  pointed.href = `/clusters/${cluster}`;
  pointed.hidden = false;
  const beside = (position) => position / devicePixelRatio + 16;
  const left = Math.min(beside(x[cluster] * view.scale + view.left), canvas.clientWidth - pointed.offsetWidth - 8);
  const top = Math.min(beside(y[cluster] * view.scale + view.top), canvas.clientHeight - pointed.offsetHeight - 8);
  pointed.style.left = `${Math.max(left, 8)}px`; // set by a script, which the policy allows
  pointed.style.top = `${Math.max(top, 8)}px`;
}

const pointers = new Map();
let moved = 0;
canvas.addEventListener("pointerdown", (event) => {
  canvas.setPointerCapture(event.pointerId);
  pointers.set(event.pointerId, at(event));
  moved = 0;
});
canvas.addEventListener("pointermove", (event) => {
  if (!x) return;
  const before = pointers.get(event.pointerId), now = at(event);
  if (!before) return void show(find(...now));
  const others = [...pointers].filter(([id]) => id !== event.pointerId).map(([, position]) => position);
  if (others.length > 0) {
    const [ox, oy] = others[0];
    zoom(Math.hypot(now[0] - ox, now[1] - oy) / Math.max(Math.hypot(before[0] - ox, before[1] - oy), 1), ox, oy);
  } else {
    moved += Math.hypot(now[0] - before[0], now[1] - before[1]);
    view.left += now[0] - before[0];
    view.top += now[1] - before[1];
    hide();
    redraw();
  }
  pointers.set(event.pointerId, now);
});
for (const kind of ["pointerup", "pointercancel"]) {
  canvas.addEventListener(kind, (event) => {
    pointers.delete(event.pointerId);
    if (kind === "pointerup" && moved < 6) {
      const cluster = find(...at(event), 14 * devicePixelRatio);
      if (cluster >= 0) location.assign(`/clusters/${cluster}`);
    }
  });
}
canvas.addEventListener("pointerleave", hide);
canvas.addEventListener("wheel", (event) => {
  event.preventDefault();
  zoom(Math.exp(-event.deltaY * 0.0016), ...at(event));
}, { passive: false });
canvas.addEventListener("keydown", (event) => {
  if (!x) return;
  const middle = [canvas.width / 2, canvas.height / 2];
  const moves = { ArrowLeft: [STEP, 0], ArrowRight: [-STEP, 0], ArrowUp: [0, STEP], ArrowDown: [0, -STEP] };
  if (event.key in moves) {
    view.left += moves[event.key][0];
    view.top += moves[event.key][1];
    hide();
    redraw();
  } else if (event.key === "+" || event.key === "=") zoom(1.4, ...middle);
  else if (event.key === "-") zoom(1 / 1.4, ...middle);
  else if (event.key === "0") fit();
  else if (event.key !== "Enter") return;
  event.preventDefault();
  const cluster = find(...middle, Infinity);
  if (event.key === "Enter") location.assign(`/clusters/${cluster}`);
  else show(cluster);
});
document.getElementById("in").addEventListener("click", () => zoom(1.6, canvas.width / 2, canvas.height / 2));
document.getElementById("out").addEventListener("click", () => zoom(1 / 1.6, canvas.width / 2, canvas.height / 2));
document.getElementById("all").addEventListener("click", fit);
addEventListener("resize", () => x && fit());
addEventListener("themechange", () => { if (x) { readColors(); redraw(); } });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (x) { readColors(); redraw(); } });
start();
