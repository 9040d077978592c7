// Puts the page together.

const report = JSON.parse(byId("data").textContent);
const picture = new Picture();
const table = new LayerTable((layer) => picture.goToLayer(layer), report.plain);

function load(index) {
  const program = report.programs[index];
  const { details } = program;
  drawSummary(program);
  drawAdvice(details ? details.advice : []);
  byId("layers").hidden = byId("graph").hidden = !details;
  table.load(details ? details.layers : []);
  picture.load(details);
}

function chooseFirst() {
  const work = report.programs.map((program) => (program.details ? program.details.flops + 1 : 0));
  return work.indexOf(Math.max(...work));
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").textContent = theme === "dark" ? "Light" : "Dark";
}

setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
byId("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
drawWarnings(report.warnings);
byId("foot").textContent = `Written by tfmp ${report.tfmp}. All figures are for one run of the program; sizes and FLOPs are worked out from shapes, not measured.`;
if (report.programs.length) {
  const select = byId("program");
  report.programs.forEach((program, index) => select.append(h("option", { value: index }, `${program.function || "main graph"}: ${count(program.converted)} of ${count(program.total)} nodes in ${program.dtype}`)));
  select.parentElement.hidden = report.programs.length < 2;
  select.value = String(chooseFirst());
  select.addEventListener("change", () => load(Number(select.value)));
  load(chooseFirst());
} else {
  show("summary", h("h1", {}, "Nothing has been converted in this process."), h("p", { class: "muted" }, "Mixed precision applies to tf.functions that run after it was switched on."));
  byId("advice").hidden = byId("layers").hidden = byId("graph").hidden = true;
}
