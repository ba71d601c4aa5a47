// Shows the OpenAPI document as a page. Text only ever becomes text: nothing from the document is read as HTML.

import { makeCopyable } from "/assets/copy.js";

const METHODS = ["get", "post", "put", "delete"];
let schemas = {};

/** Makes an element: make("p", { class: "soft" }, "text", otherElement). */
function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

/** Text in which `code` stands out. */
function prose(text) {
  const pieces = (text ?? "").split("`");
  return pieces.map((piece, index) => (index % 2 ? make("code", {}, piece) : piece));
}

function resolve(schema) {
  return schema?.$ref ? schemas[schema.$ref.split("/").pop()] ?? {} : schema ?? {};
}

function nameOf(schema) {
  return schema?.$ref ? schema.$ref.split("/").pop() : "";
}

/** A type in a word or two: "integer", "Step[]", "string or null". */
function typeOf(schema) {
  if (!schema) return "";
  if (schema.$ref) {
    const target = resolve(schema);
    return target.type === "string" && !target.enum ? typeOf(target) : nameOf(schema);
  }
  const choices = schema.oneOf ?? schema.anyOf;
  if (choices) return choices.map(typeOf).filter(Boolean).join(" or ");
  const types = [schema.type].flat().filter(Boolean).map((type) => {
    if (type === "array") return `${typeOf(schema.items) || "any"}[]`;
    if (type === "string" && schema.format) return schema.format;
    return type;
  });
  return types.join(" or ") || "any";
}

/** The fields of a schema, with those of everything that it is made of. */
function fieldsOf(schema) {
  const target = resolve(schema);
  const needed = new Set(target.required ?? []);
  const own = Object.entries(target.properties ?? {}).map(([name, field]) => ({ name, field, needed: needed.has(name) }));
  return [...(target.allOf ?? []).filter((part) => !resolve(part).oneOf).flatMap(fieldsOf), ...own];
}

/** The variants of a schema that is one of several. */
function variantsOf(schema) {
  const target = resolve(schema);
  const parts = [target, ...(target.allOf ?? []).map(resolve)];
  return parts.flatMap((part) => part.oneOf ?? []).filter((variant) => fieldsOf(variant).length > 0);
}

/** Where the interesting part of a field's type is: the items of a list, the value of an optional one. */
function inner(schema) {
  if (!schema || schema.$ref) return schema;
  if (schema.items) return inner(schema.items);
  const choice = (schema.oneOf ?? schema.anyOf ?? []).find((option) => option.$ref);
  return choice ?? null;
}

function fieldRow({ name, field, needed }, seen) {
  const target = inner(field);
  const words = resolve(target)?.enum ?? field.enum;
  const description = make("td", {}, ...prose(field.description ?? resolve(target)?.description));
  if (words) description.append(make("div", { class: "type" }, words.join(" | ")));
  if (target && !seen.includes(nameOf(target))) {
    const nested = schemaView(target, `Fields of ${nameOf(target)}`, [...seen, nameOf(target)]);
    if (nested) description.append(nested);
  }
  const label = make("td", {}, make("code", {}, name), needed ? make("div", { class: "needed" }, "required") : null);
  return make("tr", {}, label, make("td", { class: "type" }, typeOf(field)), description);
}

function fieldTable(schema, seen) {
  const rows = fieldsOf(schema).map((field) => fieldRow(field, seen));
  return rows.length ? make("div", { class: "scroll" }, make("table", {}, make("tbody", {}, ...rows))) : null;
}

function schemaView(schema, title, seen = []) {
  const table = fieldTable(schema, seen);
  const variants = variantsOf(schema).map((variant) => {
    const words = fieldsOf(variant).map(({ field }) => (field.enum?.length === 1 ? field.enum[0] : null)).find(Boolean);
    const heading = make("div", { class: "variant" }, words ? make("code", {}, words) : "", " ", ...prose(resolve(variant).description));
    return make("div", {}, heading, fieldTable(variant, seen) ?? "");
  });
  if (!table && !variants.length) return null;
  return make("details", { class: "schema" }, make("summary", {}, title), make("div", { class: "fields" }, ...variants, table));
}

/** Examples read better when the tool of a step comes first. */
function toolFirst(_, value) {
  return value && typeof value === "object" && "tool" in value ? { tool: value.tool, ...value } : value;
}

function quote(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

function exampleOf(media) {
  if (media?.example !== undefined) return media.example;
  const fields = fieldsOf(media?.schema).filter(({ needed }) => needed);
  return Object.fromEntries(fields.map(({ name, field }) => [name, field.example ?? "..."]));
}

function curlOf(method, path, operation) {
  const parameters = operation.parameters ?? [];
  const filled = path.replace(/\{(\w+)\}/g, (_, name) => {
    if (name === "id") return "$JOB";
    return parameters.find((one) => one.name === name)?.example ?? name;
  });
  const lines = [];
  const start = method === "get" ? "curl" : `curl -X ${method.toUpperCase()}`;
  const content = operation.requestBody?.content ?? {};
  const isStream = operation.responses?.[200]?.content?.["text/event-stream"];
  const isZip = operation.responses?.[200]?.content?.["application/zip"];
  lines.push(`${start}${isStream ? " -N" : ""}${isZip ? " -O" : ""} "${location.origin}${filled}"`);
  if (content["application/json"]) {
    lines.push(`-H "Content-Type: application/json"`);
    lines.push(`-d ${quote(JSON.stringify(exampleOf(content["application/json"]), toolFirst, 2))}`);
  } else if (content["application/octet-stream"]) {
    lines.push("--data-binary @file");
  }
  return lines.join(" \\\n  ");
}

function parameterRows(parameters) {
  return parameters.map((one) => {
    const label = make("td", {}, make("code", {}, one.name), one.required ? make("div", { class: "needed" }, "required") : null);
    const words = resolve(inner(one.schema) ?? one.schema)?.enum;
    const text = make("td", {}, ...prose(one.description), words ? make("div", { class: "type" }, words.join(" | ")) : "");
    return make("tr", {}, label, make("td", { class: "type" }, `${typeOf(one.schema)}, ${one.in}`), text);
  });
}

function answerRows(responses) {
  return Object.entries(responses ?? {}).sort(([one], [other]) => one.localeCompare(other)).map(([status, response]) => {
    const kind = status < 300 ? "good" : status < 400 ? "other" : "bad";
    const cell = make("td", {}, ...prose(response.description));
    const shown = new Set();
    for (const [type, media] of Object.entries(response.content ?? {})) {
      if (type === "application/problem+json") continue;
      cell.append(make("div", { class: "type" }, type));
      const name = nameOf(media.schema);
      if (shown.has(name)) continue;
      shown.add(name);
      const view = schemaView(media.schema, `Fields of ${name || "the answer"}`, [name]);
      if (view) cell.append(view);
    }
    return make("tr", {}, make("td", {}, make("span", { class: `status ${kind}` }, status)), cell);
  });
}

function section(title, rows) {
  if (!rows.length) return [];
  return [make("h3", {}, title), make("div", { class: "scroll" }, make("table", {}, make("tbody", {}, ...rows)))];
}

function fill(inside, { method, path, operation }) {
  for (const paragraph of (operation.description ?? "").split("\n\n")) {
    if (paragraph) inside.append(make("p", {}, ...prose(paragraph)));
  }
  const example = make("div", { class: "copyable" }, make("pre", {}, make("code", {}, curlOf(method, path, operation))));
  makeCopyable(example);
  inside.append(make("h3", {}, "Example"), example);
  inside.append(...section("Parameters", parameterRows(operation.parameters ?? [])));
  const body = operation.requestBody?.content;
  if (body) {
    inside.append(make("h3", {}, "Body"), make("p", { class: "type" }, Object.keys(body).join("  or  ")));
    for (const media of Object.values(body)) {
      const view = schemaView(media.schema, `Fields of ${nameOf(media.schema)}`, [nameOf(media.schema)]);
      if (view) { view.open = true; inside.append(view); }
    }
  }
  inside.append(...section("Answers", answerRows(operation.responses)));
}

function operationView(entry) {
  const { method, path, operation } = entry;
  const head = make("summary", {},
    make("span", { class: `method ${method}` }, method),
    make("span", { class: "path" }, path),
    make("span", { class: "summary" }, operation.summary ?? ""));
  const inside = make("div", { class: "inside" });
  const view = make("details", { class: "operation", id: operation.operationId }, head, inside);
  // Filled when first opened: the page stays quick however long the document is.
  view.addEventListener("toggle", () => { if (view.open && !inside.childElementCount) fill(inside, entry); });
  return view;
}

function show(document_) {
  schemas = document_.components?.schemas ?? {};
  const main = document.getElementById("main");
  const contents = document.getElementById("contents");
  const description = document.getElementById("description");
  description.replaceChildren(...prose(document_.info.description.replaceAll("\n\n", " ")));
  description.append(make("span", {}, ` Version ${document_.info.version}; `), make("a", { href: "/openapi.json" }, "openapi.json"), ".");
  const all = Object.entries(document_.paths).flatMap(([path, item]) =>
    METHODS.filter((method) => item[method]).map((method) => ({ method, path, operation: item[method] })));
  for (const tag of document_.tags) {
    const entries = all.filter(({ operation }) => operation.tags?.includes(tag.name));
    if (!entries.length) continue;
    main.append(make("section", { class: "tag", id: `tag-${tag.name}` },
      make("h2", {}, tag.name), make("p", {}, ...prose(tag.description)), ...entries.map(operationView)));
    const links = entries.map(({ method, operation }) => make("li", {},
      make("a", { href: `#${operation.operationId}`, "data-operation": operation.operationId },
        make("span", { class: `method ${method}` }, method), operation.summary ?? operation.operationId)));
    contents.append(make("h2", {}, tag.name), make("ul", {}, ...links));
  }
  openNamed();
}

function openNamed() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target?.matches("details.operation")) {
    target.open = true;
    target.scrollIntoView();
  }
}

function filter(words) {
  const wanted = words.trim().toLowerCase();
  for (const view of document.querySelectorAll(".operation")) {
    const text = view.querySelector("summary").textContent.toLowerCase();
    view.hidden = wanted !== "" && !text.includes(wanted);
    const link = document.querySelector(`[data-operation="${view.id}"]`);
    if (link) link.parentElement.hidden = view.hidden;
  }
  for (const tag of document.querySelectorAll(".tag")) tag.hidden = !tag.querySelector(".operation:not([hidden])");
}

const field = document.getElementById("filter");
field.addEventListener("input", () => filter(field.value));
addEventListener("hashchange", openNamed);
addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.target.matches("input, textarea")) {
    event.preventDefault();
    field.focus();
  }
});

try {
  const response = await fetch("/openapi.json");
  if (!response.ok) throw new Error(`status ${response.status}`);
  show(await response.json());
} catch (error) {
  document.getElementById("description").textContent = `The description of the API could not be loaded: ${error.message}`;
}
