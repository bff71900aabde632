"""Strict reading of YAML: what is refused, where, and in which words."""

import pytest

from stackyard.definitions.document import nearest, parse_document, pattern_problem


def read(text, use=lambda top: None, *, done=True):
    """Parse, use, and give back the problems as a user reads them."""
    problems = []
    top = parse_document(text, file="a.yml", problems=problems)
    if top is not None:
        use(top)
        if done:
            top.done()
    return [str(problem) for problem in problems]


def value(text, getter, *args):
    """What a getter returns for the key `k`, with the problems it found."""
    found = []
    problems = read(text, lambda top: found.append(getattr(top, getter)("k", *args)))
    return found[0], problems


@pytest.mark.parametrize(
    ("word", "known", "said"),
    [
        ("pakages", ("packages", "fixes"), "did you mean 'packages'?"),
        ("zzz", ("packages", "fixes"), "known: fixes, packages"),
        ("zzz", (), "none is known"),
    ],
)
def test_the_nearest_known_word_is_named_or_all_of_them(word, known, said):
    assert nearest(word, known) == said


@pytest.mark.parametrize(
    ("text", "getter", "expected"),
    [
        ("k: abc", "text", "abc"),
        ('k: "3.10"', "text", "3.10"),
        ("k: 12", "integer", 12),
        ("k: -3", "integer", -3),
        ("k: true", "flag", True),
        ("k: no", "flag", False),
        ("k: 0.5", "number", 0.5),
        ("k: 1e-3", "number", 0.001),
        ("k: 2", "number", 2.0),
        ("k: [a, b]", "texts", ("a", "b")),
        ("k: []", "texts", ()),
        ("k: {a: b}", "table", {"a": "b"}),
    ],
)
def test_a_value_of_the_right_kind_is_returned_without_a_problem(text, getter, expected):
    assert value(text, getter) == (expected, [])


@pytest.mark.parametrize(
    ("text", "getter", "said"),
    [
        ("k: 3.10", "text", "must be text; YAML reads 3.10 as float: write '3.10'"),
        ("k: 7", "text", "must be text; YAML reads 7 as int: write '7'"),
        ("k: yes", "text", "must be text; YAML reads yes as bool: write 'yes'"),
        ("k: 2026-01-02", "text", "must be text; YAML reads 2026-01-02 as timestamp: write"
         " '2026-01-02'"),
        ("k: [a]", "text", "must be text"),
        ("k: {a: b}", "text", "must be text"),
        ("k: '12'", "integer", "must be a whole number"),
        ("k: 1.5", "integer", "must be a whole number"),
        ("k: 1:30", "integer", "must be a whole number, in at most 18 decimal digits"),
        ("k: 0x1f", "integer", "must be a whole number, in at most 18 decimal digits"),
        ("k: 012", "integer", "must be a whole number, in at most 18 decimal digits"),
        (f"k: {'9' * 5000}", "integer", "must be a whole number, in at most 18 decimal digits"),
        ("k: !!int [1]", "integer", "must be a whole number"),
        ("k: !!bool [true]", "flag", "must be true or false"),
        ("k: !!null [a]", "text", "must be text"),
        ('k: "a\\nb"', "single_line", "must be one line without control characters, not 'a\\nb'"),
        ('k: [a, "\\e[2J"]', "single_lines", "must be one line without control characters, not"
         " '\\x1b[2J'"),
        ("k: a", "single_lines", "must be a list"),
        ("k: 1", "flag", "must be true or false"),
        ("k: 'true'", "flag", "must be true or false"),
        ("k: many", "number", "must be a number"),
        ("k: true", "number", "must be a number"),
        ("k: [1]", "number", "must be a number"),
        ("k: a", "texts", "must be a list"),
        ("k: [a, 3.10]", "texts", "must be text; YAML reads 3.10 as float: write '3.10'"),
        ("k: [[a]]", "texts", "must be text"),
        ("k: [a]", "table", "must be a mapping"),
        ("k: a", "mapping", "must be a mapping"),
        ("k: {a: b}", "mappings", "must be a list"),
        ("k: [a]", "mappings", "must be a mapping"),
    ],
)  # fmt: skip
def test_a_value_of_the_wrong_kind_is_a_problem_at_its_key(text, getter, said):
    assert value(text, getter)[1] == [f"a.yml:1: k: {said}"]


def test_a_wrong_value_in_a_table_is_a_problem_at_its_own_line():
    assert value("k:\n  a: b\n  c: 3.10", "table")[1] == [
        "a.yml:3: k.c: must be text; YAML reads 3.10 as float: write '3.10'"
    ]


@pytest.mark.parametrize("getter", ["text", "integer", "flag", "number", "texts", "table"])
@pytest.mark.parametrize("text", ["{}", "k:", "k: null", "k: ~"])
def test_a_missing_or_empty_key_without_default_is_a_problem(getter, text):
    assert value(text, getter)[1] == ["a.yml:1: k: required key is missing"]


@pytest.mark.parametrize(
    ("getter", "default"),
    [("text", ""), ("integer", 0), ("flag", False), ("number", 0.5), ("texts", ()), ("table", {})],
)
def test_a_missing_key_takes_its_default(getter, default):
    assert value("{}", getter, default) == (default, [])


def test_absent_mappings_are_none_or_empty_and_no_problem():
    assert value("{}", "mapping") == (None, [])
    assert value("{}", "mappings") == ([], [])
    assert value("{}", "entries") == ({}, [])


def test_a_value_out_of_choices_names_the_nearest():
    assert value("k: cudda", "one_of", ("cpu", "cuda")) == (
        "cudda", ["a.yml:1: k: unknown value 'cudda'; did you mean 'cuda'?"],
    )  # fmt: skip


def test_unknown_keys_are_named_with_line_and_nearest_known_key():
    said = read("summary: x\nsumary: y\n", lambda top: top.text("summary"))
    assert said == ["a.yml:2: sumary: unknown key; did you mean 'summary'?"]


def test_unknown_keys_of_nested_mappings_have_their_path():
    def use(top):
        for entry in top.mappings("k"):
            entry.text("file")
            entry.done()

    said = read("k:\n  - file: a\n  - file: b\n    fiel: c\n", use)
    assert said == ["a.yml:4: k[1].fiel: unknown key; did you mean 'file'?"]


def test_duplicate_keys_are_named_with_both_lines():
    said = read("k: a\nother: b\nk: c\n", lambda top: (top.text("k"), top.text("other")))
    assert said == ["a.yml:3: k: duplicate key, first given on line 1"]


def test_duplicate_keys_in_a_table_are_refused():
    assert value("k: {a: b, a: c}", "table") == (
        {"a": "b"}, ["a.yml:1: k.a: duplicate key, first given on line 1"],
    )  # fmt: skip


def test_a_key_that_is_no_plain_text_is_refused():
    assert read("? [a, b]\n: c\n") == ["a.yml:1: a key must be plain text"]


def test_a_merge_key_is_no_known_key():
    said = read("k: &x {a: b}\n<<: *x\n", lambda top: top.table("k"))
    assert said == ["a.yml:2: <<: unknown key; known: k"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [b", "a.yml:2: not YAML: did not find expected ',' or ']'"),
        (
            "a: b\n c: d\n",
            "a.yml:2: not YAML: mapping values are not allowed in this context, at ': d'",
        ),
        ("a: *x\n", "a.yml:1: not YAML: found undefined alias, at '*x'"),
        ("a\n", "a.yml:1: must be a mapping of keys to values"),
        ("- a\n", "a.yml:1: must be a mapping of keys to values"),
        ("", "a.yml:1: must be a mapping of keys to values"),
        ("a: b\n---\nc: d\n", "a.yml:2: not YAML: but found another document, at '---'"),
    ],
)
def test_text_that_is_no_mapping_is_one_problem(text, said):
    assert read(text) == [said]


def test_a_control_character_is_a_problem_and_no_exception():
    assert read("a: b\nc: \x07") == ["a.yml:2: not YAML: the character U+0007 may not be in it"]


def test_a_mapping_that_holds_itself_is_no_endless_loop():
    said = read("k: &x {a: *x}\n", lambda top: top.table("k"))
    assert said == ["a.yml:1: k.a: must be text"]


def test_a_tower_of_brackets_is_a_problem_and_no_exception():
    (said,) = read("[" * 4_000)
    assert said.startswith("a.yml:1: ")


def test_an_empty_key_is_refused():
    assert read('"": a\n') == ["a.yml:1: a key must not be empty"]


def test_variables_of_an_environment_have_names_that_a_shell_takes():
    said = read("k: {A_1: a, b c: d, $(x): e}\n", lambda top: top.env("k"))
    assert said == [
        "a.yml:1: k.b c: must be the name of a variable",
        "a.yml:1: k.$(x): must be the name of a variable",
    ]
    assert value("k: {A: b}", "env") == ({"A": "b"}, [])
    assert value("a: b", "env")[0] == {}


def test_a_value_of_an_environment_is_one_line():
    (said,) = value('k: {A: "b\\nRUN c"}', "env")[1]
    assert said.startswith("a.yml:1: k.A: must be one line")


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, "{a: " * 100_000, "- " * 100_000, "".join(f"{' ' * n}a:\n" for n in range(99))],
)
def test_what_nests_without_end_is_refused_at_once(text):
    (said,) = read(text)
    assert "not YAML: nested more than 32 deep" in said


def test_nesting_as_deep_as_allowed_is_read():
    assert read(f"k: {'[' * 31}{']' * 31}", lambda top: top.has("k")) == []


def test_a_byte_order_mark_is_no_part_of_the_first_key():
    assert read("\ufeffk: a", lambda top: top.text("k")) == []


def test_words_too_long_to_compare_are_not():
    assert nearest("a" * 100_000, ["b" * 100_000, "abc"]) == "known: abc"


@pytest.mark.parametrize("pattern", ["[a", "(" * 5000, "a{99999999999}", "[[a]"])
def test_a_pattern_that_python_cannot_use_or_warns_of_is_a_problem(pattern):
    assert pattern_problem(pattern)


def test_a_good_pattern_is_no_problem():
    assert pattern_problem("^(a|b)+$") == ""
