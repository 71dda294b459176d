"use strict";
/* An image that is chosen, dropped or pasted is sent to the server; whatever comes back is shown as text, never as HTML. */
(() => {
  const by = (id) => document.getElementById(id);
  const make = (name, properties = {}, ...inside) => {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...inside);
    return made;
  };
  const clean = (text) => String(text).replace("-", "−");
  const percent = (fraction) => { // for tables
    const shown = (100 * fraction).toFixed(1);
    if (fraction === 0 || fraction === 1) return `${100 * fraction}\u00a0%`;
    return `${shown === "100.0" ? "> 99.9" : shown === "0.0" ? "< 0.1" : shown}\u00a0%`;
  };
  const sure = (fraction) => { // for sentences
    if ((fraction >= 0.01 && fraction <= 0.99) || fraction === 0 || fraction === 1) return `${(100 * fraction).toFixed(0)}\u00a0%`;
    if (fraction < 0.0005) return "under 0.1\u00a0%";
    return fraction > 0.9995 ? "over 99.9\u00a0%" : `${(100 * fraction).toFixed(1)}\u00a0%`;
  };
  const grouped = (value, places) => (Number(value.toFixed(places)) + 0).toLocaleString("en-US", {
    minimumFractionDigits: places, maximumFractionDigits: places,
  }).replaceAll(",", "\u202f");
  const rounded = (value, half) => { // with the digits that half the interval leaves
    if (half > 0) return clean(grouped(value, Math.min(20, Math.max(0, 1 - Math.floor(Math.log10(half))))));
    return clean(Number.isInteger(value) ? grouped(value, 0) : Number(value.toPrecision(4)));
  };
  const say = (words, busy = false) => {
    by("said").textContent = words;
    by("busy").hidden = !busy;
  };
  const COVERAGE = 0.9; // how often a set holds the true class
  const PALE = ["cannot tell", "no better than random"]; // verdicts that support no map
  let [file, given, asking] = [null, 1, new AbortController()];

  /* What a part of the map does to what is explained: of one part, of several, and of those on the other side. */
  const ACTS = {
    raises: ["it raises", "raise", "lower it"], lowers: ["it lowers", "lower", "raise it"],
    token: ["the model looked at it for", "speak for", "against it"], other: ["it speaks for", "speak for", "against it"],
  };

  class Failed extends Error {
    constructor(answer, status) { super(answer.error); Object.assign(this, { hint: answer.try, status }); }
  }
  const wait = (seconds, signal) => new Promise((done, fail) => {
    setTimeout(done, 1000 * seconds);
    signal.addEventListener("abort", () => fail(signal.reason));
  });

  /* The JSON of an answer; a busy server is asked once more. */
  const ask = async (route, query, signal, again = true) => {
    const body = new FormData();
    body.append("image", file, file.name);
    const headers = by("token").value ? { Authorization: `Bearer ${by("token").value}` } : {};
    if (by("model")) query.model = by("model").value;
    const reply = await fetch(`${route}?${new URLSearchParams(query)}`, { method: "POST", body, headers, signal });
    const answer = await reply.json();
    if (reply.ok) return answer;
    const seconds = Number(reply.headers.get("Retry-After"));
    if (reply.status !== 503 || !again) throw new Failed(answer, reply.status);
    say(`The server is busy with others (${answer.error}). It is asked again in ${seconds} s; there is nothing to do.`, true);
    await wait(seconds, signal);
    say("The server is asked again.", true);
    return ask(route, query, signal, false);
  };

  /* What the model can do, as far as it is known yet. */
  const about = async (signal) => {
    const { models } = await (await fetch("ready", { signal })).json();
    return models.find((one) => !by("model") || one.model === by("model").value) || { routes: [], sets: false };
  };

  const bar = (fraction) => {
    const svg = (name, attributes) => {
      const made = document.createElementNS(document.querySelector("svg").namespaceURI, name);
      for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
      return made;
    };
    const drawn = svg("svg", { class: "bar", "aria-hidden": "true" });
    drawn.append(...[["track", 1], ["fill", fraction]].map(([kind, width]) => (
      svg("rect", { class: kind, width: `${(100 * width).toFixed(2)}%`, height: 6, rx: 3 }))));
    return drawn;
  };
  const row = (name, figure, fraction) => make("tr", {},
    make("th", { scope: "row" }, name, ...(fraction === undefined ? [] : [bar(fraction)])), make("td", { className: "figure" }, figure));

  /* A prediction of any task: what stands behind `The model answers`, whether it is sure, the rows below, and notes. */
  const read = (found) => {
    const ends = found.intervals || {};
    const notes = [...(found.notes || []), ...(found.about_probabilities ? [found.about_probabilities] : [])];
    if (found.set) {
      const named = found.set.map((name) => `“${name}”`).join(", ");
      const all = found.set.length === 1 ? "this answer alone is likely enough" : "it could be any of these";
      notes.unshift(`${named}: ${all}. Of 10 such lists about ${10 * COVERAGE} hold the right answer, for images like those that the model was tested on.`);
    }
    if (found.values) {
      const rows = Object.entries(found.values).map(([name, value]) => {
        const [low, high] = ends[name] || [];
        const [own, ...two] = [value, low, high].map((each) => each !== undefined && rounded(each, (high - low) / 2));
        return [name, own, ends[name] ? ` (${sure(found.coverage)} sure: ${two.join(" to ")})` : ""];
      });
      return { said: rows.map(([name, own, more]) => `${name} ${own}${more}`).join(", "), rows: [], notes };
    }
    if (found.features) return { said: `${found.features.length} numbers, and no class`, rows: [], notes };
    const columns = Object.entries(found.columns || {});
    const rows = columns.length
      ? columns.map(([name, own]) => row(`${name}: ${own.class}`, percent(own.probability), own.probability))
      : (found.top || []).map(([name, fraction]) => row(name, percent(fraction), fraction));
    const said = found.label ?? found.text ?? (found.labels || found.attributes || []).join(", ");
    return { said: said || "no label", sure: found.probability, rows, notes };
  };

  const fail = (error) => {
    if (error.name === "AbortError") return;
    say("");
    const whoever = "Whoever runs this server knows it; type it above, and press Send.";
    const [problem, hint] = {
      undefined: ["The server does not answer.", "Ask whoever runs it whether it still runs, and whether your network does."],
      401: [by("token").value ? "This token is wrong." : "This server asks for a token, which is like a password.", whoever],
      413: [`This image is too large: ${error.message}.`, "Try a smaller copy of it."],
      415: [`This is no image: ${error.message}.`, "Try another file, such as a photograph in JPEG or PNG."],
      422: [`This cannot be used: ${error.message}.`, "Try another image, such as a photograph in JPEG or PNG."],
    }[error.status] || [`${error.message}.`, `Try: ${error.hint}`];
    by("failed").replaceChildren(make("p", { className: "no-signal" }, make("strong", {}, problem), ` ${hint}`));
    if (error.status !== 401) return;
    by("key").hidden = false;
    by("token").select();
  };
  const begin = () => {
    asking.abort();
    asking = new AbortController();
    by("failed").replaceChildren();
    by("why").hidden = true;
    by("maps").replaceChildren();
    return asking.signal;
  };

  const predict = async () => {
    const signal = begin();
    by("answer").hidden = true;
    say(`${file.name} is sent to the model.`, true);
    try {
      const can = await about(signal);
      const answer = await ask("predict", can.sets ? { coverage: COVERAGE } : {}, signal);
      const found = read(answer.predictions[0]);
      const words = found.sure === undefined ? "" : `, ${sure(found.sure)} sure`;
      by("name").textContent = file.name;
      by("image").alt = file.name;
      by("verdict").replaceChildren("The model answers ", make("b", {}, found.said), `${words}.`);
      by("top").replaceChildren(...found.rows);
      if (given > 1) found.notes.unshift(`This is the first of ${given} files.`);
      found.notes.push(`From the model ${answer.model}, version ${answer.version}.`);
      by("notes").replaceChildren(...found.notes.map((note) => make("li", {}, note)));
      by("why").hidden = !can.routes.includes("explain");
      by("answer").hidden = false;
      say(`The model answers ${found.said}${words}.`);
    } catch (error) { fail(error); }
  };

  const showMap = (own, words) => {
    const drawn = by("map").content.cloneNode(true);
    const verdict = own.trust?.verdict;
    const pale = PALE.includes(verdict);
    const [agnostic, lowers] = [!own.class_specific, own.explains === "number" && own.target.startsWith("-")];
    const target = own.target.slice(Number(lowers)) + (own.contrast ? ` rather than ${own.contrast}` : "");
    const acts = ACTS[own.explains === "number" ? (lowers ? "lowers" : "raises") : own.explains] || ACTS.other;
    const is = { pale, agnostic, signed: own.signed, unsigned: !own.signed, reliable: !pale && !agnostic };
    for (const part of drawn.querySelectorAll("[data-when]")) {
      if (!part.dataset.when.split(" ").every((each) => is[each])) part.remove();
    }
    const fill = (selector, words) => drawn.querySelectorAll(selector).forEach((part) => { part.textContent = words; });
    ["[data-does]", "[data-for]", "[data-against]"].forEach((selector, place) => fill(selector, acts[place]));
    fill("[data-target]", target);
    fill("figcaption", `Map of “${target}”`);
    drawn.querySelector(".frame").classList.toggle("hatched", pale);
    drawn.querySelector(".scale").classList.toggle("faint", pale);
    drawn.querySelector(".notes").append(...own.notes.map((note) => make("li", {}, note)));
    if (own.overlay) Object.assign(drawn.querySelector("img"), { src: `data:image/png;base64,${own.overlay}`, alt: `Map of “${target}” over the image` });
    else drawn.querySelector(".look").replaceChildren(make("p", { className: "no-signal" }, "No map was made."));
    drawn.querySelector("tbody").append(...(own.values || []).map((line, place) => make("tr", {},
      make("th", { scope: "row" }, `${place + 1}`), ...line.map((value) => make("td", {}, String(Number(value.toPrecision(4))))))));
    const judged = verdict && document.querySelector(`[data-verdict="${CSS.escape(verdict)}"]`);
    const summary = judged ? judged.content.cloneNode(true) : make("div", { className: "summary" }, make("p", { className: "plain" }));
    summary.querySelector(".plain").textContent = words || own.trust?.sentence || "";
    by("maps").append(summary, drawn);
  };

  const explain = async () => {
    const signal = begin();
    say("The model is asked many times about this image, with parts of it covered, to find those that count and to test them. It can take half a minute.", true);
    try {
      const [found] = (await ask("explain", { overlay: true }, signal)).images;
      const [maps, words] = [found.attributions, found.summary.join(" ")];
      const alone = maps.length === 1;
      if (!alone) by("maps").append(make("p", { className: "plain" }, words));
      maps.forEach((own) => showMap(own, alone ? words : ""));
      const none = maps.every((own) => PALE.includes(own.trust?.verdict));
      say(none ? "Done: what counted cannot be told. Why stands below." : "Done: what counted stands below, and how far to trust that.");
      by("maps").focus();
    } catch (error) {
      by("why").hidden = false;
      fail(error);
    }
  };

  const take = (files) => {
    if (!files.length) return;
    [file, given] = [files[0], files.length];
    by("file").files = files; // so that it shows the name of what was dropped
    const reader = new FileReader();
    reader.addEventListener("load", () => { by("image").src = reader.result; });
    reader.readAsDataURL(file);
    predict();
  };
  by("file").addEventListener("change", () => take(by("file").files));
  by("why").addEventListener("click", explain);
  by("form").addEventListener("submit", (event) => { event.preventDefault(); if (file) predict(); });
  if (by("model")) by("model").addEventListener("change", () => { if (file) predict(); });
  document.addEventListener("paste", (event) => take(event.clipboardData.files));
  document.addEventListener("dragover", (event) => { event.preventDefault(); by("form").classList.add("over"); });
  document.addEventListener("dragleave", () => by("form").classList.remove("over"));
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    by("form").classList.remove("over");
    take(event.dataTransfer.files);
  });
  document.documentElement.dataset.script = "ran";
})();
