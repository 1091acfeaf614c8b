// The event stream from the server: each status as it arrives, and the state of the connection.

import { readSession } from "./session.js";

const RETRY_MS = 2000;
const TIMEOUT_MS = 25_000; // the server sends a heartbeat every ten seconds

// Calls `onStatus(text)` for each status, and `onState(state, since)` when the state changes: "connecting", "live",
// "disconnected" (the connection broke) or "stalled" (it is open, and nothing arrives); `since` is a Date.
export function subscribe(onStatus, onState) {
  let events = null;
  let receivedAt = Date.now();
  let state = "";

  function setState(next, since = Date.now()) {
    if (state === next || (state === "stalled" && next === "disconnected")) return;
    state = next;
    onState(state, new Date(since));
  }

  function received() {
    receivedAt = Date.now();
    setState("live");
  }

  function open() {
    events?.close();
    const source = (events = new EventSource("events"));
    source.addEventListener("open", received);
    source.addEventListener("heartbeat", received);
    source.addEventListener("status", (event) => {
      received();
      onStatus(event.data);
    });
    source.addEventListener("error", () => {
      setState("disconnected");
      // The browser reopens a broken stream by itself, but closes a refused one for good.
      if (source.readyState === EventSource.CLOSED) refused(source);
    });
  }

  // A session has ended, and the page that is loaded again asks for the token; else the server is away or busy.
  async function refused(source) {
    if ((await readSession()).grant === null) location.reload();
    else setTimeout(() => source === events && open(), RETRY_MS);
  }

  setInterval(() => {
    if (state !== "live" || Date.now() < receivedAt + TIMEOUT_MS) return;
    setState("stalled", receivedAt);
    open();
  }, 1000);
  setState("connecting");
  open();
}
