// Answers images with an ONNX file that vitrail has exported: node predict.js MODEL.onnx IMAGE... [--json]
//
// Needs onnxruntime-node (or onnxruntime-web) and sharp. How images are read and what outputs mean stands in the file:
// JSON under the key `vitrail` of its metadata, the contract. A program of your own calls `readContract` for the bytes
// of the file, `prepare` for each image, and `answer` for what the network returns, as `main` does.
"use strict";
const fs = require("fs");

/** Refuse in two lines: what is wrong, and what to try. */
function need(holds, problem, hint = "the same image as a JPEG, or a PNG of 8 bits") {
  if (!holds) throw new Error(`${problem}\ntry: ${hint}`);
}

/** The first of some packages that is installed: beside this file, where it is called from, or in NODE_PATH. */
function load(...names) {
  for (const name of names) {
    try { return require(require.resolve(name, { paths: [__dirname, process.cwd()] })); }
    catch (error) { if (error.code !== "MODULE_NOT_FOUND") throw error; }
  }
  need(false, `${names.join(" or ")} is not installed`, `npm install ${names[0]}`);
}

// ---- the contract

/** The fields of a protobuf message, [number, value]; the value is a number, or the bytes of a text or message. */
function* fields(bytes) {
  let at = 0;
  const varint = () => {
    let value = 0, scale = 1;
    for (; bytes[at] & 128; scale *= 128) value += (bytes[at++] & 127) * scale;
    return value + bytes[at++] * scale;
  };
  while (at < bytes.length) {
    const tag = varint(), length = { 0: 0, 1: 8, 5: 4 }[tag % 8] ?? varint();
    yield [tag >> 3, tag % 8 ? bytes.subarray(at, (at += length)) : varint()];
  }
}

/** What stands in the metadata of an ONNX file, by its bytes; for images of [height, width] where it takes any size. */
function readContract(bytes, size) {
  const model = [...fields(bytes)], all = (number) => model.filter((one) => one[0] === number).map((one) => one[1]);
  const metadata = all(14).map((entry) => Object.fromEntries(fields(entry))); // of a key twice the last counts
  const own = metadata.filter((entry) => String(entry[1]) === "vitrail").pop() || { 2: "{}" };
  const contract = JSON.parse(String(own[2])), kinds = (contract.answer || []).map((head) => head.kind);
  const has = contract.format ? `the contract has format ${contract.format} and answers of [${kinds}]` : "no contract";
  const found = `${has} in its metadata, made by ${all(2)[0] || "an unknown program"}: of preprocessing and names`;
  const fits = contract.format === 1 && kinds.length && kinds.every((kind) => kind in KINDS);
  need(fits, `${found}, wanted is format 1 with answers of [${Object.keys(KINDS)}]`, "vitrail export MODEL --to onnx");
  if (size) {
    const { any_size: any, patch, input } = contract, takes = any ? `multiples of ${patch}` : `${input.size} alone`;
    const divided = size.length === 2 && size.every((side, i) => side > 0 && side % patch[i] === 0);
    need(any && divided, `it takes ${takes}, not --size ${size.join("x")}`, "vitrail export MODEL --size any");
    contract.input.size = size;
  }
  return contract;
}

// ---- from a file to pixels

const over255 = (value) => ((value + 128) + ((value + 128) >> 8)) >> 8; // value / 255, rounded
const grey = ([r, g, b]) => (r * 19595 + g * 38470 + b * 7471 + 32768) >> 16;

/** The pixels that the network reads, a Uint8Array (height, width, channels), of a path or the bytes of a file. */
async function prepare(file, contract) {
  const sharp = load("sharp"), reads = contract.input, options = { ignoreIcc: true, limitInputPixels: 1e8 };
  const { format, depth, channels, space, orientation, xmp } = await sharp(file, options).metadata();
  need(["jpeg", "png", "webp"].includes(format), `${format} is decoded in another way here than by Pillow`);
  need(depth === "uchar" || (depth === "ushort" && channels === 1), "16 bits a colour are not read");
  need(orientation || !/tiff:Orientation(="|>)[2-8]/.test(xmp), "its orientation stands in XMP alone");
  const as = depth === "ushort" ? "grey16" : space === "cmyk" ? "cmyk" : "srgb";
  const image = sharp(file, options).pipelineColourspace(as).toColourspace(as).rotate(); // as its EXIF block says
  const { data, info } = await image.raw({ depth }).toBuffer({ resolveWithObject: true });
  const pixels = convert(data, info.channels, as, reads), own = [info.height, info.width];
  return Uint8Array.from(resize(pixels, own, reads, contract.longest));
}

/** Grey or RGB of 8 bits: transparency is laid on pad_value; grey of 16 bits uses all of them, or those stated. */
function convert(data, count, as, reads) {
  const most = 2 ** (reads.bits || 16) - 1, pad = reads.pad_value;
  if (as === "grey16") {
    const values = new Uint16Array(Uint8Array.from(data).buffer), top = values.reduce((a, b) => Math.max(a, b), 0);
    const fits = top <= most && (reads.bits || top === 0 || top >= 2 ** 14);
    need(fits, `values of ${reads.bits || 16} bits are read, it has up to ${top}`);
    [data, count] = [values.map((value) => Math.floor((value * 510 + most) / (2 * most))), 1];
  }
  const colour = (at) => {
    const own = [0, 1, 2].map((c) => data[at + (count < 3 ? 0 : c)]), last = data[at + count - 1];
    if (as === "cmyk") return own.map((ink) => 255 - last - over255(ink * (255 - last)));
    return count % 2 ? own : own.map((value, c) => over255(value * last + pad[c] * (255 - last)));
  };
  const pixels = new Uint8Array((data.length / count) * reads.channels);
  for (let from = 0, to = 0; from < data.length; from += count, to += reads.channels) {
    pixels.set(reads.channels === 1 ? [grey(colour(from))] : colour(from), to);
  }
  return pixels;
}

/** Scaled to fit in (pad), or to size / crop_pct, of which the centre is cut out; pairs are [height, width]. */
function resize(pixels, own, reads, longest) {
  const { size, channels, resize: how, interpolation: rule } = reads, both = (f) => [f(0), f(1)];
  const even = (x) => (x % 1 === 0.5 ? 2 * Math.round(x / 2) : Math.round(x)); // halves as Python rounds them
  let scaled = both((i) => Math.trunc(size[i] / reads.crop_pct));
  const fit = Math.min(...both((i) => size[i] / own[i])), cover = Math.min(...both((i) => own[i] / scaled[i]));
  const square = both((i) => Math.floor((scaled[i] * own[i]) / Math.min(...own)));
  if (how === "pad") scaled = both((i) => Math.max(1, even(own[i] * fit)));
  else if (how === "crop") scaled = size[0] === size[1] ? square : both((i) => even(own[i] / cover));
  const halve = how === "pad" || reads.centre === "down" ? Math.trunc : even;
  const corner = both((i) => halve((scaled[i] - size[i]) / 2)), step = both((i) => own[i] / scaled[i]);
  if (scaled[0] > longest * size[0] || scaled[1] > longest * size[1]) { // an elongated image is cut before it is scaled
    const last = both((i) => Math.min((corner[i] + size[i]) * step[i], own[i]));
    return resample(pixels, own, channels, rule, size, both((i) => corner[i] * step[i]), last);
  }
  const whole = resample(pixels, own, channels, rule, scaled, [0, 0], own);
  const pad = channels === 1 ? [grey(reads.pad_value)] : reads.pad_value;
  const found = new Uint8Array(size[0] * size[1] * channels);
  for (let y = corner[0], to = 0; y < corner[0] + size[0]; y++) {
    for (let x = corner[1]; x < corner[1] + size[1]; x++, to += channels) {
      const from = (y * scaled[1] + x) * channels, inside = y >= 0 && x >= 0 && y < scaled[0] && x < scaled[1];
      found.set(inside ? whole.subarray(from, from + channels) : pad, to);
    }
  }
  return found;
}

const CURVES = { // how far each reaches, and its weight at a distance
  bilinear: [1, (x) => Math.max(0, 1 - x)],
  bicubic: [2, (x) => (x < 1 ? (1.5 * x - 2.5) * x * x + 1 : x < 2 ? (((x - 5) * x + 8) * x - 4) * -0.5 : 0)],
};

/** What Pillow 13's resize gives for a part of the pixels, from first to last: along rows, rounded, then along columns;
 * the other way round where the height shrinks much more than the width. */
function resample(pixels, own, channels, rule, size, first, last) {
  const [down, across] = [0, 1].map((i) => weights(rule, own[i], size[i], first[i], last[i]));
  const less = own[0] - size[0], turned = rule !== "nearest" && less > 0 && less > 2 * (own[1] - size[1]);
  if (turned) return along(along(pixels, 1, own[0], own[1] * channels, down), size[0], own[1], channels, across);
  return along(along(pixels, own[0], own[1], channels, across), 1, own[0], size[1] * channels, down);
}

/** For each new pixel the number of the first one that it is made of, and their weights in parts of 2^22. */
function weights(rule, own, size, first, last) {
  if (own === size && first === 0 && last === own) return null;
  const start = Math.fround(first), scale = Math.fround(Math.fround(last) - start) / size, found = [];
  const [reach, curve] = CURVES[rule] || [], wide = Math.max(1, scale);
  for (let i = 0, at = start + scale * 0.5; i < size; i++, at += scale) {
    if (rule === "nearest") found.push([Math.min(Math.trunc(at), own - 1), [2 ** 22]]);
    if (rule === "nearest") continue;
    const centre = start + (i + 0.5) * scale, low = Math.max(0, Math.trunc(centre - reach * wide + 0.5));
    const high = Math.min(own, Math.trunc(centre + reach * wide + 0.5)), parts = [];
    for (let x = low; x < high; x++) parts.push(curve(Math.abs((x - centre + 0.5) * (1 / wide))));
    const sum = parts.reduce((a, b) => a + b, 0);
    found.push([low, parts.map((part) => Math.trunc((part / sum) * 2 ** 22 + (part < 0 ? -0.5 : 0.5)))]);
  }
  return found;
}

/** One pass: pixels (outer, own, inner) become (outer, weights, inner). */
function along(pixels, outer, own, inner, weights) {
  if (weights === null) return pixels;
  const found = new Uint8ClampedArray(outer * weights.length * inner);
  for (let row = 0, to = 0; row < outer; row++) {
    for (const [low, parts] of weights) {
      for (let column = 0; column < inner; column++) {
        let sum = 2 ** 21, from = (row * own + low) * inner + column;
        for (let i = 0; i < parts.length; i++, from += inner) sum += pixels[from] * parts[i];
        found[to++] = sum >> 22;
      }
    }
  }
  return found;
}

// ---- from outputs to answers

/** What each row of outputs says, by the keys of `vitrail predict --json`; sets and intervals hold what is true as
 * often as coverage asks for. */
function answer(rows, contract, coverage) {
  const heads = contract.answer;
  const known = !coverage || (coverage > 0 && coverage < 1 && (heads[0].limits || []).length > 0);
  need(known, `no sets or intervals of coverage ${coverage} are known`, "a calibrated model, or no coverage");
  return rows.map((row) => {
    let end = 0;
    const parts = heads.map((head) => [head, row.slice(end, (end += head.names.length || head.count))]);
    need(end === row.length, `${row.length} outputs, but ${end} names`, "export it anew");
    return KINDS[heads[0].kind](parts, coverage);
  });
}

const KINDS = {
  /** Within each head: the best class of all, or of each column that has a head. */
  softmax(parts, coverage) {
    const every = [], columns = {};
    for (const [{ column, names, temperature }, logits] of parts) {
      const most = Math.max(...logits), powers = logits.map((logit) => Math.exp((logit - most) / temperature));
      const sum = powers.reduce((a, b) => a + b, 0), values = powers.map((power) => Math.fround(power / sum));
      columns[column] = { class: names[logits.indexOf(most)], probability: values[logits.indexOf(most)] };
      const own = names.map((name, i) => [column ? `${column}=${name}` : name, values[i]]);
      every.push(...own.sort((a, b) => b[1] - a[1]).slice(0, column ? 2 : own.length));
    }
    const top = every.sort((a, b) => b[1] - a[1]).slice(0, parts[0][0].column ? every.length : 5);
    const attributes = parts.map(([{ column }]) => `${column}=${columns[column].class}`);
    if (parts[0][0].column) return { attributes, columns, top };
    const said = { label: top[0][0], probability: top[0][1], top };
    if (!coverage) return said;
    const least = 1 - limit(parts[0][0].limits, coverage) - 2e-5;  // rounding of fp32
    return { ...said, set: every.filter(([, value], place) => place === 0 || value >= least).map(([name]) => name) };
  },

  /** Of each output: a label is there from its threshold on. */
  sigmoid([[{ names, temperature, thresholds }, odds]]) {
    const sure = odds.map((odd) => 1 / (1 + Math.exp(-odd / temperature)));
    const all = names.map((name, i) => [name, Math.fround(sure[i]), sure[i] >= thresholds[i]]);
    all.sort((a, b) => b[1] - a[1]);
    const there = all.filter((row) => row[2]);
    const top = all.filter((row, rank) => row[2] || rank < 5).map(([name, value]) => [name, value]);
    return { labels: there.map(([name]) => name), probabilities: Object.fromEntries(there), top };
  },

  /** In their own units, with intervals where the model is calibrated. */
  number([[{ names, means, deviations, limits }, outputs]], wanted) {
    const coverage = wanted || 0.9, halves = limits.map((each) => limit(each, coverage));
    need(!halves.includes(Infinity), `a coverage of ${coverage} takes more calibration images`, "--coverage 0.9");
    const units = outputs.map((output, i) => output * deviations[i] + means[i]);
    const named = (of) => Object.fromEntries(names.map((name, i) => [name, of(units[i], halves[i])]));
    const values = named((value) => value), intervals = named((value, half) => [value - half, value + half]);
    return halves.length ? { values, intervals, coverage } : { values };
  },

  vector: ([[, outputs]]) => ({ features: outputs }),
};

/** How far what is true may be from what is said, to hold as often; infinite where that takes more images. */
function limit(limits, coverage) {
  return [...limits, null][Math.min(200, Math.ceil(coverage * 200 - 1e-9)) - 1] ?? Infinity;
}

/** An answer for people: names with their probabilities, or numbers. */
function line(said) {
  const numbers = Object.entries(said.values || { ...said.features }), shown = (x) => +(x * (1 + 1e-12)).toPrecision(4);
  if (numbers.length) return numbers.map(([name, value]) => `${name} ${shown(value)}`).join(", ");
  const columns = Object.entries(said.columns || {}).map(([key, one]) => [`${key}=${one.class}`, one.probability]);
  const sure = said.label ? { [said.label]: said.probability } : said.probabilities || Object.fromEntries(columns);
  const names = said.label ? [said.label] : said.labels || said.attributes;
  return names.map((name) => `${name} ${(sure[name] + 1e-9).toFixed(2)}`).join(", ") || "none";
}

// ---- the command line

const USAGE = "node predict.js MODEL.onnx IMAGE... [--json] [--outputs] [--batch N] [--coverage C] [--size HxW]";

async function main() {
  const text = { type: "string" }, flag = { type: "boolean" }, answers = [];
  let about = "predict.js";
  try {
    const options = { json: flag, outputs: flag, batch: text, coverage: text, size: text };
    const { values: given, positionals } = require("util").parseArgs({ options, allowPositionals: true });
    const [model, ...images] = positionals, batch = Number(given.batch) || 8;
    need(images.length, "a model and images are wanted", USAGE);
    const ort = load("onnxruntime-node", "onnxruntime-web"), bytes = fs.readFileSync((about = model));
    const session = await ort.InferenceSession.create(bytes, { logSeverityLevel: 3 });
    const contract = readContract(bytes, given.size && given.size.split("x").map(Number));
    for (let first = 0; first < images.length; first += batch) {
      const names = images.slice(first, first + batch), pixels = [];
      for (about of names) pixels.push(await prepare(about, contract));
      about = model;
      const bytes = new Uint8Array(Buffer.concat(pixels)), { size, channels } = contract.input;
      const tensor = new ort.Tensor("uint8", bytes, [names.length, ...size, channels]);
      const { outputs, map: maps } = await session.run({ pixels: tensor }), rows = cut(outputs.data, names.length);
      answer(rows, contract, Number(given.coverage)).forEach((said, i) => {
        const map = maps && { map: cut(cut(maps.data, names.length)[i], maps.dims[1]) };
        answers.push({ file: names[i], ...said, ...(given.outputs && { outputs: rows[i] }), ...map });
      });
    }
    console.log(given.json ? JSON.stringify(answers) : answers.map((said) => `${said.file} ${line(said)}`).join("\n"));
  } catch (error) {
    const [problem, hint] = error.message.split("\ntry: ");
    console.error(`error: ${about}: ${problem.replace(/\s+/g, " ")}\ntry: ${hint || "another file, or: " + USAGE}`);
    process.exitCode = 2;
  }
}

/** Numbers in so many rows, each an array. */
function cut(data, count) {
  const length = data.length / count;
  return Array.from({ length: count }, (_, row) => Array.from(data.slice(row * length, (row + 1) * length)));
}

module.exports = { readContract, prepare, answer, main };

if (require.main === module) main();
