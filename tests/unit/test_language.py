"""The language rules of the code: what ruff's imperative mood cannot see.

Each rule is a function from a text to what breaks it; beside each stands a text that it refuses.
Words and shapes were collected from sentences that needed two readings. Docstrings keep all rules;
comments and messages keep the list of words. A message is any other literal of three words or more.
"""

import ast
import io
import re
import tokenize

import pytest

from stackyard.definitions.project import ROOT

pytestmark = pytest.mark.once
# A first line says what to do or what a class holds: these words begin neither.
OPENERS = re.compile(
    "a|an|all|also|any|as|at|both|by|each|either|every|for|from|here|his|how|if|in|into|it"
    "|its|many|more|most|no|node|none|not|nothing|of|on|one|only|other|our|ours|so|some"
    "|somebody|something|such|that|the|their|them|there|these|they|this|those|to|two|under"
    "|until|what|whatever|when|where|whether|which|who|whoever|whose|why|with|without|yes"
)
# Words with a plainer one beside them.
WORDS = {
    r"\btells\b": "reports, states, logs",
    r"\bours\b": "the variant's or file's name",
    r"\bwhoever\b": "the caller, the user, a process that",
    r"\bis told\b|\bare told\b": "gets, is given, reads",
    r"\bhad at once\b": "is acquired immediately",
    r"\bthat which\b": "the noun",
    r"\bis to be\b|\bare to be\b": "must be, will be",
}


def project_files():
    found = [ROOT / "tasks.py", *(ROOT / "scripts").iterdir()]
    for folder in ("stackyard", "benchmarks", "images"):
        found += sorted((ROOT / folder).rglob("*.py"))
    return [
        path for path in found
        if path.is_file() and ".venv" not in path.parts
        and (path.suffix == ".py" or b"python3" in path.read_bytes()[:40])
    ]  # fmt: skip


def docstrings(source):
    """Every docstring of a source: its line, whether it is a module's, and its text."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), text


def comments(source):
    """Every comment of a source: its line and its text, the lines of one comment together."""
    found = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line, text = token.start[0], token.string.lstrip("# ")
            if found and found[-1][1] == line - 1:
                found[-1] = (found[-1][0], line, f"{found[-1][2]} {text}")
            else:
                found.append((line, line, text))
    return [(first, text) for first, _, text in found]


def messages(source):
    """Every literal of three words or more that is no docstring; a value in it reads `{}`."""
    tree = ast.parse(source)
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    inner = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inner |= {id(part) for part in node.values}
        text = literal(node)
        if len(re.findall(r"\b[A-Za-z]+\b", text)) >= 3 and id(node) not in alone | inner:
            yield node.lineno, " ".join(text.split())


def literal(node):
    if isinstance(node, ast.JoinedStr):
        return "".join(literal(part) or "{}" for part in node.values)
    known = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return node.value if known else ""


def first_sentence(text):
    paragraph = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=[.:;]) ", paragraph)[0], paragraph


def opens_without_a_verb(text):
    word = re.match(r"[`\"]?([A-Za-z]+)", text)
    found = word.group(1).lower() if word else ""
    wrong = not found or OPENERS.fullmatch(found)
    return f"it begins with {found!r}, no verb" if wrong else ""


def is_a_fragment(text):
    words = first_sentence(text)[1].split()
    short = len(words) < 3 and "`" not in text
    return f"{' '.join(words)!r} is no sentence" if short else ""


def has_nested_colons(text):
    for sentence in re.split(r"(?<=[.!?])\s", first_sentence(text)[1]):
        if len(re.findall(r":\s", re.sub(r"`[^`]*`", "", sentence))) > 1:
            return f"{sentence[:60]!r} has colons inside colons"
    return ""


def has_a_word_of_the_list(text):
    for pattern, better in WORDS.items():
        if found := re.search(pattern, text, re.IGNORECASE):
            return f"{found.group(0)!r}: {better}"
    return ""


RULES = (opens_without_a_verb, is_a_fragment, has_nested_colons, has_a_word_of_the_list)


def wrong(text):
    return next((said for rule in RULES if (said := rule(text))), "")


@pytest.mark.parametrize(
    ("texts", "rule"),
    [(docstrings, wrong), (comments, has_a_word_of_the_list), (messages, has_a_word_of_the_list)],
)
def test_the_code_is_plain_english(texts, rule):
    found = [
        f"{path.relative_to(ROOT)}:{line}: {said}"
        for path in project_files()
        for line, text in texts(path.read_text(encoding="utf-8"))
        if (said := rule(text))
    ]
    assert found == []


def test_comments_and_messages_are_read_whole():
    source = '''"""Own a docstring."""
NAME = "ours"  # a name
raise Error(f"the file {name} of"
            f" {ours} is to"
            " be read")
# Those are
# told. "no message here"
'''
    assert list(messages(source)) == [(3, "the file {} of {} is to be read")]
    assert comments(source) == [(2, "a name"), (6, 'Those are told. "no message here"')]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Those.", "it begins with 'those', no verb"),
        ("What may be in no file at all, each with what is said of it.", "it begins with 'what'"),
        ("Whether a file is ours.", "it begins with 'whether'"),
        ("Yes.", "it begins with 'yes'"),
        ("`that` is one.", "it begins with 'that'"),
        ("Return them.", "'Return them.' is no sentence"),
        ("Return the layers: those: all.", "has colons inside colons"),
        ("Return what a host tells of itself.", "'tells': reports"),
        ("Return the words that are told.", "'are told'"),
        ("Return the layers that all hosts lack.", ""),
        ("Read `a: b: c` from a file: one a line.", ""),
        ("Tell whether a file exists.", ""),
    ],
)
def test_each_rule_catches_what_it_is_for(text, said):
    assert (said in wrong(text)) if said else (wrong(text) == "")
