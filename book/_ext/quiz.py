"""The `quiz` directive: one question, its options, and an explanation for every option.

    ```{quiz} Which rank sends the most bytes in the naive allreduce?
    - [x] Rank 0 :: It hands the sum to N - 1 others, so it sends (N - 1) T.
    - [ ] Every rank the same :: That is the ring. Here all others send T once.
    ```

The first line is the question; it may go on in the lines below it, up to the first option. One
option a line: `[x]` marks a right one (several may be right), `::` separates the option from its
explanation, and an indented line continues the one above. Both parts are MyST: maths, code and
references work. An option without an explanation or without a word, or a quiz without a right
option, is an error. A question that holds code needs a fence of colons, `:::{quiz}`.

On the page each option is a native `<details>`: a reader opens it with mouse, keyboard or screen
reader, no script involved, and reads "Right" or "Not quite" and why.
"""

from __future__ import annotations

import re

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

OPTION = re.compile(r"^[-*] \[([ xX])\] (.*)$")


class quiz(nodes.General, nodes.Element):
    pass


class quiz_option(nodes.General, nodes.Element):
    pass


class quiz_label(nodes.General, nodes.Element):
    pass


def parse_quiz(question: str, lines: list[str]) -> tuple[str, list[tuple[bool, str, str]]]:
    """The question, and (right, option, explanation) for each option."""
    options: list[list] = []
    for line in lines:
        if match := OPTION.match(line):
            options.append([match[1] in "xX", match[2].strip()])
        elif options and line.strip():
            options[-1][1] += " " + line.strip()
        elif line.strip():
            question += " " + line.strip()
    parsed = []
    for right, text in options:
        option, separator, why = (part.strip() for part in text.partition(" :: "))
        if not separator or not why:
            raise ValueError(f"the option {text!r} has no explanation; write it after ' :: '")
        if not re.search(r"\w", re.sub(r"\$[^$]*\$", "", option)):
            raise ValueError(
                f"the option {option!r} is only a formula: add a word that a screen reader can say"
            )
        parsed.append((right, option, why))
    if not question.strip():
        raise ValueError("a quiz needs a question on its first line")
    if len(parsed) < 2 or not any(right for right, _, _ in parsed):
        raise ValueError("a quiz needs at least two options, and one marked [x]")
    return question.strip(), parsed


class QuizDirective(SphinxDirective):
    optional_arguments = 1
    final_argument_whitespace = True
    has_content = True

    def run(self) -> list[nodes.Node]:
        try:
            question, options = parse_quiz(" ".join(self.arguments), list(self.content))
        except ValueError as fault:
            raise self.error(str(fault)) from None
        whole = quiz()
        whole["name"] = f"quiz-{self.env.docname.replace('/', '-')}-{self.lineno}"
        whole += self.inline(question, nodes.paragraph("", classes=["quiz-question"]))
        for right, text, why in options:
            option = quiz_option(right=right)
            option += self.inline(text, quiz_label())
            verdict = nodes.strong("", "Right. " if right else "Not quite. ")
            paragraph = self.inline(why, nodes.paragraph())
            paragraph.insert(0, verdict)
            option += paragraph
            whole += option
        return [whole]

    def inline(self, text: str, parent: nodes.Element) -> nodes.Element:
        children, messages = self.state.inline_text(text, self.lineno)
        parent += children
        parent += messages
        return parent


def visit_quiz(self, node):
    self.body.append(f'<div class="quiz" role="group" aria-label="Quiz" id="{node["name"]}">\n')


def depart_quiz(self, node):
    self.body.append("</div>\n")


def visit_option(self, node):
    kind = "right" if node["right"] else "wrong"
    self.body.append(f'<details class="quiz-option quiz-{kind}">')


def depart_option(self, node):
    self.body.append("</div></details>\n")


def visit_label(self, node):
    self.body.append("<summary>")


def depart_label(self, node):
    self.body.append('</summary><div class="quiz-why">')


def setup(app: Sphinx) -> dict:
    app.add_directive("quiz", QuizDirective)
    app.add_node(quiz, html=(visit_quiz, depart_quiz))
    app.add_node(quiz_option, html=(visit_option, depart_option))
    app.add_node(quiz_label, html=(visit_label, depart_label))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
