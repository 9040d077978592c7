// Warnings, figures and advice.

function drawWarnings(warnings) {
  byId("warnings").hidden = !warnings.length;
  show("warnings", h("h2", {}, "What tfmp has warned of"), h("ul", {}, warnings.map((text) => h("li", {}, text))));
}

function bar(parts) {
  return h("div", { class: "bar", "aria-hidden": "true" }, parts.map(([kind, share]) => h("i", { class: kind, style: `width:${(100 * share).toFixed(2)}%` })));
}

function figure(label, value, note, ...rest) {
  return figureOf("value", label, value, note, rest);
}

function figureOf(kind, label, value, note, rest) {
  return h("div", { class: "figure" }, h("div", { class: "label" }, label), h("div", { class: kind }, value), ...rest, h("div", { class: "note" }, note));
}

// Two bars, one below the other, on one scale.
function beforeAndAfter(label, before, after, note, about) {
  const most = Math.max(before, after) || 1;
  const change = before ? after / before - 1 : 0;
  const pair = (name, size, kind) => h("div", { class: "pair" }, h("span", {}, name), bar([[kind, size / most]]), h("span", {}, inUnits(size, "B")));
  const sign = change > 0 ? "+" : change < 0 ? "\u2212" : "\u00b1";
  const bars = [pair("before", before, "plain"), pair("after", after, change > 0 ? "float32" : "sixteen")];
  return figureOf(change > 0.005 ? "value worse" : "value", label, `${about}${sign}${percent(Math.abs(change), 0)}`, note, bars);
}

function drawSummary(program) {
  const { details } = program;
  const head = [
    h("h1", { class: "mono" }, program.function || "main graph"),
    h("div", { class: "muted" }, `${program.dtype} on ${program.device}, rewritten in ${(1000 * program.seconds).toFixed(0)} ms`
      + (details ? `, level ${details.level}` : "")),
  ];
  const share = program.total ? program.converted / program.total : 0;
  const figures = [
    figure("nodes in 16 bit", `${count(program.converted)} of ${count(program.total)}`, "most others are constants, integers and the optimizer", bar([["sixteen", share]])),
    figure("FLOPs of products in 16 bit", percent(program.flop_share), details ? `${inUnits(details.flops, "FLOP")} a run` : "", bar([["sixteen", program.flop_share], ["float32", 1 - program.flop_share]])),
  ];
  if (details) {
    const about = details.estimated ? "about " : "";
    const { memory } = details;
    const written = memory.written_after || 1;
    figures.push(figure("casts in one run", count(program.casts), `${inUnits(details.castBytes, "B")} written, ${percent(details.castBytes / written)} of all`, bar([["cast", details.castBytes / written]])));
    if (memory.saved_before) figures.push(beforeAndAfter("kept for the backward pass", memory.saved_before, memory.saved_after, "estimate: what must stay in memory", about));
    figures.push(beforeAndAfter("written in one run", memory.written_before, memory.written_after, "estimate: sizes of all results, casts included", about));
  } else {
    figures.push(figure("casts in one run", count(program.casts), "its function does not exist any more: no layers"));
  }
  const unknown = details && details.estimated ? h("p", { class: "muted" }, "Some dimensions are not known before the program runs and are taken to be 32.") : null;
  show("summary", ...head, h("div", { class: "figures" }, figures), unknown);
}

const ADVICE_SHOWN = 6;
const KINDS = { "too small": "too small", float32: "product in float32", "no effect": "no effect", blocks: "blocks 16 bit", dimensions: "dimensions", unlisted: "op on no list" };

function drawAdvice(advice) {
  byId("advice").hidden = !advice.length;
  const items = advice.map((one, index) => h("li", { hidden: index >= ADVICE_SHOWN }, h("span", { class: "kind" }, KINDS[one.kind] || one.kind),
    h("span", {}, one.layer || one.node ? h("b", { class: "where mono" }, one.layer || one.node) : null, one.text)));
  const more = advice.length > ADVICE_SHOWN ? h("button", { type: "button", class: "more", onclick: (event) => {
    items.forEach((item) => { item.hidden = false; });
    event.target.remove();
  } }, `Show ${advice.length - ADVICE_SHOWN} more`) : null;
  show("advice", h("h2", {}, "Advice"), h("ul", { class: "notes" }, items), more);
}
