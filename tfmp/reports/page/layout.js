// A layered drawing (Sugiyama, Tagawa and Toda, 1981): ranks by longest path, order by barycentres, places by medians of neighbours.

const GAP_X = 26, GAP_Y = 44, PAD = 16, HEAD = 26, WIDEST = 7, SWEEPS = 6;

// `sizes` has width and height of each part, `edges` pairs from and to; returns x and y of each part, the points each edge passes, and the whole size.
function arrange(sizes, edges) {
  const forward = withoutCycles(sizes.length, edges);
  const rank = ranks(sizes.length, forward);
  const rows = [];
  const items = sizes.map((size, index) => ({ part: index, width: size.width, height: size.height, above: [], below: [], row: rank[index] }));
  for (const edge of forward) thread(items, edge, rank);
  for (const item of items) (rows[item.row] = rows[item.row] || []).push(item);
  order(rows);
  place(rows);
  return finish(sizes, items, rows, forward);
}

// Turns around the edges that close cycles, found by walking depth first in the order of the parts.
function withoutCycles(number, edges) {
  const out = Array.from({ length: number }, () => []);
  edges.forEach((edge) => out[edge.from].push(edge));
  const state = new Uint8Array(number);
  const backward = new Set();
  for (let start = 0; start < number; start += 1) {
    if (state[start]) continue;
    const stack = [[start, 0]];
    state[start] = 1;
    while (stack.length) {
      const top = stack[stack.length - 1];
      const edge = out[top[0]][top[1]];
      top[1] += 1;
      if (edge === undefined) { state[top[0]] = 2; stack.pop(); }
      else if (state[edge.to] === 1) backward.add(edge);
      else if (state[edge.to] === 0) { state[edge.to] = 1; stack.push([edge.to, 0]); }
    }
  }
  return edges.map((edge) => ({ edge, turned: backward.has(edge), from: backward.has(edge) ? edge.to : edge.from, to: backward.has(edge) ? edge.from : edge.to }));
}

function ranks(number, forward) {
  const rank = new Array(number).fill(0);
  const waiting = new Array(number).fill(0);
  const out = Array.from({ length: number }, () => []);
  forward.forEach(({ from, to }) => { out[from].push(to); waiting[to] += 1; });
  const ready = [];
  for (let part = 0; part < number; part += 1) if (!waiting[part]) ready.push(part);
  const sorted = [];
  for (let at = 0; at < ready.length; at += 1) {
    const part = ready[at];
    sorted.push(part);
    for (const to of out[part]) { rank[to] = Math.max(rank[to], rank[part] + 1); if (!--waiting[to]) ready.push(to); }
  }
  // What nothing leads to stands just above what it leads to.
  const isEntered = new Uint8Array(number);
  forward.forEach(({ to }) => { isEntered[to] = 1; });
  for (const part of sorted) if (!isEntered[part] && out[part].length) rank[part] = Math.min(...out[part].map((to) => rank[to])) - 1;
  return withoutWideRows(number, rank, out);
}

// Rows with more than WIDEST parts are broken into several.
function withoutWideRows(number, rank, out) {
  const byRank = [];
  for (let part = 0; part < number; part += 1) (byRank[rank[part]] = byRank[rank[part]] || []).push(part);
  const found = new Array(number).fill(0);
  let row = 0;
  for (const members of byRank) {
    if (!members) continue;
    const lines = Math.ceil(members.length / WIDEST);
    const inALine = Math.ceil(members.length / lines);
    members.forEach((part, index) => { found[part] = row + Math.floor(index / inALine); });
    row += lines;
  }
  return found;
}

// Long edges pass a place of their own in every row between.
function thread(items, edge, rank) {
  let last = items[edge.from];
  edge.path = [];
  for (let row = rank[edge.from] + 1; row < rank[edge.to]; row += 1) {
    const dummy = { part: -1, width: 4, height: 0, above: [last], below: [], row };
    last.below.push(dummy);
    items.push(dummy);
    edge.path.push(dummy);
    last = dummy;
  }
  last.below.push(items[edge.to]);
  items[edge.to].above.push(last);
}

function order(rows) {
  rows.forEach((row) => row.forEach((item, index) => { item.index = index; }));
  const mean = (neighbours, otherwise) => (neighbours.length ? neighbours.reduce((sum, item) => sum + item.index / rows[item.row].length, 0) / neighbours.length : otherwise);
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const down = sweep % 2 === 0;
    for (const row of down ? rows : [...rows].reverse()) {
      row.forEach((item) => { item.key = mean(down ? item.above : item.below, item.index / row.length); });
      row.sort((a, b) => a.key - b.key || a.index - b.index);
      row.forEach((item, index) => { item.index = index; });
    }
  }
}

function place(rows) {
  for (const row of rows) {
    let x = 0;
    for (const item of row) { item.x = x + item.width / 2; x += item.width + GAP_X; }
    row.forEach((item) => { item.x -= (x - GAP_X) / 2; });
  }
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const down = sweep % 2 === 0;
    for (const row of down ? rows : [...rows].reverse()) {
      const wanted = row.map((item) => median((down ? item.above : item.below).map((other) => other.x), item.x));
      settle(row, wanted);
    }
  }
}

function median(values, otherwise) {
  if (!values.length) return otherwise;
  values.sort((a, b) => a - b);
  const middle = values.length >> 1;
  return values.length % 2 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// Puts each item as near to where it wants to be as its neighbours allow: items that would overlap become one block around their mean.
function settle(row, wanted) {
  const blocks = [];
  row.forEach((item, index) => {
    let block = { items: [item], width: item.width, sum: wanted[index], want: wanted[index] };
    while (blocks.length) {
      const left = blocks[blocks.length - 1];
      if (left.want + left.width / 2 + GAP_X <= block.want - block.width / 2) break;
      blocks.pop();
      const items = [...left.items, ...block.items];
      const width = left.width + GAP_X + block.width;
      const leftShare = left.items.length / items.length;
      const want = leftShare * (left.want + (width - left.width) / 2) + (1 - leftShare) * (block.want - (width - block.width) / 2);
      block = { items, width, want };
    }
    blocks.push(block);
  });
  for (const block of blocks) {
    let x = block.want - block.width / 2;
    for (const item of block.items) { item.x = x + item.width / 2; x += item.width + GAP_X; }
  }
}

function finish(sizes, items, rows, forward) {
  let y = 0;
  for (const row of rows) {
    const height = Math.max(0, ...row.map((item) => item.height));
    row.forEach((item) => { item.y = y + height / 2; });
    y += height + (height ? GAP_Y : 0);
  }
  const left = Math.min(0, ...items.map((item) => item.x - item.width / 2));
  const right = Math.max(0, ...items.map((item) => item.x + item.width / 2));
  const places = sizes.map((size, index) => ({ x: items[index].x - left - size.width / 2, y: items[index].y - size.height / 2 }));
  const lines = forward.map(({ edge, turned, from, to, path }) => {
    const points = [
      { x: items[from].x - left, y: items[from].y + items[from].height / 2 },
      ...path.map((dummy) => ({ x: dummy.x - left, y: dummy.y })),
      { x: items[to].x - left, y: items[to].y - items[to].height / 2 },
    ];
    return { edge, turned, points: turned ? points.reverse() : points };
  });
  return { places, lines, width: right - left, height: Math.max(0, y - GAP_Y) };
}
