// Requests to the server. Changes are sent one after the other, and again and again until the server has saved them.

import { count, one } from "./dom.js";

const PAUSE = 1500;
let token = one('meta[name="token"]').content;
let last = Promise.resolve();
let waiting = 0;
let unreachable = false;

class Refusal extends Error {} // the server answered, and said why not

const reason = (error) => (error instanceof Refusal ? error.message : "The server does not answer.");
const pause = (time) => new Promise((done) => setTimeout(done, time));

export const newId = () => [...crypto.getRandomValues(new Uint8Array(8))].map((b) => b.toString(16).padStart(2, "0")).join("");

function tell(text, problem = false) {
  const place = one("#saved");
  place.textContent = text;
  place.classList.toggle("unsaved", problem);
}

export async function get(address) {
  const answer = await fetch(address);
  const body = await answer.json();
  if (!answer.ok) throw new Refusal(body.error);
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
  const found = await answer.json();
  if (answer.status !== 403) return found;
  if (await renewToken()) return send(address, body);
  throw new Refusal(found.error); // works again once the new link was opened in any tab
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
      } catch (error) {
        unreachable = true;
        tell(`Not saved yet: ${count(waiting, "change")}. ${reason(error)} Trying again.`, true);
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

// error: why the server could not be asked for news; null if it answered.
export function reachable(error) {
  if (!error && unreachable && !waiting) tell("");
  if (error && !waiting) tell(reason(error), true);
  unreachable = Boolean(error);
}

window.addEventListener("beforeunload", (event) => {
  if (waiting) event.preventDefault();
});
