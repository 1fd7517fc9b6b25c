/* The book's pages to play with: forms that run the project's C (compute.js), charts of what it prints, and timelines. */
"use strict";

const COLORS = {
    forward: "#0072b2", backward: "#e69f00", weights: "#009e73", idle: "transparent", communication: "#d55e00",
    parameters: "#0072b2", master: "#56b4e9", gradients: "#e69f00", optimizer: "#cc79a7", activations: "#009e73",
    workspace: "#bbbbbb", other: "#bbbbbb", compute: "#0072b2", launches: "#56b4e9", tensor: "#d55e00", context: "#cc79a7",
    experts: "#f0e442", bubble: "#999999", data: "#e69f00", fixed: "#666666",
};

function element(name, attributes, ...children) {
    const node = /^(svg|rect|text|g|title)$/.test(name) ? document.createElementNS("http://www.w3.org/2000/svg", name)
                                                          : document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
    node.append(...children);
    return node;
}

/* Runs the C program with these arguments; resolves to {text, wrong}, its output or its error. */
async function run(args) {
    const out = [], err = [];
    try {
        await compute({arguments: args, print: (line) => out.push(line), printErr: (line) => err.push(line)});
    } catch (exit) {
        if (exit.name !== "ExitStatus") throw exit;
    }
    return err.length ? {text: err.join("\n").replace(/^book: /, ""), wrong: true} : {text: out.join("\n") + "\n"};
}

/* ---- what a form asks for ---- */

function values(form) {
    const pairs = {};
    for (const input of form.elements)
        if (input.name && (input.type === "checkbox" ? input.checked : input.value.trim() !== ""))
            pairs[input.name] = input.value.trim();
    return pairs;
}

function question(name, v) {
    if (name !== "memory")
        return [name === "schedules" ? "schedule" : "plan", ...Object.entries(v).map(([k, x]) => `${k}=${x}`)];
    const grid = ["tp", "cp", "pp", "dp", "ep", "micro-batch", "zero", "recompute"].map((k) => `${k}=${v[k]}`).join();
    const sizes = ["model", "seq"].filter((k) => v[k]).map((k) => `${k}=${v[k]}`);
    return ["plan", ...sizes, `gpus=${v.tp * v.cp * v.pp * v.dp}`, `explain=${grid}`];
}

/* ---- charts ---- */

function drawSchedule(text) {
    const rows = [...text.matchAll(/^rank (\d+) +(\S+)\n(?: +chunk +(\S+))?/gm)];
    if (!rows.length) return "";
    const slots = rows[0][2].length, high = 28;
    const svg = element("svg", {viewBox: `0 0 ${slots * 16 + 60} ${rows.length * high}`, role: "img",
                                "aria-label": `the schedule of ${rows.length} ranks over ${slots} time slots`});
    rows.forEach(([, rank, micros, chunks], y) => {
        svg.append(element("text", {x: 0, y: y * high + 18}, `rank ${rank}`));
        [...micros].forEach((c, slot) => {
            if (c === ".") return;
            const kind = c < "A" ? "forward" : c < "a" ? "weights" : "backward";
            const micro = kind === "forward" ? c : c.toLowerCase().charCodeAt(0) - 97, chunk = chunks ? chunks[slot] : 0;
            const g = element("g", {}, element("title", {}, `rank ${rank}, slot ${slot}: ${kind} of micro-batch ${micro}`
                                                             + (chunks ? `, model chunk ${chunk}` : "")));
            g.append(element("rect", {x: 60 + slot * 16, y: y * high + 2, width: 15, height: high - 4,
                                      fill: COLORS[kind], opacity: chunk % 2 ? 0.6 : 1}),
                     element("text", {x: 64 + slot * 16, y: y * high + 18, class: kind === "backward" ? "dark" : "light"},
                             micro));
            svg.append(g);
        });
    });
    return [svg, legend({forward: "", backward: " or input gradients", weights: "' gradients"})];
}

function legend(items) {
    const list = element("p", {class: "legend"});
    for (const [name, more] of Object.entries(items))
        list.append(element("span", {}, element("i", {style: `background:${COLORS[name]}`}), ` ${name}${more}`), " ");
    return list;
}

/* A bar of parts [name, number, text], as wide as `whole`. */
function bar(title, parts, whole, wholeText) {
    const svg = element("svg", {viewBox: "0 0 800 44", role: "img", "aria-label": `${title}: `
                                + parts.map(([name, , text]) => `${name} ${text}`).join(", ")});
    let x = 0;
    svg.append(element("rect", {x: 0, y: 2, width: 800, height: 40, class: "frame"}));
    for (const [name, number, text] of parts) {
        const width = 800 * number / whole;
        svg.append(element("rect", {x, y: 2, width, height: 40, fill: COLORS[name] || COLORS.workspace},
                           element("title", {}, `${name}: ${text}`)));
        x += width;
    }
    const names = {};
    for (const [name, number, text] of parts) if (number) names[name] = ` ${text}`;
    return [element("h2", {}, title), svg, element("p", {}, wholeText), legend(names)];
}

function drawMemory(text) {
    const bytes = [...text.matchAll(/^ +(\w+) +([\d,]+) bytes/gm)].map((m) => [m[1], +m[2].replace(/,/g, ""), m[2]]);
    const fit = /GiB; ([\d.]+) fit/.exec(text), unit = {us: 1e-6, ms: 1e-3, s: 1};
    const step = text.slice(text.indexOf("\na step:"));
    const times = [...step.matchAll(/^  (\w+) +([\d.]+) (us|ms|s)\b/gm)].map((m) => [m[1], m[2] * unit[m[3]], `${m[2]} ${m[3]}`]);
    if (!bytes.length || !fit) return "";
    const parts = bytes.filter(([name]) => name !== "total"), sum = parts.reduce((all, p) => all + p[1], 0);
    const room = fit[1] * 2 ** 30, total = times.find(([name]) => name === "total");
    return [...bar("Memory of the fullest rank", parts, Math.max(sum, room),
                   `${(sum / 2 ** 30).toFixed(1)} GiB of ${fit[1]} that fit${sum > room ? ": too much" : ""}`),
            ...bar("Time of a step", times.filter(([name]) => name !== "total"), total[1], `${total[2]} in all`)];
}

function playPage(name) {
    const form = document.querySelector("form.play"), answer = document.querySelector("pre.answer");
    const chart = document.querySelector(".chart");
    const show = ({text, wrong}) => {
        answer.textContent = text;
        answer.classList.toggle("wrong", !!wrong);
        chart.replaceChildren(...[wrong ? "" : name === "schedules" ? drawSchedule(text) : name === "memory"
                                  ? drawMemory(text) : ""].flat());
    };
    if (!form) return show({text: answer.textContent});
    let last = 0;
    const update = async () => {
        const mine = ++last;
        for (const input of form.querySelectorAll("input[type=range]")) input.previousSibling.dataset.value = input.value;
        const result = await run(question(name, values(form)));
        if (mine === last) show(result), answer.dataset.runs = (+answer.dataset.runs || 0) + 1;
    };
    form.addEventListener("input", update);
    form.addEventListener("submit", (event) => event.preventDefault());
    return update();
}

/* ---- timelines ---- */

function trace(number, events) {
    const spans = events.filter((e) => e.ph === "X"), node = document.getElementById(`trace-${number}`);
    const rows = [...new Set(spans.map((e) => `${e.pid}/${e.tid}`))].sort((a, b) => {
        const [p, r] = a.split("/"), [q, s] = b.split("/");
        return p - q || r - s;
    });
    const first = Math.min(...spans.map((e) => e.ts)), last = Math.max(...spans.map((e) => e.ts + e.dur));
    const high = 14, svg = element("svg", {viewBox: `0 0 1000 ${rows.length * high}`, tabindex: 0, role: "img",
                                           "aria-label": `spans of ${rows.length} rows; + and - zoom, arrows move`});
    const under = element("p", {class: "under"}, "Point at a span.");
    let from = first, to = last;

    const color = (e) => e.tid > 1 ? "communication" : /backward_weight/.test(e.name) ? "weights"
        : /backward/.test(e.name) ? "backward" : /forward/.test(e.name) ? "forward" : "other";
    const draw = () => {
        svg.replaceChildren();
        for (const e of spans) {
            if (e.ts + e.dur < from || e.ts > to) continue;
            const x = 1000 * (e.ts - from) / (to - from), y = rows.indexOf(`${e.pid}/${e.tid}`) * high;
            const box = element("rect", {x, y, width: Math.max(0.3, 1000 * e.dur / (to - from)), height: high - 2,
                                         fill: COLORS[color(e)]});
            box.addEventListener("pointerenter", () => {
                under.textContent = `rank ${e.pid}: ${e.name}${e.args && e.args.group ? ` (${e.args.group})` : ""}, `
                    + `from ${((e.ts - first) / 1e3).toFixed(2)} ms for ${(e.dur / 1e3).toFixed(2)} ms`;
            });
            svg.append(box);
        }
    };
    const view = (middle, width) => {
        width = Math.min(last - first, Math.max((last - first) / 1e4, width));
        from = Math.min(last - width, Math.max(first, middle - width / 2)), to = from + width;
        draw();
    };
    svg.addEventListener("wheel", (event) => {
        event.preventDefault();
        const at = from + (to - from) * event.offsetX / svg.clientWidth, by = event.deltaY > 0 ? 1.25 : 0.8;
        view(at + ((from + to) / 2 - at) * by, (to - from) * by);
    }, {passive: false});
    svg.addEventListener("keydown", (event) => {
        const by = {"+": [0, 0.5], "-": [0, 2], ArrowLeft: [-0.2, 1], ArrowRight: [0.2, 1]}[event.key];
        if (!by) return;
        event.preventDefault();
        view((from + to) / 2 + by[0] * (to - from), (to - from) * by[1]);
    });
    svg.addEventListener("pointermove", (event) => {
        if (event.buttons) view((from + to) / 2 - event.movementX * (to - from) / svg.clientWidth, to - from);
    });
    document.getElementById(`download-${number}`).href = URL.createObjectURL(new Blob([JSON.stringify(events)]));
    node.append(svg, under, legend({forward: "", backward: "", weights: "' gradients", communication: "", other: ""}));
    draw();
}
