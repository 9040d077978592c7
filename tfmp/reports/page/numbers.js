// Numbers and elements.

function inUnits(number, unit) {
  const prefixes = ["", "k", "M", "G", "T", "P"];
  let step = 0;
  while (Math.abs(number) >= 999.5 && step < prefixes.length - 1) { number /= 1000; step += 1; }
  const digits = step === 0 ? 0 : Math.abs(number) < 9.995 ? 2 : Math.abs(number) < 99.95 ? 1 : 0;
  return `${number.toFixed(digits)} ${prefixes[step]}${unit}`;
}

function percent(share, digits = 1) {
  return `${(100 * share).toFixed(digits)}%`;
}

function count(number) {
  return number.toLocaleString("en");
}

function times(number, what) {
  return `${count(number)} ${what}${number === 1 ? "" : "s"}`;
}

// Lists in lists are laid flat, and what is not there is left out.
function kept(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
}

// Text never becomes markup: children are elements, or strings that are put in as text.
function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "onclick" || name === "onchange" || name === "oninput") element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...kept(children));
  return element;
}

function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function byId(id) {
  return document.getElementById(id);
}

function show(id, ...children) {
  byId(id).replaceChildren(...kept(children));
}
