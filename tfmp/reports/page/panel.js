// What is said beside the picture about the node or box that was clicked.

class Panel {
  constructor(picture) {
    this.picture = picture;
  }

  invite() {
    show("panel", h("p", { class: "muted" }, "Click a box to open or close it, a node to see what became of it and why."));
  }

  link(node) {
    const { name } = this.picture.program.nodes;
    return h("a", { onclick: () => this.picture.goTo(node), title: name[node] }, this.picture.program.text("op", node), " ", h("span", { class: "mono" }, this.picture.label(name[node].split("/").slice(-2).join("/"))));
  }

  tag(colour) {
    return h("span", { class: `tag ${colour}` }, colour === SIXTEEN ? "16 bit" : colour === FLOAT32 ? "float32" : "no float");
  }

  describeNode(node) {
    const { program } = this.picture;
    const reason = program.text("reason", node);
    const root = program.nodes.root[node];
    const pulled = program.nodes.pulled[node];
    const rows = [
      ["name", h("span", { class: "mono" }, program.nodes.name[node])],
      ["layer", program.text("layer", node) || NO_LAYER],
      ["function", h("span", { class: "mono" }, program.details.functions[program.nodes.function[node]].name || "main graph")],
      ["shape", program.text("shape", node)],
      program.nodes.flops[node] ? ["FLOPs", inUnits(program.nodes.flops[node], "FLOP")] : null,
      program.nodes.gradient[node] ? ["pass", "backward"] : null,
    ].filter(Boolean);
    const casts = (program.castsOf.get(node) || []).map((index) => {
      const cast = program.details.casts[index];
      const what = { cast: "cast", constant: "stored", rounding: "rounded", variable: "read and cast before the loop" }[cast.kind];
      return h("li", {}, h("span", { class: "tag cast" }, `${what} to ${cast.to}`), ` ${cast.shape}`, cast.times ? `, ${inUnits(cast.bytes, "B")}` : "", cast.times > 1 ? ` in ${times(cast.times, "run")}` : "");
    });
    const inputs = program.inputs(node).map(({ source, cast }) => h("li", {}, this.link(source), cast ? [" ", h("span", { class: "tag cast" }, "cast")] : null));
    const outputs = program.outputs(node).slice(0, 40).map(({ reader, cast }) => h("li", {}, this.link(reader), cast ? [" ", h("span", { class: "tag cast" }, "cast")] : null));
    show("panel",
      h("h3", {}, program.text("op", node), " ", this.tag(program.colour(node))),
      reason ? h("p", {}, reason, pulled ? `; pulled ${times(pulled, "neighbour")} with it` : "") : null,
      root >= 0 ? h("p", {}, "Begins at ", this.link(root)) : null,
      h("dl", {}, rows.map(([label, value]) => [h("dt", {}, label), h("dd", {}, value)])),
      casts.length ? [h("b", {}, "Casts of its results"), h("ul", {}, casts)] : null,
      inputs.length ? [h("b", {}, "Reads"), h("ul", {}, inputs)] : null,
      outputs.length ? [h("b", {}, "Read by"), h("ul", {}, outputs)] : null);
  }

  describeBox(index) {
    const box = this.picture.program.boxes[index];
    const floats = box.colours[CONVERTED] + box.colours[KEPT] || 1;
    const whole = this.picture.program.details.flops;
    show("panel",
      h("h3", {}, box.name),
      h("p", { class: "muted" }, { scope: "name scope", call: "function, loop or branch", run: "neighbours in order" }[box.kind]),
      bar([["sixteen", box.colours[CONVERTED] / floats], ["float32", box.colours[KEPT] / floats]]),
      h("dl", {}, [["in 16 bit", count(box.colours[CONVERTED])], ["in float32", count(box.colours[KEPT])], ["tensors cast", count(box.casts)],
        ["FLOPs", whole ? `${inUnits(box.flops, "FLOP")} (${percent(box.flops / whole)})` : "0"]].map(([label, value]) => [h("dt", {}, label), h("dd", {}, value)])),
      box.node >= 0 ? h("p", {}, "Its own node: ", h("a", { onclick: () => this.picture.select(box.node) }, this.picture.program.nodes.name[box.node])) : null);
  }
}
