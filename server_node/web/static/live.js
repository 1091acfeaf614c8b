// The stream of pictures: each as it comes, and since when nothing comes any more.

const RETRY_MS = 2000;
const QUIET_MS = 25_000; // the server gives a sign of life every ten seconds

// Calls `onPicture(text)` for each picture, and `onState(state, since)` when that changes: "connecting", "live",
// "disconnected" (the connection broke) or "silent" (it stands, and nothing comes through); `since` is a Date.
export function listen(onPicture, onState) {
  let events = null;
  let heardAt = Date.now();
  let state = "";

  function turn(next, since = Date.now()) {
    if (state === next || (state === "silent" && next === "disconnected")) return;
    state = next;
    onState(state, new Date(since));
  }

  function heard() {
    heardAt = Date.now();
    turn("live");
  }

  function open() {
    events?.close();
    const mine = (events = new EventSource("events"));
    mine.addEventListener("open", heard);
    mine.addEventListener("alive", heard);
    mine.addEventListener("picture", (event) => {
      heard();
      onPicture(event.data);
    });
    mine.addEventListener("error", () => {
      turn("disconnected");
      // A refused stream is closed for good by the browser; a broken one it opens again by itself.
      if (mine.readyState === EventSource.CLOSED) setTimeout(() => mine === events && open(), RETRY_MS);
    });
  }

  setInterval(() => {
    if (state !== "live" || Date.now() < heardAt + QUIET_MS) return;
    turn("silent", heardAt);
    open();
  }, 1000);
  turn("connecting");
  open();
}
