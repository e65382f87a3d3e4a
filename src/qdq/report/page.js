// The page works without this script; with it tables sort and filter, and figures show their values.
"use strict";

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  made.append(...children); // strings become text, never markup
  return made;
}

// Tables -------------------------------------------------------------------------------------------------------------
function compare(first, second, numeric) {
  if (first === "" || second === "") return (first === "") - (second === ""); // missing values stay last
  return numeric ? Number(first) - Number(second) : first.localeCompare(second, "en", { numeric: true });
}

function sortTable(table, column, direction) {
  const heads = [...table.tHead.rows[0].cells];
  const numeric = heads[column].classList.contains("number");
  const sign = direction === "descending" ? -1 : 1;
  const key = (row) => row.cells[column].dataset.value;
  const rows = [...table.tBodies[0].rows].sort((one, two) => {
    const missing = (key(one) === "") - (key(two) === "");
    return missing || sign * compare(key(one), key(two), numeric);
  });
  heads.forEach((head, index) => head.setAttribute("aria-sort", index === column ? direction : "none"));
  table.tBodies[0].append(...rows);
}

function makeSortable(table) {
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = element("button", { type: "button" }, head.textContent);
    head.replaceChildren(button);
    head.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const first = head.classList.contains("number") ? "descending" : "ascending"; // the best first
      const other = first === "ascending" ? "descending" : "ascending";
      sortTable(table, column, head.getAttribute("aria-sort") === first ? other : first);
    });
  });
}

function makeFilterable(table) {
  const rows = [...table.tBodies[0].rows];
  if (rows.length < 4) return;
  const field = element("input", { type: "search", placeholder: "Filter rows", "aria-label": "Filter rows" });
  const count = element("span", { "aria-live": "polite" });
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      shown += !row.hidden;
    }
    count.textContent = words.length ? `${shown} of ${rows.length} rows` : "";
  });
  table.parentElement.before(element("div", { class: "tools" }, field, count));
}

// Values under the pointer -------------------------------------------------------------------------------------------
function readable(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-3)) return value.toExponential(2);
  return value.toLocaleString("en", { maximumFractionDigits: size >= 100 ? 1 : size >= 1 ? 2 : 4 });
}

function nearest(values, wanted) {
  let best = -1;
  values.forEach((value, index) => {
    if (value !== null && (best < 0 || Math.abs(value - wanted) < Math.abs(values[best] - wanted))) best = index;
  });
  return best;
}

function withBounds(text, series, index) {
  if (!series.low || series.low[index] === null) return text;
  return `${text}  (${readable(series.low[index])} to ${readable(series.high[index])})`;
}

function rowsAt(panel, x, y) {
  const row = Math.round(y);
  const found = [];
  let title = "";
  for (const series of panel.series) {
    let text = "";
    if (series.kind === "interval" || series.kind === "stack") {
      const index = series.y.indexOf(row);
      if (index < 0) continue;
      title = panel.categories[row];
      text = series.kind === "stack" ? readable(series.x[index]) : withBounds(readable(series.x[index]), series, index);
    } else if (series.kind === "steps" || series.kind === "filled") {
      const index = series.y.findIndex((_, bin) => x >= series.x[bin] && x < series.x[bin + 1]);
      if (index < 0) continue;
      title = `${panel.x.label}: ${readable(series.x[index])} to ${readable(series.x[index + 1])}`;
      text = readable(series.y[index]);
    } else {
      const index = nearest(series.x, x);
      if (index < 0 || series.y[index] === null) continue;
      title = `${panel.x.label}: ${readable(series.x[index])}`;
      text = series.kind === "range" ? `${readable(series.low[index])} to ${readable(series.high[index])}` : withBounds(readable(series.y[index]), series, index);
    }
    found.push({ name: series.name, colour: series.colour, text });
  }
  return { title, found };
}

function makeLive(figure) {
  const panels = JSON.parse(figure.querySelector(".hover").textContent);
  const plot = figure.querySelector(".plot");
  const drawing = plot.querySelector("svg");
  const [width, height] = drawing.getAttribute("viewBox").split(" ").slice(2).map(Number);
  const tip = element("div", { class: "tip", hidden: "" });
  const line = element("div", { class: "line", hidden: "" });
  plot.append(line, tip);
  const hide = () => { tip.hidden = line.hidden = true; };
  const show = (event) => {
    const area = plot.getBoundingClientRect();
    const scale = area.width / width;
    const px = (event.clientX - area.left) / scale;
    const py = (event.clientY - area.top) / scale;
    const panel = panels.find(({ box }) => px >= box[0] - 4 && px <= box[2] + 4 && py >= box[1] - 4 && py <= box[3] + 4);
    if (!panel) return hide();
    const { box } = panel;
    const across = (px - box[0]) / (box[2] - box[0]);
    const up = (box[3] - py) / (box[3] - box[1]);
    const { found, title } = rowsAt(
      panel,
      panel.x.limits[0] + across * (panel.x.limits[1] - panel.x.limits[0]),
      panel.y.limits[0] + up * (panel.y.limits[1] - panel.y.limits[0]),
    );
    if (!found.length) return hide();
    tip.replaceChildren(element("b", {}, title), ...found.map(({ name, colour, text }) =>
      element("div", {}, element("i", { style: `background: var(--${colour})` }), name, element("span", {}, text))));
    tip.hidden = line.hidden = false;
    Object.assign(line.style, { left: `${px * scale}px`, top: `${box[1] * scale}px`, height: `${(box[3] - box[1]) * scale}px` });
    line.hidden = panel.categories.length > 0;
    const left = px * scale < area.width / 2 ? px * scale + 14 : px * scale - tip.offsetWidth - 14;
    tip.style.left = `${Math.max(0, Math.min(left, area.width - tip.offsetWidth))}px`;
    tip.style.top = `${Math.max(0, Math.min(py * scale + 12, height * scale - tip.offsetHeight))}px`;
  };
  plot.addEventListener("pointermove", show);
  plot.addEventListener("pointerdown", show);
  plot.addEventListener("pointerleave", hide);
}

// Buttons ------------------------------------------------------------------------------------------------------------
function makeTheme(button) {
  const dark = () => (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const name = () => { button.textContent = dark() ? "Light" : "Dark"; };
  button.addEventListener("click", () => { document.documentElement.dataset.theme = dark() ? "light" : "dark"; name(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", name);
  button.hidden = false;
  name();
}

function makeCopy(block) {
  const button = element("button", { type: "button" }, "Copy");
  button.addEventListener("click", () => {
    const range = document.createRange();
    range.selectNodeContents(block.querySelector("pre"));
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    button.textContent = document.execCommand("copy") ? "Copied" : "Select"; // the clipboard interface needs a server
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  block.append(button);
}

document.querySelectorAll("table.sortable").forEach(makeSortable);
document.querySelectorAll("table[data-filter]").forEach(makeFilterable);
document.querySelectorAll("figure.live").forEach(makeLive);
document.querySelectorAll("button.theme").forEach(makeTheme);
document.querySelectorAll(".command").forEach(makeCopy);
