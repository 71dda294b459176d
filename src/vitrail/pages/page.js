"use strict";
/* Reading values by pointer and arrow keys, sorting, and the controls of the maps. The page is complete without it. */
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const svg = (name, attributes) => {
    const made = document.createElementNS(document.documentElement.querySelector("svg").namespaceURI, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };
  const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

  /* A line of text below a figure: a hint until there is something to read. */
  const readout = (line) => {
    line.hidden = false;
    line.setAttribute("role", "status");
    const print = (text) => {
      line.textContent = text || line.dataset.hint;
      line.classList.toggle("live", Boolean(text));
    };
    print("");
    return print;
  };

  /* Steps of the arrow keys, Home and End, in (rows, columns). */
  const steps = {
    ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [0, -1e9], End: [0, 1e9],
  };

  const readChart = (figure) => {
    const chart = figure.querySelector(":scope > svg");
    const marks = chart ? all("circle", chart) : [];
    if (!marks.length) return;
    const print = readout(figure.querySelector(".readout"));
    const positions = [...new Set(marks.map((mark) => Number(mark.dataset.index)))].sort((a, b) => a - b);
    const height = chart.viewBox.baseVal.height;
    const cursor = svg("line", { class: "cursor", y1: 12, y2: height - 40, visibility: "hidden" });
    chart.prepend(cursor);
    let current = positions.length - 1;
    const clear = () => {
      marks.forEach((mark) => mark.classList.remove("near"));
      cursor.setAttribute("visibility", "hidden");
      print("");
    };
    const show = (place) => {
      current = place;
      const near = marks.filter((mark) => Number(mark.dataset.index) === positions[place]);
      marks.forEach((mark) => mark.classList.toggle("near", near.includes(mark)));
      const at = near[0].getAttribute("cx");
      cursor.setAttribute("x1", at);
      cursor.setAttribute("x2", at);
      cursor.setAttribute("visibility", "visible");
      const texts = near.map((mark) => mark.querySelector("title").textContent);
      const start = texts[0].slice(0, texts[0].indexOf(", ") + 2);
      print(start + texts.map((text) => text.slice(start.length)).join(", "));
    };
    chart.addEventListener("pointermove", (event) => {
      const box = chart.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * chart.viewBox.baseVal.width;
      const away = (mark) => Math.abs(Number(mark.getAttribute("cx")) - x);
      const best = marks.reduce((a, b) => (away(b) < away(a) ? b : a));
      show(positions.indexOf(Number(best.dataset.index)));
    });
    chart.addEventListener("pointerleave", clear);
    chart.addEventListener("blur", clear);
    chart.addEventListener("focus", () => show(current));
    chart.setAttribute("tabindex", "0");
    chart.addEventListener("keydown", (event) => {
      const step = steps[event.key];
      if (!step || !step[1]) return;
      event.preventDefault();
      show(clamp(current + step[1], 0, positions.length - 1));
    });
  };

  const readConfusion = (table) => {
    const print = readout(table.closest("section").querySelector(".readout"));
    const rows = all("tbody tr", table).map((row) => all("td", row));
    const show = (cell) => print(cell.dataset.words);
    rows.forEach((cells, row) => cells.forEach((cell, column) => {
      cell.addEventListener("pointerenter", () => show(cell));
      cell.addEventListener("focus", () => show(cell));
      cell.addEventListener("keydown", (event) => {
        const step = steps[event.key];
        if (!step) return;
        event.preventDefault();
        const to = rows[clamp(row + step[0], 0, rows.length - 1)][clamp(column + step[1], 0, cells.length - 1)];
        cell.tabIndex = -1;
        to.tabIndex = 0;
        to.focus();
      });
    }));
  };

  const makeSortable = (table) => {
    const body = table.tBodies[0];
    all("thead th", table).forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        all("thead th", table).forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const key = (row) => row.cells[column].dataset.value;
        const order = column === 0
          ? (a, b) => key(a).localeCompare(key(b), undefined, { numeric: true })
          : (a, b) => Number(key(a)) - Number(key(b));
        const sorted = [...body.rows].sort(order);
        body.append(...(down ? sorted.reverse() : sorted));
      });
    });
  };

  /* A map: its values come from its own table, the patch under the pointer is marked in every map of the image. */
  const readMap = (figure) => {
    const stage = figure.querySelector(".stage");
    const values = all("tbody tr", figure.querySelector(".values")).map((row) => all("td", row).map((c) => c.textContent));
    const [rows, columns] = [Number(stage.dataset.rows), Number(stage.dataset.columns)];
    const { width, height } = stage.viewBox.baseVal;
    const [tall, wide] = [height / rows, width / columns];
    const print = readout(figure.querySelector(".readout"));
    let marked = [];
    return {
      rows, columns, stage,
      clear: () => { marked.forEach((mark) => mark.remove()); marked = []; print(""); },
      show: (row, column) => {
        marked.forEach((mark) => mark.remove());
        marked = patches(stage, rows, columns, row, column);
        print(`Row ${row + 1}, column ${column + 1}: ${values[row][column]}`);
      },
      write: () => {
        const group = svg("g", { class: "values-on" });
        const write = (value) => String(Number(Number(value).toPrecision(2))).replace(/^(-?)0\./, "$1.").replace("-", "−");
        const short = values.map((line) => line.map(write));
        const longest = Math.max(3, ...short.flat().map((text) => text.length));
        const size = Math.min(tall * 0.42, (wide * 1.6) / longest);
        short.forEach((line, row) => line.forEach((value, column) => {
          const text = svg("text", {
            x: (column + 0.5) * wide, y: (row + 0.5) * tall, "font-size": size, "stroke-width": size * 0.18,
          });
          text.textContent = value;
          group.append(text);
        }));
        stage.append(group);
      },
      erase: () => all(".values-on", stage).forEach((group) => group.remove()),
    };
  };

  /* Pointer and keys on a stage of patches: `go` is called with (row, column), `clear` that there is none any more. */
  const walk = (stage, rows, columns, go, clear) => {
    const place = { row: 0, column: 0 };
    const move = (toRow, toColumn) => {
      place.row = clamp(toRow, 0, rows - 1);
      place.column = clamp(toColumn, 0, columns - 1);
      go(place.row, place.column);
    };
    const follow = (event) => {
      const box = stage.getBoundingClientRect();
      move(Math.floor(((event.clientY - box.top) / box.height) * rows),
        Math.floor(((event.clientX - box.left) / box.width) * columns));
    };
    stage.setAttribute("tabindex", "0");
    stage.setAttribute("role", "application");
    stage.setAttribute("aria-label", `${stage.getAttribute("aria-label")}. Arrow keys move from patch to patch.`);
    stage.addEventListener("pointermove", follow);
    stage.addEventListener("pointerdown", follow);
    stage.addEventListener("pointerleave", clear);
    stage.addEventListener("focus", () => { if (stage.matches(":focus-visible")) move(place.row, place.column); });
    stage.addEventListener("blur", clear);
    stage.addEventListener("keydown", (event) => {
      if (event.key === "Escape") clear();
      const step = steps[event.key];
      if (!step) return;
      event.preventDefault();
      move(place.row + step[0], place.column + step[1]);
    });
  };

  const patches = (stage, rows, columns, row, column) => {
    const [tall, wide] = [stage.viewBox.baseVal.height / rows, stage.viewBox.baseVal.width / columns];
    const place = { x: column * wide, y: row * tall, width: wide, height: tall };
    const made = [svg("rect", { class: "patch dark", ...place }), svg("rect", { class: "patch", ...place })];
    stage.append(...made);
    return made;
  };

  /* Two images: the patch under the pointer is marked, and the one of the other image that is most like it. */
  const joinPair = (pair) => {
    const print = readout(pair.querySelector(".readout"));
    const numbers = (text) => text.split(",").map(Number);
    const sides = all(".stage[data-partners]", pair).map((stage) => ({
      stage, rows: Number(stage.dataset.rows), columns: Number(stage.dataset.columns),
      partners: numbers(stage.dataset.partners), cosines: numbers(stage.dataset.cosines), usual: numbers(stage.dataset.usual),
    }));
    let marked = [];
    const clear = () => { marked.forEach((mark) => mark.remove()); marked = []; print(""); };
    sides.forEach((own, side) => {
      const other = sides[1 - side];
      walk(own.stage, own.rows, own.columns, (row, column) => {
        clear();
        const at = row * own.columns + column;
        const [toRow, toColumn] = [Math.floor(own.partners[at] / other.columns), own.partners[at] % other.columns];
        marked = [...patches(own.stage, own.rows, own.columns, row, column),
          ...patches(other.stage, other.rows, other.columns, toRow, toColumn)];
        const usual = own.usual.some((value) => value > 0) ? `, usually ${own.usual[at].toFixed(2)}` : "";
        print(`Row ${row + 1}, column ${column + 1} is most like row ${toRow + 1}, column ${toColumn + 1}: `
          + `cosine ${own.cosines[at].toFixed(2)}${usual}`);
      }, clear);
    });
  };

  const joinMaps = (section) => {
    const maps = all(".map", section).map(readMap);
    const clear = () => maps.forEach((other) => other.clear());
    maps.forEach((map) => walk(map.stage, map.rows, map.columns, (row, column) => maps.forEach((other) => {
      if (other.rows === map.rows && other.columns === map.columns) other.show(row, column);
    }), clear));
    return maps;
  };

  const runControls = (controls, maps) => {
    const [strength, smooth, numbers, lines, colourless] = ["strength", "smooth", "numbers", "lines", "colourless"].map((id) => document.getElementById(id));
    const page = document.documentElement.classList;
    const apply = () => {
      all(".overlay").forEach((overlay) => { overlay.style.opacity = strength.value / 100; });
      controls.querySelector("output").textContent = `${strength.value} %`;
      page.toggle("smooth", smooth.checked);
      page.toggle("no-lines", !lines.checked);
      page.toggle("without-colour", colourless.checked);
    };
    document.getElementById("print").addEventListener("click", () => window.print());
    [strength, smooth, lines, colourless].forEach((input) => input.addEventListener("input", apply));
    numbers.addEventListener("input", () => maps.forEach((map) => (numbers.checked ? map.write() : map.erase())));
    controls.hidden = false;
    apply();
  };

  all(".chart").forEach(readChart);
  all(".confusion").forEach(readConfusion);
  all("[data-sortable]").forEach(makeSortable);
  all(".agreed").forEach(joinPair);
  const maps = all(".case").flatMap(joinMaps);
  all(".controls").forEach((controls) => runControls(controls, maps));
  document.documentElement.dataset.script = "ran";
})();
