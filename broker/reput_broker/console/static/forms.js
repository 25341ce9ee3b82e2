// The form of an action: what it asks for, what it would do, and the name that has to be typed before it does it.

import { post } from "./api.js";
import { logIn, openDialog } from "./dialogs.js";
import { failure, h, put } from "./dom.js";

const NUMBERS = { number: "numeric" };

// `unset` is what an optional field means that has no choice.
function control(field, value, isFixed, unset) {
  const common = { name: field.name, id: "field-" + field.name, autocomplete: "off", spellcheck: "false" };
  if (field.kind === "flag") return h("input", { ...common, type: "checkbox" });
  if (field.kind === "choice") {
    const options = field.is_needed ? field.choices : ["", ...field.choices];
    const select = h("select", common, options.map((one) => h("option", { value: one }, one || unset)));
    select.value = value;
    return select;
  }
  if (field.kind === "body" || field.kind === "lines") return h("textarea", { ...common, rows: field.kind === "body" ? 6 : 3, value });
  return h("input", { ...common, value, required: field.is_needed, readonly: isFixed, inputmode: NUMBERS[field.kind],
    type: field.kind === "secret" ? "password" : "text", ...(field.kind === "secret" ? { autocomplete: "new-password" } : {}) });
}

function row(field, input) {
  const hint = field.hint ? h("span", { class: "hint" }, field.hint) : null;
  if (field.kind === "flag") return h("label", { class: "check" }, input, field.label, hint);
  return h("label", null, field.label + (field.is_needed ? "" : ", optional"), input, hint);
}

function tableOf(preview) {
  if (!preview.rows.length) return null;
  return h("div", { class: "frame" }, h("table", null, h("thead", null, h("tr", null, preview.columns.map((name) => h("th", { scope: "col" }, name.replaceAll("_", " "))))),
    h("tbody", null, preview.rows.map((cells) => h("tr", null, cells.map((cell) => h("td", { class: typeof cell === "number" ? "num" : "" }, cell ?? "–")))))));
}

function shown(preview, isTyped) {
  const kind = preview.obstacle ? "bad" : isTyped || !preview.is_change ? "warn" : "ok";
  return [h("div", { class: "notice " + kind, role: "status" }, h("strong", null, preview.text), preview.loses ? h("strong", null, preview.loses) : null,
    preview.notes.map((note) => h("span", null, note)), preview.obstacle && preview.obstacle !== preview.text ? h("strong", null, preview.obstacle) : null,
    preview.obstacle && preview.remedy ? h("span", null, preview.remedy) : null), tableOf(preview)];
}

// Resolves to what was done, `{done, text}`, or to null if the person leaves it. The fields in `fixed` cannot be changed.
export function openForm(action, values, fixed) {
  return new Promise((resolve) => {
    let result = null;
    let isShown = false;
    const unset = action.name.startsWith("create-") ? "the default" : "as it is";
    const inputs = action.fields.map((field) => [field, control(field, String(values[field.name] ?? field.default), fixed.includes(field.name), unset)]);
    const preview = h("div", { class: "preview" });
    const trouble = h("div");
    const typed = h("input", { id: "typed", name: "typed", autocomplete: "off", spellcheck: "false" });
    const force = h("input", { type: "checkbox", id: "force", name: "force" });
    const check = h("button", { type: "submit", class: "primary", form: "action" }, "Show what changes");
    const perform = h("button", { type: "button", id: "perform", class: action.typed ? "danger" : "primary", hidden: true, disabled: true, onclick: () => ask(false) }, action.title);
    const form = h("form", { id: "action", method: "dialog", class: "fields" }, inputs.map(([field, input]) => row(field, input)));

    const given = () => Object.fromEntries(inputs.map(([field, input]) => [field.name, field.kind === "flag" ? input.checked : input.value]));
    const wanted = () => given()[action.typed];
    function arm() {
      perform.disabled = !isShown || (action.typed && typed.value !== wanted()) || (force.isConnected && !force.checked);
    }
    function forget() {
      isShown = false;
      typed.value = "";
      force.checked = false;
      put(preview);
      check.hidden = false;
      perform.hidden = true;
      arm();
    }
    function show(found) {
      const question = action.typed ? h("label", null, h("span", null, "Type ", h("strong", null, wanted()), " to confirm"), typed) : null;
      put(preview, shown(found, action.typed), found.is_change && found.obstacle && found.can_force ? h("label", { class: "check" }, force, "Do it nevertheless") : null,
        found.is_change && (!found.obstacle || found.can_force) ? question : null);
      isShown = found.is_change && (!found.obstacle || found.can_force);
      check.hidden = isShown;
      perform.hidden = !isShown;
      arm();
      if (isShown) (action.typed ? typed : perform).focus();
    }
    async function ask(isDryRun) {
      put(trouble);
      check.disabled = perform.disabled = true;
      try {
        const members = { values: given(), dry_run: isDryRun, typed: typed.value, force: force.checked };
        const answer = await post("actions/" + action.name, members);
        if (isDryRun) return show(answer.preview);
        result = answer;
        dialog.close();
      } catch (error) {
        if (error.status === 401) return void logIn();
        put(trouble, failure(error));
      } finally {
        check.disabled = false;
        arm();
      }
    }
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      ask(true);
    });
    form.addEventListener("input", forget);
    typed.addEventListener("input", arm);
    force.addEventListener("change", arm);
    typed.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || perform.disabled) return;
      event.preventDefault();
      perform.click();
    });
    const cancel = h("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
    const dialog = openDialog(action.title, [form, preview, trouble], [cancel, check, perform], () => resolve(result));
    dialog.dataset.action = action.name;
    const first = inputs.map(([, input]) => input).find((input) => !input.readOnly);
    (first ?? check).focus();
  });
}
