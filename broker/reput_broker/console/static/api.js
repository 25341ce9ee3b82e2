// Requests to the broker. An error has the reason as its message, and what to do about it as `remedy`.

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
    throw new ApiError("The broker does not answer.", "Check that it runs: reput health", 0);
  }
  let members = null;
  try {
    members = await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
  }
  if (response.ok && members !== null) return members;
  throw new ApiError(members?.error ?? "The broker answered " + response.status + ".", members?.remedy ?? "See the broker's log.", response.status);
}

export function get(name, values = {}, signal = undefined) {
  const given = Object.entries(values).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const search = given.length ? "?" + new URLSearchParams(given) : "";
  return ask("api/" + name + search, { signal, credentials: "same-origin" });
}

export function post(name, members) {
  return ask("api/" + name, {
    method: "POST",
    credentials: "same-origin",
    headers: { "Content-Type": "application/json", "X-Reput-Console": "1" },
    body: JSON.stringify(members),
  });
}
