"""The book, built by Sphinx with MyST and Furo from the READMEs as they are. This file writes Sphinx's sources to
$BOOK/source: a page for each README, exercises.md and NOTATION.md, with links turned to pages; a page for each source
file, with a link at every line; and for each DIFF.md a page with the two programs side by side."""
import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import CLexer, CudaLexer

ROOT = Path(__file__).resolve().parents[3]
BOOK = Path(os.environ["BOOK"])
EPUB = os.environ.get("EPUB")       # the chapters alone as an ePub, without programs and without what computes
SOURCE, EXTRA = (BOOK / f"{name}{'_epub' * bool(EPUB)}" for name in ("source", "extra"))
RECORDED = Path(__file__).parent / "recorded"
STEP = "--steps 2 --layers 8 --hidden 64 --heads 4 --seq 64 --pretend 0.25,0.0125,32"       # of the recorded ones

project, html_title, root_doc = "ultrascale.c", "ultrascale.c", "project" if EPUB else "index"
extensions = ["myst_parser"]
myst_heading_anchors = 4
myst_enable_extensions = ["html_image"]
html_theme = "furo"
html_static_path = ["static"]
html_css_files, html_js_files = ["book.css"], [] if EPUB else ["book.js"]
html_extra_path = [str(EXTRA)]
epub_show_urls, epub_tocdup, author, copyright, version = "no", False, project, "MIT", "1"
html_copy_source = html_show_sourcelink = html_show_sphinx = html_show_copyright = smartquotes = False   # keeps --
pygments_style, pygments_dark_style = "default", "github-dark"
highlight_language = "none"
suppress_warnings = ["myst.header", "toc.excluded"]
# Colors of the light and of the dark theme; texts have a contrast of 4.5 to what is behind them.
COLORS = {"color-brand-primary": ("#0a58a5", "#7db8f5"), "color-brand-content": ("#0a58a5", "#7db8f5"),
          "color-foreground-muted": ("#595959", "#adadad"), "add": ("#dff5e1", "#12351b"),
          "del": ("#fde4e1", "#431c1a"), "fold": ("#eef2f7", "#202833"), "comment": ("#2a6363", "#b4bdc7"),
          "keyword": ("#006000", "#ff9a92"), "wrong": ("#a30d0d", "#ff9a92"), "right": ("#006000", "#7fd98a")}
html_theme_options = {f"{theme}_css_variables": {name: pair[i] for name, pair in COLORS.items()}
                      for i, theme in enumerate(("light", "dark"))}

FILES = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
CHAPTERS = sorted({f.split("/")[0] for f in FILES if re.match(r"\d\d_", f)})
if EPUB:
    FILES = [f for f in FILES if re.match(r"\d\d_\w+/(README|exercises)\.md$|NOTATION\.md$", f)] + ["README.md"]
CODE = [f for f in FILES if re.match(r"(\d\d_\w+|common|tools/planner)/.*\.(c|h|cu|cuh)$", f)]

def doc_of(path):
    """The page of a file or directory of the project, without its ending; None: it has none."""
    path = path.rstrip("/")
    if f"{path}/README.md" in FILES or path in (".", ""):
        path = os.path.normpath(f"{path}/README.md")
    if path in CODE:
        return path
    if path not in FILES or not path.endswith(".md"):
        return None
    if path.startswith("tools/workshop/book/pages/"):
        return Path(path).stem if Path(path).stem == "index" else f"play/{Path(path).stem}"
    return {"README": "project"}.get(Path(path).stem, Path(path).stem) if "/" not in path else \
        re.sub("README$", "index", path[:-3])

def relative(doc, target):
    return os.path.relpath(target, os.path.dirname(doc) or ".")

def link_to(path, doc, target):
    """The link from page `doc`, made of file `path`, to what the file links to; its files are copied beside the pages."""
    name, _, anchor = target.partition("#")
    there = os.path.normpath(os.path.join(os.path.dirname(path), name)) if name else path
    page = doc_of(there)
    if page:
        return relative(doc, page) + ".md" + (f"#{anchor}" if anchor else "")
    if EPUB:
        return None
    if (ROOT / there).is_dir():                 # a directory without a README: its first file stands for it
        first = next(f for f in FILES if f.startswith(there + "/"))
        return link_to(path, doc, os.path.relpath(first, os.path.dirname(path) or "."))
    (EXTRA / "files" / there).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / there, EXTRA / "files" / there)
    return relative(doc, f"files/{there}")

def linked(text, path, doc):
    """A README's text with its links turned to pages and without line ends in (p-1)/m or m·(T_F + T_B); images are
    copied beside it."""
    def turn(match):
        image, words, target = match.groups()
        if re.match(r"\w+:", target):           # a badge becomes its words: pages load nothing from elsewhere
            return re.sub(r"!\[([^\]]*)\]\([^)]*\)", r"\1", match[0])
        if image:
            to = SOURCE / os.path.dirname(doc) / target
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / os.path.dirname(path) / target, to)
            return match[0]
        to = link_to(path, doc, target)
        if not to:
            return words
        if words == "home":
            to = relative(doc, root_doc) + ".md"
        return f"[{words}]({to})" if ".md" in to else f'<a href="{html.escape(to)}">{words}</a>'

    text = re.sub(r"```.*?```|`[^`]*`|<!--.*?-->|\]\([^)]*\)|(?<=[\w)])-(?=\d)|--(?=\w)",
                  lambda m: m[0].replace("-", "-\u2060") if m[0] in ("-", "--") else m[0], text, flags=re.S)
    text = re.sub(r"(?<=[·/(])\([^()\[\]`\n]{1,40}\)|(?<=[\w)])[·/]\([^()\[\]`\n]{1,40}\)", lambda m: m[0].replace(" ", "\u00a0"), text)
    parts = re.split(r"(^```.*?^```$)", text, flags=re.M | re.S)
    return "".join(p if p.startswith("```") else re.sub(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)", turn, p)
                   for p in parts)

def write(doc, text):
    to = SOURCE / f"{doc}.md"
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(text)

def raw(text):
    return f"```{{raw}} html\n{text}\n```\n"

# ---- programs ----
OPERATORS = {found[1]: number                   # an operator's line in ops.h
             for number, line in enumerate((ROOT / "common/transformer/ops.h").read_text().split("\n"), 1)
             if (found := re.match(r"(?:void|double|Batch) (\w+)\(", line))}

def colored(text, path, doc):
    """The lines of a program as HTML, each operator with a link to its line in ops.h."""
    lexer = CudaLexer(stripnl=False) if ".cu" in path else CLexer(stripnl=False)
    out = highlight(text, lexer, HtmlFormatter(nowrap=True))
    ops = relative(doc, "common/transformer/ops.h") + ".html"

    def link(match):
        line = OPERATORS.get(match[2])
        return f'<a href="{ops}#L{line}">{match[0]}</a>' if line and path != "common/transformer/ops.h" else match[0]
    out = re.sub(r'<span class="(nf|n)">(\w+)</span>', link, out)
    return re.sub(r'<span class="[wpn]">(.*?)</span>', r"\1", out).split("\n")         # these have no color

def code_page(path):
    lines = colored((ROOT / path).read_text().rstrip("\n"), path, path)[:-1]
    body = "\n".join(f'<span class="line" id="L{i}"><a class="number" href="#L{i}" aria-label="{i}"></a>{line}</span>'
                     for i, line in enumerate(lines, 1))
    chapter = path.split("/")[0]
    up = f"[{chapter}]({relative(path, chapter + '/index')}.md)" + ("" if path == "common/transformer/ops.h" else
        f" | Underlined calls lead to what they compute, in [ops.h]({relative(path, 'common/transformer/ops.h')}.md).")
    title = re.sub("[/_]", "\\g<0>\u200b", path)                # where a narrow window may break it
    write(path, f"---\norphan: true\nhide-toc: true\n---\n# {title}\n\n{up}\n\n"
          + raw(f'<div class="highlight wide"><pre tabindex="0">{body}\n</pre></div>'))

# ---- diffs, side by side ----
def sides(lines):
    """Rows (old, new) of a function's full diff: a run of removed lines beside the added lines that follow it."""
    rows, removed = [], []
    for line in lines + [" "]:
        if line.startswith("-"):
            removed.append(line[1:])
        elif line.startswith("+"):
            rows.append((removed.pop(0) if removed else None, line[1:]))
        else:
            rows += [(r, None) for r in removed]
            removed = []
            rows.append((line[1:], line[1:]))
    return rows[:-1]

def row_html(row, left, right):
    def side(text, other, name, colors):
        kind = "none" if text is None else "same" if text == other else name
        return f'<code class="{kind}">{(next(colors) if text is not None else "") or "&nbsp;"}</code>'
    return f'<div>{side(*row, "del", left)}{side(*row[::-1], "add", right)}</div>'

def table_html(rows, doc, path):
    """Rows, with unchanged runs of more than eight folded, except for the three next to a change."""
    left, right = (iter(colored("\n".join(r[k] for r in rows if r[k] is not None), path, doc)) for k in (0, 1))
    out, i = [], 0
    while i < len(rows):
        end = i
        while end < len(rows) and rows[end][0] == rows[end][1]:
            end += 1
        first, last = (i + 3 if i else 0), (end - 3 if end < len(rows) else end)
        parts = [row_html(r, left, right) for r in rows[i:max(end, i + 1)]]
        if end > i and last - first > 5:
            parts = parts[:first - i] + [f"<details><summary>{last - first} unchanged lines</summary>"] \
                + parts[first - i:last - i] + ["</details>"] + parts[last - i:]
        out += parts
        i = max(end, i + 1)
    return f'<div class="sides highlight" role="group" aria-label="before and after" tabindex="0">{"".join(out)}</div>'

def diff_page(chapter):
    path, doc = f"{chapter}/DIFF.md", f"{chapter}/DIFF"
    work = BOOK / "changes" / chapter
    (work / "new").mkdir(parents=True)
    subprocess.run(["tools/workshop/changes.sh", "--functions", chapter, str(work)], cwd=ROOT, check=True,
                   env={**os.environ, "CONTEXT": "100000"})

    def side_by_side(match):
        key = re.sub("[`:,]", "", match[1].split()[0])
        lines = (work / "new" / key).read_text().split("\n")[1:]
        rows = sides([x for x in lines if x != "@@" and x != ""])
        return f"## {match[1]}\n{match[2]}{raw(table_html(rows, doc, f'{chapter}/train.c'))}"

    text = linked((ROOT / path).read_text(), path, doc)
    base = re.search(r"base: \[(\w+)\]", text)[1]
    text = text.replace("\n## ", f"\nRed lines are only in {base}, green ones only in {chapter}; long unchanged "
                        "parts are folded.\n\n## ", 1)
    text = re.sub(r"^## (.*?)\n(.*?)```diff\n.*?^```$", side_by_side, text, flags=re.M | re.S)
    write(doc, "---\nhide-toc: true\n---\n" + text)

# ---- what the reader can play with: on a page of its own, and in a chapter where a comment <!-- play: --> asks for it ----
def native(*arguments):
    return subprocess.run([BOOK / "native", *arguments], capture_output=True, text=True, check=True).stdout

COMPILED = (BOOK / "book.js").exists() and not EPUB
OPTIONS = {line.split("\t")[0]: line.split("\t")[1:] for line in native("options").splitlines()}   # of the planner
FORMS = {       # fields: name=first value:what it may be, a|b, from..to, or a power of two up to 2^n
    "schedules": "kind=1f1b:afab|1f1b|interleaved|zero-bubble|zb-v|dualpipe-v ranks=4:1..16 micro-batches=8:1..64 "
                 "chunks=2:2..8 times=1,1,1,0",
    "memory": "model=8b hardware=h100 tp=4:2^6 cp=1:2^6 pp=2:2^6 dp=8:2^10 ep=1:2^6 micro-batch=1:2^6 zero=1:0|1|2|3 "
              "recompute=none seq=",
    "planner": "model=8b gpus=64 hardware=h100 batch=1M seq=",
    "collectives": "algorithm=ring_all_reduce:ring_reduce_scatter|ring_all_gather|ring_all_reduce|tree_broadcast|tree_reduce|"
                   "tree_all_reduce|doubling_all_reduce ranks=4:2..8",
    "attention": "", "routing": ""}              # typed
PUZZLES = {     # of each kind what the reader types; what else its comment names are sizes and goals
    "schedule": "each rank's actions, a line for a rank", "collective": "messages, a line for a step",
    "attention": "each rank's sequence chunks, a line for a rank",
    "routing": "the capacity factor, then each rank's experts and tokens, a line for a rank"}
LABELS = {"kind": "schedule", "ranks": "ranks p =", "micro-batches": "micro-batches m =",
          "chunks": "model chunks v_c =", "times": "T_F,T_B,T_W,transfer", "seq": "sequence length"}

def field(name, value="", may=""):
    """An input of a form; an option of the planner has its choices and its meaning. Sliders of powers have exponents."""
    _, kind, argument, meaning = OPTIONS.get(name, ("", "", "", ""))
    listed = re.search(r"one of ([\w.|-]+)", meaning)
    may = may or (listed[1] if listed else argument)
    if "|" in may:
        choices = [""] * (not value) + may.split("|")
        options = "".join(f"<option{' selected' if c == value else ''}>{c}</option>" for c in choices)
        control = f'<select name="{name}">{options}</select>'
    elif "2^" in may:
        control = f'<input name="{name}" type="range" max="{may[2:]}" value="{int(value).bit_length() - 1}" data-power>'
    elif ".." in may:
        low, high = may.split("..")
        control = f'<input name="{name}" type="range" min="{low}" max="{high}" value="{value}">'
    elif kind == "4":
        control = f'<input name="{name}" type="checkbox" value="1">'
    else:
        control = f'<input name="{name}" value="{value}" placeholder="default">'
    note = html.escape(re.sub(r"^one of .*|:? one of \S+", "", meaning))
    return f"<label><span>{LABELS.get(name, name)} <b><output></output></b></span>{control}<small>{note}</small></label>"

WHAT_IT_DRAWS = ('<p class="error" role="alert"></p><p class="headline"></p><div class="chart" tabindex="0" aria-live="polite">'
                 '</div>')
PRINTED = '<details class="answer"><summary>What the program prints</summary><pre tabindex="0"></pre></details>'

def form_of(name, given, names):
    """The fields of a form that are in `names`, with the values that are given there instead of the first ones."""
    fields = [re.match("([^=]*)=([^:]*):?(.*)", f).groups() for f in FORMS[name].split()]
    return "".join(field(f, given.get(f, value), may) for f, value, may in fields if not names or f in names)

def fixed(given):
    return "".join(f'<input type="hidden" name="{k}" value="{html.escape(v)}">' for k, v in given.items())

def typed(name, text, rows):
    return f'<label class="typed"><span>{PUZZLES[name]}</span><textarea name="text" rows="{rows}" spellcheck="false" ' \
           f'autocapitalize="off">{html.escape(text)}</textarea></label>'

def puzzle_html(name, given, text):
    """A puzzle: what it fixes and its goals are `given`; the comment's text has its hint, start and answer, each of which
    is typed there, or a program's own: of 06 by a schedule's kind, of 00 by an algorithm's name."""
    if not COMPILED:
        return "*Here is a puzzle, if the book is made with Emscripten: `make book INSTALL=1`.*\n"
    parts = {k: v.strip() for k, v in re.findall(r"^(hint|start|answer):(.*?)(?=^\w+:|\Z)", text, re.M | re.S)}
    own = {"schedule": "kind", "collective": "algorithm"}.get(name)
    sizes = [f"{k}={v}" for k, v in given.items() if k in ("ranks", "micro-batches", "chunks")]
    for part in ("start", "answer"):
        if own and re.fullmatch(r"[\w-]*[a-z][\w-]*", parts[part]):
            parts[part] = native(name, "lists=1", f"{own}={parts[part]}", *sizes).strip()
    key = given.pop("id")
    if name == "memory":
        names = given.pop("fields").split(",")
        form = fixed({k: v for k, v in given.items() if k not in names}) + form_of(name, given, names)
    else:
        rows = 1 + max(parts[p].count("\n") for p in ("start", "answer"))
        form = fixed(given | ({"start": parts["start"]} if "changed" in given else {})) \
            + typed(name, parts["start"], rows)
    return raw(f'<div class="play puzzle" data-play="{name}" data-puzzle="{key}"><form autocomplete="off" onsubmit="return '
               f'false">{form}</form><ul class="goals" role="status"></ul>{WHAT_IT_DRAWS}<details><summary>A hint</summary><p>'
               f'{html.escape(" ".join(parts["hint"].split()))}</p></details><details class="best"><summary>The best known '
               f'answer</summary><pre tabindex="0">{html.escape(parts["answer"])}</pre></details>{PRINTED}<p><button '
               f'type="button">Start again</button></p></div>')

def play_html(name, given, question):
    """A form and its chart, with the values that are given there instead of the first ones."""
    if not COMPILED:
        return "*Here is something to play with, if the book is made with Emscripten: `make book INSTALL=1`.*\n"
    text = given.pop("text", "").replace("_", " ").replace("/", "\n")
    form = form_of(name, given, None) + (fixed(given) + typed(name, text, 1 + text.count("\n")) if text else "")
    rest = [o for o in OPTIONS if f"{o}=" not in FORMS[name] and OPTIONS[o][0] in "123"] if name == "planner" else []
    if rest:
        form += f"<details><summary>{len(rest)} more options</summary><div>{''.join(map(field, rest))}</div></details>"
    return raw(f'<div class="play" data-play="{name}"><p class="question"><b>{question}</b></p><form autocomplete="off" '
               f'onsubmit="return false">{form}</form>{WHAT_IT_DRAWS}{PRINTED}</div>')

TRACES = {      # at most two seconds each, on simulated hardware
    "03": ("03_data_parallel", 4, "--layers 6 --hidden 64 --heads 4 --seq 32 --accumulate 1 --sync overlap "
           "--pretend 0.2,0.004,50"),
    "06": ("06_pipeline_parallel", 4, "--layers 8 --hidden 64 --heads 4 --seq 32 --accumulate 8 --pretend 0.2,0.2,50"),
    "09": ("09_combined", 8, "--tp 2 --cp 2 --pp 2 --layers 4 --hidden 64 --heads 8 --seq 64 --accumulate 4 "
           "--dtype fp32 --pretend 0.2,0.01,50")}

def trace_html(number, doc, question):
    """A timeline to zoom: one step of a program, traced while the book is made."""
    program, ranks, options = TRACES[number]
    return raw(f'<p class="question"><b>{question}</b></p>') \
        + f'\nOne step of `{program} {options}` on {ranks} ranks. <a id="download-{number}" ' \
        f'download="{program}.json">Download the trace</a> for [Perfetto](https://ui.perfetto.dev).\n\n' \
        + raw(f'<div class="timeline" id="trace-{number}"></div>'
              f'<script src="{relative(doc, f"traces/{number}.js")}" defer></script>')

def record(program, ranks, options):
    subprocess.run(f"mpiexec -n {ranks} build/cpu/{program} --micro-batch 1 --threads 1 --quiet {options}", shell=True,
                   cwd=ROOT, check=True, capture_output=True)

# ---- the front page: one step of one model and one batch, under each technique ----
def record_step(i, program, ranks, options):
    """Records a step to RECORDED: the fastest of five runs, because other work on the machine can only delay a step."""
    best = None
    for _ in range(5):
        picture, report = BOOK / "step.svg", BOOK / "report.json"
        record(program, ranks, f"{STEP} {options} --timeline={picture} --report {report}")
        first = json.loads(report.read_text())["ranks"][0]
        seconds, memory = first["time"]["seconds"], first["memory"]["total"]["measured"]
        if not best or seconds < best["seconds"]:
            best = {"program": program, "ranks": ranks, "options": options, "seconds": seconds, "bytes": memory}
            shutil.copy(picture, RECORDED / f"{i}.svg")
    (RECORDED / f"{i}.json").write_text(json.dumps(best) + "\n")

def steps_html(steps):
    """The steps as they were recorded, which takes an idle machine: make book RECORD=1 records them again."""
    names, figures, alone = "", "", 0
    for i, (program, ranks, options, title, text) in enumerate(steps):
        if os.environ.get("RECORD"):
            record_step(i, program, ranks, options)
        kept = json.loads((RECORDED / f"{i}.json").read_text())
        if (kept["program"], kept["ranks"], kept["options"]) != (program, ranks, options):
            raise SystemExit(f"{RECORDED}/{i}.json is not of {program} {options}: make book RECORD=1, on an idle machine")
        shutil.copy(RECORDED / f"{i}.svg", EXTRA / "steps")
        seconds, memory = kept["seconds"], kept["bytes"] / 1e6
        alone = alone or seconds
        numbers = f"{seconds:.2f} s" + f", {alone / seconds:.1f} times as fast" * (ranks != "1") + f"; {memory:.1f} MB a rank"
        names += f'<button type="button" style="--part: {100 * seconds / alone:.0f}%"><span>{title}</span> <span>' \
            f'{seconds:.2f} s, {memory:.1f} MB</span></button>'
        figures += f'<figure><figcaption><strong><a href="{program}/index.html">{title}</a>: {numbers}.</strong> {text}' \
            f'</figcaption><div class="curtained"><img src="steps/{i}.svg" alt="{title}: {numbers}"><div class="curtain" ' \
            f'style="animation-duration: {seconds:.2f}s"></div></div></figure>'
    return raw(f'<div class="steps"><div class="names">{names}</div>{figures}</div>')

def played(text, doc):
    """A page's text with what its comments ask for in their place."""
    if EPUB:
        return re.sub("^<!-- (play|puzzle|step): .*? -->", "", text, flags=re.M | re.S)

    def put(match):
        name, given, question = match[1], dict(x.split("=", 1) for x in match[2].split()), " ".join(match[3].split())
        return trace_html(given["program"], doc, question) if name == "timelines" else play_html(name, given, question)

    step = r"<!-- step: (\w+) (\d) (.*?): (.*?): (.*?) -->\n"
    text = re.sub(f"(?:{step})+", lambda m: steps_html(re.findall(step, m[0], re.S)), text, flags=re.S)
    programs = re.search(r"^\| program .*?(?=\n\n)", (ROOT / "README.md").read_text(), re.M | re.S)[0]
    text = re.sub("<!-- programs -->", lambda _: linked(programs, "README.md", doc), text)
    text = re.sub(r"^<!-- puzzle: (\w+)((?: [\w-]+=\S+)*)\n(.*?) -->", lambda m: puzzle_html(
        m[1], dict(x.split("=", 1) for x in m[2].split()), m[3]), text, flags=re.M | re.S)
    text = re.sub(r"^<!-- play: (\w+)((?: [\w-]+=\S+)*): (.*?) -->", put, text, flags=re.M | re.S)
    return text + ("\n" + raw(f'<script src="{relative(doc, "compute.js")}"></script>')) * ("data-play=" in text)

# ---- all pages ----
def tree(title, docs):
    return "\n".join(["\n```{toctree}", ":hidden:", f":caption: {title}" * bool(title), "", *docs, "```\n"])

def chapter_tree(chapter):
    docs = [d for d in ("DIFF", "exercises") if f"{chapter}/{d}.md" in FILES]
    if EPUB:
        return tree("", docs)
    docs += [f"{c} <{c}>" for c in ("train.c", "collectives.c") if f"{chapter}/{c}" in FILES]
    docs += ["/tools/planner/index"] * (chapter == "09_combined") + ["ladder/index"] * (chapter == "08_fused_kernels")
    return tree("", docs)

if COMPILED:
    shutil.copy(BOOK / "book.js", EXTRA / "compute.js")
for file in FILES:
    if file in CODE:
        code_page(file)
    elif file.endswith("/DIFF.md"):
        diff_page(os.path.dirname(file))
    elif file.endswith(".md") and not file.startswith((".github/", "tools/workshop/slides/")):
        page_name = doc_of(file)
        page_text = played(linked((ROOT / file).read_text(), file, page_name), page_name)
        if EPUB and page_name == root_doc:
            page_text += tree("", [f"{c}/index" for c in CHAPTERS] + ["NOTATION"])
        elif page_name == "index":
            page_text += tree("Chapters", [f"{c}/index" for c in CHAPTERS]) \
                + tree("To play with", [f"play/{p}" for p in ("puzzles", "schedules", "memory", "planner", "timelines")]) \
                + tree("Reference", ["The project <project>", "NOTATION", "Running <RUNNING>",
                                     "Building blocks <common/index>", "Tools <tools/index>",
                                     "Workshop <tools/workshop/index>",
                                     "GPU simulator <tools/simulator/index>", "Tokens <tools/data/index>",
                                     "Benchmarks <tests/bench/index>", "Tests <tests/index>",
                                     "CONTRIBUTING", "CHANGELOG"])
        elif page_name == "tools/workshop/index":
            page_text += tree("", ["run_sheet", "instructors", "helpers", "participants", "closing_project", "profiling"])
        elif page_name.removesuffix("/index") in CHAPTERS:
            page_text += chapter_tree(page_name.removesuffix("/index"))
        elif page_name.startswith("tests/") and page_name not in ("tests/index", "tests/bench/index"):
            page_text = "---\norphan: true\n---\n" + page_text
        write(page_name, page_text)
for number, (program, ranks, options) in ({} if EPUB else TRACES).items():
    trace = BOOK / "trace.json"
    record(program, ranks, f"--steps 1 {options} --trace {trace}")
    (EXTRA / f"traces/{number}.js").write_text(f"trace({json.dumps(number)}, {trace.read_text()});\n")

def bundle_theme(app, error):
    """Debian's Furo imports a module and a style by paths of a web server, which a page opened from a file cannot load."""
    static = Path(app.outdir) / "_static"
    script, style = static / "scripts/furo.js", static / "styles/furo.css"
    if error or "import Gumshoe" not in script.read_text():
        return
    module = (static / "scripts/gumshoe-patched.js").read_text()
    script.write_text(re.sub("export default Gumshoe;?", "", module) + re.sub("^import .*", "", script.read_text()))
    normalize = Path("/usr/share/javascript/normalize.css/normalize.css").read_text()
    text = re.sub("@import url.*?;", lambda _: normalize, style.read_text(), 1)
    dark = re.search(r'body\[data-theme="dark"\] \{(.*?)\}', text, re.S)[1]        # compiled without its second use
    style.write_text(text + "@media not print { @media (prefers-color-scheme: dark) { body:not([data-theme=light]) {"
                     + dark + "}}}")

def context_of(app, page, template, context, doctree):
    """Previous and next lead from chapter to chapter. Without jQuery, which nothing needs, pages are a third smaller."""
    order = ["index", *(f"{c}/index" for c in CHAPTERS)]
    at = order.index(page) if page in order else None
    for name, there in (("prev", -1 if at is None else at - 1), ("next", len(order) if at is None else at + 1)):
        context[name] = {"link": context["pathto"](order[there]), "title": app.env.titles[order[there]].astext()} \
            if 0 <= there < len(order) else None
    context["script_files"] = [s for s in context["script_files"] if not re.search("jquery|underscore|frameworks", str(s))]

def setup(app):
    if not EPUB:
        app.connect("html-page-context", context_of)
        app.connect("build-finished", bundle_theme)
