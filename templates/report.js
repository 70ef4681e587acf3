"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const options = { displayModeBar: false, responsive: true, scrollZoom: false };
  let axis = "latency";

  // A chart's colours are CSS variables, so that it follows the theme in use.
  const resolve = (value, style) => {
    if (typeof value === "string") {
      const name = /^var\((--[\w-]+)\)$/.exec(value);
      return name ? style.getPropertyValue(name[1]).trim() : value;
    }
    if (Array.isArray(value)) return value.map((item) => resolve(item, style));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, resolve(v, style)]));
    }
    return value;
  };

  const draw = () => {
    const style = getComputedStyle(document.documentElement);
    for (const [id, figure] of Object.entries(figures)) {
      const place = document.getElementById(id);
      if (!place) continue;
      const { data, layout } = resolve({ data: figure.data, layout: figure.layout }, style);
      for (const trace of data) {
        if (trace.alternatives) trace.x = trace.alternatives[axis];
        delete trace.alternatives;
      }
      if (figure.axes) {
        const shown = figure.axes.find((item) => item.key === axis);
        layout.xaxis.title.text = shown.title;
      }
      if (innerWidth < 560) {
        layout.font.size = 11;
        layout.margin = { ...layout.margin, l: Math.min(layout.margin.l, 44), r: 8 };
      }
      Plotly.react(place, data, layout, options);
    }
  };

  for (const button of document.querySelectorAll("button[data-axis]")) {
    button.addEventListener("click", () => {
      axis = button.dataset.axis;
      for (const other of document.querySelectorAll("button[data-axis]")) {
        other.setAttribute("aria-pressed", String(other === button));
      }
      draw();
    });
  }
  for (const button of document.querySelectorAll("button[data-copy]")) {
    button.addEventListener("click", () => {
      const text = document.getElementById(button.dataset.copy).textContent;
      const said = (word) => { button.textContent = word; setTimeout(() => { button.textContent = "Copy"; }, 1500); };
      if (!navigator.clipboard) { said("Select and copy"); return; }
      navigator.clipboard.writeText(text).then(() => said("Copied"), () => said("Select and copy"));
    });
  }
  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", draw);
  addEventListener("beforeprint", () => { document.documentElement.dataset.theme = "light"; draw(); });
  addEventListener("afterprint", () => { delete document.documentElement.dataset.theme; draw(); });
  draw();
})();
