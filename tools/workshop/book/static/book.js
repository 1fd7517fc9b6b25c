/* What the book lets its reader play with: forms that run the project's C (compute.js), charts of what it prints, steps
 * that draw themselves, and timelines. */
"use strict";

const COLORS = {
    forward: "#0072b2", backward: "#e69f00", weight: "#009e73", idle: "#88888850", communication: "#d55e00",
    parameters: "#0072b2", master: "#56b4e9", gradients: "#e69f00", optimizer: "#cc79a7", activations: "#009e73",
    workspace: "#bbbbbb", other: "#bbbbbb", fixed: "#666666", compute: "#0072b2", launches: "#7f7f7f", bubble: "#88888850",
    tensor: "#d55e00", context: "#e68a4d", experts: "#8c3d00", data: "#f3b58f",        /* shades of communication */
};

function element(name, attributes, ...children) {
    const node = /^(svg|rect|text|g|title)$/.test(name) ? document.createElementNS("http://www.w3.org/2000/svg", name)
                                                          : document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
    node.append(...children);
    return node;
}

/* Runs the C program with these arguments; resolves to {text, wrong}: its output, and its error, if it has one. */
async function run(args) {
    const out = [], err = [];
    try {
        await compute({arguments: args, print: (line) => out.push(line), printErr: (line) => err.push(line)});
    } catch (exit) {
        if (exit.name !== "ExitStatus") throw exit;
    }
    const message = err.join("\n").replace(/^\r?(\x1b\[K)?book: (--explain \S+: )?/, "");
    return {text: out.join("\n") + "\n", wrong: err.length ? message : ""};
}

/* ---- what a form asks for ---- */

function values(form) {
    const given = [...new FormData(form)].filter(([name, value]) => name === "text" || value.trim());
    return Object.fromEntries(given.map(([name, value]) =>
        [name, "power" in form.elements[name].dataset ? 2 ** value : value.trim()]));
}

/* Only interleaved lets the user choose v_c, and needs a multiple of p micro-batches. */
function followSchedule({kind, ranks, chunks, "micro-batches": micros}) {
    const interleaved = kind.value === "interleaved";
    chunks.disabled = chunks.closest("label").hidden = !interleaved;
    micros.step = micros.min = interleaved ? ranks.value : 1;
}

function question(name, v) {
    if (name !== "memory")
        return [{schedules: "schedule", collectives: "collective", planner: "plan"}[name] || name, ...Object.entries(v).map(([k, x]) => `${k}=${x}`)];
    const techniques = ["tp", "cp", "pp", "dp", "ep", "micro-batch", "zero", "recompute"].filter((k) => v[k]);
    const sizes = Object.keys(v).filter((k) => !techniques.includes(k)), gpus = v.gpus || v.tp * v.cp * v.pp * v.dp;
    return ["plan", ...Object.entries({...Object.fromEntries(sizes.map((k) => [k, v[k]])), gpus}).map((x) => x.join("=")),
            `explain=${techniques.map((k) => `${k}=${v[k]}`).join()}`];
}

/* ---- charts: each returns a headline and what stands below it ---- */

function drawSchedule(text) {
    const rows = [...text.matchAll(/^rank (\d+) +(\S+)\n(?: +chunk +(\S+))?/gm)], slots = rows[0][2].length, high = 26;
    const size = (width) => ({width, height: rows.length * high});
    const names = element("svg", size(52)), svg = element("svg", {...size(slots * 16), role: "img", "aria-label":
                                                          `the schedule of ${rows.length} ranks over ${slots} time slots`});
    rows.forEach(([, rank, micros, chunks], y) => {
        const begun = {};                           /* how often an action's letter has come; it is micro-batch mod 10 */
        names.append(element("text", {x: 0, y: y * high + 17}, `rank ${rank}`));
        svg.append(element("rect", {x: 0, y: y * high + 2, width: slots * 16, height: high - 4, fill: COLORS.idle}));
        for (let slot = 0, end; slot < slots; slot = end) {
            const c = micros[slot], chunk = chunks ? chunks[slot] : 0;
            for (end = slot + 1; micros[end] === c && (!chunks || chunks[end] === chunk);) end++;
            if (c === ".") continue;
            const kind = c < "A" ? "forward" : c < "a" ? "weight" : "backward";
            const letter = c.charCodeAt(0) - {forward: "0", weight: "A", backward: "a"}[kind].charCodeAt(0);
            const micro = letter + 10 * (begun[c + chunk] = (begun[c + chunk] ?? -1) + 1);
            const g = element("g", {}, element("title", {}, `rank ${rank}, from time ${slot} to ${end}: ${kind} of `
                                               + `micro-batch ${micro}` + (chunks ? `, model chunk ${chunk}` : "")));
            g.append(element("rect", {x: slot * 16, y: y * high + 2, width: 16 * (end - slot) - 1, height: high - 4,
                                      fill: chunk % 2 ? `color-mix(in srgb, ${COLORS[kind]}, white 45%)` : COLORS[kind]}),
                     element("text", {x: 8 * (slot + end) - 0.5, y: y * high + 17, "text-anchor": "middle",
                                      class: kind === "backward" || chunk % 2 ? "dark" : "light"}, micro));
            svg.append(g);
        }
    });
    const flight = /^(.*) in flight at most, per rank: (.*)$/m.exec(text), split = /^rank \d+ +\S*[A-Z]/m.test(text);
    const headline = flight && `The bubble is ${(100 * /^bubble ([\d.]+)/m.exec(text)[1]).toFixed(1)}% of the busy time; in `
        + `flight on each rank: at most ${flight[2].trim().replace(/ /g, ", ")} ${flight[1]}`;
    return [headline || "So far:",
            element("div", {class: "rows"}, names, element("div", {class: "scrolls", tabindex: 0}, svg)),
            legend({forward: "", backward: split ? ", input gradients" : "", ...(split && {weight: " gradients"}),
                    idle: ": the bubble"}),
            element("p", {class: "bar"}, `A number is a micro-batch${rows[0][3] ? "; odd model chunks have lighter colors" : ""}`)];
}

function legend(items, kind = "") {
    return element("p", {class: `legend ${kind}`}, ...Object.entries(items).flatMap(([name, more]) =>
        [element("span", {}, element("i", {style: `background:${COLORS[name]}`}), ` ${name}${more}`), " "]));
}

/* A bar of parts [name, number, text, explanation]: `whole` is as wide as the page, and the frame is `fit`. */
function bar(title, parts, whole, high, fit = whole) {
    const svg = element("svg", {viewBox: `0 0 800 ${high}`, role: "img", "aria-label": `${title}: `
                                + parts.map(([name, , text]) => `${name} ${text}`).join(", ")});
    let x = 0;
    for (const [name, number, text] of parts) {
        const width = 800 * number / whole;
        svg.append(element("rect", {x, y: 1, width, height: high - 2, fill: COLORS[name] || COLORS.workspace},
                           element("title", {}, `${name}: ${text}`)));
        x += width;
    }
    svg.append(element("rect", {x: 1, y: 1, width: 800 * fit / whole - 2, height: high - 2, class: "frame"}));
    return [element("p", {class: "bar"}, title), svg];
}

const legendOf = (parts) => legend(Object.fromEntries(parts.filter((p) => p[1]).map(
    ([name, , text, why]) => [name, ` ${text}: ${why}`])), "parts");

function drawMemory(text) {
    const gib = (bytes) => `${(bytes / 2 ** 30).toFixed(bytes < 2 ** 30 ? 2 : 1)} GiB`;
    const bytes = [...text.matchAll(/^ +(\w+) +([\d,]+) bytes +(.*)/gm)].map((m) =>
        [m[1], +m[2].replace(/,/g, ""), m[3]]);
    const room = /GiB; ([\d.]+) fit/.exec(text)[1] * 2 ** 30, unit = {us: 1e-6, ms: 1e-3, s: 1};
    const step = text.slice(text.indexOf("\na step:"));
    const times = [...step.matchAll(/^  (\w+) +([\d.]+) (us|ms|s) +(.*)/gm)].map((m) =>
        [m[1], m[2] * unit[m[3]], `${m[2]} ${m[3]}`, m[4]]);
    const parts = bytes.map(([name, n, why]) => [name, n, gib(n), why]);
    const sum = parts.reduce((all, p) => all + p[1], 0), total = times.pop();
    return [`${/^GPUs: (\d+ x \S+)/m.exec(text)[1]}: ${gib(sum)} of ${gib(room)} `
            + `${sum > room ? "are needed: too much" : "are used"}; a step takes ${total[2]}, ${/MFU [\d.]+%/.exec(text)[0]}`,
            ...bar("memory of the fullest rank; the frame is what fits", parts, Math.max(sum, room), 44, room), legendOf(parts),
            ...bar("time of a step", times, total[1], 44), legendOf(times)];
}

/* The planner's table: the grid and its memory | seconds | tokens per second and GPU. */
function drawPlan(text) {
    const cells = (line) => line.split("|").map((part) => part.trim().split(/\s+/));
    const table = text.slice(text.search(/^ +tp +cp/m)).split("\n\n")[0].split("\n").map(cells), [names, ...rows] = table;
    const first = names[0].indexOf("recomp") + 1;
    const colors = {launch: "launches", expert: "experts", optim: "optimizer"};
    const partsOf = (row) => row[1].slice(0, -1).map((x, i) => [colors[names[1][i]] || names[1][i], +x, `${x} s`]);
    const full = {micro: "micro-batch", acc: "accumulate", zero: "ZeRO", recomp: "recompute"};
    const grids = rows.map((row) => row[0].slice(0, first).map((x, i) => [full[names[0][i]] || names[0][i], x])
        .filter(([name, x]) => name === "ZeRO" || x !== "1" && x !== "none").map((pair) => pair.join(" ")).join(", "));
    const most = Math.max(...rows.map((row) => row[1].at(-1)));
    return [`Recommended: ${grids[0]}: ${rows[0][1].at(-1)} s a step, ${rows[0][0].at(-1)} GiB`,
            ...rows.flatMap((row, i) => bar(`${grids[i]}: ${row[1].at(-1)} s, ${row[0].at(-1)} GiB`, partsOf(row), most, 20)),
            legend(Object.fromEntries(rows.flatMap(partsOf).filter(([, seconds]) => seconds).map(([name]) => [name, ""])))];
}

/* A table of texts; a cell may be a node. The first row and column are headings. */
function table(rows) {
    return element("table", {}, ...rows.map((row, y) => element("tr", {}, ...row.map((cell, x) =>
        cell instanceof Node ? cell : element(x && y ? "td" : "th", {}, cell)))));
}

/* What each rank holds after a step, which a slider chooses; a cell is as dark as many contributions are in it. */
function drawCollective(text) {
    const steps = text.split(/^step /m).slice(1).map((part) => ({messages: /^\d+:? ?(.*)/.exec(part)[1],
        held: [...part.matchAll(/^rank \d+  (.*)/gm)].map((row) => row[1].split(" "))}));
    const ranks = steps[0].held.length, last = steps.length - 1, shown = element("div", {});
    const slider = element("input", {type: "range", min: 0, max: last, value: last, "aria-label": "step"});
    const show = () => {
        const at = +slider.value, {messages, held} = steps[at], before = steps[Math.max(0, at - 1)].held;
        const words = messages.split(" ").filter(Boolean).map((word) => {
            const [, from, how, to, shards] = /^(\d+)([>+])(\d+):?(.*)/.exec(word);
            return `${from} → ${to}${shards ? ` (shard ${[...shards].join(", ")})` : ""}${how === "+" ? " +" : ""}`;
        });
        shown.replaceChildren(element("p", {class: "bar"}, at ? `Step ${at} of ${last}: ${words.join("; ")}` : "At the start"),
            table([["", ...held.map((_, s) => `shard ${s}`)], ...held.map((row, r) => [`rank ${r}`, ...row.map((cell, s) =>
                element("td", {class: cell === before[r][s] ? "" : "new", style: `background: color-mix(in srgb, `
                    + `${COLORS.gradients} ${cell === "." ? 0 : 45 * cell.length / ranks}%, var(--color-background-primary))`}, cell))])]));
    };
    slider.addEventListener("input", show);
    show();
    const sent = /^steps \d+; sent, in tensors: (.*); (on one .*)/m.exec(text);
    return [sent ? `${last} ${last === 1 ? "step" : "steps"}; each rank sends, in tensors: ${sent[1].replace(/ /g, ", ")}; ${sent[2]}`
                 : "So far:",
            element("label", {class: "slider"}, "step ", slider), shown, element("p", {class: "bar"}, "a is rank 0's "
                + `contribution, b rank 1's, and so on; ${"abcdefgh".slice(0, ranks)} is their sum. An outlined cell has just changed.`),
            ...[/^shard .*/m.exec(text)?.[0]].filter(Boolean).map((line) => element("p", {class: "bar"}, line))];
}

/* In which step each query chunk meets each key chunk, and how much each rank computes in each step. */
function drawAttention(text) {
    const rows = [...text.matchAll(/^query +\d+ +(.*)/gm)].map((row) => row[1].split(" ").map((x) => x.split(":")));
    const steps = [...text.matchAll(/^step \d+ (.*)/gm)].map((row) => row[1].split(" ").map(Number));
    const svg = element("svg", {viewBox: `0 0 ${90 + 26 * rows.length} ${26 * rows.length}`, role: "img", class: "blocks",
                                "aria-label": `in which step each of ${rows.length} query chunks meets each key chunk`});
    rows.forEach((row, y) => {
        svg.append(element("text", {x: 0, y: 26 * y + 17}, `chunk ${y}, rank ${row[0][0]}`));
        row.forEach(([, step], x) => svg.append(
            element("rect", {x: 90 + 26 * x, y: 26 * y + 1, width: 24, height: 24, fill: COLORS.forward,
                             "fill-opacity": 0.1 + 0.5 * (step - 1) / steps.length}),
            element("text", {x: 102 + 26 * x, y: 26 * y + 17, "text-anchor": "middle"}, step)));
    });
    const [, sum, even] = /, ([\d.]+) of ([\d.]+)$/m.exec(text);
    return [`All steps take as long as ${sum} blocks; if all ranks had the same work, ${even}`, element("p", {class: "bar"},
                "A row has the queries of a chunk, a column its keys; the number is the step of the ring."), svg,
            element("p", {class: "bar"}, "Blocks that each rank computes in a step. Bold: it is busier than others, which wait for it."),
            table([["", ...steps[0].map((_, r) => `rank ${r}`)], ...steps.map((row, k) => [`step ${k + 1}`, ...row.map(
                (x) => element("td", {}, x === Math.max(...row) && x > Math.min(...row) ? element("b", {}, `${x}`) : `${x}`))])])];
}

/* The slots of each expert with the tokens in them, what is dropped, and the matrix of the all-to-all. */
function drawRouting(text) {
    const experts = [...text.matchAll(/^(expert \d+ of rank \d+): (.*)/gm)], spans = (row) => row.split(" | ");
    const matrix = [...text.matchAll(/^from (rank \d+): (.*)/gm)].map(([, from, row]) => [from, ...row.split(" ")]);
    const slots = table([["", ...spans(experts[0][2]).map((_, r) => `tokens of rank ${r}`)], ...experts.map(([, name, row]) =>
        [name, ...spans(row).map((span) => element("td", {}, ...span.split(" ").map((token) => element("span", {class:
            token === "." ? "slot" : "slot full"}, token === "." ? "" : token))))])]);
    return [/^Each expert .*/m.exec(text)[0], slots, element("p", {class: "bar"}, /^dropped.*/m.exec(text)[0]),
            element("p", {class: "bar"}, `${/^empty.*/m.exec(text)[0]}. A number is a token; rank 0's come first.`),
            element("p", {class: "bar"}, "Of the rows that the all-to-all sends, so many hold a token:"),
            table([["", ...matrix.map((row) => `to ${row[0]}`)], ...matrix])];
}

const DRAW = {schedules: drawSchedule, schedule: drawSchedule, memory: drawMemory, planner: drawPlan,
              collective: drawCollective, collectives: drawCollective, attention: drawAttention, routing: drawRouting};

/* What a browser keeps of a puzzle: its text, and whether it was solved. Without storage a page forgets. */
const kept = {
    get: (key) => { try { return localStorage.getItem(`ultrascale.c/${key}`); } catch { return null; } },
    set: (key, value) => { try { localStorage.setItem(`ultrascale.c/${key}`, value); } catch { /* forgets */ } },
};

/* Shows which goals an attempt reaches. It solves the puzzle if nothing is wrong and it reaches all. */
function showGoals(node, {text, wrong}) {
    const goals = wrong ? [] : [...text.matchAll(/^goal: (.*): (reached|not yet)$/gm)], key = node.dataset.puzzle;
    const solved = goals.length && goals.every(([, , how]) => how === "reached");
    node.querySelector(".goals").replaceChildren(...goals.map(([, goal, how]) => element("li", {class: how === "reached" ?
        "reached" : ""}, `${how === "reached" ? "✓" : "✗"} ${goal}`)), ...solved ? [element("li", {class: "solved"}, "Solved.")] : []);
    node.classList.toggle("solved", !!solved);
    if (solved) kept.set(`solved/${key}`, "yes");
    showProgress();
}

function showProgress() {
    const puzzles = [...document.querySelectorAll(".puzzle")], done = puzzles.map((p) => kept.get(`solved/${p.dataset.puzzle}`));
    document.querySelector(".progress")?.replaceChildren(`${done.filter(Boolean).length} of ${puzzles.length} solved: `,
        ...puzzles.flatMap((p, i) => [element("a", {href: `#${p.closest("section").id}`, "aria-label":
            `${p.closest("section").querySelector("h3").firstChild.textContent}${done[i] ? ", solved" : ""}`},
            `${i + 1}${done[i] ? " ✓" : ""}`), " "]));
}

function play(node) {
    const name = node.dataset.play, form = node.querySelector("form"), answer = node.querySelector(".answer pre");
    const show = ({text, wrong}) => {               /* of a wrong question the last chart stays, or what there is of one */
        const partly = wrong && /^(rank +0 +\S|step 1)/m.test(text);
        node.classList.toggle("wrong", !!wrong && !partly);
        node.querySelector(".error").textContent = wrong;
        if (wrong && !partly) return;
        const [headline, ...chart] = DRAW[name](text);
        answer.textContent = text;
        node.querySelector(".headline").textContent = headline;
        node.querySelector(".chart").replaceChildren(...chart);
        showMore(node.querySelector(".chart"));
    };
    let last = 0;
    const update = async () => {
        const mine = ++last;
        if (name === "schedules") followSchedule(form.elements);
        const given = values(form);
        for (const input of form.querySelectorAll("input[type=range]"))
            input.closest("label").querySelector("output").textContent = given[input.name];
        const result = await run(question(name, given));
        if (mine !== last) return;
        show(result);
        if (node.dataset.puzzle) showGoals(node, result);
        node.dataset.runs = (+node.dataset.runs || 0) + 1;
    };
    const text = form.elements.text, key = `text/${node.dataset.puzzle}`;
    if (text && node.dataset.puzzle) text.value = kept.get(key) ?? text.value;
    form.addEventListener("input", () => { if (text && node.dataset.puzzle) kept.set(key, text.value); update(); });
    node.querySelector(":scope > p > button")?.addEventListener("click", () => {
        form.reset();
        if (text) kept.set(key, text.value);
        update();
    });
    update();
}

/* ---- numbers that a reader predicts: the bold numbers of an answer that is folded below its question ---- */

/* The value of an arithmetic expression, such as 2*7/8 * 3,360; NaN: it is none. */
function arithmetic(text) {
    const tokens = text.replace(/,(?=\d{3})/g, "").replace(/[·×]/g, "*").match(/[\d.]+|\S/g) || [];
    const isNext = (signs) => tokens.length && signs.includes(tokens[0]);
    const atom = () => {
        const token = tokens.shift(), value = token === "(" ? sum() : token === "-" ? -atom() : Number(token || NaN);
        return token !== "(" || tokens.shift() === ")" ? value : NaN;
    };
    const power = () => { const x = atom(); return isNext("^") ? (tokens.shift(), x ** power()) : x; };
    const product = () => {
        let x = power();
        while (isNext("*/")) x = tokens.shift() === "*" ? x * power() : x / power();
        return x;
    };
    const sum = () => {
        let x = product();
        while (isNext("+-")) x = tokens.shift() === "+" ? x + product() : x - product();
        return x;
    };
    const value = sum();
    return tokens.length ? NaN : value;
}

/* What is wrong with a number, by the terms of the sentence that computes the right one. */
function judge(typed, right, terms) {
    const near = (a, b) => Math.abs(a - b) < 0.004 * Math.abs(b), ratio = typed / right;
    if (!Number.isFinite(typed)) return "a number, or a product such as 2*7/8 * 3360";
    if (near(typed, right)) return "right";
    for (const [text, value] of terms) {
        if (near(ratio * value, 1)) return `not yet: the factor ${text} is missing`;
        if (near(ratio, value)) return `not yet: the factor ${text} is one too many`;
    }
    for (const [text, value] of terms) {
        if (near(right - typed, value)) return `not yet: the term ${text} is missing`;
        if (near(typed - right, value)) return `not yet: the term ${text} is one too many`;
    }
    return `not yet: ${ratio < 1 ? `too small by a factor of ${(1 / ratio).toPrecision(3)}`
                                 : `too large by a factor of ${ratio.toPrecision(3)}`}`;
}

/* Puts a field for each bold number of `answer` at the end of `question`. */
function askNumbers(question, answer) {
    const numbers = [...answer.querySelectorAll("strong")].filter((bold) => /^[\d,.]+%?$/.test(bold.textContent));
    const fields = numbers.map((bold) => {
        const before = document.createRange();      /* the sentence so far, which computes the number */
        before.setStart(bold.closest("p, li"), 0), before.setEndBefore(bold);
        const sentence = before.toString().split(/\.\s|:\s/).pop(), right = arithmetic(bold.textContent.replace("%", ""));
        const terms = [...sentence.matchAll(/\d[\d,]*(?:\.\d+)?(?:\/\d+)?/g)].map(([t]) => [t, arithmetic(t)]).filter(([, x]) => x && x !== 1);
        const unit = /^%?\s*([a-z][a-z-]*)?/.exec(bold.nextSibling?.textContent || "")[1] || "";
        const input = element("input", {inputmode: "decimal", size: 14}), verdict = element("output", {});
        input.addEventListener("input", () => {
            const said = input.value.trim() && judge(arithmetic(input.value.replace("%", "")), right, terms);
            verdict.textContent = said, verdict.className = said === "right" ? "reached" : "";
        });
        return element("label", {}, `Your number${unit ? `, ${unit}` : ""}: `, input, " ", verdict);
    });
    if (fields.length) question.append(element("div", {class: "guess"}, ...fields));
}

function askAll() {
    for (const bold of document.querySelectorAll("article blockquote strong"))
        if (bold.textContent === "Predict.") askNumbers(bold.closest("blockquote"), bold.closest("blockquote").nextElementSibling);
    const questions = document.querySelectorAll("#the-quiz > ol > li"), answers = document.querySelectorAll("#the-quiz details > ol > li");
    questions.forEach((question, i) => askNumbers(question, answers[i]));
}

/* ---- the front page: one technique after the other, or the one that was chosen ---- */

function playSteps(node) {
    const figures = [...node.querySelectorAll("figure")], buttons = [...node.querySelectorAll("button")];
    const show = (at) => {
        figures.forEach((figure, i) => figure.hidden = i !== at);
        buttons.forEach((button, i) => button.setAttribute("aria-pressed", i === at));
    };
    let goesOn = true;
    buttons.forEach((button, i) => button.addEventListener("click", () => { goesOn = false, show(-1), show(i); }));
    figures.forEach((figure, i) => figure.addEventListener("animationend", () => {
        if (goesOn && i + 1 < figures.length) setTimeout(() => goesOn && show(i + 1), 3000);
    }));
    show(0);
}

/* Fades the right end of what is wider than the window, until it is scrolled to its end. */
function showMore(where) {
    for (const node of where.querySelectorAll(":is(pre, table, .scrolls, figure, p:has(> img), .sides)")) {
        const mark = () => node.classList.toggle("more", node.scrollLeft + node.clientWidth < node.scrollWidth - 2
                                                 && getComputedStyle(node).overflowX !== "visible");
        node.addEventListener("scroll", mark);
        const resized = new ResizeObserver(mark);
        for (const part of [node, ...node.children]) resized.observe(part);
    }
}

addEventListener("DOMContentLoaded", () => {
    document.querySelectorAll(".play").forEach(play);
    document.querySelectorAll(".steps").forEach(playSteps);
    askAll();
    showMore(document.querySelector("article"));
});

/* ---- timelines: zooming makes the picture wider, and the browser scrolls it ---- */

function trace(number, events) {
    const spans = events.filter((e) => e.ph === "X"), node = document.getElementById(`trace-${number}`), high = 15;
    const rowOf = (e) => `${e.pid}/${Math.min(e.tid, 2)}/${e.tid > 1 ? e.cat : ["step", "operators"][e.tid]}`;
    const rows = [...new Set(spans.map(rowOf))].sort(), height = (rows.length + 1.5) * high;
    const first = Math.min(...spans.map((e) => e.ts)), whole = Math.max(...spans.map((e) => e.ts + e.dur)) - first;
    const names = element("svg", {width: 130, height}), scrolls = element("div", {class: "scrolls", tabindex: 0});
    const svg = element("svg", {height, role: "img", "aria-label": `one step in ${rows.length} rows`});
    const under = element("p", {}, "Point at a box or tap it, to see its name and its time here.");
    let zoom = 1;

    rows.forEach((row, i) => {
        const [rank, kind, name] = row.split("/");
        names.append(element("text", {x: 0, y: i * high + 11}, kind === "0" ? `rank ${rank}` : ""),
                     element("text", {x: 50, y: i * high + 11}, name));
    });
    const color = (e) => e.tid > 1 ? "communication" : /backward_weight/.test(e.name) ? "weight"
        : /backward/.test(e.name) ? "backward" : /forward/.test(e.name) ? "forward" : "other";
    const draw = () => {
        const width = zoom * Math.max(500, node.clientWidth - 130), ticks = 4 * zoom;
        svg.setAttribute("width", width);
        svg.replaceChildren(...spans.map((e) => {
            const box = element("rect", {x: width * (e.ts - first) / whole, y: rows.indexOf(rowOf(e)) * high, height: high - 2,
                                         width: Math.max(0.3, width * e.dur / whole), fill: COLORS[color(e)]});
            box.addEventListener("pointerenter", () => {
                under.textContent = `rank ${e.pid}: ${e.name}${e.tid > 1 ? ` (${e.cat})` : ""}, `
                    + `from ${((e.ts - first) / 1e3).toFixed(2)} ms for ${(e.dur / 1e3).toFixed(2)} ms`;
            });
            return box;
        }), ...rows.map((row, i) => element("rect", {x: 0, y: i * high - 2, width, height: row.includes("/0/") ? 1 : 0,
                                                     fill: COLORS.idle})), ...Array.from({length: ticks + 1}, (_, i) => element(
            "text", {x: width * i / ticks, y: height - 6, "text-anchor": i === 0 ? "start" : i === ticks ? "end" : "middle"},
            `${(whole * i / ticks / 1e3).toFixed(zoom > 8 ? 2 : 0)} ms`)));
    };
    const button = (name, by) => {
        const made = element("button", {type: "button"}, name);
        made.addEventListener("click", () => {
            const middle = (scrolls.scrollLeft + scrolls.clientWidth / 2) / zoom;
            zoom = Math.min(256, Math.max(1, zoom * by)), draw();
            scrolls.scrollLeft = middle * zoom - scrolls.clientWidth / 2;
        });
        return made;
    };
    document.getElementById(`download-${number}`).href = URL.createObjectURL(new Blob([JSON.stringify(events)]));
    scrolls.append(svg);
    node.append(element("p", {}, button("zoom in", 2), button("zoom out", 0.5)),
                element("div", {class: "rows"}, names, scrolls), under,
                legend({forward: "", backward: "", weight: " gradients", communication: "", other: ""}));
    draw();
    addEventListener("resize", draw);
}
