"""What a file defines, read off its text: what an importer reaches, and what it does not."""

from __future__ import annotations

import textwrap

import pytest

from amplint.outline import Outline, words_in


def outline(text: str) -> Outline:
    return Outline(textwrap.dedent(text).encode())


def reached(of: Outline, names: str, user: str = "", bases: str = "") -> bytes:
    return b"\n".join(of.behind(frozenset(names.split()), words_in(user.encode()), frozenset(bases.split())))


KIT = """
    from torch.amp import GradScaler

    LIMIT = 1.0

    def one(loss):
        def log(text):
            print(text)

        log(loss)
        return two(loss)


    def two(loss):
        return loss.backward()


    class Trainer:
        tag = "kit"

        def __init__(self):
            self.ready = False

        def build(self):
            def name():
                return "amp"

            self.scaler = GradScaler(name())

        def train(self):
            self.build()

        @property
        def depth(self):
            return 3
"""


def test_a_definition_brings_what_it_mentions() -> None:
    text = reached(outline(KIT), "one")
    assert b"def two" in text
    assert b"log(loss)" in text
    assert b"class Trainer" not in text


def test_what_an_import_executes_is_always_there_but_for_its_own_imports() -> None:
    text = reached(outline(KIT), "two")
    assert b"LIMIT = 1.0" in text
    assert b"GradScaler" not in text


def test_of_a_class_the_methods_that_somebody_mentions() -> None:
    assert b"GradScaler" not in reached(outline(KIT), "Trainer", "Trainer().depth")
    assert b"GradScaler" in reached(outline(KIT), "Trainer", "Trainer().build()")
    assert b"GradScaler" in reached(outline(KIT), "Trainer", "Trainer().train()"), "through another method"
    assert b"self.ready" in reached(outline(KIT), "Trainer"), "what runs without being mentioned"


def test_all_of_a_class_that_is_derived_from() -> None:
    assert b"GradScaler" in reached(outline(KIT), "Trainer", "class Mine(Trainer): pass", "Trainer")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"def f(net):\r\n    a = 1\r\n\r\n    GradScaler()\r\n", id="crlf"),
        pytest.param(b"def f(net):\n    a = 1\n    GradScaler()", id="no-newline-at-the-end"),
        pytest.param(b'def f(net):\n    a = """\ntext at the margin\n"""\n    GradScaler()\n', id="long-string"),
        pytest.param(b"async def f(\n    net,\n):\n# at the margin\n    GradScaler()\n", id="long-head"),
    ],
)
def test_a_definition_is_taken_whole(text: bytes) -> None:
    assert b"GradScaler()" in b"".join(Outline(text).behind(frozenset({"f"}), (), frozenset()))


def test_definitions_tell_by_their_words_and_by_what_they_call() -> None:
    assert outline(KIT).telling == {"one", "two", "Trainer"}
    assert outline("def plain(x):\n    '''Calls backward.'''\n    return x  # scaler\n").telling == frozenset()
