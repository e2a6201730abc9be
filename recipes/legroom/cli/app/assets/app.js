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
  const known = h("datalist", { id: "known" }, choices.models.map((model) => h("option", { value: model.name }, model.title)));
  const rank = field(choices.rank.title, h("input", { name: choices.rank.key, type: "number", min: 1, max: choices.rank.largest, value: choices.rank.value }));
  // Not sent: what the answer's speed is multiplied by.
  const planned = [["plan.tokens", "Millions of tokens to train on"], ["plan.price", "Price of one GPU per hour"]];
  const pasted = h("textarea", { name: "config", spellcheck: "false", placeholder: '{"model_type": "llama", "hidden_size": 4096, ...}' });
  const foreign = h("textarea", { spellcheck: "false", rows: 5, style: "width:100%", placeholder: "trl sft --model_name_or_path ...\nor the YAML of axolotl or LLaMA-Factory" });
  const said = h("div", { "aria-live": "polite" });  // what became of a pasted text
  const saidOfRows = h("div", { "aria-live": "polite" });
  const presets = h("select", { "aria-label": "preset" }, h("option", { value: "" }, "no preset: fill in the form"),
    choices.presets.map((preset) => h("option", { value: preset.name, title: preset.title }, preset.name)));
  const file = h("input", { type: "file", accept: ".jsonl,.json,.csv,.tsv,.txt" });
  let extra = { more: [], rest: [], rows: "" };  // of a pasted text, and the name of a file
  const gpuTitle = (gpu) => `${gpu.device_name} (${number(gpu.memory_bytes / GIB, 3)} GiB)`;

  form.append(
    field("Start from", presets),
    h("details", {}, h("summary", { class: "quiet" }, "or the settings of TRL, axolotl or LLaMA-Factory"), foreign,
      h("button", { class: "action", type: "button", onclick: readForeign }, "Read it")), said,
    h("h2", { style: "margin-top:14px" }, "Model"),
    field("A name, a hub id or a link", h("input", { name: "model", list: "known", value: "bert_large", spellcheck: "false", autocomplete: "off", onfocus: (event) => event.target.select() })), known,
    h("details", {}, h("summary", { class: "quiet" }, "or paste a config.json"), pasted),
    h("h2", { style: "margin-top:14px" }, "GPU"),
    field("Card", select("gpu", choices.gpus.map((gpu) => ({ name: gpu.name, label: gpuTitle(gpu) })), "rtx4090_24gb")),
    h("div", { class: "two" },
      field("How many", h("input", { name: "gpus", type: "number", min: 1, max: 1024, value: 1 })),
      field("Parallelism", select("mode", choices.modes.map((mode) => ({ name: mode.name, label: mode.name, title: mode.title })), "fsdp"))),
    field(`${choices.limit.title} (empty: all)`, h("input", { name: choices.limit.key, type: "number", min: 0, max: choices.limit.largest, step: "any" })),
    h("h2", { style: "margin-top:14px" }, "Data"),
    field("Your rows (read here, sent nowhere)", file), saidOfRows,
    ...choices.numbers.map((one) => field(one.title, h("input", { name: one.key, type: "number", min: 1, max: one.largest, value: one.value }))),
    ...choices.menus.map((menu) => h("fieldset", {}, h("legend", {}, menu.title), h("div", { class: "choices" },
      menu.options.map((option, index) => h("label", { title: option.title },
        h("input", { type: "radio", name: menu.key, value: option.name, checked: index === 0 }), option.name))),
      menu.key === "adapter" ? rank : "")),
    h("h2", { style: "margin-top:14px" }, "Hours and price"),
    h("div", { class: "two" }, planned.map(([name, title]) => field(title, h("input", { name, type: "number", min: 0, step: "any" })))),
  );

  /** What depends on other fields: a pasted model and a named one cannot both count. */
  function arrange() {
    const fields = form.elements;
    fields.model.disabled = Boolean(pasted.value.trim());
    fields.mode.disabled = Number(fields.gpus.value) < 2;
    rank.hidden = fields.adapter.value === "none";
  }

  function chosen() {
    const values = {};
    for (const [name, value] of new FormData(form).entries()) if (!name.startsWith("plan.")) values[name] = value;
    for (const name of ["gpus", choices.rank.key, ...choices.numbers.map((one) => one.key)]) values[name] = Number(values[name]);
    if (values[choices.limit.key]) values[choices.limit.key] = Number(values[choices.limit.key]); else delete values[choices.limit.key];
    if (!values.config.trim()) delete values.config;
    if (values.adapter === "none") delete values[choices.rank.key];
    if (extra.more.length) values.more = extra.more;
    return values;
  }

  // --- where to start -------------------------------------------------------------------------------------

  /** Fills in the form: fields that are not named get their first choice. */
  function fill(values) {
    for (const [name, value] of asTyped) if (form.elements[name] && !name.startsWith("plan.") && name !== "config") form.elements[name].value = values[name] ?? value;
    if (values.mode) form.elements.mode.value = values.mode;
    if (values[choices.rank.key]) form.elements[choices.rank.key].value = values[choices.rank.key];
    pasted.value = "";
    question += 1;
    arrange();
    update();
  }
  presets.addEventListener("change", (event) => {
    event.stopPropagation();
    const preset = choices.presets.find((one) => one.name === presets.value);
    extra = { more: [], rest: [], rows: extra.rows };
    said.replaceChildren(preset ? h("p", { class: "quiet" }, `${preset.title}.`) : "");
    if (preset) fill(preset.values);
  });
  async function readForeign() {
    let found;
    try {
      found = await (await fetch("/read", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ text: foreign.value }) })).json();
    } catch (error) {
      found = { refused: "The server does not answer. Start it again in its terminal." };
    }
    if (found.refused) { said.replaceChildren(h("p", {}, found.refused)); return; }
    extra = { more: found.more, rest: found.rest, rows: extra.rows };
    presets.value = "";
    const listed = (title, lines) => (lines.length ? h("li", {}, `${title}: `, h("code", {}, lines.join(", "))) : "");
    said.replaceChildren(h("p", { class: "quiet" }, `Read as ${found.trainer}'s.`), h("ul", { class: "quiet" },
      listed("not read", found.unread), listed(`${found.trainer}'s defaults`, found.assumed), listed("also taken over", [...found.more, ...found.rest]),
      listed("without effect on memory and time", found.left_out)));
    fill({ gpu: form.elements.gpu.value, ...found.values });
  }
  /** The lengths of a file's rows, counted here: about four characters are a token. */
  file.addEventListener("change", async (event) => {
    event.stopPropagation();
    const chosenFile = file.files[0];
    if (!chosenFile) return;
    const text = await chosenFile.text(), CHARACTERS = 4;
    let rows = text.split(/\n+/).filter((line) => line.trim());
    if (/\.json$/i.test(chosenFile.name)) try { const whole = JSON.parse(text); rows = (Array.isArray(whole) ? whole : whole.data).map((row) => JSON.stringify(row)); } catch (error) { /* lines */ }
    const tokens = rows.map((row) => Math.ceil(row.length / CHARACTERS)).sort((a, b) => a - b);
    if (!tokens.length) { saidOfRows.replaceChildren(h("p", {}, `${chosenFile.name} has no rows.`)); return; }
    const most = tokens[Math.floor(0.95 * (tokens.length - 1))], all = tokens.reduce((sum, one) => sum + one, 0);
    extra.rows = chosenFile.name;
    form.elements["data.seq_len"].value = Math.max(64, 64 * Math.ceil(most / 64));
    form.elements["plan.tokens"].value = Number((all / 1e6).toPrecision(3));
    const whole = (value) => Math.round(value).toLocaleString("en");
    saidOfRows.replaceChildren(h("p", { class: "quiet" }, `${chosenFile.name}: ${whole(tokens.length)} rows of about ${whole(all / tokens.length)} tokens, 95 % of at most ${whole(most)}, the longest of ${whole(tokens[tokens.length - 1])}, at four characters a token. Nothing was sent.`));
    question += 1;
    arrange();
    update();
  });

  // --- links ----------------------------------------------------------------------------------------------

  const asTyped = new Map([...new FormData(form).entries()]);
  /** The question, but for a pasted text, which is too long for a link. */
  function link() {
    const differs = [...new FormData(form).entries()].filter(([name, value]) => name !== "config" && value !== asTyped.get(name));
    const text = new URLSearchParams(differs).toString();
    return text ? `#${text}` : "#";
  }
  function restore() {
    const asked = new URLSearchParams(location.hash.slice(1));
    for (const [name, value] of asTyped) if (form.elements[name]) form.elements[name].value = name === "config" ? "" : asked.get(name) ?? value;
    if (asked.has("mode")) form.elements.mode.value = asked.get("mode");
    arrange();
  }
  addEventListener("popstate", () => { question += 1; restore(); update(); });

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
    if (link() !== (location.hash || "#")) history.pushState(null, "", link());
    if (asking) { next = extra; return; }
    asking = true;
    answer.classList.add("waiting");
    const done = elapsed(brief, "Estimating", 180);
    const found = await ask(values);
    asking = false;
    done();
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
    const note = answer.querySelector(".trying") || h("p"), done = elapsed(note, "Trying what would make it fit", 60);
    const found = await ask({ ...chosen(), advise: true });
    done();
    if (mine !== question) return;
    if (found.record) show(found, false);
    else note.textContent = `The search for what would make it fit ended: ${found.refused || found.failed}`;
  }
  /** Counts the seconds of what takes long; call what it returns when it is over. */
  function elapsed(place, text, most) {
    const began = Date.now(), say = () => place.replaceChildren(`${text}: ${Math.round((Date.now() - began) / 1000)} s of ${most} at most`);
    const clock = setInterval(say, 1000);
    return () => { clearInterval(clock); };
  }
  form.addEventListener("input", (event) => {
    if (!event.target.name) return;  // where to start: read when asked for
    if (presets.value) { presets.value = ""; said.replaceChildren(); }
    if (event.target.name.startsWith("plan.")) { if (last) show(last, false); return; }
    question += 1;
    arrange(); clearTimeout(timer); timer = setTimeout(update, 450); });

  /** The largest batch that fits: twice as many rows until they do not, then between. */
  async function largest(button) {
    const mine = ++question, values = chosen(), most = choices.numbers.find((one) => one.key === "batch.per_device").largest;
    let fits = 0, fails = null, size = 1;
    for (button.disabled = true; size !== fits && mine === question;) {
      button.textContent = `Trying ${size} rows; ${fits ? `${fits} fit` : "none fits yet"}`;
      const found = await ask({ ...values, "batch.per_device": size });
      if (!found.record) { show(found, false); return; }
      if (verdictOf(found.record) === "fits") fits = size; else fails = size;
      size = fails === null ? Math.min(2 * fits, most) : Math.floor((fits + fails) / 2);
    }
    if (mine !== question) return;
    button.textContent = fits ? `The largest batch that fits: ${fits}` : "Not even one row fits";
    if (fits) { form.elements["batch.per_device"].value = fits; await update(); answer.prepend(h("p", { class: "card" }, `${fits} rows a GPU are the most that fit${fails ? `; ${fails} do not` : ""}.`)); }
  }

  // --- the answer -----------------------------------------------------------------------------------------

  const tone = (verdict) => (verdict === "fits" ? "good" : verdict === "tight" ? "tight" : "bad");
  const verdictOf = (record) => record.estimate.verdict || (record.estimate.fits ? "fits" : "does not fit");

  /** Takes a model that was offered for a name that is not clear. */
  function choose(name) { form.elements.model.value = name; question += 1; update(); }
  const titleOf = (name) => choices.models.find((model) => model.name === name)?.title || "";

  let last = null;
  function show(found, explained) {
    last = found;
    if (!found.record) {
      brief.replaceChildren(h("b", { class: "verdict-word bad" }, found.refused ? "refused" : "no answer"), ` ${found.refused || found.failed}`);
      answer.replaceChildren(h("div", { class: "card verdict bad" },
        h("div", { class: "headline" }, found.near ? "Which model is meant?" : found.refused ? "This cannot be trained as chosen" : "No answer"),
        h("p", {}, found.refused || found.failed),
        (found.near || []).map((name) => h("button", { class: "action", type: "button", title: titleOf(name), onclick: () => choose(name) }, name))));
      return;
    }
    const { record } = found, { memory, estimate, speed } = record, verdict = verdictOf(record);
    const missing = estimate.margin_bytes < 0, of = record.config.launch.memory_limit_gib;
    const limit = estimate.limit_bytes ? `, of which a limit${of ? ` of ${of} GiB beside the context` : ""} allows ${bytes(estimate.limit_bytes)}` : "";
    brief.replaceChildren(h("b", { class: `verdict-word ${tone(verdict)}` }, verdict), ` ${bytes(Math.abs(estimate.margin_bytes))} ${missing ? "missing" : `free · ${predictedNumber(speed.samples_per_second)} samples/s`}`);
    answer.replaceChildren(
      h("div", { class: `card verdict ${tone(verdict)}` },
        h("div", { class: "headline" }, verdict === "fits" ? "It fits" : verdict === "tight" ? "Tight: it may run out of memory" : "It does not fit"),
        h("p", {}, h("b", {}, found.model), ` (${counted(memory.parameter_count).replace("G", "B")} parameters). ${record.config.gpu.device_name} has ${bytes(estimate.capacity_bytes)}${limit}. Needed: ${found.verdict.needed}; `,
          `${found.verdict.margin}.`,
          verdict === "tight" ? ` That is less than the ${bytes(estimate.kept_bytes)} by which the prediction may be too low.` : "", record.config.parallelism.num_processes > 1 ? " Of each GPU." : ""),
        bar(record), legend(record), advice(record, explained)),
      h("div", { class: "card" },
        h("div", { class: "numbers" },
          figure(predictedNumber(speed.samples_per_second), "samples a second"),
          figure(predictedNumber(speed.tokens_per_second), "tokens a second"),
          figure(predictedSeconds(speed.step_seconds_median), missing ? "one step, if it fitted" : "one step"),
          figure(speed.step_seconds_low && `${predictedSeconds(speed.step_seconds_low)} to ${predictedSeconds(speed.step_seconds_high)}`, "likely range: nine of ten published steps lay in theirs"),
          figure(speed.bound_by, "bound by"),
          figure(bytes(memory.device_used_bytes), "GPU memory"),
          ...plan(record)),
        found.verdict.run ? h("p", {}, h("b", {}, "The whole run. "), `${found.verdict.run}: ${found.verdict.run_parts}.`) : "",
        h("p", { class: "quiet" }, `All predicted, with ${estimate.efficiencies_from || "no"} efficiencies; the peak of the training step is in the ${memory.peak_phase} phase.`),
        h("h2", {}, found.next ? found.next.title : "The command of this training"),
        h("pre", { class: "command" }, trainCommand(found)),
        h("button", { class: "action", type: "button", onclick: (event) => copy(event.target, trainCommand(found)) }, "Copy"),
        h("button", { class: "action", type: "button", disabled: explained, onclick: (event) => { event.target.disabled = true; update({ explain: true }); } }, "What would each lever do?"),
        h("button", { class: "action", type: "button", onclick: (event) => largest(event.target) }, "Largest batch"),
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
    return h("p", { class: "quiet trying" }, "Trying what would make it fit ...");
  }

  /** Hours and price of the tokens that are planned. */
  function plan(record) {
    const [tokens, price] = planned.map(([name]) => Number(form.elements[name].value));
    if (!tokens || !record.speed.tokens_per_second) return [];
    const hours = tokens * 1e6 / record.speed.tokens_per_second / 3600, gpus = record.config.parallelism.num_processes || 1;
    return [figure(`${predictedNumber(hours)} h`, `for ${number(tokens)} million tokens`), price ? figure(predictedNumber(hours * gpus * price), `price of that on ${gpus} GPU${gpus > 1 ? "s" : ""}`) : ""];
  }

  const figure = (value, name) => (value ? h("div", {}, h("b", {}, value), h("span", {}, name)) : "");

  /** What to type next, with the rows that were chosen and with what the form has no field for. */
  function trainCommand({ command, next, train }) {
    const line = command.includes("=pasted-model") ? command : next ? next.command : train;
    const keys = new Set(extra.rest.map((text) => text.split("=")[0]));
    const own = line.split(" ").filter((word) => !keys.has(word.split("=")[0]));
    const rows = extra.rows ? `'${extra.rows.replaceAll("'", "'\\''")}'` : "";
    return [...own, ...extra.rest].join(" ").replace(/YOUR_ROWS\.\w+/, (word) => rows || word);
  }

  function parts(record) {
    const { memory, estimate } = record;
    const known = PARTS.map((part) => ({ ...part, size: memory[`${part.key}_bytes`] || 0 })).filter((part) => part.size > 0);
    const tensors = known.reduce((sum, part) => sum + part.size, 0);
    const rest = Math.max(0, (memory.device_used_bytes || tensors) - tensors);
    return [...known, { name: "context, rounding, cached blocks", colour: "#6b7280", size: rest }].filter((part) => part.size > estimate.capacity_bytes / 1e5);
  }

  function bar(record) {
    const all = parts(record), used = all.reduce((sum, part) => sum + part.size, 0);
    const { limit_bytes: limit, capacity_bytes: whole } = record.estimate, scale = Math.max(used, whole);
    const line = (size, name) => h("i", { class: "capacity", style: `left:calc(${(size / scale) * 100}% - 3px)`, title: `${name}: ${bytes(size)}` });
    return h("div", { class: "bar", role: "img", "aria-label": all.map((part) => `${part.name} ${bytes(part.size)}`).join(", ") },
      all.map((part) => h("i", { title: `${part.name}: ${bytes(part.size)}`, style: `width:${(part.size / scale) * 100}%;background:${part.colour}` })),
      line(whole, "the GPU"), limit ? line(limit, "the limit") : "");
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

  page.append(h("h1", {}, "Will it fit?"),
    h("p", { class: "quiet" }, "A training step, simulated for a GPU that you need not have: whether it fits, how fast it is, and the command that trains it."),
    brief, h("div", { class: "app" }, form, h("div", {}, answer, comparison)));
  answer.append(h("div", { class: "card" }, "Estimating. The first answer takes some seconds more, for the libraries are loaded ..."));
  restore();
  update();
})();
