// Requests to the broker. An error has the reason as its message, and what to do about it as `remedy`.

// The broker that the pages are about, by its address; "" is the one that serves them. Another one has pages of its own.
export const MEMBER = new URLSearchParams(location.search).get("member") ?? "";

export class ApiError extends Error {
  constructor(message, remedy, status) {
    super(message);
    this.remedy = remedy;
    this.status = status;
  }
}

async function ask(url, options) {
  let response;
  try {
    response = await fetch(url, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The broker does not respond.", "Check that it runs: reput health", 0);
  }
  let members = null;
  try {
    members = await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
  }
  if (response.ok && members !== null) return members;
  throw new ApiError(members?.error ?? "The broker responded with status " + response.status + ".", members?.remedy ?? "See the broker's log.", response.status);
}

// `more` has further parameters, as pairs: a name may come several times.
export function addressOf(name, values = {}, more = []) {
  const given = [...Object.entries({ ...values, member: MEMBER }).filter(([, value]) => value !== "" && value !== null && value !== undefined), ...more];
  return "api/" + name + (given.length ? "?" + new URLSearchParams(given) : "");
}

export function get(name, values = {}, signal = undefined, more = []) {
  return ask(addressOf(name, values, more), { signal, credentials: "same-origin" });
}

export function post(name, members) {
  return ask(addressOf(name), {
    method: "POST",
    credentials: "same-origin",
    headers: { "Content-Type": "application/json", "X-Reput-Console": "1" },
    body: JSON.stringify(members),
  });
}
