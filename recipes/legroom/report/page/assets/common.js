/* What both pages use: elements, numbers, tables, colours and charts.
   Names come from records of other people: they are written as text, never as HTML. */
"use strict";
const legroom = { data: {}, charts: [] };

/** An element. attributes: `class`, `title`, ..., and `on<event>` functions. children: elements or texts. */
function h(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "style") made.style.cssText = value;
    else if (value === true) made.setAttribute(key, "");
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== "") {
      made.append(child instanceof Node ? child : String(child));
    }
  }
  return made;
}

// --- numbers ---------------------------------------------------------------------------------------------

const collator = new Intl.Collator(undefined, { numeric: true });  // 2 before 10
const MIB = 2 ** 20, GIB = 2 ** 30;

/** Significant digits without an exponent: 14949, 9.313, 0.0783. */
function number(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "";
  if (value === 0) return "0";
  const decimals = Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(value))));
  const text = value.toFixed(Math.min(decimals, 20));
  return Math.abs(value) >= 10000 ? text.replace(/\B(?=(\d{3})+(?!\d))/g, ",") : text;
}
function bytes(value) {
  if (value === null || value === undefined) return "";
  const size = Math.abs(value);
  if (size >= GIB) return number(value / GIB, 3) + " GiB";
  if (size >= MIB) return number(value / MIB, 3) + " MiB";
  return size >= 1024 ? number(value / 1024, 3) + " KiB" : value + " B";
}
function seconds(value, digits = 3) {
  if (value === null || value === undefined) return "";
  const size = Math.abs(value);
  if (size >= 120) return number(value / 60, digits) + " min";
  if (size >= 1) return number(value, digits) + " s";
  return size >= 1e-3 ? number(value * 1e3, digits) + " ms" : number(value * 1e6, digits) + " µs";
}
/** Of a prediction two digits are known, as in the terminal. */
function predictedNumber(value) { return number(Number(value.toPrecision(2)), 2); }
function predictedSeconds(value) { return seconds(Number(value.toPrecision(2)), 2); }
function counted(value) {
  if (value === null || value === undefined) return "";
  for (const [size, name] of [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"]]) {
    if (Math.abs(value) >= size) return number(value / size, 3) + " " + name;
  }
  return number(value, 3);
}
/** A key as text that a narrow heading may break behind its points and underscores. */
function breakable(name) { return name.split(/(?<=[._])/).flatMap((part) => [part, document.createElement("wbr")]); }
function percent(value, digits = 1) { return (value * 100).toFixed(digits) + " %"; }
function change(value, base) {
  if (!base || value === null || value === undefined) return "";
  const difference = (value / base - 1) * 100;
  let digits = 1;
  while (value && digits < 6 && Number(difference.toFixed(digits)) === -100) digits++;
  const size = Math.abs(difference).toFixed(digits);
  return (Number(size) === 0 ? "" : difference > 0 ? "+" : "−") + size + " %";
}

// --- colours (Okabe and Ito, which colour-blind people can tell apart) ---------------------------------------

const PARTS = [
  { key: "parameters", name: "weights", colour: "#0072B2" },
  { key: "weight_copies", name: "low-precision copies", colour: "#56B4E9" },
  { key: "optimizer", name: "optimizer states", colour: "#009E73" },
  { key: "gradients", name: "gradients", colour: "#E69F00" },
  { key: "activations", name: "activations", colour: "#CC79A7" },
  { key: "other", name: "other", colour: "#9AA0A6" },
];
const SERIES = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#9AA0A6"];
const SHAPES = ["circle", "rect", "triangle", "diamond", "pin", "roundRect", "arrow", "circle"];

function theme() {
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(name).trim();
  return { text: value("--text"), quiet: value("--quiet"), line: value("--line"), card: value("--card"),
    soft: value("--soft"), link: value("--link"), bad: value("--bad") };
}

// --- charts ----------------------------------------------------------------------------------------------

const FONT = getComputedStyle(document.body).fontFamily;  // a canvas does not know "inherit", and would draw in 10 px
/** A chart in `place`. options(theme) -> ECharts' options; is called again when light and dark change. */
function chart(place, options, label) {
  place.setAttribute("role", "img");
  place.setAttribute("aria-label", label);
  const made = echarts.init(place, null, { renderer: "canvas" });
  const entry = { made, place, draw: () => made.setOption(options(theme()), { notMerge: true }) };
  entry.draw();
  legroom.charts.push(entry);
  return entry;
}
addEventListener("resize", () => legroom.charts.forEach((entry) => entry.made.resize()));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => legroom.charts.forEach((e) => e.draw()));

/** What all charts have in common. */
function base(colours, more) {
  return { animation: false, textStyle: { color: colours.text, fontFamily: FONT }, ...more };
}
function tooltip(colours, more) {
  return { confine: true, backgroundColor: colours.card, borderColor: colours.line,
    textStyle: { color: colours.text, fontSize: 13 }, extraCssText: "max-width:min(440px,90vw);white-space:normal;", ...more };
}
function axis(colours, more) {
  const { name, nameGap, ...others } = more;
  return { splitNumber: innerWidth < 600 ? 3 : 5, axisLine: { lineStyle: { color: colours.line } }, splitLine: { lineStyle: { color: colours.line } },
    axisLabel: { color: colours.quiet, hideOverlap: true }, nameTextStyle: { color: colours.quiet },
    ...(name ? { name, nameLocation: "middle", nameGap: nameGap || 28 } : {}), ...others };
}

/** The values of a chart's tooltip, as elements: a heading, then [colour, name, value] lines. */
function lines(heading, rows) {
  return h("div", {}, h("b", { style: "overflow-wrap:anywhere" }, heading), rows.map(([colour, name, value]) =>
    h("div", { style: "display:flex;gap:12px;justify-content:space-between" },
      h("span", { style: "overflow-wrap:anywhere" },
        colour ? h("i", { class: "swatch", style: `background:${colour}` }) : "", name),
      h("span", { style: "font-variant-numeric:tabular-nums;white-space:nowrap" }, value))));
}

// --- tables ----------------------------------------------------------------------------------------------

const AT_FIRST = 80;  // rows of a long table that are there at once
const MOST_LINES = 400;  // rows that are added without being asked for

/** A table that is sorted by a click on a heading, or by Enter on it; then onsort(column, descending) is called.
    columns: {name, key: value of a row to sort by, text: what is shown (an element or a text), number, class, spare}.
    Where the width does not do, columns with `spare` are left out, the highest first, and named below the table with
    options.hint behind them; one that a person has `chosen` stays. */
function table(columns, rows, options = {}) {
  let { sorted = null, descending = true } = options, drawing = 0;
  const body = h("tbody"), head = h("tr"), dropped = new Set(), said = h("p", { class: "quiet" });
  const wrapper = h("div", { class: "scroll " + (options.class || "") }, h("table", {}, h("thead", {}, head), body));
  const headings = columns.map((column) => {
    const button = h("button", { type: "button", onclick: () => {
      descending = sorted === column ? !descending : !!column.number;
      sorted = column;
      if (options.onsort) options.onsort(sorted, descending);
      draw();
    } }, column.name);
    return h("th", { class: column.number ? "number" : null, scope: "col" }, button);
  });
  function draw() {
    const order = [...rows];
    if (sorted) {
      const missing = (value) => value === null || value === undefined || value === "";
      order.sort((one, other) => {
        const a = sorted.key(one), b = sorted.key(other);
        if (missing(a) || missing(b)) return missing(a) - missing(b);  // at the end in both directions
        const before = typeof a === "number" && typeof b === "number" ? a - b
          : collator.compare(String(a), String(b));
        return descending ? -before : before;
      });
    }
    columns.forEach((column, i) => {
      const is = sorted === column;
      headings[i].setAttribute("aria-sort", is ? (descending ? "descending" : "ascending") : "none");
      headings[i].firstChild.replaceChildren(...breakable(column.name), is ? (descending ? " ▾" : " ▴") : "");
    });
    const visible = columns.filter((column) => !dropped.has(column));
    head.replaceChildren(...visible.map((column) => headings[columns.indexOf(column)]));
    const lineOf = (row) => h("tr", options.attributes ? options.attributes(row) : {},
      visible.map((column) => h("td", { class: column.number ? "number" : column.class || null },
        column.text ? column.text(row) : column.key(row))));
    const mine = ++drawing;  // what cannot be seen yet is added when the page has been shown
    body.replaceChildren(...order.slice(0, AT_FIRST).map(lineOf));
    const add = (from, to) => {  // and of very many rows a part, until more are asked for
      if (mine !== drawing) return;
      body.append(...order.slice(from, to).map(lineOf));
      if (order.length > to) {
        const more = h("tr", {}, h("td", { colspan: visible.length }, h("button", { class: "small", type: "button",
          onclick: () => { more.remove(); add(to, to + MOST_LINES); } }, `show ${Math.min(MOST_LINES, order.length - to)} more of ${order.length - to}`)));
        body.append(more);
      }
    };
    if (order.length > AT_FIRST) setTimeout(() => add(AT_FIRST, MOST_LINES));
  }
  let fitted = 0;  // the width that the columns were chosen for
  function fit() {
    if (wrapper.offsetWidth === fitted) return;
    fitted = wrapper.offsetWidth;
    if (dropped.size) { dropped.clear(); draw(); }
    const widths = headings.map((cell) => cell.offsetWidth);
    let missing = wrapper.scrollWidth - wrapper.clientWidth;
    for (const column of columns.filter((one) => one.spare && !one.chosen).sort((one, other) => other.spare - one.spare)) {
      if (missing <= 0) break;
      dropped.add(column);
      missing -= widths[columns.indexOf(column)];
    }
    if (dropped.size) draw();
    const names = columns.filter((column) => dropped.has(column)).map((column) => column.name);
    said.textContent = names.length ? `Not shown, for want of width: ${names.join(", ")}. ${options.hint || ""}` : "";
  }
  draw();
  if (columns.some((column) => column.spare)) new ResizeObserver(fit).observe(wrapper);
  return h("div", {}, wrapper, said);
}

function legend(entries) {
  return h("ul", { class: "legend" }, entries.map(([colour, name]) =>
    h("li", {}, h("i", { style: `background:${colour}` }), name)));
}

/** A text in which what can be typed, as precision=bf16, looks so. */
function typed(text) {
  return text.split(/((?:[a-z_]+(?:\.[a-z_]+)*)=[^\s;,()]*[^\s;,().])/).map((part, i) => (i % 2 ? h("code", {}, part) : part));
}

function section(title, text, ...children) {
  return h("section", { class: "card" }, h("h2", {}, title), text ? h("p", { class: "quiet" }, text) : "", children);
}

/** A text with a button that copies it. */
function command(text) {
  const said = h("span", { class: "quiet", role: "status" });
  const copy = h("button", { class: "small", type: "button", onclick: async () => {
    try { await navigator.clipboard.writeText(text); said.textContent = "copied"; }
    catch { said.textContent = "select the text and copy it"; }
  } }, "Copy");
  return h("div", {}, h("pre", {}, text), h("div", { class: "controls" }, copy, said));
}

function statusText(record) {
  if (!record.estimate) return record.status;
  return record.status === "oom" ? "does not fit" : record.estimate.verdict === "tight" ? "tight" : record.status;
}
function chip(status) {
  const good = /^(ok|preempted|yes|fits)/.test(status), bad = /oom|diverged|fail|killed|timeout|refused|not fit/.test(status);
  return h("span", { class: "chip" + (good ? " good" : bad ? " bad" : /tight/.test(status) ? " tight" : "") }, status);
}
