// Filters the page, and sends requests to the server that the page came from (and to no other).
"use strict";

const filter = document.getElementById("filter");
filter.addEventListener("input", () => {
  const wanted = filter.value.toLowerCase();
  for (const section of document.querySelectorAll("section")) {
    let shown = 0;
    for (const details of section.querySelectorAll("details")) {
      details.hidden = !details.textContent.toLowerCase().includes(wanted);
      shown += details.hidden ? 0 : 1;
    }
    section.hidden = shown === 0;
  }
});

// a link to a schema opens it
function unfold() {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  if (target instanceof HTMLDetailsElement) {
    target.open = true;
    target.scrollIntoView();
  }
}
addEventListener("hashchange", unfold);
unfold();

// builds the URL of a form; empty query parameters are omitted
function urlOf(form) {
  let path = form.dataset.path;
  const query = new URLSearchParams();
  for (const input of form.querySelectorAll("input")) {
    const value = input.value || (input.dataset.in === "path" ? input.placeholder : "");
    if (input.dataset.in === "path") {
      path = path.replace("{" + input.name + "}", encodeURIComponent(value));
    } else if (input.dataset.in === "query" && value) {
      query.append(input.name, value);
    }
  }
  const text = query.toString();
  return path + (text ? "?" + text : "");
}

// the token is only in the input: it is never stored, and never part of a URL
const token = document.getElementById("token");

function optionsOf(form) {
  const options = { method: form.dataset.method, headers: {} };
  if (token.value) options.headers.Authorization = "Bearer " + token.value.trim();
  for (const input of form.querySelectorAll("input[data-in=header]")) {
    if (input.value) options.headers[input.name] = input.value;
  }
  const body = form.querySelector("textarea");
  if (body) {
    options.headers["Content-Type"] = "application/json";
    options.body = body.value;
  }
  return options;
}

for (const form of document.querySelectorAll("form")) {
  const curl = form.querySelector(".curl");
  const answer = form.querySelector("pre");
  const show = () => {
    const body = form.querySelector("textarea");
    const bearer = token.value ? "-H \"Authorization: Bearer $(cat TOKEN-FILE)\" " : "";
    curl.textContent = "curl " + bearer + (body ? "--json '" + body.value + "' " : "") + "'" + location.origin + urlOf(form) + "'";
  };
  form.addEventListener("input", show);
  token.addEventListener("input", show);
  show();
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const isStream = form.querySelector("[data-open]");
    if (isStream && !token.value) {
      open(urlOf(form), "_blank", "noopener");
      return;
    }
    answer.hidden = false;
    if (isStream) {
      answer.textContent = "A stream does not end, and a new tab cannot send the token: use the curl command.";
      return;
    }
    try {
      const response = await fetch(urlOf(form), optionsOf(form));
      let text = await response.text();
      try {
        text = JSON.stringify(JSON.parse(text), null, 1);
      } catch {
        // not JSON: shown unchanged
      }
      answer.textContent = response.status + "\n" + text;
    } catch (error) {
      answer.textContent = String(error);
    }
  });
}
