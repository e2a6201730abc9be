/* The memory over one step: curves by part, what is alive at a moment, the treemap by module. */
"use strict";
const MOST_POINTS = 1200;  // that a curve draws; the rest appears on zooming in
const MOST_LINES_OF_PHASES = 2;  // more would lie over the curves
const LEAST_PHASE = 8;  // a phase has a name from so many pixels on
const LEFT = 64, RIGHT = 22;  // beside the curves, in pixels

/** The timeline of a record's step file, with a curve for each part: bytes at every moment. */
class Timeline {
  constructor(values) {
    Object.assign(this, values);  // moments, kinds, phases, peak, names, blocks, rest
    const n = this.moments;
    this.curves = this.kinds.map(() => new Float64Array(n + 1));
    const { start, end, bytes: sizes, kind } = this.blocks;
    for (let i = 0; i < start.length; i++) {
      this.curves[kind[i]][start[i]] += sizes[i];
      if (end[i] <= n) this.curves[kind[i]][end[i]] -= sizes[i];
    }
    for (const curve of this.curves) for (let m = 1; m <= n; m++) curve[m] += curve[m - 1];
    this.rest.at.forEach((from, i) => {
      const to = i + 1 < this.rest.at.length ? this.rest.at[i + 1] : n;
      this.rest.bytes[i].forEach((size, k) => { for (let m = from; m < to; m++) this.curves[k][m] += size; });
    });
    this.total = new Float64Array(n);
    for (const curve of this.curves) for (let m = 0; m < n; m++) this.total[m] += curve[m];
    this.changes = new Map();  // moment -> index of the block that is allocated (>= 0) or freed (-1 - index)
    for (let i = 0; i < start.length; i++) {
      if (start[i] > 0) this.changes.set(start[i], i);
      if (end[i] < n) this.changes.set(end[i], -1 - i);
    }
  }

  part(block) { return this.kinds[this.blocks.kind[block]]; }
  name(block) { return this.names[this.blocks.name[block]] || "made before the step"; }

  phase(moment) {
    let found = this.phases.length ? this.phases[0][1] : "";
    for (const [first, name] of this.phases) if (first <= moment) found = name;
    return found;
  }

  /** What happens at a moment, as a text. */
  event(moment) {
    const change = this.changes.get(moment);
    if (change === undefined) return moment === 0 ? "begins" : "allocates or frees a small tensor";
    const block = change < 0 ? -1 - change : change;
    return `${change < 0 ? "frees" : "allocates"} ${bytes(this.blocks.bytes[block])}: ${this.name(block)}`;
  }

  /** Indices of the blocks that are alive at a moment, the largest first. */
  alive(moment) {
    const { start, end, bytes: sizes } = this.blocks, found = [];
    for (let i = 0; i < start.length && start[i] <= moment; i++) if (end[i] > moment) found.push(i);
    return found.sort((one, other) => sizes[other] - sizes[one]);
  }

  /** The moments to draw between two: of every few the one of most bytes, so that no peak is lost. */
  moments_between(first, last) {
    first = Math.max(0, Math.floor(first));
    last = Math.min(this.moments - 1, Math.ceil(last));
    const width = Math.max(1, (last - first + 1) / MOST_POINTS), found = [first];
    for (let from = first; from <= last; from += width) {
      let most = Math.floor(from);
      for (let m = most; m < Math.min(from + width, last + 1); m++) if (this.total[m] > this.total[most]) most = m;
      if (most > found[found.length - 1]) found.push(most);
    }
    if (last > found[found.length - 1]) found.push(last);
    return found;
  }
}

/** An axis of bytes with about so many round numbers of MiB or GiB; from zero, or from just below `least`. */
function byteAxis(colours, most, more, least = 0, parts = 5) {
  const range = most - least, unit = most >= GIB ? GIB : most >= MIB ? MIB : 1024, rough = (range || most) / unit / parts;
  const power = 10 ** Math.floor(Math.log10(rough || 1)), step = [1, 2, 5, 10].find((nice) => nice * power >= rough) * power * unit;
  return axis(colours, { type: "value", max: most, min: Math.floor(least / step) * step, interval: step,
    axisLabel: { formatter: (size) => bytes(size), color: colours.quiet, showMaxLabel: false, hideOverlap: true }, ...more });
}

function partOf(key) { return PARTS.find((part) => part.key === key) || PARTS[PARTS.length - 1]; }

/** Series of stacked areas over the moments of a timeline. */
function areas(timeline, first, last) {
  const moments = timeline.moments_between(first, last);
  return PARTS.map((part) => {
    const curve = timeline.curves[timeline.kinds.indexOf(part.key)];
    return { id: part.key, name: part.name, type: "line", stack: "memory", step: "end", symbol: "none",
      lineStyle: { width: 0 }, areaStyle: { color: part.colour, opacity: 0.9 }, itemStyle: { color: part.colour },
      emphasis: { disabled: true }, data: moments.map((m) => [m, curve ? curve[m] : 0]) };
  }).filter((series, i) => timeline.curves[timeline.kinds.indexOf(PARTS[i].key)]?.some((size) => size > 0));
}

/** The card with the memory over the step. capacity: bytes for torch's allocator, or null. */
function memoryOverTheStep(timeline, capacity, note) {
  const place = h("div", { class: "chart", id: "timeline" }), below = h("div", { id: "alive" }), map = h("div", { class: "chart", id: "treemap" });
  const slider = h("input", { type: "range", min: 0, max: timeline.moments - 1, value: timeline.peak, id: "moment",
    "aria-label": "moment of the step", oninput: () => show(Number(slider.value)) });
  const go = (text, moment, label) => h("button", { class: "small", type: "button", "aria-label": label || null,
    onclick: () => show(moment()) }, text);
  const what = h("p", { class: "quiet", id: "event", "aria-live": "polite" });
  const together = h("input", { type: "checkbox", checked: true, onchange: () => tree.draw() });
  let moment = timeline.peak, range = [0, timeline.moments - 1], drawn = null, tree = null, palette = null;

  /** The phases in the range that is drawn: {first, name, last, line}; a name that would cover another stands a line below. */
  function phasesDrawn() {
    const plot = place.clientWidth - LEFT - RIGHT, ends = [], [from, to] = range;
    const at = (moment) => Math.max(0, ((moment - from) / Math.max(1, to - from)) * plot);
    return timeline.phases.map(([first, name], i) => {
      const last = i + 1 < timeline.phases.length ? timeline.phases[i + 1][0] : timeline.moments - 1;
      const seen = ((Math.min(last, to) - Math.max(first, from)) / Math.max(1, to - from)) * plot;
      if (seen < LEAST_PHASE) return { first, name: "", last, line: 0 };  // as what is done between two micro-batches
      const width = 7 * name.length + 12, right = at(first) + width > plot, x = right ? plot - width : at(first);
      let line = ends.findIndex((end) => end <= x);
      if (line < 0) line = ends.length;
      if (line >= MOST_LINES_OF_PHASES) return { first, name: "", last, line: 0 };
      ends[line] = x + width;
      return { first, name, last, line, right };
    });
  }
  function marks(colours) {
    const top = timeline.total[timeline.peak], near = capacity && capacity < 1.6 * top;
    return { id: "marks", type: "line", data: [], silent: true,
      markLine: { symbol: "none", animation: false, data: [
        { xAxis: moment, lineStyle: { color: colours.text, width: 1.5, type: "solid" },
          label: { formatter: bytes(timeline.total[moment]), color: colours.text, fontWeight: "bold", position: "end" } },
        ...(near ? [{ yAxis: capacity, lineStyle: { color: colours.bad, width: 2, type: "dashed" },
          label: { formatter: "room for tensors: " + bytes(capacity), color: colours.bad, position: "insideEndTop", fontWeight: "bold",
            backgroundColor: colours.card, borderRadius: 4, padding: [2, 6] } }] : []),
      ] },
      markArea: { silent: true, data: phasesDrawn().map(({ first, name, last, line, right }, i) => [
        { xAxis: first, name, itemStyle: { color: i % 2 ? colours.soft : "transparent" },
          label: { position: right ? "insideTopRight" : "insideTopLeft", color: colours.quiet, fontSize: 12, padding: [15 * line, 0, 0, 0] } },
        { xAxis: last }]) } };
  }
  function options(colours) {
    const top = timeline.total[timeline.peak], near = capacity && capacity < 1.6 * top;
    palette = colours;
    const series = [...areas(timeline, ...range), marks(colours)];
    return base(colours, {
      grid: { left: LEFT, right: RIGHT, top: 34, bottom: 72 },
      xAxis: axis(colours, { type: "value", min: 0, max: timeline.moments - 1, splitLine: { show: false },
        name: "allocations and frees, in order" }),
      yAxis: byteAxis(colours, 1.15 * Math.max(top, near ? capacity : 0)),
      dataZoom: [{ type: "inside", filterMode: "none", startValue: range[0], endValue: range[1] },
        { type: "slider", filterMode: "none", bottom: 8, height: 22, showDetail: false, brushSelect: false, startValue: range[0], endValue: range[1] }],
      tooltip: tooltip(colours, { trigger: "axis", axisPointer: { type: "line", lineStyle: { color: colours.text } },
        formatter: (found) => inTooltip(Math.round(found[0].axisValue)) }),
      series,
    });
  }
  function inTooltip(at) {
    const rows = PARTS.map((part) => [part.colour, part.name, timeline.curves[timeline.kinds.indexOf(part.key)]?.[at] || 0])
      .filter((row) => row[2]).map(([colour, name, size]) => [colour, name, bytes(size)]);
    const largest = timeline.alive(at).slice(0, 4).map((i) =>
      [partOf(timeline.part(i)).colour, timeline.name(i), bytes(timeline.blocks.bytes[i])]);
    return h("div", {}, lines(`${timeline.phase(at)}: ${bytes(timeline.total[at])}`, rows),
      h("div", { style: "margin:4px 0;overflow-wrap:anywhere" }, timeline.event(at)), lines("largest tensors", largest));
  }
  function show(at) {
    moment = Math.max(0, Math.min(timeline.moments - 1, at));
    slider.value = moment;
    if (drawn) drawn.draw();
    what.textContent = `Moment ${moment} of ${timeline.moments - 1}, ${timeline.phase(moment)}: ` +
      `${bytes(timeline.total[moment])} in all. ${moment === timeline.peak ? "This is the peak. " : ""}The step ${timeline.event(moment)}.`;
    below.replaceChildren(aliveTable(timeline, moment));
    if (tree) tree.draw();
  }
  const cards = [
    section("Memory over one step", note, legend(PARTS.filter((p) => timeline.curves[timeline.kinds.indexOf(p.key)]?.some((size) => size > 0)).map((part) => [part.colour, part.name])),
      place, h("div", { class: "controls" }, go("Peak", () => timeline.peak), go("◀", () => moment - 1, "one moment earlier"),
        go("▶", () => moment + 1, "one moment later"), slider), what,
      h("p", { class: "quiet" }, "Scroll or pinch to zoom, drag to move; click, or move the slider, to choose a moment for the table and the picture below.")),
    section("What is alive at the chosen moment", "Tensors that differ only in the number of their layer are one line.", below),
    section("The chosen moment by module", "Areas are bytes, colours are parts as above. Click to go into a module; the line below leads back.",
      h("div", { class: "controls" }, h("label", {}, together, " layers together")), map),
  ];
  return { cards, draw() {
    drawn = chart(place, options, "memory of the step by part; the same figures are in the table below");
    drawn.made.on("datazoom", () => {
      const zoom = drawn.made.getOption().dataZoom[0];
      range = [zoom.startValue, zoom.endValue];
      drawn.made.setOption({ series: [...areas(timeline, ...range), marks(palette)] });
    });
    drawn.made.getZr().on("click", (event) => {
      if (drawn.made.containPixel("grid", [event.offsetX, event.offsetY])) {
        show(Math.round(drawn.made.convertFromPixel({ xAxisIndex: 0 }, event.offsetX)));
      }
    });
    addEventListener("resize", () => drawn.draw());  // the names of phases stand anew
    tree = treemap(map, () => [timeline, moment, together.checked]);
    show(moment);
  } };
}

/** "layers.*.mlp" for "layers.3.mlp". */
function withoutNumbers(name) { return name.replace(/(^|\.)\d+(?=\.|\s|$)/g, "$1*"); }

function aliveTable(timeline, moment) {
  const rows = new Map();
  for (const i of timeline.alive(moment)) {
    const key = timeline.part(i) + " " + withoutNumbers(timeline.name(i));
    const row = rows.get(key) || { part: partOf(timeline.part(i)), name: withoutNumbers(timeline.name(i)), count: 0, bytes: 0 };
    row.count += 1;
    row.bytes += timeline.blocks.bytes[i];
    rows.set(key, row);
  }
  const whole = timeline.total[moment];
  const listed = [...rows.values()].sort((one, other) => other.bytes - one.bytes).slice(0, 40);
  const columns = [
    { name: "made by", class: "name", key: (row) => row.name,
      text: (row) => [h("i", { class: "swatch", style: `background:${row.part.colour}` }), row.name].map((e) => e) },
    { name: "memory", number: true, key: (row) => row.bytes, text: (row) => bytes(row.bytes) },
    { name: "share", number: true, key: (row) => row.bytes, text: (row) => percent(row.bytes / whole) },
    { name: "part", key: (row) => row.part.name, spare: 1 },  // the swatch has its colour
    { name: "tensors", number: true, key: (row) => row.count, spare: 2 },
  ];
  return table(columns, listed, { class: "tall", sorted: columns[1] });
}

/** The modules of a moment as a tree: {name, value, children}. */
function moduleTree(timeline, moment, together) {
  const root = { name: "all", children: new Map() };
  for (const i of timeline.alive(moment)) {
    const name = together ? withoutNumbers(timeline.name(i)) : timeline.name(i), [path, ...operation] = name.split(" ");
    const parts = timeline.blocks.name[i] === undefined || !name.includes(".") ? [] : path.split(".");
    let node = root;
    for (const part of parts) {
      if (!node.children.has(part)) node.children.set(part, { name: part, children: new Map() });
      node = node.children.get(part);
    }
    const kind = timeline.part(i), leaf = (operation.join(" ") || parts[parts.length - 1] || name);
    const key = kind + " " + leaf;
    if (!node.children.has(key)) node.children.set(key, { name: leaf, kind, value: 0 });
    node.children.get(key).value += timeline.blocks.bytes[i];
  }
  const made = (node) => {
    if (!node.children) return { name: node.name, value: node.value, kind: node.kind, ...coloured(node.kind) };
    let only = node, name = node.name;
    while (only.children.size === 1 && [...only.children.values()][0].children) {  // a.b.c in one rectangle
      only = [...only.children.values()][0];
      name += "." + only.name;
    }
    const children = [...only.children.values()].map(made);
    const size = children.reduce((sum, child) => sum + child.value, 0);
    // Rectangles that nobody could see would slow the page down.
    const large = children.filter((child) => child.value > timeline.total[moment] / 20000);
    const largest = children.reduce((one, other) => (other.value > one.value ? other : one));
    return { name, value: size, children: large, most: largest.kind || largest.most, ...coloured(largest.kind || largest.most) };
  };
  return made(root).children || [];
}

/** A rectangle's colour, and a text that can be read on it. */
function coloured(kind) {
  const dark = ["gradients", "activations", "weight_copies", "other"].includes(kind);
  return { itemStyle: { color: partOf(kind).colour }, label: { color: dark ? "#111" : "#fff" } };
}

function treemap(place, of) {
  return chart(place, (colours) => base(colours, {
    tooltip: tooltip(colours, { formatter: (found) => {
      const path = found.treePathInfo.map((node) => node.name).filter(Boolean).join(".");
      return lines(path, [[found.data.kind ? partOf(found.data.kind).colour : "", found.data.kind ? partOf(found.data.kind).name : "all in it", bytes(found.value)]]);
    } }),
    series: [{ type: "treemap", name: "all", data: moduleTree(...of()), roam: false, nodeClick: "zoomToNode", left: 0, right: 0, top: 4, bottom: 34,
      leafDepth: 99, visibleMin: 150, childrenVisibleMin: 1200,
      label: { show: true, formatter: (found) => `${found.name}\n${bytes(found.value)}`, fontSize: 12, lineHeight: 16, overflow: "truncate" },
      upperLabel: { show: true, height: 20, color: colours.text, fontSize: 12, formatter: (found) => `${found.name}  ${bytes(found.value)}` },
      itemStyle: { borderColor: colours.card, borderWidth: 1, gapWidth: 1 },
      breadcrumb: { bottom: 2, itemStyle: { color: colours.soft, borderColor: colours.line, textStyle: { color: colours.text } }, emphasis: { itemStyle: { color: colours.line } } },
      levels: [
        { itemStyle: { borderColor: colours.line, borderWidth: 0, gapWidth: 3 }, upperLabel: { show: false } },
        { itemStyle: { borderColor: colours.line, borderWidth: 2, gapWidth: 2 } },
        { itemStyle: { borderColor: colours.soft, borderWidth: 2, gapWidth: 1 } },
        { itemStyle: { borderColor: colours.soft, borderWidth: 1, gapWidth: 1 } },
      ] }],
  }), "memory at the chosen moment by module; the same figures are in the table above");
}
