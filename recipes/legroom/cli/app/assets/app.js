/* Will it fit? The form on the left, the answer of an estimate on the right. Uses common.js, which stands before it. */
"use strict";
(async function () {
  const page = document.getElementById("page");
  let choices;
  try {
    choices = await (await fetch("/choices")).json();
  } catch (error) {
    page.append("The server does not answer. Start it again in its terminal.");
    return;
  }
  const answer = h("div", { "aria-live": "polite" });
  const comparison = h("div");
  const brief = h("div", { class: "brief" });  // on a phone the answer is below the form
  const form = h("form", { class: "card", onsubmit: (event) => event.preventDefault() });

  // --- the form -------------------------------------------------------------------------------------------

  const field = (title, input) => h("label", { class: "field" }, title, input);
  const select = (name, options, chosen) =>
    h("select", { name }, options.map((one) =>
      h("option", { value: one.name, selected: one.name === chosen, title: one.title }, one.label || one.name)));
  const modelTitle = (model) => (model.name.startsWith("folder ") ? model.title : model.name);
  const pasted = h("textarea", { name: "config", spellcheck: "false", placeholder: '{"model_type": "llama", "hidden_size": 4096, ...}' });
  const gpuTitle = (gpu) => `${gpu.device_name} (${number(gpu.memory_bytes / GIB, 3)} GiB)`;

  form.append(
    h("h2", {}, "Model"),
    field("From the menu, or a folder", select("model", choices.models.map((model) => ({ ...model, label: modelTitle(model) })), "bert_large")),
    h("details", {}, h("summary", { class: "quiet" }, "or paste a config.json"), pasted),
    h("h2", { style: "margin-top:14px" }, "GPU"),
    field("Card", select("gpu", choices.gpus.map((gpu) => ({ name: gpu.name, label: gpuTitle(gpu) })), "rtx4090_24gb")),
    h("div", { class: "two" },
      field("How many", h("input", { name: "gpus", type: "number", min: 1, max: 1024, value: 1 })),
      field("Together as", select("mode", choices.modes.map((mode) => ({ name: mode.name, label: mode.name, title: mode.title })), "fsdp"))),
    h("h2", { style: "margin-top:14px" }, "Data"),
    ...choices.numbers.map((one) => field(one.title, h("input", { name: one.key, type: "number", min: 1, max: one.largest, value: one.value }))),
    ...choices.menus.map((menu) => h("fieldset", {}, h("legend", {}, menu.title), h("div", { class: "choices" },
      menu.options.map((option, index) => h("label", { title: option.title },
        h("input", { type: "radio", name: menu.key, value: option.name, checked: index === 0 }), option.name))))),
  );

  function chosen() {
    const values = {};
    for (const [name, value] of new FormData(form).entries()) values[name] = value;
    for (const name of ["gpus", ...choices.numbers.map((one) => one.key)]) values[name] = Number(values[name]);
    if (!values.config.trim()) delete values.config;
    return values;
  }

  // --- questions ------------------------------------------------------------------------------------------

  async function ask(values) {
    try {
      const reply = await fetch("/estimate", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(values) });
      return await reply.json();
    } catch (error) {
      return { failed: "the server does not answer. Start it again in its terminal." };
    }
  }

  // One question at a time; while it is asked, only the newest of the later ones is remembered.
  let asking = false, next = null, timer = null;
  async function update(extra = {}) {
    const values = { ...chosen(), ...extra };
    if (asking) { next = extra; return; }
    asking = true;
    answer.classList.add("waiting");
    const found = await ask(values);
    asking = false;
    if (next !== null) { const later = next; next = null; return update(later); }
    answer.classList.remove("waiting");
    show(found, Boolean(extra.explain));
  }
  /** What would make it fit takes longer: asked when the answer is there, and dropped when another question comes. */
  let question = 0;
  async function advise() {
    const mine = ++question;
    await new Promise((resolve) => { setTimeout(resolve, 1500); });
    if (mine !== question) return;
    const found = await ask({ ...chosen(), advise: true });
    if (mine === question && found.record) show(found, false);
  }
  form.addEventListener("input", () => {
    question += 1;
    form.elements.mode.disabled = Number(form.elements.gpus.value) < 2; clearTimeout(timer); timer = setTimeout(update, 450); });

  // --- the answer -----------------------------------------------------------------------------------------

  const tone = (verdict) => (verdict === "fits" ? "good" : verdict === "tight" ? "tight" : "bad");
  const verdictOf = (record) => record.estimate.verdict || (record.estimate.fits ? "fits" : "does not fit");

  function show(found, explained) {
    brief.replaceChildren();
    if (!found.record) {
      answer.replaceChildren(h("div", { class: "card verdict bad" },
        h("div", { class: "headline" }, found.refused ? "This cannot be trained as chosen" : "No answer"),
        h("p", {}, found.refused || found.failed)));
      return;
    }
    const { record } = found, { memory, estimate, speed } = record, verdict = verdictOf(record);
    const missing = estimate.margin_bytes < 0;
    brief.replaceChildren(h("b", { class: `verdict-word ${tone(verdict)}` }, verdict), ` ${bytes(Math.abs(estimate.margin_bytes))} ${missing ? "missing" : `free · ${number(speed.samples_per_second, 3)} samples/s`}`);
    answer.replaceChildren(
      h("div", { class: `card verdict ${tone(verdict)}` },
        h("div", { class: "headline" }, verdict === "fits" ? "It fits" : verdict === "tight" ? "Tight: it may run out of memory" : "It does not fit"),
        h("p", {}, `${record.config.gpu.device_name} has ${bytes(estimate.capacity_bytes)}, and ${bytes(memory.device_used_bytes)} are needed: `,
          missing ? `${bytes(-estimate.margin_bytes)} are missing.` : `${bytes(estimate.margin_bytes)} stay free.`,
          verdict === "tight" ? ` That is less than the ${bytes(estimate.kept_bytes)} by which the prediction may be too low.` : "", record.config.parallelism.num_processes > 1 ? " Of each GPU." : ""),
        bar(record), legend(record), advice(record, explained)),
      h("div", { class: "card" },
        h("div", { class: "numbers" },
          figure(number(speed.samples_per_second, 3), "samples a second"),
          figure(counted(speed.tokens_per_second), "tokens a second"),
          figure(seconds(speed.step_seconds_median), missing ? "one step, if it fitted" : "one step"),
          figure(speed.step_seconds_low && `${seconds(speed.step_seconds_low)} to ${seconds(speed.step_seconds_high)}`, "nine of ten steps"),
          figure(bytes(memory.device_used_bytes), "GPU memory"),
          figure(counted(memory.parameter_count), "parameters")),
        h("p", { class: "quiet" }, `All predicted, with ${estimate.efficiencies_from || "no"} efficiencies; the peak is in the ${memory.peak_phase} phase.`),
        h("h2", {}, missing ? "The command of this training" : "To train it on that GPU"),
        h("pre", { class: "command" }, trainCommand(found.command)),
        h("button", { class: "action", type: "button", onclick: (event) => copy(event.target, trainCommand(found.command)) }, "Copy"),
        h("button", { class: "action", type: "button", disabled: explained, onclick: (event) => { event.target.disabled = true; update({ explain: true }); } }, "What would each lever do?"),
        h("button", { class: "action", type: "button", onclick: compare }, "Compare all GPUs"),
        h("p", { style: "margin:10px 0 0" }, h("a", { href: `/pages/${found.page}`, target: "_blank", rel: "noopener" }, "Memory over the step, tensor by tensor"))),
      explained ? levers(record) : "",
      record.warnings.length ? h("details", { class: "card" }, h("summary", {}, `${record.warnings.length} remarks`),
        h("ul", {}, record.warnings.map((line) => h("li", {}, line)))) : "");
  }

  /** What to change where it does not fit. */
  function advice(record, explained) {
    if (!record.error) return "";
    if (record.error.hint) return h("p", {}, h("b", {}, "What to change. "), typed(record.error.hint));
    if (explained) return "";
    advise();
    return h("p", { class: "quiet" }, "Trying what would make it fit ...");
  }

  const figure = (value, name) => (value ? h("div", {}, h("b", {}, value), h("span", {}, name)) : "");

  /** The training that was estimated takes the same words. */
  const trainCommand = (command) => command.replace(" estimate.explain=true", "").replace(" recipe=estimate", "");

  function parts(record) {
    const { memory, estimate } = record;
    const known = PARTS.map((part) => ({ ...part, size: memory[`${part.key}_bytes`] || 0 })).filter((part) => part.size > 0);
    const tensors = known.reduce((sum, part) => sum + part.size, 0);
    const rest = Math.max(0, (memory.device_used_bytes || tensors) - tensors);
    return [...known, { name: "context, rounding, cached blocks", colour: "#6b7280", size: rest }].filter((part) => part.size > estimate.capacity_bytes / 1e5);
  }

  function bar(record) {
    const all = parts(record), used = all.reduce((sum, part) => sum + part.size, 0);
    const scale = Math.max(used, record.estimate.capacity_bytes);
    return h("div", { class: "bar", role: "img", "aria-label": all.map((part) => `${part.name} ${bytes(part.size)}`).join(", ") },
      all.map((part) => h("i", { title: `${part.name}: ${bytes(part.size)}`, style: `width:${(part.size / scale) * 100}%;background:${part.colour}` })),
      h("i", { class: "capacity", style: `left:calc(${(record.estimate.capacity_bytes / scale) * 100}% - 3px)`, title: `the GPU: ${bytes(record.estimate.capacity_bytes)}` }));
  }

  const legend = (record) => h("ul", { class: "legend" },
    parts(record).map((part) => h("li", {}, h("i", { style: `background:${part.colour}` }), `${part.name} ${bytes(part.size)}`)));

  function levers(record) {
    const found = record.estimate.levers || [];
    if (!found.length) return h("div", { class: "card" }, h("p", {}, "No lever that is left changes the memory of this step."));
    return h("div", { class: "card" }, h("h2", {}, "What each lever alone would do"),
      h("div", { class: "scroll" }, h("table", {},
        h("thead", {}, h("tr", {}, h("th", {}, "type"), h("th", { class: "number" }, "saves"), h("th", { class: "number" }, "GPU memory then"), h("th", { class: "number" }, "step"), h("th", {}, "verdict"))),
        h("tbody", {}, found.map((lever) => {
          if (lever.refused) return h("tr", {}, h("td", {}, h("code", {}, lever.words)), h("td", { colspan: 4 }, lever.refused));
          return h("tr", {}, h("td", {}, h("code", {}, lever.words)),
            h("td", { class: "number" }, lever.saved_bytes >= 0 ? bytes(lever.saved_bytes) : `takes ${bytes(-lever.saved_bytes)} more`),
            h("td", { class: "number" }, bytes(lever.device_used_bytes)),
            h("td", { class: "number" }, seconds(lever.step_seconds)),
            h("td", {}, h("span", { class: `verdict-word ${tone(lever.verdict)}` }, lever.verdict)));
        })))));
  }

  async function copy(button, text) {
    try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; } catch (error) { button.textContent = "Select and copy"; }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  }

  // --- all GPUs -------------------------------------------------------------------------------------------

  async function compare() {
    const values = chosen(), rows = [], order = { fits: 0, tight: 1, "does not fit": 2 };
    const body = h("tbody"), note = h("p", { class: "quiet" });
    comparison.replaceChildren(h("div", { class: "card" }, h("h2", {}, "The same on every GPU"), note, h("div", { class: "scroll" }, h("table", {},
      h("thead", {}, h("tr", {}, ["GPU", "verdict"].map((name) => h("th", {}, name)), ["memory", "needed", "free", "samples/s", "step"].map((name) => h("th", { class: "number" }, name)))), body))));
    comparison.scrollIntoView({ behavior: "smooth", block: "nearest" });
    const left = [...choices.gpus];
    const total = left.length;
    async function worker() {
      for (let gpu = left.shift(); gpu; gpu = left.shift()) {
        rows.push({ gpu, found: await ask({ ...values, gpu: gpu.name }) });
        rows.sort((a, b) => rank(a) - rank(b) || (speedOf(b) - speedOf(a)));
        body.replaceChildren(...rows.map(row));
        note.textContent = rows.length < total ? `${rows.length} of ${total} estimated` : "Those that fit first, the fastest first. A click chooses the card. Where there is room, torch keeps memory that it has freed, so that a larger card shows more.";
      }
    }
    const rank = (one) => (one.found.record ? order[verdictOf(one.found.record)] : 3);
    const speedOf = (one) => one.found.record?.speed.samples_per_second || 0;
    const row = ({ gpu, found }) => {
      const name = h("th", {}, h("button", { type: "button", onclick: () => { form.elements.gpu.value = gpu.name; update(); } }, gpu.device_name));
      if (!found.record) return h("tr", {}, name, h("td", { colspan: 6 }, found.refused || found.failed));
      const { record } = found, verdict = verdictOf(record);
      return h("tr", {}, name, h("td", {}, h("span", { class: `verdict-word ${tone(verdict)}` }, verdict)),
        h("td", { class: "number" }, bytes(gpu.memory_bytes)), h("td", { class: "number" }, bytes(record.memory.device_used_bytes)),
        h("td", { class: "number" }, record.estimate.margin_bytes < 0 ? `−${bytes(-record.estimate.margin_bytes)}` : bytes(record.estimate.margin_bytes)),
        h("td", { class: "number" }, number(record.speed.samples_per_second, 3)), h("td", { class: "number" }, seconds(record.speed.step_seconds_median)));
    };
    await Promise.all([worker(), worker()]);
  }

  form.elements.mode.disabled = true;  // until there are several GPUs
  page.append(h("h1", {}, "Will it fit?"),
    h("p", { class: "quiet" }, "One training step, simulated for a GPU that is not there: its memory, its speed, and what to type."),
    brief, h("div", { class: "app" }, form, h("div", {}, answer, comparison)));
  answer.append(h("div", { class: "card" }, "Estimating; the first answer waits for the libraries ..."));
  update();
})();
