// One program as the picture needs it: a tree of boxes, their nodes in one run of numbers each, and the edges between any box's parts.

const CONVERTED = 0, KEPT = 1;
const SIXTEEN = "sixteen", FLOAT32 = "float32", OTHER = "other";
const COLOURS = [SIXTEEN, FLOAT32, OTHER];

class Program {
  constructor(details) {
    this.details = details;
    this.nodes = details.nodes;
    this.edges = details.edges;
    this.strings = details.strings;
    this.size = this.nodes.name.length;
    this.boxes = details.boxes.name.map((name, index) => ({
      index,
      name: this.strings[name],
      kind: this.strings[details.boxes.kind[index]],
      node: details.boxes.node[index],
      parent: details.boxes.parent[index],
      boxes: [],
      leaves: [],
      total: 0,
      colours: [0, 0, 0],
      flops: 0,
      casts: 0,
    }));
    for (const box of this.boxes) if (box.parent >= 0) this.boxes[box.parent].boxes.push(box.index);
    this.nodes.home.forEach((home, node) => { if (home >= 0 && this.boxes[home].node !== node) this.boxes[home].leaves.push(node); });
    this.castsOf = new Map();
    details.casts.forEach((cast, index) => this.listed(this.castsOf, cast.source).push(index));
    this.sumUp();
    this.readers = null;
  }

  listed(map, key) {
    if (!map.has(key)) map.set(key, []);
    return map.get(key);
  }

  // Children have higher numbers than what they are in.
  sumUp() {
    for (const box of this.boxes) for (const node of box.node >= 0 ? [...box.leaves, box.node] : box.leaves) this.addTo(box, node);
    for (let index = this.boxes.length - 1; index > 0; index -= 1) {
      const box = this.boxes[index], outer = this.boxes[box.parent];
      outer.total += box.total;
      outer.flops += box.flops;
      outer.casts += box.casts;
      box.colours.forEach((number, colour) => { outer.colours[colour] += number; });
    }
  }

  addTo(box, node) {
    box.total += 1;
    box.colours[this.nodes.colour[node]] += 1;
    box.flops += this.nodes.flops[node];
    box.casts += (this.castsOf.get(node) || []).filter((cast) => this.details.casts[cast].times > 0).length;
  }

  colour(node) {
    return COLOURS[this.nodes.colour[node]];
  }

  text(column, node) {
    return this.strings[this.nodes[column][node]];
  }

  leafName(node) {
    const name = this.nodes.name[node];
    return name.slice(name.lastIndexOf("/") + 1);
  }

  inputs(node) {
    const found = [];
    for (let edge = this.nodes.inputs[node]; edge < this.nodes.inputs[node + 1]; edge += 1) {
      found.push({ source: this.edges.source[edge], cast: this.edges.cast[edge] });
    }
    return found;
  }

  outputs(node) {
    if (this.readers === null) {
      this.readers = new Map();
      for (let reader = 0; reader < this.size; reader += 1) {
        for (const { source, cast } of this.inputs(reader)) this.listed(this.readers, source).push({ reader, cast });
      }
    }
    return this.readers.get(node) || [];
  }

  // A node touches a border if a tensor on one of its sides is cast.
  boundary(node) {
    return this.inputs(node).some(({ cast }) => cast) || (this.castsOf.get(node) || []).some((cast) => this.details.casts[cast].kind !== "constant");
  }

  // From the outermost box to the one that holds the node.
  way(node) {
    const found = [];
    for (let box = this.nodes.home[node]; box >= 0; box = this.boxes[box].parent) found.unshift(box);
    return found;
  }

  parts(box) {
    return [...this.boxes[box].boxes.map((index) => ({ box: index })), ...this.boxes[box].leaves.map((node) => ({ node }))];
  }

  // What each node under `box` belongs to among its parts, and the edges between different parts, with how many tensors are in 16 bit and how many cast.
  between(box) {
    const parts = this.parts(box);
    const owner = new Map();
    const claim = (index, part) => {
      const inside = this.boxes[index];
      if (inside.node >= 0) owner.set(inside.node, part);
      for (const node of inside.leaves) owner.set(node, part);
      for (const inner of inside.boxes) claim(inner, part);
    };
    parts.forEach((part, index) => (part.box === undefined ? owner.set(part.node, index) : claim(part.box, index)));
    const edges = new Map();
    for (const [reader, to] of owner) {
      for (const { source, cast } of this.inputs(reader)) {
        const from = owner.get(source);
        if (from === undefined || from === to) continue;
        const key = from * parts.length + to;
        if (!edges.has(key)) edges.set(key, { from, to, tensors: 0, sixteen: 0, casts: 0 });
        const edge = edges.get(key);
        edge.tensors += 1;
        edge.sixteen += this.nodes.colour[source] === CONVERTED ? 1 : 0;
        edge.casts += cast ? 1 : 0;
      }
    }
    return { parts, edges: [...edges.values()] };
  }
}
