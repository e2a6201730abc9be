/* The page of a sweep. legroom.sweep: {title, command, remarks, keys, memory_name, memory_meaning, baseline, rows};
   a row: {name, label, status, estimate, ok, memory, speed, step, loss, evaluation, parts, peak, fits, margin, capacity, groups, note, runs}. */
"use strict";

function sweepPage(sweep, place) {
  const state = { shown: sweep.rows, baseline: sweep.baseline, colour: sweep.keys[0], chosen: [] };
  const redraw = [], rows = sweep.rows;
  sweep.rows.forEach((row, i) => {
    row.index = i;
    row.short = sweep.keys.length > 6 || !sweep.keys.length ? row.name : sweep.keys.map((key) => row.label[key] ?? "–").join(" · ");
  });
  let drawing = 0;
  const draw = () => {  // one after another, so that the first are seen at once
    const mine = ++drawing, next = (i) => {
      if (mine !== drawing || i >= redraw.length) return;
      redraw[i]();
      if (i < 2) next(i + 1); else setTimeout(() => next(i + 1));
    };
    next(0);
  };
  const common = sweep.remarks.filter((line) => line.startsWith("The same in all")), others = sweep.remarks.filter((line) => !common.includes(line));
  place.classList.add("wide");
  place.replaceChildren(h("header", {}, h("h1", {}, sweep.title), h("ul", { class: "quiet" }, others.map((line) => h("li", {}, line))),
    common.length ? h("details", { class: "quiet" }, h("summary", {}, "What is the same in all jobs"), h("p", {}, typed(common.join(" ")))) : ""));
  place.append(bestCards(sweep, state, redraw));
  const asked = new URLSearchParams(location.hash.slice(1)), find = (key) => rows.findIndex((row) => row.runs[0].key === key);
  state.filter = asked.get("filter") || "";
  state.descending = !asked.has("up");
  state.pair = (asked.get("pair") || "").split(",").map(find);
  if (find(asked.get("baseline")) >= 0) state.baseline = find(asked.get("baseline"));
  const of = sweep.gpus ? [gpusCard(sweep, state, redraw)] : [paretoCard(sweep, state, redraw)];
  const cards = [tableCard(sweep, state, redraw, draw, asked.get("sort")), ...of, partsCard(sweep, state, redraw),
    ...(sweep.gpus ? [] : [multiplesCard(sweep, state, redraw)]), compareCard(sweep, state, redraw)];
  // The address holds what is chosen, and the links to the jobs pass it on, so that their way back leads there.
  state.keep = () => {
    const key = (i) => rows[i].runs[0].key, sorted = state.sorted;
    const held = { filter: state.filter, sort: sorted && sorted.name, up: sorted && !state.descending && "1",
      pair: state.pair.every((i) => i >= 0) && state.pair.map(key).join(), baseline: state.baseline !== sweep.baseline && key(state.baseline) };
    history.replaceState(null, "", "#" + new URLSearchParams(Object.entries(held).filter((entry) => entry[1])));
  };
  place.addEventListener("click", (event) => { const link = event.target.closest("a[href]"); if (link) link.hash = location.hash; });
  cards.filter(Boolean).forEach((card) => place.append(card));
  draw();
}

const good = (row) => row.ok && row.memory !== null && row.speed !== null;
const trained = (row) => row.ok && !row.diverged;

const speed = (row) => (row.estimate && row.speed !== null ? predictedNumber : number)(row.speed);
const step = (row) => (row.estimate && row.step !== null ? predictedSeconds : seconds)(row.step);
const loss = (row) => row.loss === null && row.diverged ? "not a number" : number(row.loss);

/** Whether two speeds count as equal: measured ones by their spread, predicted ones within a hundredth. */
function alike(row, other) {
  const within = (a, b) => a.speed_spread && a.speed_spread[0] <= b.speed && b.speed <= a.speed_spread[1];
  return row.estimate && other.estimate ? Math.abs(row.speed / other.speed - 1) <= 0.01 : within(row, other) || within(other, row);
}

/** The difference of a speed from the baseline's; one within the spread is none. */
function speedChange(row, base) {
  if (row.speed === null || !base.speed || row.estimate || base.estimate) return change(row.speed, base.speed);
  return !row.speed_spread || !base.speed_spread ? "not known" : alike(row, base) ? "within spread" : change(row.speed, base.speed);
}

/** The rows that no other one beats in both memory and throughput, by memory; one that is as fast as the last is none. */
function front(rows) {
  const found = [];
  for (const row of rows.filter((row) => good(row) && trained(row)).sort((a, b) => a.memory - b.memory || b.speed - a.speed)) {
    const last = found[found.length - 1];
    if (!last || (row.speed > last.speed && !alike(row, last))) found.push(row);
  }
  return found;
}

function bestCards(sweep, state, redraw) {
  const place = h("section", { class: "card", "aria-live": "polite" });
  redraw.push(() => {
    const rows = state.shown.filter(trained), base = sweep.rows[state.baseline];
    const least = (key, sign) => rows.filter((row) => row[key] !== null).reduce((best, row) => (!best || sign * row[key] < sign * best[key] ? row : best), null);
    const versus = (row, key) => row === base ? "the baseline" : !base || base[key] === null ? "" : row[key] === base[key] ? "as much as the baseline" : `${change(row[key], base[key])} against the baseline`;
    const one = (title, row, value, versus) => row && h("div", { style: "flex:1 1 260px" }, h("span", {}, title), h("b", {}, value),
      h("div", { style: "overflow-wrap:anywhere" }, jobLink(row)), h("span", {}, versus));
    const small = least("memory", 1), fast = least("speed", -1);
    const faster = fast && base && fast !== base && speedChange(fast, base);
    const measured = { "within spread": "the baseline's speed differs by no more than the spread", "not known": "the difference from the baseline is not known: too few steps" };
    place.replaceChildren(h("div", { class: "numbers" },
      h("div", {}, h("span", {}, "jobs"), h("b", {}, `${state.shown.length}${state.shown.length < sweep.rows.length ? " of " + sweep.rows.length : ""}`), h("span", {}, state.shown.every((row) => row.ok) ? "" : `${state.shown.filter((row) => !row.ok).length} without figures`), base ? h("div", { style: "overflow-wrap:anywhere" }, "baseline: ", base.name) : ""),
      one("least memory", small, small && bytes(small.memory), small && versus(small, "memory")),
      one("fastest", fast, fast && speed(fast) + " samples/s", fast && (measured[faster] || versus(fast, "speed")))));
  });
  return place;
}

function jobLink(row, text) {
  const run = row.runs.find((one) => one.page);
  return run ? h("a", { href: run.page }, text || row.name) : text || row.name;
}

// --- the table ---------------------------------------------------------------------------------------------

function tableColumns(sweep, state) {
  const base = () => sweep.rows[state.baseline] || {};
  const narrow = innerWidth < 600 && sweep.keys.length > 2, many = sweep.keys.length > 6 || narrow;
  const job = { name: "job", class: "name", key: (row) => row.name, text: (row) => jobLink(row, narrow && row.short) };
  const keys = sweep.keys.map((key) => ({ name: key, key: (row) => row.label[key] ?? "", text: (row) => jobLink(row, row.label[key] ?? "–"), hidden: many }));
  const spread = (row, key, format) => format(row[key], row) + (row[key + "_range"] ? ` (${row[key + "_range"].map((value) => format(value, row)).join(" to ")})` : "");
  const figure = (name, key, format) => ({ name, number: true, key: (row) => row[key], text: (row) => (row[key] !== null ? spread(row, key, format) : key === "loss" ? loss(row) : "") });
  const known = (predicted, measured) => (value, row) => (row.estimate ? predicted : measured)(value);
  const versus = (name, key) => ({ name, number: true, spare: key === "memory" ? 5 : 4, key: (row) => (row[key] !== null && base()[key] ? row[key] / base()[key] : null),
    text: (row) => (row.index === state.baseline ? "baseline" : key === "speed" ? speedChange(row, base()) : change(row[key], base()[key])) });
  const columns = [...(many ? [job] : []), ...keys,
    { name: "status", key: (row) => row.status, text: (row) => chip(row.status), spare: 1, hidden: sweep.rows.every((row) => row.status === "ok") },
    figure(sweep.memory_name, "memory", bytes), versus("memory diff.", "memory"),
    figure("samples/s", "speed", known(predictedNumber, number)), versus("speed diff.", "speed"),
    { ...figure("step", "step", known(predictedSeconds, seconds)), spare: 8 },
    { ...figure("final loss", "loss", (value) => number(value)), spare: 3 }, { ...figure("evaluation loss", "evaluation", (value) => number(value)), spare: 2 },
    { ...figure("left on the GPU", "margin", bytes), spare: 6 },
    ...["contractions", "normalisations", "element-wise", "optimizer", "communication", "copies"].map((group) => ({ name: group + " time", number: true, hidden: true,
      key: (row) => (row.groups ? row.groups[group] ?? null : null), text: (row) => (row.groups && row.groups[group] != null ? percent(row.groups[group]) : "") })),
    { name: "note", class: "note", key: (row) => row.note, spare: narrow && 9 }];
  return columns.filter((column) => sweep.rows.some((row) => { const value = column.key(row); return value !== null && value !== undefined && value !== ""; }));
}

function tableCard(sweep, state, redraw, draw, sort) {
  const columns = tableColumns(sweep, state);
  columns.push({ name: "two jobs", spare: 7, key: () => "", text: (row) => h("span", { style: "white-space:nowrap" },
    h("button", { class: "small tiny", type: "button", title: "measure the others against it", onclick: () => { state.baseline = row.index; state.keep(); draw(); } }, "baseline"), " ",
    h("button", { class: "small tiny", type: "button", title: "beside the baseline: memory over the step and settings, below", onclick: () => { state.compare(row.index); } }, "compare")) });
  const place = h("div", { id: "table" });
  const search = h("input", { type: "search", id: "filter", placeholder: "precision=bf16 adam", "aria-label": "filter the jobs", value: state.filter, oninput: () => { filter(); state.keep(); draw(); } });
  state.sorted = columns.find((column) => column.name === sort);
  const said = h("span", { class: "quiet", role: "status" });
  function filter() {
    state.filter = search.value.trim();
    const wanted = state.filter.toLowerCase().split(/\s+/).filter(Boolean);
    state.shown = sweep.rows.filter((row) => wanted.every((word) => `${row.text} ${row.status}`.toLowerCase().includes(word)));
    said.textContent = state.filter && `${state.shown.length} of ${sweep.rows.length} jobs`;
  }
  sweep.rows.forEach((row) => { row.text = Object.entries(row.label).map(([key, value]) => `${key}=${value}`).join(" "); });
  filter();
  const choices = h("div", { class: "choices" }, columns.map((column) => h("label", {}, h("input", { type: "checkbox", checked: !column.hidden,
    onchange: (event) => { column.hidden = !event.target.checked; column.chosen = event.target.checked; fill(); } }), " ", column.name)));
  function fill() {
    const visible = columns.filter((column) => !column.hidden);
    place.replaceChildren(table(visible, state.shown, { class: "tall", hint: "Untick others under Columns to see them.", sorted: state.sorted, descending: state.descending,
      onsort: (column, descending) => { Object.assign(state, { sorted: column, descending }); state.keep(); }, attributes: (row) => ({ class: row.index === state.baseline ? "baseline" : null }) }));
  }
  redraw.push(fill);
  return section("Jobs", "Click a heading to sort, a job to open its page.", h("div", { class: "controls" }, h("label", {}, "Filter: ", search), said),
    h("details", {}, h("summary", {}, "Columns"), choices), place);
}

// --- pictures ------------------------------------------------------------------------------------------------

/** A list to choose a key from. */
function keyChoice(sweep, label, chosen, changed) {
  return h("label", {}, label + " ", h("select", { onchange: (event) => changed(event.target.value) },
    sweep.keys.map((key) => h("option", { value: key, selected: key === chosen }, key))));
}
function valuesOf(rows, key) {
  return [...new Set(rows.map((row) => row.label[key] ?? "–"))].sort(collator.compare);
}
function rowLines(sweep, state, row) {
  const base = sweep.rows[state.baseline] || {};
  return lines(row.name, [["", row.status, ""], ["", sweep.memory_name, `${bytes(row.memory)}  ${row.index === state.baseline ? "baseline" : change(row.memory, base.memory)}`],
    ["", "samples/s", `${speed(row)}  ${row.index === state.baseline ? "" : speedChange(row, base)}`], ["", "step", step(row)], ["", "final loss", number(row.loss)]].filter((line) => line[2] || !line[0] && line[1] === row.status));
}
const openJob = (row) => { const run = row && row.runs.find((one) => one.page); if (run) location.href = run.page + location.hash; };

/** A sweep over cards: speed, what stays free, and the price, card by card; memory against throughput would rank their sizes. */
function gpusCard(sweep, state, redraw) {
  const figures = [["samples/s, predicted", (row) => (row.ok ? row.speed : null), predictedNumber], ["memory that stays free", (row) => row.margin, bytes],
    ["price of a million tokens", (row) => (row.ok ? row.cost : null), predictedNumber]].filter(([, of]) => sweep.rows.some((row) => of(row) !== null));
  const box = h("div", { class: "chart", id: "gpus" });
  let drawn = null, rows = [];
  const options = (colours) => {
    const narrow = box.clientWidth < 700, left = narrow ? 118 : 150, wide = (box.clientWidth - left - 20) / (narrow ? 1 : figures.length), tall = 22 * rows.length + 52;
    const at = (i, more) => ({ gridIndex: i, ...more });
    return base(colours, {
      title: figures.map(([name], i) => ({ text: name, left: left + (narrow ? 0 : i * wide), top: narrow ? i * tall : 0, textStyle: { fontSize: 13, color: colours.text } })),
      grid: figures.map((_, i) => ({ left: left + (narrow ? 0 : i * wide), width: wide - 74, top: 26 + (narrow ? i * tall : 0), height: 22 * rows.length })),
      xAxis: figures.map((_, i) => axis(colours, at(i, { type: "value", axisLabel: { show: false } }))),
      yAxis: figures.map((_, i) => axis(colours, at(i, { type: "category", inverse: true, data: rows.map((row) => row.short), axisTick: { show: false }, axisLabel: { show: narrow || !i, interval: 0, color: colours.quiet, width: left - 12, overflow: "truncate" } }))),
      tooltip: tooltip(colours, { trigger: "item", formatter: (found) => rowLines(sweep, state, rows[found.dataIndex]) }),
      series: figures.map(([, of, text], i) => ({ type: "bar", xAxisIndex: i, yAxisIndex: i, barMaxWidth: 16, itemStyle: { color: SERIES[i] }, data: rows.map((row) => of(row)),
        label: { show: true, position: "right", color: colours.text, formatter: ({ dataIndex, value }) => (value === null || value === undefined ? "" : text(value) + (!i && rows[dataIndex].bound_by === "host" ? " (host)" : "")) } })) });
  };
  redraw.push(() => {
    rows = state.shown;
    box.style.height = `${(22 * rows.length + 52) * (box.clientWidth < 700 ? figures.length : 1)}px`;
    if (drawn) { drawn.made.resize(); drawn.draw(); } else {
      drawn = chart(box, options, "speed, memory that stays free and price of each card");
      drawn.made.on("click", (event) => openJob(rows[event.dataIndex]));
    }
  });
  return section("Card by card", "Cards marked (host) wait for the host, which is assumed to be the same: they are alike, and not ranked. Without a bar of speed: it does not fit. Click a bar to open the estimate's page.", box);
}

function paretoCard(sweep, state, redraw) {
  const box = h("div", { class: "chart", id: "pareto" }), key = h("div", { class: "controls" }), signs = h("div");
  let drawn = null;
  key.append(keyChoice(sweep, "Colour and shape by", state.colour, (value) => { state.colour = value; mark(); }));
  const options = (colours) => {
    const rows = state.shown.filter(good), best = front(rows), values = valuesOf(sweep.rows, state.colour);
    const style = (row) => Math.min(values.indexOf(row.label[state.colour] ?? "–"), 7);
    const most = Math.max(1, ...rows.map((row) => row.memory)), least = Math.min(most, ...rows.map((row) => row.memory));
    const room = (most - least) * 0.08 + most * 0.01;
    const x = byteAxis(colours, most + room, { name: sweep.memory_name + ", less is better", nameGap: 30 }, least > most / 2 ? least - room : 0);
    return base(colours, { grid: { left: 62, right: 24, top: 30, bottom: 56 }, xAxis: x,
      yAxis: axis(colours, { type: "value", name: "samples/s, more is better", nameGap: 44, axisLabel: { formatter: (value) => number(value, 3), color: colours.quiet } }),
      dataZoom: [{ type: "inside", xAxisIndex: 0, filterMode: "none" }, { type: "inside", yAxisIndex: 0, filterMode: "none" }],
      tooltip: tooltip(colours, { trigger: "item", formatter: (found) => (found.data.row ? rowLines(sweep, state, found.data.row) : "") }),
      series: [
        { type: "line", step: "end", name: "Pareto front", data: best.map((row) => [row.memory, row.speed]), symbol: "none", silent: true, lineStyle: { color: colours.quiet, type: "dashed", width: 1.5 } },
        { type: "scatter", data: rows.map((row) => ({ value: [row.memory, row.speed], row, symbol: SHAPES[style(row)], symbolSize: row.index === state.baseline ? 20 : best.includes(row) ? 15 : 10,
          itemStyle: { color: SERIES[style(row)], opacity: row.estimate ? 0.75 : 1, borderColor: row.index === state.baseline ? colours.text : colours.card, borderWidth: row.index === state.baseline ? 2.5 : 1 } })) },
      ] });
  };
  const mark = () => {
    const values = valuesOf(sweep.rows, state.colour);
    signs.replaceChildren(legend([...values.slice(0, 7).map((value, i) => [SERIES[i], `${state.colour}=${value}`]), ...(values.length > 7 ? [[SERIES[7], "others"]] : [])]));
    if (drawn) drawn.draw();
    else {
      drawn = chart(box, options, "memory against throughput of every job; the same figures are in the table above");
      drawn.made.on("click", (event) => openJob(event.data && event.data.row));
    }
  };
  redraw.push(mark);
  if (!sweep.rows.some(good)) return section("Memory against throughput", "No job has both figures.");
  return section("Memory against throughput", `The dashed line is the Pareto front: no job is better in both${sweep.rows.some((row) => row.diverged) ? ", but for those whose loss is not a number" : ""}. The large mark with an outline is the baseline. Click a job to open its page.`, key, signs, box);
}

function partsCard(sweep, state, redraw) {
  if (!sweep.rows.some((row) => row.parts)) return null;
  const box = h("div", { class: "chart", id: "parts" });
  const names = [["parameters", "weights, with copies"], ["optimizer"], ["gradients"], ["activations"], ["other"]];
  let drawn = null, rows = [];
  const options = (colours) => {
    const most = Math.max(1, ...rows.map((row) => row.peak || 0)), narrow = box.clientWidth < 600;
    return base(colours, { grid: { left: narrow ? 130 : 330, right: rows.length > 40 ? 44 : 20, top: 8, bottom: 34 },
      xAxis: byteAxis(colours, most * 1.04),
      yAxis: axis(colours, { type: "category", inverse: true, data: rows.map((row) => row.short), axisLabel: { color: colours.quiet, width: narrow ? 118 : 316, overflow: "truncate", interval: rows.length > 40 ? "auto" : 0 } }),
      dataZoom: rows.length > 40 ? [{ type: "slider", yAxisIndex: 0, startValue: 0, endValue: 39, width: 18, right: 8, showDetail: false, brushSelect: false }, { type: "inside", yAxisIndex: 0, zoomOnMouseWheel: "ctrl", moveOnMouseWheel: false }] : [],
      tooltip: tooltip(colours, { trigger: "axis", axisPointer: { type: "shadow" }, formatter: (found) => {
        const row = rows[found[0].dataIndex];
        return lines(`${row.name}: ${bytes(row.peak)}`, found.map((one) => [one.color, one.seriesName, bytes(one.value)]));
      } }),
      series: names.map(([key, name], i) => ({ name: name || partOf(key).name, type: "bar", stack: "parts", barMaxWidth: 22, itemStyle: { color: partOf(key).colour }, data: rows.map((row) => row.parts[i]) })) });
  };
  redraw.push(() => {
    rows = state.shown.filter((row) => row.parts).sort((a, b) => a.peak - b.peak);
    box.style.height = `${60 + 24 * Math.max(2, Math.min(rows.length, 40))}px`;
    if (drawn) {
      drawn.made.resize();
      drawn.draw();
    } else {
      drawn = chart(box, options, "live tensors at the peak by part");
      drawn.made.on("click", (event) => openJob(rows[event.dataIndex]));
    }
  });
  return section("What takes the memory", "Live tensors at the moment of the peak, the least first. “other” is what the step makes and drops again, as the optimizer's temporary results, and its data. Click a bar to open the job's page.", legend(names.map(([key, name]) => [partOf(key).colour, name || partOf(key).name])), box);
}

function multiplesCard(sweep, state, redraw) {
  const keys = sweep.keys.filter((key) => { const count = valuesOf(sweep.rows, key).length; return count > 1 && count <= 16; });
  if (!keys.length || !sweep.rows.some(good)) return null;
  let key = keys[0], drawn = null;
  const box = h("div", { class: "chart", id: "multiples" });
  const across = () => Math.max(1, Math.min(4, valuesOf(sweep.rows, key).length, Math.floor(box.clientWidth / 240)));
  const options = (colours) => {
    const values = valuesOf(sweep.rows, key), columns = across();
    const rows = state.shown.filter(good);
    const most = Math.max(1, ...rows.map((row) => row.memory)) * 1.08, fastest = Math.max(0, ...rows.map((row) => row.speed)) * 1.12, everything = rows.map((row) => [row.memory, row.speed]);
    const grid = [], x = [], y = [], series = [], title = [];
    values.forEach((value, i) => {
      const left = 100 * (i % columns) / columns, top = 210 * Math.floor(i / columns);
      grid.push({ left: `${left + 100 * 46 / Math.max(300, box.clientWidth)}%`, width: `${100 / columns - 100 * 62 / Math.max(300, box.clientWidth)}%`, top: top + 30, height: 140 });
      title.push({ text: `${key}=${value}`, left: `${left + 1}%`, top, textStyle: { fontSize: 13, color: colours.text } });
      x.push(byteAxis(colours, most, { gridIndex: i }, 0, 3));
      y.push(axis(colours, { type: "value", gridIndex: i, max: fastest, splitNumber: 3, axisLabel: { color: colours.quiet, formatter: (v) => number(v, 3), showMaxLabel: false } }));
      const mine = (row) => (row.label[key] ?? "–") === value;
      series.push({ type: "scatter", xAxisIndex: i, yAxisIndex: i, symbolSize: 6, silent: true, itemStyle: { color: colours.quiet, opacity: 0.45 }, data: everything, large: true });
      series.push({ type: "scatter", xAxisIndex: i, yAxisIndex: i, symbolSize: 8, itemStyle: { color: SERIES[Math.min(i, 7) % 8], borderColor: colours.card, borderWidth: 0.5 }, data: rows.filter(mine).map((row) => ({ value: [row.memory, row.speed], row })) });
    });
    return base(colours, { grid, xAxis: x, yAxis: y, series, title, tooltip: tooltip(colours, { trigger: "item", formatter: (found) => (found.data.row ? rowLines(sweep, state, found.data.row) : "") }) });
  };
  const fit = () => {
    box.style.height = 210 * Math.ceil(valuesOf(sweep.rows, key).length / across()) + 10 + "px";
    if (drawn) {
      drawn.made.resize();
      drawn.draw();
    } else {
      drawn = chart(box, options, "memory against throughput for each value of a key");
      drawn.made.on("click", (event) => openJob(event.data && event.data.row));
    }
  };
  redraw.push(fit);
  return section("What each value does", "Memory (across) against samples per second (up), as above: coloured the jobs with the value, grey all others.",
    h("div", { class: "controls" }, h("label", {}, "Key ", h("select", { id: "multiples-key", onchange: (event) => { key = event.target.value; fit(); } }, keys.map((one) => h("option", { value: one }, one))))), box);
}

// --- two jobs ------------------------------------------------------------------------------------------------

/** Loads a job's data from the file beside its page; a page from the disk may load scripts, and nothing else. */
function loadJob(run) {
  if (legroom.data[run.key]) return Promise.resolve(legroom.data[run.key]);
  return new Promise((resolve, reject) => {
    const script = h("script", { src: run.data });
    script.addEventListener("load", () => (legroom.data[run.key] ? resolve(legroom.data[run.key]) : reject(new Error("it holds another job"))));
    script.addEventListener("error", () => reject(new Error(run.data + " is not there")));
    document.head.append(script);
  });
}

const PER_PHASE = 240;
/** Bytes of each part at PER_PHASE places of each phase, so that steps of different lengths can be compared. */
function aligned(timeline) {
  const found = new Map();
  timeline.phases.forEach(([first, name], i) => {
    const last = i + 1 < timeline.phases.length ? timeline.phases[i + 1][0] : timeline.moments;
    if (found.has(name) || last <= first) return;  // of the first micro-batch
    const total = [], parts = timeline.kinds.map(() => []);
    for (let place = 0; place < PER_PHASE; place++) {
      const from = first + Math.floor((last - first) * place / PER_PHASE), to = Math.max(from + 1, first + Math.floor((last - first) * (place + 1) / PER_PHASE));
      let most = from;
      for (let m = from; m < Math.min(to, timeline.moments); m++) if (timeline.total[m] > timeline.total[most]) most = m;
      total.push(timeline.total[most]);
      parts.forEach((part, k) => part.push(timeline.curves[k][most]));
    }
    found.set(name, { total, parts });
  });
  return found;
}

function compareCard(sweep, state, redraw) {
  const some = sweep.rows.filter((row) => row.runs.some((run) => run.data)), counted = some.filter((row) => row.parts);
  const able = counted.length > 1 ? counted : some;  // a job without figures has no timeline either
  if (able.length < 2) return null;
  const choice = (label, id) => h("select", { id, "aria-label": label, style: "flex:1 1 240px;min-width:0", onchange: () => choose() }, able.map((row) => h("option", { value: row.index }, row.name)));
  const one = choice("first job", "first"), other = choice("second job", "second"), place = h("div", { id: "difference" });
  const start = able.find((row) => row.index === state.baseline) || able[0];
  const [first, second] = state.pair.map((i) => able.find((row) => row.index === i));
  one.value = (first || start).index;
  other.value = (second || front(able).find((row) => row !== start) || able.find((row) => row !== start)).index;
  const swap = h("button", { class: "small", type: "button", onclick: () => { [one.value, other.value] = [other.value, one.value]; choose(); } }, "swap");
  function choose() {
    state.pair = [Number(one.value), Number(other.value)];
    state.keep();
    show();
  }
  let asked = 0;
  async function show() {
    const mine = ++asked;
    const rows = [one, other].map((select) => sweep.rows[Number(select.value)]);
    legroom.charts = legroom.charts.filter((entry) => !place.contains(entry.place));
    place.replaceChildren(h("p", { class: "quiet", role: "status" }, "loading …"));
    try {
      const jobs = await Promise.all(rows.map((row) => loadJob(row.runs.find((run) => run.data))));
      if (mine !== asked) return;
      place.replaceChildren();
      difference(rows, jobs, place);
    } catch (error) {
      place.replaceChildren(h("p", { role: "status" }, `The timelines cannot be shown: ${error.message}.`));
    }
  }
  state.compare = (index) => { one.value = state.baseline; other.value = index; choose(); card.scrollIntoView({ behavior: "smooth" }); };
  const button = h("button", { class: "small", id: "compare", type: "button", onclick: () => show() }, "Compare");
  const card = section("Two jobs", "Their memory over one step; forward, backward and step have the same width in both. The lower curve is what the second takes more, or less (below zero).",
    h("div", { class: "controls" }, one, swap, other, button), place);
  if ("IntersectionObserver" in window) {  // what nobody has scrolled to is not loaded
    const seen = new IntersectionObserver((entries) => { if (entries.some((entry) => entry.isIntersecting)) { seen.disconnect(); if (!place.childNodes.length) show(); } });
    seen.observe(card);
  }
  return card;
}

function difference(rows, jobs, place) {
  const settings = jobs.map((job) => new Map(job.settings.map((row) => [row.key, row.value])));
  const keys = [...new Set(settings.flatMap((map) => [...map.keys()]))].filter((key) => settings[0].get(key) !== settings[1].get(key));
  place.append(table([{ name: "", class: "name", key: (row) => row[0] }, { name: rows[0].short, class: "name", key: (row) => row[1] }, { name: rows[1].short, class: "name", key: (row) => row[2] }, { name: "difference", number: true, key: (row) => row[3] }], [
    ["memory", bytes(rows[0].memory), bytes(rows[1].memory), change(rows[1].memory, rows[0].memory)],
    ["samples/s", speed(rows[0]), speed(rows[1]), speedChange(rows[1], rows[0])],
    ["final loss", loss(rows[0]), loss(rows[1]), change(rows[1].loss, rows[0].loss)],
    ...keys.slice(0, 60).map((key) => [key, settings[0].get(key) ?? "–", settings[1].get(key) ?? "–", ""]),
  ].filter((row) => row[1] || row[2])));
  if (jobs.some((job) => !job.step || !job.step.timeline)) {
    place.append(h("p", {}, "One of the two has recorded no timeline."));
    return;
  }
  const curves = jobs.map((job) => aligned(new Timeline(job.step.timeline))), kinds = jobs.map((job) => job.step.timeline.kinds);
  const phases = [...curves[0].keys()].filter((name) => curves[1].has(name));
  const join = (which, k) => phases.flatMap((name) => (k === undefined ? curves[which].get(name).total : curves[which].get(name).parts[kinds[which].indexOf(k)] || Array(PER_PHASE).fill(0)));
  const totals = [join(0), join(1)], both = h("div", { class: "chart low" }), box = h("div", { class: "chart low", id: "difference-chart" });
  place.append(legend([[SERIES[0], rows[0].short], [SERIES[5], rows[1].short]]), both, h("h3", {}, "Difference by part"), legend(PARTS.map((part) => [part.colour, part.name])), box);
  const x = (colours) => axis(colours, { type: "value", min: 0, max: phases.length * PER_PHASE, interval: PER_PHASE, splitLine: { show: true, lineStyle: { color: colours.line } }, axisLabel: { show: false } });
  const marks = (colours) => ({ markArea: { silent: true, data: phases.map((name, i) => [{ xAxis: i * PER_PHASE, name, itemStyle: { color: "transparent" }, label: { position: "insideTopLeft", color: colours.quiet } }, { xAxis: (i + 1) * PER_PHASE }]) } });
  const grid = { left: 74, right: 14, top: 10, bottom: 18 };
  chart(both, (colours) => base(colours, { grid, xAxis: x(colours), yAxis: byteAxis(colours, 1.15 * Math.max(...totals[0], ...totals[1])),
    tooltip: tooltip(colours, { trigger: "axis", formatter: (found) => lines(phases[Math.min(phases.length - 1, Math.floor(found[0].value[0] / PER_PHASE))], found.map((each) => [each.color, each.seriesName, bytes(each.value[1])])) }),
    series: totals.map((total, i) => ({ name: rows[i].short, type: "line", symbol: "none", color: SERIES[i ? 5 : 0], lineStyle: { width: 2, type: i ? "solid" : "dashed" }, data: total.map((size, at) => [at, size]), ...(i ? {} : marks(colours)) })) }), "memory over the step of both jobs");
  const parts = PARTS.map((part) => { const before = join(0, part.key); return { part, data: join(1, part.key).map((size, at) => size - before[at]) }; }).filter((each) => each.data.some((size) => size));
  if (!parts.length) {
    box.replaceWith(h("p", {}, "The two take the same memory all through the step."));
    return;
  }
  const above = Math.max(1, ...totals[0].map((_, at) => parts.reduce((sum, { data }) => sum + Math.max(0, data[at]), 0)));
  const below = Math.min(0, ...totals[0].map((_, at) => parts.reduce((sum, { data }) => sum + Math.min(0, data[at]), 0)));
  chart(box, (colours) => base(colours, { grid, xAxis: x(colours), yAxis: byteAxis(colours, above, {}, below),
    tooltip: tooltip(colours, { trigger: "axis", formatter: (found) => lines(phases[Math.min(phases.length - 1, Math.floor(found[0].value[0] / PER_PHASE))], [...found.map((each) => [each.color, each.seriesName, bytes(each.value[1])]),
      ["", "together", bytes(found.reduce((sum, each) => sum + each.value[1], 0))]]) }),
    series: parts.map(({ part, data }) => ({ name: part.name, type: "line", stack: "difference", stackStrategy: "samesign", symbol: "none", lineStyle: { width: 0 }, color: part.colour, areaStyle: { color: part.colour, opacity: 0.9 }, data: data.map((size, at) => [at, size]) })) }), "difference of the memory by part");
}
