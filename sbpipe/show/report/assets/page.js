"use strict";
(() => {
  const NARROW_PX = 620, MANY_ROWS = 1200;
  const themes = JSON.parse(document.getElementById("themes").textContent);
  const isDark = window.matchMedia("(prefers-color-scheme: dark)");
  const boxes = [...document.querySelectorAll(".chart")];
  const drawn = new Map();  // box -> what vega-embed gave for it
  let isNarrow = window.innerWidth < NARROW_PX;

  const legendColumns = width => Math.max(1, Math.floor(width / 125));

  function fitted(spec, width) {  // a legend that counts its own columns counts those of a wide page
    if (width >= NARROW_PX) return spec;
    const encodings = [spec, ...(spec.layer || [])].flatMap(part => Object.values(part.encoding || {}));
    for (const {legend} of encodings) {
      if (legend && legend.columns) legend.columns = legend.labelLimit ? Math.max(1, Math.floor(width / legend.labelLimit)) : legendColumns(width);
    }
    return spec;
  }

  function theme(width) {
    const config = structuredClone(themes[isDark.matches ? "dark" : "light"]);
    if (width < NARROW_PX) {
      config.legend = {...config.legend, orient: "bottom", columns: legendColumns(width), labelLimit: 105, gradientLength: Math.min(200, width - 80), direction: "horizontal"};
      config.axis = {...config.axis, labelLimit: 90, titleLimit: width - 70};
    }
    return config;
  }

  function rows(spec) {
    return ((spec.data && spec.data.values) || []).length;
  }

  async function draw(box) {
    const spec = fitted(JSON.parse(document.getElementById(box.dataset.spec).textContent), box.clientWidth);
    const renderer = rows(spec) > MANY_ROWS ? "canvas" : "svg";  // many marks are slow as elements
    const before = drawn.get(box);
    try {
      const result = await vegaEmbed(box, spec, {mode: "vega-lite", actions: false, renderer, config: theme(box.clientWidth), tooltip: {theme: isDark.matches ? "dark" : "light"}});
      if (before) before.finalize();
      drawn.set(box, result);
      box.classList.add("drawn");
    } catch (error) {
      box.textContent = `This chart could not be drawn: ${error.message}`;
      box.classList.add("failed");
      console.error(error);
    }
  }

  let queue = Promise.resolve();
  const asked = new Set();
  function ask(box) {
    if (asked.has(box)) return;
    asked.add(box);
    watcher.unobserve(box);
    queue = queue.then(() => draw(box));
  }

  const watcher = new IntersectionObserver(
    entries => entries.filter(entry => entry.isIntersecting).forEach(entry => ask(entry.target)), {rootMargin: "400px"});
  boxes.forEach(box => watcher.observe(box));

  // What has not been scrolled to is drawn when there is nothing else to do, so that a print is whole.
  const whenIdle = window.requestIdleCallback || (then => setTimeout(then, 200));
  function drawRest() {
    const next = boxes.find(box => !asked.has(box) && box.clientWidth > 0);
    if (!next) return;
    ask(next);
    queue.then(() => whenIdle(drawRest));
  }
  window.addEventListener("load", () => setTimeout(() => whenIdle(drawRest), 600));

  function redraw() {
    [...drawn.keys()].filter(box => box.clientWidth > 0).forEach(box => { queue = queue.then(() => draw(box)); });
  }
  isDark.addEventListener("change", redraw);
  window.addEventListener("resize", () => {
    if (isNarrow === window.innerWidth < NARROW_PX) return;
    isNarrow = !isNarrow;
    redraw();
  });
  document.querySelectorAll("details").forEach(fold => fold.addEventListener("toggle", () => {
    if (fold.open) fold.querySelectorAll(".chart").forEach(box => watcher.observe(box));
  }));
  window.sbpipeReport = {
    count: boxes.length,
    drawn: () => drawn.size,
    drawAll: () => { boxes.filter(box => box.clientWidth > 0).forEach(ask); return queue.then(() => drawn.size); },
  };
})();
