"""The rules of rendering: nothing undefined, words quoted, pages escaped."""

import jinja2
import pytest

from stackyard.system import template


def rendered(tmp_path, text, name="a.j2", **values):
    (tmp_path / name).write_text(text)
    return template.render(name, values, folder=tmp_path)


def test_a_name_that_was_not_handed_over_is_an_error(tmp_path):
    with pytest.raises(jinja2.UndefinedError, match="'who' is undefined"):
        rendered(tmp_path, "hello {{ who }}")


def test_a_missing_attribute_is_an_error(tmp_path):
    with pytest.raises(jinja2.UndefinedError):
        rendered(tmp_path, "{{ who.name }}", who={})


def test_a_condition_on_an_undefined_name_is_an_error(tmp_path):
    with pytest.raises(jinja2.UndefinedError):
        rendered(tmp_path, "{% if who %}x{% endif %}")


def test_the_last_line_break_is_kept_and_block_lines_leave_none(tmp_path):
    text = "a\n  {% if yes %}\nb\n  {% endif %}\n"
    assert rendered(tmp_path, text, yes=True) == "a\nb\n"


def test_a_value_for_a_shell_is_one_word(tmp_path):
    assert rendered(tmp_path, "{{ v | sh }}", v="a b; $(id) 'c'") == "'a b; $(id) '\"'\"'c'\"'\"''"
    assert rendered(tmp_path, "{{ v | sh }}", "b.j2", v="") == "''"


def test_words_for_a_shell_are_quoted_one_by_one(tmp_path):
    assert rendered(tmp_path, "{{ v | words }}", v=["a", "b c", 3]) == "a 'b c' 3"


def test_a_page_is_escaped_and_other_text_is_not(tmp_path):
    assert (
        rendered(tmp_path, "{{ v }}", "a.html.j2", v="<b> & 'c'") == "&lt;b&gt; &amp; &#39;c&#39;"
    )
    assert rendered(tmp_path, "{{ v }}", "a.txt.j2", v="<b> & 'c'") == "<b> & 'c'"


def test_every_template_of_the_project_can_be_parsed():
    names = [p.relative_to(template.TEMPLATES).as_posix() for p in template.TEMPLATES.rglob("*.j2")]
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(template.TEMPLATES))
    environment.filters.update(sh=str, words=str, dockerfile=str)
    assert len(names) > 5
    for name in names:
        assert environment.get_template(name)


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("two words", '"two words"'),
        ('say "x"', r'"say \"x\""'),
        ("back\\slash", r'"back\\slash"'),
        ("$HOME", r'"\$HOME"'),
        ("it's <b> & ü", '"it\'s <b> & ü"'),
        (1, '"1"'),
    ],
)
def test_a_value_for_a_dockerfile_is_one_word_in_which_nothing_is_expanded(tmp_path, value, word):
    assert rendered(tmp_path, "{{ v | dockerfile }}", v=value) == word
