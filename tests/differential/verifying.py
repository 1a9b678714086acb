"""Put findings in random programs before the verifier: a true fault must not be refuted, a right line not confirmed.

python -m tests.differential.verifying --seed 1 --count 300
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from dataclasses import dataclass, field

import click
import torch

from amplint.finding import Severity
from amplint.verify import verify_text
from amplint.verify.host import Worker

from .agreement import compare, lint
from .campaign import program_of
from .stage import staged
from .tree import Program
from .truth import truth_of

#: what could be reported on a line of a right program, by what stands on it
CLAIMS = (
    (re.compile(r"clip_grad_"), "AMP201"),
    (re.compile(r"\.backward\("), "AMP203"),
    (re.compile(r"scaler\w*\.step\("), "AMP205"),
    (re.compile(r"\.unscale_\("), "AMP207"),
    (re.compile(r"scaler\w*\.update\("), "AMP208"),
    (re.compile(r"zero_grad\("), "AMP211"),
)


@dataclass
class Verdicts:
    """The verdicts on true faults and on right lines, and those that are wrong."""

    true: Counter[str] = field(default_factory=Counter)
    right: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join(
            [
                f"findings that execution has shown to be true: {dict(self.true)}",
                f"claims about lines of right programs: {dict(self.right)}",
                *(f"  inconclusive {count:4} {reason}" for reason, count in self.reasons.most_common()),
                f"wrong verdicts: {len(self.wrong)}",
            ]
        )


def verify_programs(seed: int, numbers: range) -> Verdicts:
    """The verdicts on the findings of some programs, and on one line of each right one."""
    torch.set_num_threads(1)
    verdicts = Verdicts()
    with Worker() as worker:
        for number in numbers:
            program = program_of(seed, number)
            with staged():
                truth = truth_of(program)
            if truth.invalid:
                continue
            if not truth.roots:
                if not program.note:
                    _claim(verdicts, worker, f"{seed}/{number}", program, number)
                continue
            with staged():
                agreement = compare(truth, lint(program.source, least=Severity.WARNING))
            for fault, finding in agreement.answered:
                verdict = verify_text(program.source, finding.code, finding.first, worker=worker)
                verdicts.true[verdict.status] += 1
                if verdict.status == "inconclusive":
                    verdicts.reasons[f"{finding.code}: {verdict.reason}"] += 1
                if verdict.status == "refuted":
                    verdicts.wrong.append(_told(f"{seed}/{number}", program, f"{finding} refuted; {fault}"))
    return verdicts


def _claim(verdicts: Verdicts, worker: Worker, name: str, program: Program, number: int) -> None:
    """Claim a fault that is not there, on one line of a right program."""
    lines = [
        (line, code)
        for line, text in enumerate(program.source.splitlines(), 1)
        for pattern, code in CLAIMS
        if pattern.search(text)
    ]
    line, code = lines[number % len(lines)]
    verdict = verify_text(program.source, code, line, worker=worker)
    verdicts.right[verdict.status] += 1
    if verdict.status in ("confirmed", "conditional"):
        verdicts.wrong.append(_told(name, program, f"{code} claimed on line {line}: {verdict}"))


def _told(name: str, program: Program, what: str) -> str:
    numbered = [f"{number:4} {line}" for number, line in enumerate(program.source.splitlines(), 1)]
    return "\n".join([f"--- {name}: {what}", *numbered])


@click.command()
@click.option("--seed", default=1, show_default=True)
@click.option("--first", default=0, show_default=True)
@click.option("--count", default=300, show_default=True)
def main(seed: int, first: int, count: int) -> None:
    """Verify the findings of random programs, and claims about right ones."""
    verdicts = verify_programs(seed, range(first, first + count))
    print("\n\n".join(verdicts.wrong))
    print(f"seed {seed}, programs {first} to {first + count - 1}\n{verdicts}")
    sys.exit(1 if verdicts.wrong else 0)


if __name__ == "__main__":
    main()
