// The status from the server: read once, then each change of it as it arrives; the state of the connection; and what this
// browser may do here.

const EVERYTHING_OPEN = { grant: "open", may_request: false };

// What this browser may do. `grant` is "open" on a server without a token, "session" after the form, null once the session has ended.
export async function readSession() {
  try {
    return await (await fetch("session")).json();
  } catch {
    return EVERYTHING_OPEN; // the server is away
  }
}

export const session = await readSession();

// `button` is shown where there is a session to end.
export function offerLogOut(button) {
  button.hidden = session.grant !== "session";
  button.addEventListener("click", async () => {
    await fetch("session", { method: "DELETE" });
    location.reload();
  });
}

const RETRY_MS = 2000;
const TIMEOUT_MS = 25_000; // the server sends a heartbeat every ten seconds
const REMOVED = ""; // in the change of an object: the names of members that it has no more

// `before` with a change, both JSON values: changes.py of the server has the rules. Neither is changed.
export function applied(before, change) {
  const whole = change === null || typeof change !== "object" || Array.isArray(change);
  if (whole || before === null || typeof before !== "object") return change;
  // Without a prototype, so that a client may have any name.
  const after = Array.isArray(before) ? [...before] : Object.assign(Object.create(null), before);
  for (const name of change[REMOVED] ?? []) delete after[name];
  for (const [name, part] of Object.entries(change)) {
    if (name !== REMOVED) after[name] = name in after ? applied(after[name], part) : part;
  }
  return after;
}

// Calls `onStatus(status)` for each status, and `onState(state, since)` when the state changes: "connecting", "live",
// "disconnected" (the connection broke) or "stalled" (it is open, and nothing arrives); `since` is a Date.
export class Live {
  constructor(model, onStatus, onState) {
    [this.model, this.onStatus, this.onState] = [model, onStatus, onState];
    [this.events, this.attempt, this.status, this.etag, this.state] = [null, 0, null, "", ""];
    this.receivedAt = Date.now();
    setInterval(() => {
      if (this.state !== "live" || Date.now() < this.receivedAt + TIMEOUT_MS) return;
      this.setState("stalled", this.receivedAt);
      this.open();
    }, 1000);
    this.setState("connecting");
    this.open();
  }

  // Reads the clustering of another model from now on.
  follow(model) {
    this.model = model;
    this.open();
  }

  setState(next, since = Date.now()) {
    if (this.state === next || (this.state === "stalled" && next === "disconnected")) return;
    this.state = next;
    this.onState(next, new Date(since));
  }

  received() {
    this.receivedAt = Date.now();
    this.setState("live");
  }

  async open() {
    this.events?.close();
    const attempt = (this.attempt += 1);
    const response = await fetch(`v1/status?model=${encodeURIComponent(this.model)}`).catch(() => null);
    const status = response?.ok ? await response.json().catch(() => null) : null;
    if (attempt !== this.attempt) return;
    if (status) {
      this.received();
      this.take(status, (response.headers.get("etag") ?? "").replace(/^W\/|"/g, ""));
      return this.listen();
    }
    if (response?.status === 404 && this.model) return this.follow(""); // no such model any more
    this.setState("disconnected");
    this.retry(attempt);
  }

  take(status, etag) {
    [this.status, this.etag] = [status, etag];
    this.onStatus(status);
  }

  listen() {
    const [model, etag] = [this.status.shown, this.etag].map(encodeURIComponent);
    const source = (this.events = new EventSource(`v1/status/stream?model=${model}&after=${etag}`));
    source.addEventListener("open", () => this.received());
    source.addEventListener("heartbeat", () => this.received());
    source.addEventListener("status", ({ data, lastEventId }) => {
      this.received();
      this.take(JSON.parse(data), lastEventId);
    });
    source.addEventListener("change", ({ data, lastEventId }) => {
      this.received();
      const { of, now, change } = JSON.parse(data);
      if (of !== this.etag) return this.open();
      this.take({ ...applied(this.status, change), now }, lastEventId);
    });
    source.addEventListener("error", () => {
      this.setState("disconnected");
      // The browser reopens a broken stream by itself, but closes a refused one for good.
      if (source.readyState === EventSource.CLOSED) this.retry(this.attempt);
    });
  }

  // A session has ended, and the page that is loaded again asks for the token; else the server is away or busy.
  async retry(attempt) {
    if ((await readSession()).grant === null) location.reload();
    else setTimeout(() => attempt === this.attempt && this.open(), RETRY_MS);
  }
}

// Client -> the name that its owner gave it.
export const titlesOf = ({ clients }) => new Map(clients.client.map((name, i) => [name, clients.title[i]]));

// The clients of a status, one object each, with their ages at `now`. None is inactive where the source has ended.
export function clientsOf({ clients, ended }, now) {
  return clients.client.map((name, i) => {
    const age = Math.max(0, now - clients.last_seen[i]);
    const late = age > clients.inactive_after_s[i];
    const inactive = late && !ended;
    const quarantined = clients.quarantined[i].length > 0;
    return { name, title: clients.title[i], age, inactive, quarantined, readings: clients.readings[i], rejected: clients.rejected[i], rate: late ? 0 : clients.readings_per_s[i] };
  });
}
