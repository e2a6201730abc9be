/* The page of one run or estimate. legroom.run: {record, settings, command, steps, step, sweep, problem}. */
"use strict";

function runPage(run, place) {
  const record = run.record, drawing = [];
  const add = (card) => card && place.append(card);
  place.replaceChildren();
  add(heading(run));
  if (record.error && !record.estimate) add(ended(run));
  if (record.estimate) add(verdict(record, run.verdict));
  else if (record.training.steps || !record.error) add(outcome(record));
  if (run.next) add(section(run.next.title, `${run.next.note}${/YOUR_/.test(run.next.command) ? " Fill in what stands in capitals." : ""}`, command(run.next.command)));
  add(phases(record));
  add(levers(record));
  if (run.step && run.step.timeline) {
    const timeline = new Timeline(run.step.timeline);
    const memory = memoryOverTheStep(timeline, record.estimate ? run.capacity : null, memoryNote(record));
    memory.cards.forEach(add);
    drawing.push(memory.draw);
  } else {
    add(section("Memory over one step", "", h("p", {}, run.problem || "This job has recorded no timeline: it ended before its extra step, or measure.ledger=false left the step out.")));
  }
  if (typeof operationsCards === "function") {
    const operations = operationsCards(record, run.step && run.step.operations);
    operations.cards.forEach(add);
    drawing.push(operations.draw);
  }
  const curves = h("div", { class: "columns" });
  if (run.steps.step.length) {
    place.append(curves);
    drawing.push(() => stepCurves(run.steps, record, curves));
  }
  add(settings(run));
  add(section("Repeat it", record.program ? "Run this command in the folder in which it was typed." : "Run this command where Legroom is; a new folder is made for it.", command(run.command)));
  if (record.warnings.length) add(section("Notes and assumptions", "", h("ul", { class: "warnings" }, record.warnings.map((text) => h("li", {}, text)))));
  add(h("p", { class: "quiet" }, `Legroom, made from result.json, steps.jsonl and step.json.gz. ${versions(record)}`));
  drawing.forEach((draw) => draw());
}

function versions(record) {
  return Object.entries(record.environment.versions || {}).filter(([, version]) => version).map(([name, version]) => `${name} ${version}`).join(", ");
}

function heading(run) {
  const { record } = run, config = record.config, value = (menu, key = "name") => (config[menu] || {})[key];
  const device = record.environment.device_name || record.environment.device || "";
  const { program } = record, parts = [program ? program.name : value("model", "pretrained") || value("model"), "on " + device];
  const details = program ? [`legroom check: ${program.steps} optimizer steps were followed, and nothing was trained`, program.typed, record.environment.started_at] : [record.recipe === "estimate" ? "an estimate: nothing was trained" : "recipe " + record.recipe, value("precision"), value("optim"),
    `batch ${value("batch", "per_device")} × ${value("accumulation", "steps")}`, `${value("data", "seq_len") ?? ""} tokens`,
    `checkpointing ${value("checkpointing")}`, value("parallelism") === "single" ? "" : `${value("parallelism")} × ${value("parallelism", "num_processes")}${value("gpu", "machines") > 1 ? ` on ${value("gpu", "machines")} machines` : ""}`, record.environment.started_at || ""];
  return h("header", {}, run.sweep ? h("p", {}, h("a", { href: run.sweep + location.hash }, "← the sweep")) : "",
    h("h1", {}, parts.filter(Boolean).join(" "), " ", chip(statusText(record))),
    h("p", { class: "quiet" }, details.filter(Boolean).join(" · ")));
}

function numbers(entries) {
  return h("div", { class: "numbers" }, entries.filter((entry) => entry && entry[0]).map(([value, name]) => h("div", {}, h("b", {}, value), h("span", {}, name))));
}

function speedNumbers(record) {
  const speed = record.speed, how = record.estimate ? "predicted" : "median";
  const known = record.estimate ? predictedNumber : number, time = record.estimate ? predictedSeconds : seconds;
  return [
    [speed.samples_per_second && known(speed.samples_per_second), "samples/s"],
    [speed.tokens_per_second && known(speed.tokens_per_second), "tokens/s"],
    [speed.step_seconds_median && time(speed.step_seconds_median), `step, ${how}`],
    [speed.step_seconds_low && `${time(speed.step_seconds_low)} to ${time(speed.step_seconds_high)}`, "likely range: nine of ten published steps lay in theirs"],
    [speed.bound_by, "bound by"],
    [speed.mfu && percent(speed.mfu), "MFU"],
    [speed.data_wait_share != null && percent(speed.data_wait_share), "of a step: waiting for data"],
  ];
}

/** Why a run has ended without a result: in a line; of one that ran out of memory also how much it had and used. */
function ended(run) {
  const { record } = run, { error, memory, environment } = record, oom = record.status === "oom";
  // A limit on the host leaves the libraries out, so what is in use may be more: no sentence joins the two.
  const first = error.message.split("\n")[0], limit = (record.config.launch || {}).memory_limit_gib;
  const whole = limit ? `${limit} GiB` : bytes(environment.device_memory_bytes);
  const used = [[memory.device_used_bytes, "of the GPU in use"], [memory.peak_reserved_bytes, "reserved by CUDA's allocator"], [memory.peak_tensor_bytes, "live tensors at the peak"],
    [memory.host_peak_rss_bytes, "of the host's memory in use, at most, with the libraries"]].find(([size]) => size) || [];
  return h("section", { class: "card verdict bad", id: "why" },
    h("div", { class: "headline" }, oom ? `Out of memory in the ${error.phase === "step" ? "optimizer's step" : `${error.phase}${/ward$/.test(error.phase) ? " pass" : ""}`}${used[0] && whole && !(limit && environment.device === "cpu") ? `: ${bytes(used[0])} of ${whole} in use, and more was needed` : ""}` : `${record.status[0].toUpperCase()}${record.status.slice(1)}: ${first}`),
    oom ? numbers([[whole, limit ? "the limit, launch.memory_limit_gib" : `memory of ${environment.device_name}`], [bytes(used[0]), used[1]]]) : "",
    error.type === "Refusal" ? error.message.split("\n").slice(1).map((line) => h("p", {}, line)) : h("p", {}, `${error.type} in ${error.phase}${oom || error.message !== first ? `: ${error.message}` : ""}`),
    error.hint ? h("p", {}, h("b", {}, "What to change. "), typed(error.hint)) : "",
    oom ? h("div", {}, h("p", {}, "What an estimate says of it, and what would make it fit:"), command(run.estimate)) : "");
}

/** A run's figures. */
function outcome(record) {
  const { memory, training, evaluation } = record;
  const used = memory.device_used_bytes || memory.peak_reserved_bytes || memory.peak_tensor_bytes;
  const shares = { accuracy: "accuracy", f1: "F1", exact_match: "exact match" }, scores = evaluation || {};
  const quality = [...Object.entries(shares).map(([key, name]) => scores[key] != null && [percent(scores[key]), `${name} of the evaluation`]),
    scores.pearson != null && [number(scores.pearson), "correlation in the evaluation"],
    scores.perplexity != null && [number(scores.perplexity, 4), "perplexity of the evaluation"]];
  return h("section", { class: "card" }, h("h2", {}, "Result"), numbers([...speedNumbers(record),
    [bytes(used), memory.device_used_bytes ? "memory of the GPU" : memory.peak_reserved_bytes ? "reserved by CUDA's allocator" : "live tensors at the peak"],
    [training.final_loss != null ? number(training.final_loss) : training.losses.length && "not a number", "final loss"], ...quality,
    [training.steps && String(training.steps), "optimizer steps"]]), partsBar(record, null));
}

/** Does it fit? What takes the memory? How long is the run? said: {margin, needed, lengths, run, run_parts}, as on the screen. */
function verdict(record, said) {
  const { estimate, memory } = record, verdict = estimate.verdict || (estimate.fits ? "fits" : "does not fit");
  const device = record.environment.device_name || "the GPU";
  const limit = estimate.limit_bytes, whole = limit || estimate.capacity_bytes;
  const headline = `${verdict[0].toUpperCase()}${verdict.slice(1)}: ${said.margin}`;
  const where = memory.peak_phase === "step" ? "in the optimizer's step" : `in the ${memory.peak_phase} pass`;
  return h("section", { class: "card verdict " + ({ fits: "good", tight: "tight" }[verdict] || "bad"), id: "verdict" },
    h("div", { class: "headline" }, headline),
    h("p", {}, `Needed: ${said.needed}. ${device} has ${bytes(estimate.capacity_bytes)}${limit ? `, of which a limit (launch.memory_limit_gib or PYTORCH_ALLOC_CONF) allows ${bytes(limit)}` : ""}. ${memory.peak_phase ? `The peak of the training step is ${where}.` : "Nothing was simulated: a multiplication says it."}` +
      (verdict === "tight" ? ` An estimate can be off by more than what stays free: ${bytes(estimate.kept_bytes)} would make sure.` : "")),
    partsBar(record, whole, limit ? "the limit" : "the GPU"),
    record.error && record.error.hint ? h("p", {}, h("b", {}, "What to change. "), typed(record.error.hint)) : "",
    numbers(speedNumbers(record)),
    said.run ? h("p", { id: "run" }, h("b", {}, "The whole run. "), `${said.run}: ${said.run_parts}.`) : "",
    said.lengths ? h("p", { id: "lengths" }, h("b", {}, "Lengths: "), `${said.lengths}.`) : "",
    h("p", { class: "quiet" }, (estimate.margin_bytes < 0 ? "Speed as if it fitted. " : "") + "All figures are predictions" + (estimate.efficiencies_from ? `; speed with ${estimate.efficiencies_from} efficiencies of this GPU.` : ".")));
}

/** The device's memory by part as one bar, with its capacity. */
function partsBar(record, capacity, ends) {
  const memory = record.memory, entries = [];
  if (memory.peak_tensor_bytes == null) return "";
  const known = [["parameters", "parameters"], ["optimizer", "optimizer"], ["gradients", "gradients"], ["activations", "activations"], ["other", "other"]];
  for (const [part, field] of known) entries.push([partOf(part).colour, part === "parameters" ? "weights, with copies" : part === "other" ? otherName(memory) : partOf(part).name, memory[field + "_bytes"] || 0]);
  if (memory.device_used_bytes) {
    const context = memory.context_bytes || 0, nccl = memory.nccl_bytes || 0;
    entries.push(["#5B6770", "CUDA context", context], ["#D55E00", "NCCL’s buffers", nccl]);
    entries.push(["repeating-linear-gradient(45deg,#5B6770,#5B6770 3px,#9AA0A6 3px,#9AA0A6 6px)", "allocator, beyond tensors", Math.max(0, memory.device_used_bytes - context - nccl - memory.peak_tensor_bytes)]);
  }
  const used = entries.reduce((sum, entry) => sum + entry[2], 0), whole = Math.max(used, capacity || 0);
  const shown = entries.filter((entry) => entry[2] > 0);
  const bar = h("div", { class: "bar", role: "img", "aria-label": shown.map((entry) => `${entry[1]} ${bytes(entry[2])}`).join(", ") },
    shown.map(([colour, name, size]) => h("i", { title: `${name}: ${bytes(size)}`, style: `background:${colour};width:${100 * size / whole}%` })),
    capacity && used > capacity ? h("i", { class: "capacity", title: `capacity: ${bytes(capacity)}`, style: `left:${100 * capacity / whole}%` }) : "");
  const free = capacity && used < capacity ? [["transparent", `free${record.estimate ? " in the training step" : ""} ${bytes(capacity - used)}`]] : [];
  const over = capacity && used > capacity ? [["var(--text)", `the line: ${ends} ends here, at ${bytes(capacity)}`]] : [];
  return h("div", {}, bar, legend([...shown.map(([colour, name, size]) => [colour, `${name} ${bytes(size)}`]), ...free, ...over]));
}

/** What "other" is at the peak. */
function otherName(memory) {
  return memory.peak_phase === "step" ? "other, mostly the optimizer’s temporary results" : "other: data and temporary results";
}

function memoryNote(record) {
  const ranks = record.memory.per_rank.length > 1 ? " Of rank 0." : "";
  const how = record.estimate ? "Simulated: every tensor that the step would allocate." : "Counted in one extra step after the training.";
  return `${how} Live tensors, in the order of their allocations and frees.${ranks}`;
}

/** What each phase of the training needs, on the device and on the host. */
function phases(record) {
  const memory = record.memory, estimate = record.estimate, rows = memory.phases || [];
  if (!rows.length) return "";
  const on_gpu = rows.some((row) => row.device_bytes != null);
  const lacks = (row) => estimate && estimate.first_lacking === row.phase;
  const parts = (row) => Object.entries(row.host_parts).sort((one, other) => other[1] - one[1]).map(([name, size]) => `${name} ${bytes(size)}`).join(", ");
  const has = memory.host_memory_bytes ? ` A machine has ${bytes(memory.host_memory_bytes)}.` : " How much a machine has is not known; type gpu.host_memory_gib= to compare with it.";
  const disk = memory.disk_bytes ? ` Checkpoints and the saved model take ${bytes(memory.disk_bytes)} of the disk.` : "";
  return section("Phases", `The host's memory is that of all ranks of one machine together.${has}${disk}`, table([
    { name: "phase", class: "name", key: (row) => rows.indexOf(row), text: (row) => row.phase + (lacks(row) ? ": lacks room" : "") },
    ...(on_gpu ? [{ name: "one GPU", number: true, key: (row) => row.device_bytes || 0, text: (row) => row.device_bytes != null ? bytes(row.device_bytes) : "" }] : []),
    { name: "host", number: true, key: (row) => row.host_bytes || 0, text: (row) => row.host_bytes ? bytes(row.host_bytes) : "" },
    { name: "of which", key: parts, text: parts },
  ], rows));
}

/** estimate.explain: what each option alone would save. */
function levers(record) {
  const all = (record.estimate && record.estimate.levers) || [], found = all.filter((row) => !row.refused);
  if (!all.length) return "";
  const refused = all.filter((row) => row.refused).map((row) => `Not with ${row.words}: ${row.refused}`);
  // Records of earlier versions have no verdict of a lever.
  const verdictOf = (row) => row.verdict || (row.device_used_bytes <= record.estimate.capacity_bytes ? "fits" : "does not fit");
  return section("What each change alone would do", ["Estimated in the same way.", ...refused].join(" "), table([
    { name: "type", class: "name", key: (row) => row.words },
    { name: "changes the memory by", number: true, key: (row) => -row.saved_bytes, text: (row) => (row.saved_bytes > 0 ? "−" : "+") + bytes(Math.abs(row.saved_bytes)) },
    { name: "then needs", number: true, spare: 1, key: (row) => row.device_used_bytes, text: (row) => bytes(row.device_used_bytes) },
    { name: "verdict", key: verdictOf, text: (row) => chip(verdictOf(row)) },
    { name: "step", number: true, spare: 2, key: (row) => row.step_seconds, text: (row) => seconds(row.step_seconds) },
  ], found));
}

/** Loss and time of the optimizer steps. */
function stepCurves(steps, record, place) {
  const evaluations = steps.evaluations || [];
  const draw = (title, note, values, format, marks, unit) => {
    const box = h("div", { class: "chart low" });
    place.append(section(title, note, box));
    chart(box, (colours) => base(colours, {
      grid: { left: 62, right: 16, top: 16, bottom: 44 },
      xAxis: axis(colours, { type: "value", name: "optimizer step", min: "dataMin", max: "dataMax", minInterval: 1, splitLine: { show: false } }),
      yAxis: axis(colours, { type: "value", scale: title === "Loss", axisLabel: { formatter: (value) => format(value), color: colours.quiet } }),
      dataZoom: [{ type: "inside", filterMode: "none" }],
      tooltip: tooltip(colours, { trigger: "axis", formatter: (found) => lines(`step ${found[0].value[0]}`, found.map((one) => [one.color, one.seriesName, format(one.value[1])])) }),
      series: [
        { name: unit, type: "line", data: values, symbol: values.length < 60 ? "circle" : "none", symbolSize: 5, itemStyle: { color: SERIES[0] }, lineStyle: { color: SERIES[0], width: 2 } },
        ...(marks.length ? [{ name: "evaluation", type: "line", data: marks, symbol: "diamond", symbolSize: 9, itemStyle: { color: SERIES[1] }, lineStyle: { color: SERIES[1], type: "dashed" } }] : []),
      ],
    }), title + " by optimizer step");
  };
  const pairs = (key) => steps.step.map((step, i) => [step, steps[key][i]]).filter((pair) => pair[1] !== null);
  const evaluated = evaluations.some((one) => one[1] !== null) ? " Orange: the evaluation." : "";
  draw("Loss", (steps.thinned ? "Every few steps of a long run." : "Mean over the effective batch.") + evaluated, pairs("loss"), (value) => number(value, 4),
    evaluations.filter((one) => one[1] !== null), "loss");
  const warm = record.speed.warmup_steps;
  draw("Time of a step", warm ? `The first ${warm} are warm-up, and not part of the median.` : "", pairs("seconds"), seconds, [], "time");
}

/** The configuration; first what differs from the defaults. */
function settings(run) {
  const columns = [
    { name: "key", class: "name", key: (row) => row.key },
    { name: "value", class: "name", key: (row) => row.value },
    { name: "default", class: "name", key: (row) => row.default, spare: 2 },
    { name: "from", key: (row) => row.from, spare: 1 },
  ];
  const changed = run.settings.filter((row) => row.from === "typed" || row.from === "derived");
  const search = h("input", { type: "search", placeholder: "find a key", "aria-label": "find a key", oninput: () => fill() });
  const all = h("div");
  const fill = () => all.replaceChildren(table(columns, run.settings.filter((row) => row.key.includes(search.value.trim())), { class: "tall" }));
  fill();
  return section("Configuration", "What differs from the defaults. “derived” was not typed: it follows from other keys, the model or the machine. What belongs to a typed option is among all keys.",
    changed.length ? table(columns, changed) : h("p", {}, "Everything has its default."),
    h("details", {}, h("summary", {}, `All ${run.settings.length} keys`), h("div", { class: "controls" }, search), all));
}
