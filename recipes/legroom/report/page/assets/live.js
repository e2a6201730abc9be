/* The page of a running job or sweep. It loads page-live.js, which calls legroom.news, every two seconds, and itself anew when
   the finished page has taken its place. legroom.live: {title, command, sweep}. */
"use strict";
const EVERY = 2000, OLD = 20;  // milliseconds between two loads; seconds without news after which the page says so

function clock(value) {
  if (value === null || value === undefined) return "";
  const whole = Math.round(value), two = (n) => String(n).padStart(2, "0");
  return `${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
}

function livePage(live, place) {
  const heading = h("span"), said = h("p", { class: "quiet", role: "status" }), progress = h("div"), jobs = h("div");
  const curves = h("div", { class: "columns" }), charts = {};
  let running = false, changed = 0, at = null, points = [];
  place.replaceChildren(
    h("header", {}, live.sweep ? h("p", {}, h("a", { href: live.sweep }, "← the sweep")) : "", h("h1", {}, live.title, " ", heading), said),
    progress, curves, jobs, live.command ? section("The command", "", command(live.command)) : "");

  function bar(done, total, label) {
    return h("div", { class: "bar", role: "progressbar", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": total, "aria-valuenow": done },
      h("i", { style: `background:${SERIES[0]};width:${total ? 100 * done / total : 0}%` }));
  }
  const numbers = (entries) => h("div", { class: "numbers" }, entries.filter((one) => one[0]).map(([value, name]) => h("div", {}, h("b", {}, value), h("span", {}, name))));

  /** The running job. */
  function jobCard(news, title) {
    const memory = news.memory == null ? "" : [h("p", { class: "quiet", style: "margin-top:12px" }, `memory: ${bytes(news.memory)} of ${bytes(news.limit)}`), bar(news.memory, news.limit, "memory in use")];
    return section(title, "", h("p", {}, news.total ? `${news.phase}: step ${news.step} of ${news.total}` : news.phase), news.total ? bar(news.step, news.total, "steps done") : "",
      numbers([[clock(news.elapsed), "so far"], [clock(news.left), "left in this phase"], [news.loss != null && number(news.loss), "loss"], [news.speed != null && number(news.speed, 3), "samples/s"]]), memory);
  }

  function sweepCards(news) {
    const total = news.jobs || news.ended.length, running = news.running;
    progress.replaceChildren(section("The sweep", "", h("p", {}, `${news.ended.length}${news.jobs ? " of " + news.jobs : ""} jobs have ended`), bar(news.ended.length, total, "jobs that have ended"),
      numbers([[clock(news.left), "left, if the others take as long"]])), running ? jobCard(running, running.label) : "");
    const columns = [{ name: "job", class: "name", key: (row) => row.label, text: (row) => h("a", { href: row.page }, row.label || "the job") },
      { name: "status", key: (row) => row.status, text: (row) => chip(row.status) },
      { name: "samples/s", number: true, key: (row) => row.speed, text: (row) => number(row.speed) },
      { name: "memory", number: true, key: (row) => row.memory, text: (row) => bytes(row.memory) },
      { name: "final loss", number: true, key: (row) => row.loss, text: (row) => number(row.loss) }];
    jobs.replaceChildren(news.ended.length ? section("Jobs that have ended", "Click one to open its page.", table(columns, news.ended, { class: "tall" })) : "");
    return running ? running.points : [];
  }

  function draw() {
    if (points.length < 2) return;
    if (!charts.loss) {
      for (const [key, title, index] of [["loss", "Loss", 1], ["speed", "Samples per second", 2]]) {
        const box = h("div", { class: "chart low", id: key });
        curves.append(section(title, "", box));
        charts[key] = chart(box, (colours) => base(colours, { grid: { left: 62, right: 16, top: 16, bottom: 44 },
          xAxis: axis(colours, { type: "value", name: "optimizer step", min: "dataMin", max: "dataMax", minInterval: 1, splitLine: { show: false } }),
          yAxis: axis(colours, { type: "value", scale: key === "loss", axisLabel: { color: colours.quiet, formatter: (value) => number(value, 3) } }),
          tooltip: tooltip(colours, { trigger: "axis", formatter: (found) => lines(`step ${found[0].value[0]}`, [[SERIES[0], title, number(found[0].value[1])]]) }),
          series: [{ type: "line", symbol: "none", itemStyle: { color: SERIES[0] }, lineStyle: { color: SERIES[0], width: 2 }, data: points.filter((one) => one[index] !== null).map((one) => [one[0], one[index]]) }] }), title + " by optimizer step");
      }
    }
    Object.values(charts).forEach((one) => one.draw());
  }

  legroom.news = (news) => {
    if (news.at !== at) { at = news.at; changed = Date.now(); }
    if (news.status && running) { location.reload(); return; }  // the finished page is there
    running = !news.status;
    heading.replaceChildren(chip(news.status || "running"));
    if (news.ended) points = sweepCards(news); else { progress.replaceChildren(jobCard(news, "Progress")); points = news.points; }
    draw();
  };

  function load() {
    const script = h("script", { src: `./page-live.js?${Date.now()}` });
    const next = (text) => { script.remove(); said.textContent = text; if (running || at === null) setTimeout(load, EVERY); };
    script.addEventListener("load", () => { const age = (Date.now() - changed) / 1000;
      next(!running ? "This has ended, and no finished page was made. $REPORT_COMMAND with this folder makes one."
        : age > OLD ? `No news for ${clock(age)}: the command may be busy, or have been stopped.` : "This page follows the command, and shows the whole result when it has ended."); });
    script.addEventListener("error", () => next("There is no news yet: page-live.js is not there."));
    document.head.append(script);
  }
  load();
}
