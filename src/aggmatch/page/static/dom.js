// Small helpers. Text always becomes text, never markup.

export const one = (selector, place = document) => place.querySelector(selector);
export const all = (selector, place = document) => [...place.querySelectorAll(selector)];

export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

export const percent = (share) => `${Math.round(100 * share)} %`;
export const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
