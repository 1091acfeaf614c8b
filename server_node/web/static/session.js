// What this browser may do here, and the button that ends its session.

const EVERYTHING_OPEN = { grant: "open", may_name: false };

// `grant` is "open" on a server without a token, "session" after the form, null once the session has ended.
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
