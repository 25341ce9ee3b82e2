// The page that a person logs in on: with a user of the broker and its secret, or with the token of the console.

import { get, MEMBER, post } from "./api.js";
import { failure, put } from "./dom.js";

const of = (id) => document.getElementById(id);

// Back to the page that was asked for. Only a place within the console is one.
function proceed() {
  const to = new URLSearchParams(location.search).get("to") ?? "";
  const member = MEMBER ? "?" + new URLSearchParams({ member: MEMBER }) : "";
  location.replace("./" + member + (to.startsWith("#/") ? to : ""));
}

async function begin() {
  let session;
  try {
    session = await get("session");
  } catch (error) {
    put(of("trouble"), failure(error));
    return;
  }
  if (session.is_logged_in) return proceed();
  put(of("where"), session.broker + " in " + session.cluster);
  put(of("how"), session.how[0].toUpperCase() + session.how.slice(1) + ".");
  of("without").hidden = !session.read_without_login;
  of("login").hidden = !session.can_log_in;
  of("user-label").hidden = !session.has_users;
  of("user").required = session.has_users;
  put(of("secret-name"), session.has_users ? "Secret" : "Token");
  of("login").addEventListener("submit", async (event) => {
    event.preventDefault();
    of("submit").disabled = true;
    try {
      await post("login", { user: of("user").value, secret: of("secret").value });
      proceed();
    } catch (error) {
      put(of("trouble"), failure(error));
      of("secret").select();
    }
    of("submit").disabled = false;
  });
  of("submit").disabled = false; // before, the browser itself would send the form
  of(session.has_users ? "user" : "secret").focus();
}

begin();
