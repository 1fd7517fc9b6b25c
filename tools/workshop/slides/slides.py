#!/usr/bin/env python3
"""slides.py DIR/slides.html: the workshop's slides, from slides.md beside this file, and DIR/contents.txt, which lists
them. A line in braces stands for text or a figure of the project, so no slide has a copy of a number:
  {part 03}                  the chapter's title, its first figure, and what people can do afterwards
  {figure 03_x/name.svg}     a figure
  {predict 03 1}             a chapter's first question "Predict"; the answer comes with the next key
  {moment 2}                 one of the script's five moments: the question; the right answer comes with the next key
  {exercise 03.1}            title, minutes, task and commands
  {command b}                a command of the instructor's table, and what it prints
  {quiz 1 5}                 questions 1 to 5 of the quiz
  {answers 1 5}              the same, each answer with the next key
markdown-it, which renders the Markdown, comes with MyST, which make book needs."""
import base64
import html
import re
import sys
from pathlib import Path

from markdown_it import MarkdownIt

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
markdown = MarkdownIt("commonmark", {"html": True}).enable("table")


def read(path):
    return (ROOT / path).read_text()


def chapter(number):
    return next(ROOT.glob(f"{number}_*")).name


def find(pattern, text, what):
    found = re.search(pattern, text, re.M | re.S)
    if not found:
        sys.exit(f"slides.md: there is no {what}")
    return found


def render(text):
    """Markdown as HTML. Links into the project lose their target, because slides lie alone in a directory."""
    text = re.sub(r"\[([^\[\]]*)\]\((?!https?:)[^)]*\)", r"\1", text)
    return markdown.render(text)


def figure(path):
    svg = base64.b64encode((ROOT / path).read_bytes()).decode()
    title = find(r"<title>(.*?)</title>", read(path), f"title in {path}")[1]
    return f'<img alt="{html.escape(title)}" src="data:image/svg+xml;base64,{svg}">\n'


def part(number):
    name = chapter(number)
    readme = read(f"{name}/README.md")
    title = find(r"^# (.*?)$", readme, f"title of {name}")[1]
    can = find(rf"^\| \[{number}\][^|]*\| ([^|]*) \|", read("tools/workshop/instructors.md"), f"part {number}")[1]
    return [f"<h1>{title}</h1>" + figure(f"{name}/" + find(r"!\[[^\]]*\]\((\w+\.svg)\)", readme, f"figure in {name}")[1])
            + render(f"Afterwards you can {can}.")]


def predict(number, which):
    boxes = re.findall(r"^> \*\*Predict\.\*\* (.*?)^<details>.*?</summary>(.*?)^</details>", read(f"{chapter(number)}/README.md"),
                       re.M | re.S)
    if len(boxes) < int(which):
        sys.exit(f"slides.md: {number} has {len(boxes)} questions, not {which}")
    question, answer = boxes[int(which) - 1]
    return [f"<h1>Predict ({number})</h1>" + render(re.sub(r"^> ?", "", question, flags=re.M))
            + f'<div class="answer">{render(answer)}</div>']


def moment(which):
    title, question, answers = find(rf"^\*\*{which}\. ([^*]*)\*\* (.*?)\n\n(.*?)(?=^\*\*\d|^## )",
                                    read("tools/workshop/instructors.md"), f"moment {which}").groups()
    asked = " ".join(re.findall(r'"([^"]*)"', question.replace("\n", " ")))
    right = [re.sub(r" (Then say|So)\b.*", "", " ".join(answer.split()))        # a wrong answer begins with a quotation
             for answer in re.split(r"^- ", answers, flags=re.M)[1:] if not answer.startswith('*"')]
    return [f"<h1>{re.sub(r' [(].*|[.]$', '', title)}</h1><div class='question'>{render(asked)}</div>"
            + "".join(f"<div class='answer'>{render(answer)}</div>" for answer in right)]


def exercise(name):
    number, n = name.split(".")
    title, task = find(rf"^## {n}\. (.*?)\n\n(.*?)(?=^Before you start|^<details>)",
                       read(f"{chapter(number)}/exercises.md"), f"exercise {name}").groups()
    return [f"<h1>Exercise {name}: {title}</h1>" + render(task)
            + f"<pre>make exercise STAGE={number} N={n}\nmake verify STAGE={number} N={n}</pre>"]


def command(letter):
    line, prints = find(rf"^\| {letter} \| `([^`]*)` \|[^|]*\| `([^`]*)` \|", read("tools/workshop/README.md"),
                        f"command {letter}").groups()
    return f"<pre>{html.escape(line)}\n\n...  {html.escape(prints)}  ...</pre>"


def quiz(first, last, told=False):
    text = find(r"^## The quiz\n.*?^## ", read("tools/workshop/instructors.md"), "quiz")[0]
    questions, answers = text.split("<details>")

    def of(block, i):
        return " ".join(find(rf"^{i}\. (.*?)(?=^\d+\. |\Z|^\n|^</details>)", block, f"question {i}")[1].split())
    answer = "\n\n   <div class='answer'>{}</div>"
    items = "".join(f"{i}. {of(questions, i)}{answer.format(markdown.renderInline(of(answers, i))) * told}\n\n"
                    for i in range(int(first), int(last) + 1))
    return [f"<h1>Quiz{': answers' * told}</h1>" + render(items)]


def answers(first, last):
    return quiz(first, last, True)


MAKERS = {"part": part, "predict": predict, "moment": moment, "exercise": exercise, "quiz": quiz, "answers": answers}


def slides(source):
    """The slides as HTML, one string each."""
    out = []
    for text in re.split(r"^---$", source, flags=re.M):
        made = re.fullmatch(r"\{(\w+) ([^}]*)\}", text.strip())
        if made and made[1] in MAKERS:
            out += MAKERS[made[1]](*made[2].split())
            continue
        text = re.sub(r"^\{figure ([^}]*)\}$", lambda m: figure(m[1]), text, flags=re.M)
        text = re.sub(r"^\{command (\w)\}$", lambda m: command(m[1]), text, flags=re.M)
        wrong = re.search(r"^\{.*\}$", text, re.M)
        if wrong:
            sys.exit(f"slides.md: {wrong[0]} is no directive, or not alone on its slide")
        out.append(render(text))
    return out


if __name__ == "__main__":
    pages = slides((HERE / "slides.md").read_text())
    body = "\n".join(f'<section id="s{i}">\n{page}<footer>{i}</footer>\n</section>' for i, page in enumerate(pages, 1))
    Path(sys.argv[1]).write_text(f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>ultrascale.c: the workshop</title>
<style>
{(HERE / "slides.css").read_text()}</style></head>
<body>
{body}
<script>
{(HERE / "slides.js").read_text()}</script></body></html>
""")
    titles = [re.sub("<.*?>", "", find("<h1>(.*?)</h1>", page, "title")[1]) for page in pages]
    contents = Path(sys.argv[1]).with_name("contents.txt")
    contents.write_text("".join(f"{i:3}  {html.unescape(title)}\n" for i, title in enumerate(titles, 1)))
    print(f"{len(pages)} slides are in {sys.argv[1]}: arrow keys turn them, a number and Enter lead to one ({contents} "
          "lists them), printing makes a PDF")
