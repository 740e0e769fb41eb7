"""The script of the hover. The page is complete without it."""

from __future__ import annotations

SCRIPT = """
"use strict";
const clock = s => s < 60 ? +s.toFixed(1) + " s" : (s >= 3600 ? Math.floor(s / 3600) + ":" + String(Math.floor(s / 60) % 60).padStart(2, "0")
  : Math.floor(s / 60)) + ":" + String(Math.floor(s % 60)).padStart(2, "0");
const number = v => Math.abs(v) >= 1e5 || (v && Math.abs(v) < 1e-3) ? v.toExponential(3) : String(+v.toPrecision(5));
function nearest(xs, x) {
  let low = 0, high = xs.length - 1;
  while (high - low > 1) { const middle = (low + high) >> 1; if (xs[middle] < x) low = middle; else high = middle; }
  return x - xs[low] < xs[high] - x ? low : high;
}
function element(parent, name, style) {
  const made = document.createElement("div");
  made.className = name;
  Object.assign(made.style, style || {});
  return parent.appendChild(made);
}
for (const chart of document.querySelectorAll(".chart")) {
  const data = JSON.parse(chart.dataset.hover), plot = chart.querySelector(".plot");
  const [left, right] = data.x, [low, high] = data.y;
  const up = v => data.log ? Math.log(v / low) / Math.log(high / low) : (v - low) / (high - low);
  let shown = [];
  const clear = () => { shown.forEach(one => one.remove()); shown = []; };
  const show = event => {
    clear();
    const box = plot.getBoundingClientRect();
    const at = left + Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)) * (right - left);
    const near = data.s.map(s => { const i = nearest(s.x, at); return { s, x: s.x[i], y: s.y[i] }; }).filter(one => one.y !== null);
    if (!near.length) return;
    const closest = near.reduce((a, b) => Math.abs(a.x - at) <= Math.abs(b.x - at) ? a : b).x;
    const share = (closest - left) / (right - left || 1);
    shown.push(element(plot, "cursor", { left: 100 * share + "%" }));
    const tip = element(plot, "tip", share > .5 ? { right: 100 * (1 - share) + 3 + "%" } : { left: 100 * share + 3 + "%" });
    tip.textContent = data.w + " " + (data.t ? clock(closest) : closest);
    for (const { s, x, y } of near) {
      if (Math.abs(x - closest) > .03 * (right - left)) continue;
      shown.push(element(plot, "point c" + s.c, { left: 100 * (x - left) / (right - left || 1) + "%", top: 100 * (1 - up(y)) + "%" }));
      const row = element(tip, "c" + s.c), mark = document.createElement("i"), value = document.createElement("b");
      value.textContent = number(y);
      row.append(mark, value, s.l ? "  " + s.l : "");
    }
    shown.push(tip);
  };
  plot.addEventListener("pointermove", show);
  plot.addEventListener("pointerdown", show);
  plot.addEventListener("pointerleave", clear);
}
"""
