/* The operations of one step: by group, phase, layer, and one by one. */
"use strict";
const GROUPS = [["contractions", "#0072B2"], ["normalisations", "#E69F00"], ["element-wise", "#009E73"], ["optimizer", "#CC79A7"], ["communication", "#D55E00"], ["copies", "#9AA0A6"]];
const GROUP_COLOUR = Object.fromEntries(GROUPS);
const PHASES = ["forward", "backward", "step"];

/** summary: the record's `operations`, or null. details: of the step file, or null. */
function operationsCards(record, details) {
  const summary = record.operations;
  if (!summary || !summary.groups.length) return { cards: [], draw() {} };
  const known = summary.seconds_from !== null && summary.seconds_from !== undefined, figure = known ? "seconds" : "bytes";
  const format = known ? seconds : bytes;
  const how = { predicted: "Predicted by the roofline model, in seconds of the device", cuda: "Seconds of the GPU's kernels, measured by torch's profiler in one extra step",
    cpu: "Seconds of the calls on the CPU, measured by torch's profiler in one extra step" }[summary.seconds_from] || "No seconds are known here: bytes moved";
  const chartPlace = h("div", { class: "chart low", id: "operations" }), layerPlace = h("div", { class: "chart low", id: "layers" });
  const total = (rows, key) => rows.reduce((sum, row) => sum + (row[key] || 0), 0);
  const whole = { seconds: total(summary.groups, "seconds"), flops: total(summary.groups, "flops"), bytes: total(summary.groups, "bytes") };
  const share = (key) => (row) => (whole[key] ? percent(row[key] / whole[key]) : "");
  const groupRows = GROUPS.map(([group]) => {
    const own = summary.groups.filter((row) => row.group === group);
    return { group, calls: total(own, "calls"), flops: total(own, "flops"), bytes: total(own, "bytes"), seconds: total(own, "seconds") };
  }).filter((row) => row.calls);
  const figures = [...(known ? [{ name: "time", number: true, key: (row) => row.seconds, text: (row) => seconds(row.seconds) }, { name: "of time", number: true, spare: 1, key: (row) => row.seconds, text: share("seconds") }] : []),
    { name: "FLOPs", number: true, spare: 3, key: (row) => row.flops, text: (row) => counted(row.flops) },
    { name: "of FLOPs", number: true, spare: 5, key: (row) => row.flops, text: (row) => (whole.flops ? percent(row.flops / whole.flops, 2) : "") },
    { name: "calls", number: true, spare: 6, key: (row) => row.calls }, { name: "bytes", number: true, spare: 4, key: (row) => row.bytes, text: (row) => bytes(row.bytes) }];
  const groupTable = table([{ name: "group", key: (row) => row.group, text: (row) => h("span", {}, h("i", { class: "swatch", style: `background:${GROUP_COLOUR[row.group]}` }), row.group) }, ...figures], groupRows);
  const rows = (details && details.rows) || summary.largest;
  const listed = table([{ name: "operation", class: "name", key: (row) => row.name, text: (row) => h("span", {}, h("i", { class: "swatch", style: `background:${GROUP_COLOUR[row.group]}` }), row.name) },
    { name: "module", class: "name", key: (row) => row.module }, { name: "phase", key: (row) => row.phase, spare: 7 }, ...figures,
    ...(rows.some((row) => row.bound_by) ? [{ name: "bound by", key: (row) => row.bound_by, spare: 8 }] : [])], rows, { class: "tall" });
  const layers = (details && details.layers) || [], names = [...new Set(layers.map((row) => row[0]))].sort(collator.compare);
  const card = section("Operations of one step", `${how}. Contractions are matrix products and attention; normalisations are reductions and what is made of them, as softmax and layer norm.`,
    legend(groupRows.map((row) => [GROUP_COLOUR[row.group], row.group])), chartPlace, groupTable,
    names.length > 1 ? [h("h3", {}, "By layer"), layerPlace] : "", h("details", {}, h("summary", {}, `All ${rows.length} operations by module`), listed));
  return { cards: [card], draw() {
    chart(chartPlace, (colours) => base(colours, { grid: { left: 76, right: 20, top: 6, bottom: 30 },
      xAxis: axis(colours, { type: "value", axisLabel: { color: colours.quiet, formatter: (value) => format(value) } }),
      yAxis: axis(colours, { type: "category", inverse: true, data: PHASES }),
      tooltip: tooltip(colours, { trigger: "axis", axisPointer: { type: "shadow" }, formatter: (found) => lines(found[0].name, found.filter((one) => one.value).map((one) => [one.color, one.seriesName, `${format(one.value)}  ${percent(one.value / whole[figure])}`])) }),
      series: groupRows.map(({ group }) => ({ name: group, type: "bar", stack: "time", barMaxWidth: 44, itemStyle: { color: GROUP_COLOUR[group] },
        data: PHASES.map((phase) => total(summary.groups.filter((row) => row.group === group && row.phase === phase), figure)) })) }), "operations by phase and group; the same figures are in the table below");
    if (names.length > 1) {
      chart(layerPlace, (colours) => base(colours, { grid: { left: 62, right: 16, top: 8, bottom: 40 },
        xAxis: axis(colours, { type: "category", data: names.map((name) => name.split(".").pop()), name: "layer" }),
        yAxis: axis(colours, { type: "value", axisLabel: { color: colours.quiet, formatter: (value) => seconds(value) } }),
        tooltip: tooltip(colours, { trigger: "axis", axisPointer: { type: "shadow" }, formatter: (found) => lines(names[found[0].dataIndex], found.filter((one) => one.value).map((one) => [one.color, one.seriesName, seconds(one.value)])) }),
        series: GROUPS.filter(([group]) => layers.some((row) => row[2] === group)).map(([group, colour]) => ({ name: group, type: "bar", stack: "layer", barMaxWidth: 44, itemStyle: { color: colour },
          data: names.map((name) => layers.filter((row) => row[0] === name && row[2] === group).reduce((sum, row) => sum + row[3], 0)) })) }), "seconds of each layer by group");
    }
  } };
}
