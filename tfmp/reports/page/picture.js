// The picture: boxes that open, drawn as nested layered graphs.

const BOX_HEIGHT = 52, NODE_HEIGHT = 32, LETTER = 6.7, NARROWEST = 92, LONGEST = 34, FIRST_SHOWN = 26, MOST_SHOWN = 1500, SMALLEST_AT_FIRST = 0.55;

class Picture {
  constructor() {
    this.panel = new Panel(this);
    this.zoom = 1;
    byId("smaller").addEventListener("click", () => this.scale(this.zoom / 1.25));
    byId("larger").addEventListener("click", () => this.scale(this.zoom * 1.25));
    byId("fit").addEventListener("click", () => this.fit());
    byId("deeper").addEventListener("click", () => this.deeper());
    byId("close-all").addEventListener("click", () => { this.open = new Set([0]); this.draw(); });
    byId("find").addEventListener("input", () => this.find());
    byId("find").addEventListener("keydown", (event) => { if (event.key === "Enter") this.next(); });
    byId("find-next").addEventListener("click", () => this.next());
    byId("picture").addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.scale(this.zoom * (event.deltaY < 0 ? 1.1 : 1 / 1.1));
    }, { passive: false });
  }

  load(details) {
    this.program = details ? new Program(details) : null;
    this.layouts = new Map();
    this.selected = null;
    this.hits = [];
    this.panel.invite();
    if (!this.program) { show("picture"); byId("undrawn").textContent = ""; return; }
    const drawn = this.program.nodes.home.filter((home) => home >= 0).length;
    byId("undrawn").textContent = `${count(this.program.size - drawn)} constants, arguments and nodes without float values are not drawn.`;
    this.openFirst();
    this.zoom = 1;
    this.draw();
    this.scale(Math.max(SMALLEST_AT_FIRST, Math.min(1, (byId("picture").clientWidth - 20) / this.size.width)));
    byId("picture").scrollTop = 0;
  }

  // Opens the box with most nodes again and again, as long as all can be read at a glance.
  openFirst() {
    this.open = new Set([0]);
    const parts = (box) => this.program.boxes[box].boxes.length + this.program.boxes[box].leaves.length;
    let shown = parts(0);
    let closed = [...this.program.boxes[0].boxes];
    while (closed.length) {
      closed.sort((a, b) => this.program.boxes[b].total - this.program.boxes[a].total);
      const next = closed.find((box) => shown + parts(box) <= FIRST_SHOWN);
      if (next === undefined) return;
      this.open.add(next);
      shown += parts(next);
      closed = closed.filter((box) => box !== next).concat(this.program.boxes[next].boxes);
    }
  }

  deeper() {
    const visible = [...this.open].flatMap((box) => (this.isVisible(box) ? this.program.boxes[box].boxes : []));
    let shown = this.count(0);
    for (const box of visible.filter((box) => !this.open.has(box))) {
      shown += this.program.boxes[box].boxes.length + this.program.boxes[box].leaves.length;
      if (shown > MOST_SHOWN) { byId("hits").textContent = `No more than ${count(MOST_SHOWN)} boxes are opened at once.`; break; }
      this.open.add(box);
    }
    this.draw(this.inTheMiddle());
  }

  // The innermost box in the middle of what is seen.
  inTheMiddle() {
    const { x, y, width, height } = byId("picture").getBoundingClientRect();
    const element = document.elementFromPoint(x + width / 2, y + height / 2);
    const box = element && element.closest("[data-box]");
    return box ? Number(box.dataset.box) : 0;
  }

  isVisible(box) {
    for (let outer = box; outer >= 0; outer = this.program.boxes[outer].parent) if (!this.open.has(outer)) return false;
    return true;
  }

  count(box) {
    const { boxes, leaves } = this.program.boxes[box];
    return leaves.length + boxes.reduce((sum, inner) => sum + 1 + (this.open.has(inner) ? this.count(inner) : 0), 0);
  }

  toggle(box) {
    if (box === 0) return;
    if (this.open.has(box)) this.open.delete(box);
    else this.open.add(box);
    this.draw(box);
    if (this.program.boxes[box].node >= 0) this.selected = this.program.boxes[box].node;
    this.mark();
    this.panel.describeBox(box);
  }

  label(text) {
    return text.length > LONGEST ? `${text.slice(0, LONGEST / 2)}\u2026${text.slice(-LONGEST / 2)}` : text;
  }

  // Sizes, then places, from the innermost open box outwards; closed boxes and nodes have the size of their labels.
  measure(box) {
    if (!this.layouts.has(box)) this.layouts.set(box, this.program.between(box));
    const { parts, edges } = this.layouts.get(box);
    const inner = parts.map((part) => (part.box !== undefined && this.open.has(part.box) ? this.measure(part.box) : null));
    const sizes = parts.map((part, index) => inner[index] || this.sizeOf(part));
    const arranged = arrange(sizes, edges);
    const title = LETTER * this.label(this.program.boxes[box].name).length + 40;
    const width = Math.max(arranged.width + 2 * PAD, title);
    return { box, parts, inner, sizes, arranged, offset: (width - arranged.width) / 2, width, height: arranged.height + 2 * PAD + HEAD };
  }

  sizeOf(part) {
    if (part.box !== undefined) {
      return { width: Math.max(NARROWEST + 30, LETTER * this.label(this.program.boxes[part.box].name).length + 44), height: BOX_HEIGHT };
    }
    const length = Math.max(this.program.text("op", part.node).length, 0.85 * this.label(this.program.leafName(part.node)).length);
    return { width: Math.max(NARROWEST, LETTER * length + 24), height: NODE_HEIGHT };
  }

  draw(keepInView) {
    const holder = byId("picture");
    const before = keepInView === undefined ? null : this.where(keepInView);
    const whole = this.measure(0);
    const root = svg("svg", { viewBox: `-8 -8 ${whole.width + 16} ${whole.height + 16}`, role: "img", "aria-label": "graph of the program" });
    this.size = { width: whole.width + 16, height: whole.height + 16 };
    this.places = new Map();
    root.append(this.drawBox(whole, 0, 0));
    this.root = root;
    holder.replaceChildren(root);
    this.scale(this.zoom, true);
    if (before) {
      const after = this.where(keepInView);
      if (after) { holder.scrollTop += after.y - before.y; holder.scrollLeft += after.x - before.x; }
    }
    this.mark();
  }

  where(box) {
    const element = this.root && this.root.querySelector(`[data-box="${box}"]`);
    if (!element) return null;
    const { x, y } = element.getBoundingClientRect();
    return { x, y };
  }

  drawBox(layout, x, y) {
    const { box, parts, inner, arranged } = layout;
    const { name, kind } = this.program.boxes[box];
    const group = svg("g", { class: "box opened", "data-box": box, transform: `translate(${x},${y})` },
      svg("rect", { class: "body", width: layout.width, height: layout.height, rx: 8 }),
      svg("rect", { class: "head", width: layout.width, height: HEAD }),
      svg("text", { x: 12, y: 18 }, `${box === 0 ? "" : "\u2212 "}${this.label(name)}${kind === "call" ? " ()" : ""}`), svg("title", {}, name));
    group.addEventListener("click", (event) => { event.stopPropagation(); this.toggle(box); });
    const content = svg("g", { transform: `translate(${layout.offset},${PAD + HEAD})` });
    for (const line of arranged.lines) content.append(...this.drawEdge(line));
    parts.forEach((part, index) => {
      const place = arranged.places[index];
      if (inner[index]) content.append(this.drawBox(inner[index], place.x, place.y));
      else content.append(part.box === undefined ? this.drawNode(part.node, place, layout.sizes[index]) : this.drawClosed(part.box, place, layout.sizes[index]));
    });
    group.append(content);
    return group;
  }

  drawClosed(box, place, size) {
    const { name, kind, colours, total, casts, flops } = this.program.boxes[box];
    const floats = colours[CONVERTED] + colours[KEPT];
    const width = size.width - 24;
    const sixteen = floats ? width * colours[CONVERTED] / floats : 0;
    const share = flops && this.program.details.flops ? `, ${percent(flops / this.program.details.flops)} of FLOPs` : "";
    const group = svg("g", { class: "box", "data-box": box, transform: `translate(${place.x},${place.y})` },
      svg("rect", { class: "body", width: size.width, height: size.height, rx: 8 }),
      svg("text", { x: 12, y: 18 }, `+ ${this.label(name)}${kind === "call" ? " ()" : ""}`),
      svg("text", { class: "small", x: 12, y: 32 }, times(total, "node")),
      svg("rect", { class: "part-none", x: 12, y: 39, width, height: 6, rx: 3 }),
      svg("rect", { class: "part-sixteen", x: 12, y: 39, width: sixteen, height: 6, rx: 3 }),
      svg("rect", { class: "part-float32", x: 12 + sixteen, y: 39, width: floats ? width - sixteen : 0, height: 6, rx: 3 }),
      casts ? this.badge(size.width + 4, -8, casts) : null,
      svg("title", {}, `${name}: ${colours[CONVERTED]} in 16 bit, ${colours[KEPT]} in float32, ${times(casts, "cast")}${share}`));
    group.addEventListener("click", (event) => { event.stopPropagation(); this.toggle(box); });
    return group;
  }

  badge(right, y, number) {
    const width = 6 * String(number).length + 12;
    return svg("g", { class: "badge" }, svg("rect", { x: right - width, y, width, height: 15, rx: 7.5 }),
      svg("text", { x: right - width / 2, y: y + 11, "text-anchor": "middle" }, String(number)));
  }

  drawNode(node, place, size) {
    const boundary = this.program.boundary(node) ? " boundary" : "";
    const group = svg("g", { class: `node box ${this.program.colour(node)}${boundary}`, "data-node": node, transform: `translate(${place.x},${place.y})` },
      svg("rect", { class: "body", width: size.width, height: size.height, rx: 6 }),
      svg("text", { x: size.width / 2, y: 14, "text-anchor": "middle" }, this.program.text("op", node)),
      svg("text", { class: "small", x: size.width / 2, y: 26, "text-anchor": "middle" }, this.label(this.program.leafName(node))),
      svg("title", {}, `${this.program.nodes.name[node]}\n${this.program.text("reason", node)}`));
    group.addEventListener("click", (event) => { event.stopPropagation(); this.select(node); });
    return group;
  }

  drawEdge({ edge, turned, points }) {
    const kind = edge.casts ? "cast" : edge.sixteen * 2 > edge.tensors ? "sixteen" : "";
    const width = Math.min(4, 1.2 + 0.5 * Math.log2(edge.tensors));
    const end = points[points.length - 1];
    let path = `M${points[0].x},${points[0].y}`;
    for (let at = 1; at < points.length; at += 1) {
      const from = points[at - 1], to = points[at], middle = (from.y + to.y) / 2;
      path += `C${from.x},${middle} ${to.x},${middle} ${to.x},${to.y}`;
    }
    const direction = turned ? -1 : 1;
    const found = [
      svg("path", { class: `edge ${kind}`, d: path, "stroke-width": width }, svg("title", {}, `${times(edge.tensors, "tensor")}, ${edge.sixteen} in 16 bit, ${edge.casts} cast`)),
      svg("path", { class: `tip ${kind}`, d: `M${end.x},${end.y}l-4,${-7 * direction}l8,0z` }),
    ];
    if (edge.casts > 1) {
      const start = points[0], next = points[1];
      found.push(this.badge((start.x + next.x) / 2 + 10, (start.y + next.y) / 2 - 7, edge.casts));
    }
    return found;
  }

  scale(zoom, now) {
    this.zoom = Math.min(3, Math.max(0.1, zoom));
    this.root.setAttribute("width", this.size.width * this.zoom);
    this.root.setAttribute("height", this.size.height * this.zoom);
    if (!now) this.mark();
  }

  fit() {
    const { clientWidth, clientHeight } = byId("picture");
    this.scale(Math.min((clientWidth - 20) / this.size.width, (clientHeight - 20) / this.size.height, 1.5));
  }

  select(node) {
    this.selected = node;
    this.mark();
    this.panel.describeNode(node);
  }

  mark() {
    for (const element of this.root.querySelectorAll(".selected")) element.classList.remove("selected");
    if (this.selected === null) return;
    const home = this.program.nodes.home[this.selected];
    const isCall = home >= 0 && this.program.boxes[home].node === this.selected;
    const element = this.root.querySelector(isCall ? `[data-box="${home}"]` : `[data-node="${this.selected}"]`);
    if (element) element.classList.add("selected");
  }

  // Opens everything around a node, selects it and brings it into view.
  goTo(node) {
    const way = this.program.way(node);
    if (!way.length) { this.panel.describeNode(node); return; }
    for (const box of way) if (this.program.boxes[box].node !== node) this.open.add(box);
    this.draw();
    this.select(node);
    const element = this.root.querySelector(".selected");
    if (element) this.centre(element);
  }

  // Scrolls the picture, not the page.
  centre(element) {
    const holder = byId("picture");
    const [inner, outer] = [element.getBoundingClientRect(), holder.getBoundingClientRect()];
    holder.scrollTop += inner.y - outer.y - Math.max(0, outer.height - inner.height) / 2;
    holder.scrollLeft += inner.x - outer.x - Math.max(0, outer.width - inner.width) / 2;
  }

  // Goes to the first product of a layer, or to its first node.
  goToLayer(layer) {
    const number = this.program.strings.indexOf(layer);
    const { layer: layers, home, flops } = this.program.nodes;
    const members = layers.flatMap((other, node) => (other === number && home[node] >= 0 ? [node] : []));
    if (!members.length) return;
    byId("graph").scrollIntoView();
    this.goTo(members.find((node) => flops[node] > 0) ?? members[0]);
  }

  find() {
    const words = byId("find").value.toLowerCase().split(/\s+/).filter(Boolean);
    this.hits = [];
    this.at = -1;
    if (this.program && words.length) {
      for (let node = 0; node < this.program.size; node += 1) {
        const text = `${this.program.nodes.name[node]} ${this.program.text("op", node)}`.toLowerCase();
        if (this.program.nodes.home[node] >= 0 && words.every((word) => text.includes(word))) this.hits.push(node);
      }
    }
    byId("hits").textContent = words.length ? times(this.hits.length, "hit") : "";
  }

  next() {
    if (!this.hits.length) return;
    this.at = (this.at + 1) % this.hits.length;
    byId("hits").textContent = `${count(this.at + 1)} of ${count(this.hits.length)}`;
    this.goTo(this.hits[this.at]);
  }
}
