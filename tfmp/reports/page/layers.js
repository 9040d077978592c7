// The table of layers: searched, sorted, and drawn a hundred rows at a time.

const ROWS = 100;
const NO_LAYER = "(no layer)";

const COLUMNS = [
  { title: "layer", key: (layer) => layer.layer || NO_LAYER, text: true },
  { title: "16 bit / float32", key: (layer) => share(layer.converted, layer.kept) },
  { title: "FLOPs", key: (layer) => layer.flops },
  { title: "in 16 bit", key: (layer) => (layer.flops ? layer.flops_converted / layer.flops : -1) },
  { title: "casts", key: (layer) => layer.cast_bytes || layer.casts },
  { title: "written", key: (layer) => layer.bytes_before },
  { title: "why in float32", key: (layer) => (layer.why.length ? layer.why[0].reason : ""), text: true },
];

function share(converted, kept) {
  return converted + kept ? converted / (converted + kept) : -1;
}

class LayerTable {
  // `plain` has the words of reasons that say no more than that nobody wanted 16 bit.
  constructor(showInGraph, plain) {
    this.showInGraph = showInGraph;
    this.isPlain = (reason) => plain.some((words) => reason.includes(words));
    this.layers = [];
    this.column = 2;
    this.descending = true;
    this.drawn = 0;
    byId("search").addEventListener("input", () => this.draw());
    byId("only-kept").addEventListener("change", () => this.draw());
    byId("table").parentElement.addEventListener("scroll", (event) => {
      const { scrollTop, clientHeight, scrollHeight } = event.target;
      if (scrollTop + clientHeight > scrollHeight - 400) this.drawMore();
    });
  }

  load(layers) {
    this.layers = layers;
    this.total = layers.reduce((sum, layer) => sum + layer.flops, 0);
    this.draw();
  }

  sortBy(column) {
    this.descending = this.column === column ? !this.descending : !COLUMNS[column].text;
    this.column = column;
    this.draw();
  }

  // Every word must be in the layer's name or in one of its reasons.
  found() {
    const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const onlyKept = byId("only-kept").checked;
    return this.layers.filter((layer) => {
      const text = `${layer.layer || NO_LAYER} ${layer.why.map((why) => why.reason).join(" ")}`.toLowerCase();
      return words.every((word) => text.includes(word)) && (!onlyKept || layer.why.some((why) => !this.isPlain(why.reason)));
    });
  }

  draw() {
    const { key, text } = COLUMNS[this.column];
    const sign = this.descending ? -1 : 1;
    this.sorted = this.found().sort((a, b) => sign * (text ? key(a).localeCompare(key(b)) : key(a) - key(b)));
    byId("found").textContent = `${count(this.sorted.length)} of ${times(this.layers.length, "layer")}`;
    const heads = COLUMNS.map((column, index) => h("th", {
      scope: "col", "aria-sort": index === this.column ? (this.descending ? "descending" : "ascending") : null,
    }, h("button", { type: "button", onclick: () => this.sortBy(index) }, column.title)));
    document.querySelector("#table thead").replaceChildren(h("tr", {}, heads));
    document.querySelector("#table tbody").replaceChildren();
    this.drawn = 0;
    this.drawMore();
  }

  drawMore() {
    const next = this.sorted.slice(this.drawn, this.drawn + ROWS);
    this.drawn += next.length;
    document.querySelector("#table tbody").append(...next.map((layer) => this.row(layer)));
  }

  row(layer) {
    const sixteen = share(layer.converted, layer.kept);
    const cells = [
      [h("span", { class: "twist", "aria-hidden": "true" }, layer.why.length ? "\u203a" : ""), h("span", { class: "mono" }, breakable(layer.layer || NO_LAYER))],
      [sixteen < 0 ? null : h("span", { class: "mix" }, h("i", { class: "sixteen", style: `width:${100 * sixteen}%` }), h("i", { class: "float32", style: `width:${100 - 100 * sixteen}%` })),
        h("span", { class: "counts" }, `${count(layer.converted)} / ${count(layer.kept)}`)],
      [layer.flops ? percent(layer.flops / this.total) : ""],
      [layer.flops ? percent(layer.flops_converted / layer.flops, 0) : ""],
      [layer.casts ? `${count(layer.casts)}, ${inUnits(layer.cast_bytes, "B")}` : ""],
      [layer.bytes_before || layer.bytes_after ? `${inUnits(layer.bytes_before, "B")} \u2192 ${inUnits(layer.bytes_after, "B")}` : ""],
      [layer.why.length ? shortened(layer.why[0].reason) : "", layer.why.length > 1 ? ` (and ${layer.why.length - 1} more)` : ""],
    ];
    const row = h("tr", { class: "layer", tabindex: 0, "aria-expanded": "false" }, cells.map((cell) => h("td", {}, cell)));
    row.addEventListener("click", () => this.toggle(row, layer));
    row.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); this.toggle(row, layer); } });
    return row;
  }

  toggle(row, layer) {
    const open = row.classList.toggle("open");
    row.setAttribute("aria-expanded", String(open));
    if (!open) { row.nextSibling.remove(); return; }
    const reasons = layer.why.map((why) => h("li", {}, h("b", {}, count(why.nodes)), h("span", {}, why.reason)));
    const nothing = h("p", { class: "muted" }, "Nothing here stayed in float32.");
    const go = h("button", { type: "button", class: "more", onclick: () => this.showInGraph(layer.layer) }, "Show in graph");
    row.after(h("tr", { class: "inside" }, h("td", { colspan: COLUMNS.length }, reasons.length ? h("ul", {}, reasons) : nothing, go)));
  }
}

// Long quoted names keep their last two parts.
function shortened(text) {
  return text.replace(/'[^' ]+\/([^'/]+\/[^'/]+)'/g, "'\u2026/$1'");
}

// A path that may be broken after each part.
function breakable(path) {
  return path.split("/").flatMap((part, index, all) => (index < all.length - 1 ? [`${part}/`, h("wbr")] : [part]));
}
