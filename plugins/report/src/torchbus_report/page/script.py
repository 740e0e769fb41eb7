"""The script of the page: hover, zoom, a logarithmic axis, runs to hide, and pictures to leaf through.

The page is complete without the script, which redraws a chart only if the reader has changed its
view. ``LIVE`` asks the server for new values, and preserves the reader's view.
"""

from __future__ import annotations

SCRIPT = """
"use strict";
const SIZE = 1000, LEAST_ZOOM = .02;
const clock = s => s < 60 ? +s.toFixed(1) + " s" : (s >= 3600 ? Math.floor(s / 3600) + ":" + String(Math.floor(s / 60) % 60).padStart(2, "0")
  : Math.floor(s / 60)) + ":" + String(Math.floor(s % 60)).padStart(2, "0");
const number = v => Math.abs(v) >= 1e5 || (v && Math.abs(v) < 1e-3) ? v.toExponential(3) : String(+v.toPrecision(5));
const short = v => Math.abs(v) >= 1e4 || (v && Math.abs(v) < 1e-3) ? v.toExponential(0) : String(+v.toPrecision(6));
function nearest(xs, x) {
  let low = 0, high = xs.length - 1;
  while (high - low > 1) { const middle = (low + high) >> 1; if (xs[middle] < x) low = middle; else high = middle; }
  return x - xs[low] < xs[high] - x ? low : high;
}
function element(parent, name, style, kind) {
  const made = document.createElement(kind || "div");
  made.className = name;
  Object.assign(made.style, style || {});
  return parent.appendChild(made);
}
function ticks(low, high, log) {
  if (log) {
    const first = Math.ceil(Math.log10(low)), last = Math.floor(Math.log10(high)), every = Math.max(1, Math.ceil((last - first + 1) / 6));
    if (last > first) return Array.from({ length: Math.floor((last - first) / every) + 1 }, (_, i) => 10 ** (first + i * every));
  }
  const raw = (high - low) / 5, size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(factor => factor * size).find(one => one >= .8 * raw);
  const found = [];
  for (let i = Math.ceil(low / step); i <= Math.floor(high / step); i++) found.push(i * step);
  return found;
}
class Chart {
  constructor(figure) {
    this.figure = figure;
    this.data = JSON.parse(figure.dataset.hover);
    this.plot = figure.querySelector(".plot");
    this.hidden = new Set();
    this.shown = [];
    this.whole();
    const tools = element(figure.querySelector("figcaption"), "tools", {}, "span");
    this.zoomOut = this.button(tools, "whole", () => { this.whole(); this.draw(); });
    this.zoomOut.hidden = true;
    if (this.data.s.every(s => s.y.every(y => y === null || y > 0))) {
      this.logButton = this.button(tools, "log", () => { this.log = !this.log; this.fit(); this.draw(); });
      this.logButton.setAttribute("aria-pressed", this.log);
    }
    this.plot.addEventListener("pointermove", event => { this.show(event); this.select(event); });
    this.plot.addEventListener("pointerdown", event => {
      this.show(event);
      if (event.pointerType === "mouse" && !event.button) this.from = this.share(event);
    });
    this.plot.addEventListener("pointerup", event => this.zoom(event));
    this.plot.addEventListener("dblclick", () => { this.whole(); this.draw(); });
    this.plot.addEventListener("pointerleave", () => { this.clear(); this.from = this.pointer = null; });
  }
  renew(fresh) {
    const { left, right, from, pointer, zoomed } = this, log = this.log !== this.data.log;
    this.data = JSON.parse(fresh.dataset.hover);
    this.clear();
    this.plot.innerHTML = fresh.querySelector(".plot").innerHTML;
    const bad = fresh.querySelector(".bad");
    this.figure.querySelector(".bad")?.remove();
    if (bad) this.figure.querySelector("figcaption b").after(" ", bad);
    this.whole();
    this.from = from;
    if (zoomed) [this.left, this.right] = [left, right];
    if (log && (this.log || this.data.s.every(s => s.y.every(y => y === null || y > 0)))) this.log = !this.log;
    if (zoomed || log || this.hidden.size) { this.fit(); this.draw(); }
    if (pointer) this.show(pointer);
  }
  button(parent, word, act) {
    const made = element(parent, "", {}, "button");
    made.type = "button";
    made.textContent = word;
    made.addEventListener("click", act);
    return made;
  }
  whole() {
    [this.left, this.right] = this.data.x;
    [this.low, this.high] = this.data.y;
    this.log = this.data.log;
    this.from = null;
  }
  get zoomed() { return this.left !== this.data.x[0] || this.right !== this.data.x[1]; }
  get visible() { return this.data.s.filter(s => !this.hidden.has(s.r)); }
  across(x) { return (x - this.left) / (this.right - this.left || 1); }
  up(y) { return this.log ? Math.log(y / this.low) / Math.log(this.high / this.low) : (y - this.low) / (this.high - this.low); }
  fit() {
    const inside = this.visible.flatMap(s => s.y.filter((y, i) => y !== null && s.x[i] >= this.left && s.x[i] <= this.right));
    if (!inside.length) return;
    const low = inside.reduce((a, b) => Math.min(a, b)), high = inside.reduce((a, b) => Math.max(a, b));
    const room = .05 * (high - low) || .05 * Math.abs(high) || 1;
    [this.low, this.high] = this.log ? [low / 1.15, high * 1.15] : [low - room, high + room];
  }
  path(xs, ys) {
    let pen = "M", words = "";
    xs.forEach((x, i) => {
      if (ys[i] === null) { pen = "M"; return; }
      words += pen + (SIZE * this.across(x)).toFixed(1) + " " + (SIZE * (1 - this.up(ys[i]))).toFixed(1);
      pen = "L";
    });
    return words;
  }
  draw() {
    this.clear();
    this.figure.classList.toggle("zoomed", this.zoomed);
    this.zoomOut.hidden = !this.zoomed;
    this.figure.querySelector(".logs").hidden = !this.log;
    if (this.logButton) this.logButton.setAttribute("aria-pressed", this.log);
    for (const curve of this.plot.querySelectorAll("path[data-y],path[data-m]")) {
      const s = this.data.s[curve.dataset.y ?? curve.dataset.m];
      const [xs, ys] = curve.dataset.y === undefined ? s.m : [s.x, s.y];
      curve.style.display = this.hidden.has(s.r) ? "none" : "";
      curve.setAttribute("d", this.path(xs, ys) + (xs.length === 1 ? "h0" : ""));
    }
    this.plot.querySelectorAll(".x,.y,path.grid").forEach(one => one.remove());
    const svg = this.plot.querySelector("svg");
    for (const tick of ticks(this.low, this.high, this.log)) {
      const line = document.createElementNS(svg.namespaceURI, "path");
      line.setAttribute("class", "grid");
      line.setAttribute("d", "M0 " + SIZE * (1 - this.up(tick)) + "H" + SIZE);
      svg.prepend(line);
      element(this.plot, "y", { top: 100 * (1 - this.up(tick)) + "%" }, "span").textContent = short(tick);
    }
    for (const tick of ticks(this.left, this.right, false))
      element(this.plot, "x", { left: 100 * this.across(tick) + "%" }, "span").textContent = this.data.t ? clock(tick) : short(tick);
  }
  share(event) {
    const box = this.plot.getBoundingClientRect();
    return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
  }
  select(event) {
    if (this.from === null) return;
    const to = this.share(event);
    this.shown.push(element(this.plot, "chosen", { left: 100 * Math.min(this.from, to) + "%", width: 100 * Math.abs(to - this.from) + "%" }));
  }
  zoom(event) {
    const from = this.from, to = this.share(event);
    this.from = null;
    if (from === null || Math.abs(to - from) < LEAST_ZOOM) return;
    const width = this.right - this.left, ends = [from, to].map(share => this.left + share * width).sort((a, b) => a - b);
    [this.left, this.right] = ends;
    this.fit();
    this.draw();
  }
  hide(run, hidden) {
    if (hidden) this.hidden.add(run); else this.hidden.delete(run);
    this.draw();
  }
  clear() { this.shown.forEach(one => one.remove()); this.shown = []; }
  show(event) {
    this.clear();
    this.pointer = event;
    const at = this.left + this.share(event) * (this.right - this.left);
    const near = this.visible.map(s => { const i = nearest(s.x, at); return { s, x: s.x[i], y: s.y[i] }; }).filter(one => one.y !== null);
    if (!near.length) return;
    const closest = near.reduce((a, b) => Math.abs(a.x - at) <= Math.abs(b.x - at) ? a : b).x, share = this.across(closest);
    this.shown.push(element(this.plot, "cursor", { left: 100 * share + "%" }));
    const tip = element(this.plot, "tip", share > .5 ? { right: 100 * (1 - share) + 3 + "%" } : { left: 100 * share + 3 + "%" });
    tip.textContent = this.data.w + " " + (this.data.t ? clock(closest) : closest);
    for (const { s, x, y } of near) {
      if (Math.abs(x - closest) > .03 * (this.right - this.left)) continue;
      this.shown.push(element(this.plot, "point c" + s.c, { left: 100 * this.across(x) + "%", top: 100 * (1 - this.up(y)) + "%" }));
      const row = element(tip, "c" + s.c), mark = document.createElement("i"), value = document.createElement("b");
      value.textContent = number(y);
      row.append(mark, value, s.l ? "  " + s.l : "");
    }
    this.shown.push(tip);
  }
}
const charts = new WeakMap();
const chartsIn = section => [...section.querySelectorAll(".chart[data-hover]")].map(figure => charts.get(figure));
function setUp(section) {
  for (const figure of section.querySelectorAll(".chart[data-hover]")) charts.set(figure, new Chart(figure));
  for (const button of section.querySelectorAll(".legend button")) button.addEventListener("click", () => {
    const hidden = button.getAttribute("aria-pressed") === "true";
    button.setAttribute("aria-pressed", !hidden);
    chartsIn(section).forEach(chart => chart.hide(+button.dataset.run, hidden));
  });
  for (const figure of section.querySelectorAll(".pictures")) {
    const slider = figure.querySelector("input"), frames = [...figure.querySelectorAll("img")];
    if (!slider) continue;
    slider.hidden = false;
    slider.addEventListener("input", () => {
      frames.forEach((frame, number) => { frame.hidden = number !== +slider.value; });
      figure.querySelector("output").value = frames[+slider.value].dataset.step;
    });
  }
}
const main = document.querySelector("main"), drawn = new Map([...document.querySelectorAll("section")].map(one => [one.id, one.outerHTML]));
document.querySelectorAll("section").forEach(setUp);
"""
LIVE = """
const EVERY_MS = 2000, live = document.getElementById("live");
let tag = "";
function addCharts(old, section) {
  const known = new Map([...old.querySelectorAll("figure[data-name]")].map(figure => [figure.dataset.name, figure]));
  for (const figure of section.querySelectorAll("figure[data-name]")) {
    const there = known.get(figure.dataset.name);
    if (there) charts.get(there).renew(figure);
    else { old.querySelector(".charts").append(figure); charts.set(figure, new Chart(figure)); }
  }
}
function renew(fresh) {
  for (const section of fresh.querySelectorAll("section")) {
    const old = document.getElementById(section.id), html = section.outerHTML, count = one => one.querySelectorAll(".legend button").length;
    if (html === drawn.get(section.id)) continue;
    drawn.set(section.id, html);
    let next = section.nextElementSibling;
    while (next && !document.getElementById(next.id)) next = next.nextElementSibling;
    if (old && old.querySelector(".charts figure[data-name]") && count(old) === count(section)) { addCharts(old, section); continue; }
    const checked = new Set([...(old || section).querySelectorAll("input:checked")].map(one => one.value));
    if (old) old.replaceWith(section); else main.insertBefore(section, next && document.getElementById(next.id));
    section.querySelectorAll("input[type=checkbox]").forEach(one => { one.checked = checked.has(one.value); });
    setUp(section);
  }
}
async function follow() {
  if (!document.hidden) try {
    const answer = await fetch(location.href, { headers: { "If-None-Match": tag } });
    if (answer.status === 200) {
      tag = answer.headers.get("ETag");
      renew(new DOMParser().parseFromString(await answer.text(), "text/html"));
    }
    live.value = answer.ok || answer.status === 304 ? "live" : "this page is gone";
  } catch (error) { live.value = "no answer from torchbus report --live"; }
  setTimeout(follow, EVERY_MS);
}
follow();
"""
