#!/usr/bin/python3
"""Opens every page of the book in headless Chromium: errors, links, headings, contrast, three widths; what the pages
compute is compared with the programs. And the workshop's slides."""
import base64
import html
import json
import os
import re
import shutil
import subprocess
import sys
import time
import xml.dom.minidom
import zipfile
from collections import Counter
from pathlib import Path
from urllib.parse import unquote, urlparse

from selenium import webdriver
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.chrome.service import Service

ROOT, BOOK = Path(__file__).resolve().parents[3], Path(os.environ["BOOK"])
HTML = BOOK / "html"
PAGES = sorted(HTML.rglob("*.html"))
faults = []

def expect(right, message):
    if not right:
        faults.append(message)
        print(f"[  FAILED  ] {message}", flush=True)

def browser(*logs):
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for argument in ("--headless=new", "--no-sandbox", "--allow-file-access-from-files", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {log: "ALL" for log in logs})
    chrome = webdriver.Chrome(service=Service(shutil.which("chromedriver")), options=options)
    chrome.set_script_timeout(60)
    return chrome

def resize(b, width, height=900):
    b.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                      {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})

# What is wrong with a page: headings that skip a level, images without text, a page wider than the window, words of a
# table that are broken, program lines that are cut or spaced.
LAYOUT = """
const wrong = [];
let level = 0;
for (const h of document.querySelectorAll("article h1, article h2, article h3, article h4")) {
    if (+h.tagName[1] > level + 1) wrong.push("heading " + h.textContent.slice(0, 40) + " skips a level");
    level = +h.tagName[1];
}
if (document.querySelectorAll("h1").length !== 1) wrong.push(document.querySelectorAll("h1").length + " h1");
for (const i of document.images) if (!i.alt) wrong.push("no alt: " + i.src);
const range = document.createRange();
for (const cell of document.querySelectorAll("article :is(td, th)")) {
    const walk = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    while (walk.nextNode())
        for (const word of walk.currentNode.data.matchAll(/[\\w.,]+/g)) {
            range.setStart(walk.currentNode, word.index), range.setEnd(walk.currentNode, word.index + word[0].length);
            if (new Set([...range.getClientRects()].map((r) => Math.round(r.top))).size > 1) wrong.push("broken in a table: " + word[0]);
        }
}
for (const table of innerWidth < 1280 ? [] : document.querySelectorAll("article table"))
    if (table.scrollWidth > table.closest("section").clientWidth) wrong.push("a table is cut: " + table.textContent.slice(0, 40));
const lines = document.querySelectorAll(".line");
if (lines.length > 1) {
    const apart = lines[1].offsetTop - lines[0].offsetTop, size = parseFloat(getComputedStyle(lines[0]).fontSize);
    if (apart > 1.6 * size) wrong.push("lines are " + apart + " pixels apart, of letters of " + size);
    const pre = lines[0].parentElement;
    if (innerWidth >= 1280 && pre.scrollWidth > pre.clientWidth + 1) wrong.push("lines are cut");
}
for (const row of document.querySelectorAll(".sides > div")) {
    const shown = [...row.children].filter((c) => c.getClientRects().length);
    if (shown.length !== 1 && innerWidth < 500 && shown[0].offsetLeft !== shown[1].offsetLeft) { wrong.push("two columns"); break; }
}
for (const i of document.querySelectorAll("form input, form select"))
    if (!i.closest("label") && !i.getAttribute("aria-label") && !i.placeholder && i.type !== "hidden") wrong.push("no label: " + i.name);
if (document.documentElement.scrollWidth > innerWidth) {
    const wide = [...document.querySelectorAll("article *")].find((e) => e.getBoundingClientRect().right > innerWidth + 1
        && !e.closest("pre, table, .sides, .toctree-wrapper"));
    wrong.push("scrolls sideways: " + document.documentElement.scrollWidth + " " + (wide ? wide.outerHTML.slice(0, 90) : ""));
}
return wrong;"""

# The texts of the article whose contrast with what is behind them is below 4.5 (WCAG 2.1, 1.4.3).
CONTRAST = """
const parts = (c) => (c.match(/[\\d.]+/g) || [0, 0, 0, 0]).map((x, i) => x * (c.startsWith("color(") && i < 3 ? 255 : 1));
const light = (c) => { const [r, g, b] = c.map((x) => (x /= 255) <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
                       return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const low = {};
const walk = document.createTreeWalker(document.querySelector("article"), NodeFilter.SHOW_TEXT);
while (walk.nextNode()) {
    const e = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || e.closest("script, style, svg") || !e.getClientRects().length) continue;
    let behind = e;
    while (behind && (parts(getComputedStyle(behind).backgroundColor)[3] ?? 1) === 0) behind = behind.parentElement;
    let seen = 1;                               /* less in an element that is partly transparent */
    for (let up = e; up; up = up.parentElement) seen *= getComputedStyle(up).opacity;
    const back = behind ? parts(getComputedStyle(behind).backgroundColor) : [255, 255, 255];
    const front = parts(getComputedStyle(e).color), a = light(back.map((x, i) => seen * front[i] + (1 - seen) * x)), b = light(back);
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) low[e.tagName + "." + e.className + " " + getComputedStyle(e).color] = ratio.toFixed(2) + " " + e.textContent.slice(0, 30);
}
return Object.entries(low).map((x) => x.join(": "));"""

def open_page(b, page, theme=None):
    b.get(page.as_uri())
    if theme:
        b.execute_script(f'document.body.dataset.theme = "{theme}"')

def test_pages(b):
    for page in PAGES:
        name = page.relative_to(HTML)
        open_page(b, page)
        for line in b.get_log("browser"):
            expect(line["level"] != "SEVERE", f"{name}: {line['message']}")
        for width in () if name.name in ("genindex.html", "search.html") else (390, 1280, 1600):
            resize(b, width)
            for wrong in b.execute_script(LAYOUT):
                expect(False, f"{name}, {width} wide: {wrong}")
    for name in ("index", "06_pipeline_parallel/index", "09_combined/DIFF", "08_fused_kernels/fused_cuda/flash_forward.cuh",
                 "play/puzzles", "play/schedules", "play/memory", "play/planner", "play/timelines"):
        behind = {}
        for theme, system in (("light", "dark"), ("dark", "light"), ("auto", "light"), ("auto", "dark")):
            b.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": system}]})
            open_page(b, HTML / f"{name}.html", theme)
            behind[theme, system] = b.execute_script("return getComputedStyle(document.body).backgroundColor")
            for low in b.execute_script(CONTRAST):
                expect(False, f"{name}, {theme} on a {system} system: contrast {low}")
        expect(behind["auto", "dark"] == behind["dark", "light"] != behind["auto", "light"] == behind["light", "dark"],
               f"{name}: its background does not follow theme and system: {behind}")

def test_links():
    ids, links = {}, []
    for page in PAGES:
        text = page.read_text()
        ids[page] = set(re.findall(r'\bid="([^"]+)"', text))
        links += [(page, html.unescape(x)) for x in re.findall(r'(?:href|src)="([^"]+)"', text)]
    for page, link in links:
        target, _, anchor = link.partition("#")
        if re.match(r"(https?|mailto|data):", target):
            expect(re.search(r"<(a|link rel=.(?!style))[^>]*" + re.escape(link), html.unescape(page.read_text())),
                   f"{page.relative_to(HTML)}: loads {link} from elsewhere")
            continue
        there = (page.parent / target.split("?")[0]).resolve() if target else page
        expect(there.exists(), f"{page.relative_to(HTML)}: dead link {link}")
        if anchor and there in ids:
            expect(anchor in ids[there], f"{page.relative_to(HTML)}: no anchor {link}")

def answer(b, page, values):
    """What a page prints for these values of its form: its error, or the program's output."""
    open_page(b, HTML / f"play/{page}.html")
    return change(b, values)

def change(b, values):
    return b.execute_async_script("""const [values, done] = arguments, play = document.querySelector(".play");
        const form = play.querySelector("form");
        const after = (runs, then) => +play.dataset.runs > runs ? then() : setTimeout(after, 20, runs, then);
        after(0, () => {
            for (const [k, v] of Object.entries(values)) { const i = form.elements[k];
                if (i.type === "checkbox") i.checked = !!v; else i.value = "power" in i.dataset ? Math.log2(v) : v; }
            form.dispatchEvent(new Event("input"));
            after(+play.dataset.runs, () => done(play.querySelector(".error").textContent
                                                 || play.querySelector(".answer pre").textContent));
        });""", values)

def program(*command):
    r = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return r.stdout or r.stderr

def test_computed(b):
    for kind, ranks, m, chunks, times in (
            ("afab", 4, 8, 1, "1,1,1,0"), ("1f1b", 4, 8, 1, "1,1,1,0"), ("1f1b", 3, 5, 1, "2,3,1,1"),
            ("interleaved", 4, 8, 2, "1,1,1,0"), ("interleaved", 2, 6, 3, "3,4,2,1"), ("zero-bubble", 4, 8, 1, "1,1,1,0"),
            ("zero-bubble", 8, 3, 1, "2,2,1,0"), ("zb-v", 4, 6, 1, "1,1,1,0"), ("zb-v", 6, 12, 1, "4,4,3,1"),
            ("dualpipe-v", 4, 10, 1, "1,1,1,0")):
        shown = answer(b, "schedules", {"kind": kind, "ranks": ranks, "micro-batches": m, "chunks": chunks, "times": times})
        native = program("mpiexec", "-n", str(ranks), "build/cpu/06_pipeline_parallel", "--schedule", kind, "--accumulate",
                         str(m), "--chunks", str(chunks), "--times", times, "--print-schedule", "--quiet", "--layers",
                         str(2 * ranks * max(chunks, 2)))
        expect("bubble" in shown and native.endswith(shown), f"schedules: {kind}, {ranks}, {m}: {shown}is not\n{native}")
    for values in ({"model": "8b", "gpus": 64}, {"model": "1.3b", "gpus": 8}, {"model": "70b", "gpus": 512, "tp": "<=8"},
                   {"model": "mixtral-8x7b", "gpus": 128, "ep": 8}, {"model": "llama3-405b", "gpus": 1024, "seq": "128K"},
                   {"model": "175b", "gpus": 256, "hardware": "a100"}, {"model": "124m", "gpus": 4, "dtype": "fp32"},
                   {"model": "7b", "gpus": 16, "zero": 3, "recompute": "full"}, {"model": "8b", "gpus": 0},
                   {"model": "3b", "gpus": 24, "batch": "2M"}):
        shown = answer(b, "planner", values)
        words = [x for k, v in values.items() for x in (f"--{k}", str(v))]
        native = program("build/cpu/plan", *words)
        expect(shown.strip() == re.sub("^plan: ", "", native).strip(), f"planner: {values}: {shown[:300]} is not {native[:300]}")
    shown = answer(b, "memory", {"model": "1.3b", "tp": 2, "pp": 2, "dp": 4, "zero": "1"})
    native = program("build/cpu/plan", "--model", "1.3b", "--gpus", "16", "--explain", "tp=2,pp=2,dp=4,micro-batch=1,zero=1")
    expect(shown.strip() == native.strip(), f"memory: {shown[:300]} is not {native[:300]}")

def test_charts(b):
    """Headlines, what stays when a question is wrong, sizes, and that each chapter has what its comments ask for."""
    resize(b, 1280)
    chart = "return document.querySelector('.chart').innerHTML"
    headline = "return document.querySelector('.headline').textContent"
    answer(b, "schedules", {"kind": "interleaved", "ranks": 8, "micro-batches": 40})
    expect("bubble is 8.8%" in b.execute_script(headline), f"schedules, 8 x 40: {b.execute_script(headline)}")
    expect(b.execute_script("return document.querySelector('.scrolls g rect').getBoundingClientRect().width") >= 14,
           "schedules, 8 x 40: too small to read")
    expect(b.execute_script("return [...document.querySelectorAll('.scrolls g text')].filter((t) => t.textContent == 39).length")
           == 32, "schedules, 8 x 40: the last micro-batch lacks a forward or a backward of a rank's chunk")
    change(b, {"kind": "zb-v"})
    expect(b.execute_script("return document.querySelector('[name=chunks]').getClientRects().length") == 0, "schedules: zb-v has a "
           "number of chunks")
    answer(b, "memory", {"tp": 8})
    before = b.execute_script(chart)
    wrong = change(b, {"tp": 64, "pp": 64})
    expect(before == b.execute_script(chart) and len(wrong) > 10, f"memory: a wrong grid changes the chart: {wrong}")
    expect("GiB" in before and b.execute_script("return document.querySelectorAll('.chart rect').length") > 12, "memory: no bars")
    answer(b, "planner", {})
    expect(b.execute_script("return [...document.querySelectorAll('.play label')].filter((l) => !l.closest('details')).length") == 5
           and b.execute_script("return document.querySelectorAll('.chart svg').length") >= 5, "planner: not five fields and a chart")
    for readme in ROOT.glob("[0-9][0-9]_*/README.md"):
        asked = re.findall("<!-- play: .*?: (.*?) -->", readme.read_text(), re.S)
        open_page(b, HTML / readme.parent.name / "index.html")
        shown = b.execute_script("""return [...document.querySelectorAll(".question")].map((q) => [q.textContent,
            (q.closest(".play") || document.querySelector(".timeline")).querySelectorAll("rect, td").length])""")
        expect([" ".join(q.split()) for q in asked] == [q for q, rects in shown if rects >= 8], f"{readme}: asks {asked}, has {shown}")
    for number, rank in (("03", 3), ("06", 3), ("09", 7)):
        open_page(b, HTML / "play/timelines.html")
        count = f"return document.querySelectorAll('#trace-{number} rect').length"
        expect(b.execute_script(count) > 100, f"timelines: {number} has few spans")
        names = b.execute_script(f"return document.querySelector('#trace-{number} .rows').textContent")
        expect(f"rank {rank}" in names and names.count(" ms") == 5, f"timelines: {number} lacks a rank or an axis")
        wide = f"return document.querySelector('#trace-{number} .scrolls svg').clientWidth"
        before = b.execute_script(wide)
        b.execute_script(f"document.querySelector('#trace-{number} button').click()")
        expect(b.execute_script(wide) == 2 * before, f"timelines: {number} does not zoom")

PUZZLE = """const [key, done] = arguments, node = document.querySelector(`[data-puzzle='${key}']`);
    const ready = () => node.dataset.runs ? done() : setTimeout(ready, 20);
    ready();"""
STATE = """const node = document.querySelector(`[data-puzzle='${arguments[0]}']`), text = (s) => node.querySelector(s).textContent;
    return {solved: node.classList.contains("solved"), error: text(".error"), headline: text(".headline"), goals: text(".goals"),
            cells: node.querySelectorAll(".chart :is(rect, td)").length, typed: node.querySelector("textarea")?.value,
            answer: text(".best pre"), wrong: node.classList.contains("wrong")};"""

def attempt(b, key, words=None):
    """The state of a puzzle, after words are typed into it, or values chosen, with the keyboard alone."""
    b.execute_async_script(PUZZLE, key)
    node = b.find_element("css selector", f"[data-puzzle='{key}']")
    if words is not None:
        b.execute_script("delete arguments[0].dataset.runs; arguments[0].querySelector('textarea, select, input:not([type=hidden])').focus()",
                         node)
        if isinstance(words, str):
            b.switch_to.active_element.send_keys(Keys.CONTROL, "a", Keys.NULL, words or Keys.BACKSPACE)
        else:
            for name, value in words.items():
                control = node.find_element("name", name)
                control.send_keys(value if control.tag_name == "select" else Keys.HOME + Keys.RIGHT * (value.bit_length() - 1))
        b.execute_async_script(PUZZLE, key)
        time.sleep(0.2)                         # for the last of the keys
    return b.execute_script(STATE, key)

def test_puzzles(b):
    """Each puzzle is unsolved at first and solved by its best answer; a wrong one, a deadlock, an error; what is kept."""
    page = HTML / "play/puzzles.html"
    memory = {"fit": {"micro-batch": 2, "zero": "3", "recompute": "full"}, "faster": {"tp": 8, "pp": 2, "zero": "1", "recompute":
              "none", "micro-batch": 1}, "guest": {"tp": 8, "cp": 2, "pp": 4, "zero": "1", "recompute": "selective"}}
    keys = re.findall(r'data-puzzle="([\w-]+)"', page.read_text())
    expect(len(keys) == len(set(keys)) >= 15, f"puzzles: {keys}")
    for width, theme, motion in ((390, "light", "reduce"), (1440, "dark", "no-preference")):
        resize(b, width)
        b.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-reduced-motion", "value": motion}]})
        open_page(b, page, theme)
        b.execute_script("localStorage.clear()")
        open_page(b, page, theme)
        for key in keys:
            first = attempt(b, key)
            expect(not first["solved"] and first["cells"], f"{key}, {width}: at first {first}")
            done = attempt(b, key, memory.get(key, first["answer"]))
            expect(done["solved"] and not done["error"] and "✗" not in done["goals"], f"{key}, {width}: its best answer {done}")
            if key not in memory:
                failed = attempt(b, key, "")
                expect(not failed["solved"] and "✓" not in failed["goals"], f"{key}, {width}: nothing reaches a goal: {failed}")
        expect(b.execute_script("return document.querySelector('.progress').textContent").startswith(f"{len(keys)} of {len(keys)}"),
               f"puzzles, {width}: the progress is not {len(keys)}")
        for wrong in b.execute_script(LAYOUT):
            expect(False, f"puzzles, {width} wide, answered: {wrong}")
    for key, words, message, cells in (
            ("hangs", "F0 B0 F1 B1\nF0 F1 B0 B1", "deadlocks: rank 0 waits at its action B0 for B0 of rank 1; rank 1 waits at its action F1 "
             "for F1 of rank 0", 4),
            ("hangs", "F0 F1 B0", "rank 0 computes 4 of the 6 forward, input-gradient and weight-gradient passes of a step: B1 is missing", 4),
            ("1f1b", " ", "rank 0 computes 0 of the 24", 0), ("interleaved", "F0", "Write F0.0 or F0.1", 0), ("hangs", "F0 F0", "F0 comes twice", 0),
            ("hangs", "F0 X1", "expected words such as F0", 0), ("hangs", "F0 F7", "expected micro-batch 0 to 1", 0),
            ("v", "F0.0 F0.1 B0.1 B0.0\nF0.1 F0.0", "rank 0 computes 6 of the 24", 2),
            ("doubling", "0+1 0+2", "rank 0 already sends", 16), ("doubling", "0+4", "expected two of the ranks 0 to 3", 16),
            ("broadcast", "1>2", "rank 1 has nothing in shard 0", 16), ("ring", "0+1:7", "expected shards from 0 to 3", 16),
            ("zigzag", "0 1\n1 2", "chunk 1 is on rank 0 and on rank 1", 0), ("zigzag", "0 1\n2 3", "chunk 4 is on no rank", 0),
            ("capacity", "capacity 0", "expected \"capacity 1.25\"", 0), ("capacity", "capacity 1", "rank 0: expected a line such as", 0), ("move", "capacity 1\nexperts 0 tokens 00", "different experts", 0),
            ("faster", {"tp": 64, "pp": 64}, "expected", 0)):
        state = attempt(b, key, words)
        expect(message in state["error"] and not state["solved"] and state["cells"] >= cells and state["wrong"] == (cells == 0),
               f"{key}: {words!r} should say {message}: {state}")
    attempt(b, "1f1b", "F0")
    open_page(b, page)
    expect(attempt(b, "1f1b")["typed"] == "F0", "puzzles: an attempt is forgotten")
    b.find_element("css selector", "[data-puzzle='1f1b'] > p > button").send_keys(Keys.ENTER)
    time.sleep(0.5)
    expect(attempt(b, "1f1b")["typed"].startswith("F0 F1 F2 F3 F4 F5 F6 F7 B0"), "puzzles: it does not start again")
    network = browser("performance")
    open_page(network, page)
    attempt(network, "hangs", "F0")
    messages = [json.loads(x["message"])["message"] for x in network.get_log("performance")]
    network.quit()
    loaded = {m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"}
    own = [Path(unquote(urlparse(x).path)) for x in loaded if not x.startswith("data:")]
    size = sum(x.stat().st_size for x in own if x.exists())
    expect(all(HTML in x.parents for x in own) and len(own) > 5 and size < 600e3, f"puzzles: loads {size} bytes: {loaded}")
    test_engines()

def test_engines():
    """What the puzzles' engines count is what the programs count: hops and bytes of 00, pairs of 07."""
    for ranks in (4, 5):
        printed = program("mpiexec", "-n", str(ranks), "build/cpu/00_collectives", "--verify", "--check")
        for algorithm, name in (("ring_reduce_scatter", "reduce_scatter, ring"), ("ring_all_gather", "all_gather, ring"),
                                ("ring_all_reduce", "all_reduce, ring"), ("tree_broadcast", "broadcast, tree"),
                                ("tree_all_reduce", "all_reduce, tree"), ("doubling_all_reduce", "all_reduce, doubling")):
            hops, sent = map(int, re.search(rf"  {name}, {ranks} ranks: (\d+) hops, (\d+) bytes", printed).groups())
            shown = program(BOOK / "native", "collective", f"algorithm={algorithm}", f"ranks={ranks}")
            most = max(map(float, re.search("in tensors: (.*);", shown)[1].split()))
            expect(f"steps {hops};" in shown and abs(most - sent / 3360) < 1e-3 and "wrong shards: 0" in shown,
                   f"{algorithm}, {ranks} ranks: {hops} hops and {sent} of 3360 bytes, but {shown}")
    for method, text in (("ring", "0 1\n2 3\n4 5\n6 7"), ("zigzag", "0 7\n1 6\n2 5\n3 4")):
        report = BOOK / "report.json"
        program("mpiexec", "-n", "4", "build/cpu/07_context_parallel", "--layers", "1", "--hidden", "64", "--heads", "1", "--seq",
                "64", "--micro-batch", "1", "--accumulate", "1", "--steps", "1", "--threads", "1", "--quiet", "--attention", method,
                "--report", report)
        pairs = [rank["attention_pairs"] for rank in json.loads(report.read_text())["ranks"]]
        shown = program(BOOK / "native", "attention", "ranks=4", f"text={text}")
        steps = [list(map(float, row.split())) for row in re.findall(r"^step \d (.*)", shown, re.M)]
        # eight chunks of 8 tokens: a block has 64 pairs, and each rank's two diagonal ones have 36, not 32
        blocks = [64 * sum(step[rank] for step in steps) + 2 * 4 for rank in range(4)]
        expect(pairs == blocks, f"attention, {method}: 07 computes {pairs} pairs, the puzzle {blocks}")

def test_numbers(b):
    """Each number of a Predict box and of the quiz has a field, which knows the right one, and says which term is missing."""
    say = """const [i, text] = arguments, input = document.querySelectorAll(".guess input")[i];
        input.value = text, input.dispatchEvent(new Event("input"));
        return input.parentElement.querySelector("output").textContent"""
    asked = [(f"{readme.parent.name}/index", re.findall(r"^> \*\*Predict\.\*\*.*?^</details>", readme.read_text(), re.M | re.S))
             for readme in sorted(ROOT.glob("[0-9][0-9]_*/README.md"))]
    quiz = re.search("^## The quiz.*?</details>", (ROOT / "tools/workshop/instructors.md").read_text(), re.M | re.S)[0]
    for page, boxes in asked + [("tools/workshop/instructors", [quiz])]:
        numbers = [x for box in boxes for x in re.findall(r"\*\*([\d,.]+)\*\*", box)]
        open_page(b, HTML / f"{page}.html")
        fields = b.execute_script("return document.querySelectorAll('.guess input').length")
        expect(fields == len(numbers) > 0, f"{page}: {fields} fields for {numbers}")
        for i, number in enumerate(numbers[:fields]):
            for text, said in ((number, "right"), (f"({number}*3 + 0) / 2 ^ 1 / 1.5", "right"), (f"{number} * 29", "not yet"),
                               ("many", "a number"), ("", "")):
                shown = b.execute_script(say, i, text)
                expect(shown.startswith(said) and bool(shown) == bool(said), f"{page}: {text} for {number}: {shown}")
    open_page(b, HTML / "00_collectives/index.html")
    for text, said in (("2*3360", "not yet: the factor 7/8 is missing"), ("3360 * 7/8", "not yet: the factor 2 is missing"),
                       ("4*2*7/8*3,360", "not yet: too large by a factor of 4.00"), ("2*7/8·3360", "right")):
        shown = b.execute_script(say, 1, text)
        expect(shown == said, f"00_collectives: {text}: {shown}, expected {said}")

def test_front(b):
    """The step draws itself under one technique, then the next one does; a chosen one stays."""
    open_page(b, HTML / "index.html")
    shown = "return [...document.querySelectorAll('.steps figure')].findIndex((f) => f.getClientRects().length)"
    count = b.execute_script("return document.querySelectorAll('.steps figure img').length")
    expect(count >= 7 and b.execute_script(shown) == 0, "front page: the first technique is not shown")
    end = "document.querySelectorAll('.curtain')[arguments[0]].dispatchEvent(new Event('animationend', {bubbles: true}))"
    b.execute_script(end, 0)
    time.sleep(4)
    expect(b.execute_script(shown) == 1, "front page: the second technique does not follow")
    b.execute_script("document.querySelectorAll('.names button')[3].click()")
    expect(b.execute_script(shown) == 3 and b.execute_script("return document.getAnimations().length") == 1,
           "front page: a chosen technique is not drawn")
    links = b.execute_script("return [...document.querySelectorAll('td:first-child a')].map((a) => a.textContent)")
    expect(len(links) == len(list(ROOT.glob("[0-9][0-9]_*/README.md"))), f"front page: the path is {links}")

def test_recorded(b):
    """The steps of the front page are what the programs do: as many bytes and, with FULL, no more time, to which other work
    only adds."""
    full, step = os.environ.get("FULL"), re.search('^STEP = "(.*?)"', (ROOT / "tools/workshop/book/conf.py").read_text(), re.M)[1]
    for path in sorted((ROOT / "tools/workshop/book/recorded").glob("*.json")):
        kept, report = json.loads(path.read_text()), BOOK / "report.json"
        program("mpiexec", "-n", kept["ranks"], f"build/cpu/{kept['program']}", "--micro-batch", "1", "--threads", "1", "--quiet",
                *(step if full else step.partition(" --pretend")[0]).split(), *kept["options"].split(), "--report", report)
        first = json.loads(report.read_text())["ranks"][0]
        expect(first["memory"]["total"]["measured"] == kept["bytes"]
               and (not full or first["time"]["seconds"] > 0.98 * kept["seconds"]),
               f"{path.name}: {kept}, but the program now takes {first['time']['seconds']} s and {first['memory']['total']}")

def test_narrow(b):
    """On a phone what is wider than the window fades until it is scrolled; dark figures are dark; chapters follow chapters."""
    for theme in ("light", "dark"):
        resize(b, 390)
        open_page(b, HTML / "06_pipeline_parallel/index.html", theme)
        b.execute_script("document.querySelector('article details').open = true")
        time.sleep(1)
        cut = b.execute_script("""return [...document.querySelectorAll("article :is(pre, table, .scrolls, p:has(> img))")].filter((e) =>
            e.scrollWidth > e.clientWidth + 2 && getComputedStyle(e).overflowX !== "visible" && !e.closest("details:not([open])")).map((e) => [e.outerHTML.slice(0, 60),
            getComputedStyle(e).maskImage.includes("gradient")])""")
        expect(len(cut) > 5 and all(fades for _, fades in cut), f"06 at 390: cut without a sign: {[x for x, f in cut if not f]}")
        end = b.execute_async_script("""const done = arguments[0], p = document.querySelector("article p:has(> img)");
            p.scrollLeft = p.scrollWidth, setTimeout(() => done(getComputedStyle(p).maskImage), 300)""")
        expect(end == "none", f"06 at 390: its figure still fades at its end: {end}")
        dark = b.execute_script("return [...document.querySelectorAll('article img')].map((i) => getComputedStyle(i).filter)")
        expect(all(("invert" in x) == (theme == "dark") for x in dark), f"06, {theme}: figures are {set(dark)}")
    links = b.execute_script("return [...document.querySelectorAll('.related-pages a')].map((a) => a.getAttribute('href'))")
    expect(sorted(links) == ["../05_tensor_parallel/index.html", "../07_context_parallel/index.html"], f"06: next to it are {links}")

def test_epub():
    """The ePub has all chapters, as XML, and every link in it leads to something."""
    book = zipfile.ZipFile(BOOK / "epub/ultrascalec.epub")
    pages = {name: book.read(name).decode() for name in book.namelist() if name.endswith(".xhtml")}
    expect(sum(name.endswith("/index.xhtml") for name in pages) == len(list(ROOT.glob("[0-9][0-9]_*/README.md"))), "ePub: lacks chapters")
    for name, text in pages.items():
        xml.dom.minidom.parseString(text)
        expect("<script" not in text and 'class="play' not in text, f"ePub: {name} wants to compute")
        for link in re.findall(r'(?:href|src)="([^"]+)"', text):
            target, _, anchor = html.unescape(link).partition("#")
            there = os.path.normpath(os.path.join(os.path.dirname(name), target)) if target else name
            expect(re.match(r"\w+:", link) or there in book.namelist() and (not anchor or f'id="{anchor}"' in pages[there]),
                   f"ePub: {name}: dead link {link}")

def test_slides(b):
    """Everything on a slide fits; keys turn slides and show answers first; printed, each slide is a page with its
    answers; there is a slide for every moment, question of the quiz and exercise of the instructor's table."""
    page = ROOT / "build/slides/slides.html"
    resize(b, 1280, 720)
    b.get(page.as_uri())
    b.refresh()
    for number, title, bottom, wide, empty in b.execute_script("""return slides.map((slide, i) => {
            const of = [...slide.children].filter((e) => e.tagName !== "FOOTER");
            return [i + 1, slide.querySelector("h1").textContent, Math.max(...of.map((e) => e.offsetTop + e.offsetHeight)),
                    slide.scrollWidth, [...slide.querySelectorAll("img")].some((i) => !i.naturalWidth || !i.alt)];})"""):
        expect(bottom <= 690 and wide <= 1280, f"slide {number}, {title}: is {bottom} pixels high and {wide} wide")
        expect(not empty, f"slide {number}, {title}: an image is empty, or has no text")
    count, first = b.execute_script("return [slides.length, slides.findIndex((s) => s.querySelector('.answer'))]")
    shown = """const a = slides[at].querySelector(".answer");
        return [at, !!a && getComputedStyle(a).visibility === "visible"]"""
    body = b.find_element("tag name", "body")
    for key, want in [(Keys.HOME, [0, False])] + [(Keys.ARROW_RIGHT, [i, False]) for i in range(1, first + 1)] + \
            [(" ", [first, True]), (Keys.ARROW_LEFT, [first - 1, False]), ("12" + Keys.ENTER, [11, False]),
             (Keys.END, [count - 1, False])]:
        body.send_keys(key)
        expect(b.execute_script(shown) == want, f"slides: a key leads to {b.execute_script(shown)}, expected {want}")
    b.refresh()
    expect(b.execute_script(shown)[0] == count - 1, "slides: a reload turns back")
    b.execute_script("location.hash = '#3'")
    expect(b.execute_script("return new Promise((r) => setTimeout(() => r(at), 200))") == 2, "slides: an address leads nowhere")
    expect(len((ROOT / "build/slides/contents.txt").read_text().splitlines()) == count, "slides: contents.txt lacks some")
    pdf = base64.b64decode(b.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True, "printBackground": True})["data"])
    pages = len(re.findall(rb"/Type\s*/Page\b", pdf))
    expect(pages == count, f"slides: {count} slides print on {pages} pages")
    b.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    expect(b.execute_script("return [...document.querySelectorAll('.answer, section')].every("
                            "(e) => getComputedStyle(e).visibility === 'visible')"), "slides: print hides something")
    b.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    text = b.execute_script("return document.body.textContent")
    script = (ROOT / "tools/workshop/instructors.md").read_text()
    for name in sorted(set(re.findall(r"\b\d\d\.\d\b", (ROOT / "tools/workshop/run_sheet.md").read_text()))):
        expect(f"Exercise {name}:" in text, f"slides: there is no exercise {name}")
    for title in re.findall(r"^\*\*\d\. ([^(.]*?) \(", script, re.M):
        expect(title in text, f"slides: there is no moment {title}")
    for question in re.findall(r"^\d+\. (.{30})", script.split("## The quiz")[1].split("<details>")[0], re.M):
        expect(question in text, f"slides: the quiz lacks {question}...")

def test_diffs(b):
    for diff in sorted(ROOT.glob("[0-9][0-9]_*/DIFF.md")):
        lines = Counter(x for block in re.findall(r"^```diff\n(.*?)^```", diff.read_text(), re.M | re.S)
                        for x in block.split("\n") if re.match("[-+]", x))
        open_page(b, HTML / diff.parent.name / "DIFF.html")
        shown = Counter(b.execute_script("""return [...document.querySelectorAll(".sides code.add, .sides code.del")].map(
            (e) => (e.className === "add" ? "+" : "-") + e.textContent.replace(/^\\u00a0$/, ""))"""))
        expect(lines == shown, f"{diff.parent.name}: {sum((lines - shown).values())} changed lines missing, "
               f"{sum((shown - lines).values())} too many: {list(((lines - shown) + (shown - lines)))[:3]}")

chromium = browser("browser")
test_links()
test_epub()
for test in (test_diffs, test_computed, test_puzzles, test_numbers, test_charts, test_front, test_recorded, test_narrow, test_slides,
             test_pages):
    test(chromium)
chromium.quit()
print(f"test_book: {len(PAGES)} pages, {len(faults)} faults")
sys.exit(1 if faults else 0)
