// Requests to the server. Changes are sent one after the other, and again and again until the server has saved them.

import { count, one } from "./dom.js";

const PAUSE = 1500;
let token = one('meta[name="token"]').content;
let last = Promise.resolve();
let waiting = 0;
let unreachable = false;

const pause = (time) => new Promise((done) => setTimeout(done, time));

export const newId = () => [...crypto.getRandomValues(new Uint8Array(8))].map((b) => b.toString(16).padStart(2, "0")).join("");

export const unsaved = () => waiting;

function tell(text, problem = false) {
  const place = one("#saved");
  place.textContent = text;
  place.classList.toggle("unsaved", problem);
}

export async function get(address) {
  const answer = await fetch(address);
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error);
  return body;
}

// The server has a new token after a restart: the page itself holds it.
async function renewToken() {
  const text = await (await fetch("/")).text();
  const found = new DOMParser().parseFromString(text, "text/html").querySelector('meta[name="token"]');
  if (!found || found.content === token) return false;
  token = found.content;
  return true;
}

async function send(address, body) {
  const options = { method: "POST", headers: { "content-type": "application/json", "x-token": token }, body: JSON.stringify(body) };
  const answer = await fetch(address, options);
  if (answer.status === 403 && (await renewToken())) return send(address, body);
  return { status: answer.status, ...(await answer.json()) };
}

// Returns the answer of the server, which holds the new state. `makeBody` is called when it is this request's turn.
export function post(address, makeBody = () => ({})) {
  waiting += 1;
  tell("saving …");
  const turn = last.then(async () => {
    const body = makeBody();
    for (;;) {
      try {
        const answer = await send(address, body);
        unreachable = false;
        return answer;
      } catch {
        unreachable = true;
        tell(`Not saved yet: ${count(waiting, "change")}. The server does not answer; trying again.`, true);
        await pause(PAUSE);
      }
    }
  });
  last = turn.then((answer) => {
    waiting -= 1;
    if (answer.error) tell(answer.error, true);
    else tell(waiting ? "saving …" : "saved");
  });
  return turn;
}

export function reachable(works) {
  if (works && unreachable && !waiting) tell("");
  if (!works) tell("The server does not answer.", true);
  unreachable = !works;
}

window.addEventListener("beforeunload", (event) => {
  if (waiting) event.preventDefault();
});
