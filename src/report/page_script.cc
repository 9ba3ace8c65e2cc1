#include "report/page_assets.h"

namespace reprise::report {

// Hover and zoom. The page says everything without it. Text reaches the document through textContent
// and attributes only, never as markup.
std::string_view page_script() {
  return R"js(
"use strict";
(() => {
  const WIDE = 10000, LEFT = 78, RIGHT = 946;  // as in step_chart.cc
  const SVG = "http://www.w3.org/2000/svg";
  const data = JSON.parse(document.getElementById("reprise-data").textContent);
  const charts = [...document.querySelectorAll("svg.chart[data-end]")];
  if (!charts.length) return;
  const end = Number(charts[0].dataset.end), timed = charts[0].dataset.timed === "1";
  let view = [0, end];

  const make = (name, attributes, parent) => {
    const node = document.createElementNS(SVG, name);
    for (const key in attributes) node.setAttribute(key, attributes[key]);
    return parent ? parent.appendChild(node) : node;
  };
  const scaled = (value, units, digits) => {
    let unit = units[0];
    for (const u of units) if (Math.abs(value) >= u[1]) unit = u;
    return (value / unit[1]).toPrecision(digits).replace(/(\.\d*?)0+(?=$|e)/, "$1").replace(/\.$/, "") +
        " " + unit[0];
  };
  const TIME = [["ns", 1], ["µs", 1e3], ["ms", 1e6], ["s", 1e9]];
  const BYTES = [["B", 1], ["KiB", 2 ** 10], ["MiB", 2 ** 20], ["GiB", 2 ** 30], ["TiB", 2 ** 40]];
  const time = (t) => (timed ? scaled(t, TIME, 4) : Math.floor(t) + " runs");
  const bytes = (b) => scaled(b, BYTES, 4);

  // --- Zoom: all charts of the page share their time axis.
  const drawAxis = (chart) => {
    const group = chart.querySelector(".time-axis"), base = Number(chart.dataset.base);
    group.replaceChildren();
    const span = view[1] - view[0], rough = span / 8;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((f) => f * power).find((s) => rough <= s);
    for (let k = Math.ceil(view[0] / step); k * step <= view[1]; ++k) {
      const x = LEFT + (k * step - view[0]) / span * (RIGHT - LEFT);
      make("path", {d: `M${x} ${base}v5`, class: "axis"}, group);
      const text = make("text", {x, y: base + 19, "text-anchor": "middle"}, group);
      text.textContent = k === 0 ? "0" : time(k * step);
    }
  };
  const show = (from, to) => {
    const span = Math.min(Math.max(to - from, end / 5000), end);
    from = Math.min(Math.max(from, 0), end - span);
    view = [from, from + span];
    for (const chart of charts) {
      const box = `${from / end * WIDE} 0 ${span / end * WIDE} 1000`;
      chart.querySelector(".plot").setAttribute("viewBox", box);
      drawAxis(chart);
    }
  };
  const about = (factor, shift) => {
    const span = view[1] - view[0], middle = (view[0] + view[1]) / 2 + shift * span;
    show(middle - span * factor / 2, middle + span * factor / 2);
  };
  for (const bar of document.querySelectorAll(".zoom")) {
    const button = (text, label, act) => {
      const node = document.createElement("button");
      node.type = "button";
      node.textContent = text;
      node.setAttribute("aria-label", label);
      node.addEventListener("click", act);
      bar.append(node);
    };
    button("+", "zoom in", () => about(0.5, 0));
    button("−", "zoom out", () => about(2, 0));
    button("←", "earlier", () => about(1, -0.4));
    button("→", "later", () => about(1, 0.4));
    button("whole step", "show the whole step", () => show(0, end));
    bar.append("Or drag across a picture. A double-click shows the whole step.");
    bar.hidden = false;
  }

  // --- Hover.
  const tip = document.body.appendChild(document.createElement("div"));
  tip.className = "tip";
  tip.hidden = true;
  const place = (event) => {
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const x = event.clientX + 16 + box.width > innerWidth ? event.clientX - 16 - box.width
                                                          : event.clientX + 16;
    tip.style.left = Math.max(4, x) + "px";
    tip.style.top = Math.max(4, Math.min(event.clientY + 14, innerHeight - box.height - 4)) + "px";
  };
  const timeAt = (plot, event) => {
    const box = plot.parentNode.getBoundingClientRect(), width = box.width / 960;
    return view[0] + (event.clientX - box.left - LEFT * width) / ((RIGHT - LEFT) * width) *
        (view[1] - view[0]);
  };
  const describe = (rows, t) => {
    if (!rows.end.length || t > rows.end[rows.end.length - 1]) return "";
    let low = 0, high = rows.end.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (rows.end[middle] < t) low = middle + 1; else high = middle;
    }
    const held = rows.held[low];
    let text = `${rows.name[low]}\nat ${time(t)}: ${bytes(held.reduce((a, b) => a + b, 0))}`;
    for (let kind = held.length - 1; kind >= 0; --kind) {
      if (held[kind] > 0) text += `\n${data.kinds[kind]}  ${bytes(held[kind])}`;
    }
    return text;
  };
  // A browser's own tip would show beside ours.
  for (const title of document.querySelectorAll("svg.chart .plot title, svg.chart circle title")) {
    title.parentNode.dataset.tip = title.textContent;
    title.remove();
  }
  for (const chart of document.querySelectorAll("svg.chart:not([data-end])")) {
    chart.addEventListener("pointermove", (event) => {
      const text = event.target.dataset.tip;
      tip.textContent = text || "";
      if (text) place(event); else tip.hidden = true;
    });
    chart.addEventListener("pointerleave", () => { tip.hidden = true; });
  }
  for (const chart of charts) {
    const plot = chart.querySelector(".plot");
    // The pointer meets this rectangle wherever no shape is.
    plot.prepend(make("rect", {width: WIDE, height: 1000, "fill-opacity": 0}));
    plot.classList.add("drag");
    const cross = make("path", {class: "cross", visibility: "hidden"}, plot);
    const rows = data.charts[chart.dataset.hover];
    let from = null, selection = null;
    plot.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "touch" || event.button !== 0) return;
      from = timeAt(plot, event);
      selection = make("rect", {class: "select", y: 0, height: 1000}, plot);
      plot.setPointerCapture(event.pointerId);
      event.preventDefault();
    });
    plot.addEventListener("pointermove", (event) => {
      const t = timeAt(plot, event);
      if (from !== null) {
        selection.setAttribute("x", Math.min(from, t) / end * WIDE);
        selection.setAttribute("width", Math.abs(t - from) / end * WIDE);
      }
      const text = event.target.dataset.tip || (rows ? describe(rows, t) : "");
      tip.textContent = text;
      if (text) place(event); else tip.hidden = true;
      cross.setAttribute("d", `M${t / end * WIDE} 0V1000`);
      cross.setAttribute("visibility", "visible");
    });
    const release = (event) => {
      if (from === null) return;
      const to = timeAt(plot, event), start = from;
      selection.remove();
      from = null;
      if (event.type === "pointerup" && Math.abs(to - start) > (view[1] - view[0]) / 100) {
        show(Math.min(start, to), Math.max(start, to));
      }
    };
    plot.addEventListener("pointerup", release);
    plot.addEventListener("pointercancel", release);
    plot.addEventListener("pointerleave", () => {
      tip.hidden = true;
      cross.setAttribute("visibility", "hidden");
    });
    plot.addEventListener("dblclick", () => show(0, end));
  }
})();
)js";
}

}  // namespace reprise::report
