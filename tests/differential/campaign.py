"""Many programs: written, broken, executed, linted, compared and counted."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

import torch

from amplint.finding import Severity

from .agreement import Agreement, compare, lint
from .grammar import right_program
from .mutation import mutated
from .shrink import shrunk
from .stage import staged
from .tree import Program
from .truth import truth_of

#: how often a program is written at each level of the grammar
LEVELS = (1, 2, 3, 3)
CHUNK = 50


@dataclass
class Count:
    """The sums of a campaign."""

    numbers: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    disagreements: list[str] = field(default_factory=list)

    def add(self, other: Count) -> None:
        self.numbers += other.numbers
        self.kinds += other.kinds
        self.disagreements += other.disagreements

    @property
    def recall(self) -> float:
        return 1 - self.numbers["missed"] / max(1, self.numbers["faults"])

    @property
    def precision(self) -> float:
        return 1 - self.numbers["false"] / max(1, self.numbers["errors"])

    def __str__(self) -> str:
        n = self.numbers
        return "\n".join(
            [
                f"programs: {n['programs']} executed ({n['right']} as they were written, {n['mutated']} mutated), "
                f"{n['unusable']} more of no use, {n['runs']} runs",
                f"faults with a rule of severity error: {n['faults']}, missed {n['missed']}: recall {self.recall:.4f}",
                f"findings of severity error: {n['errors']}, false {n['false']}: precision {self.precision:.4f}",
                f"findings in the {n['right']} programs that were left as written: {n['right false']}",
                f"faults beyond the catalogue: {n['beyond']}",
                *(f"  {count:6} {kind}" for kind, count in sorted(self.kinds.items(), key=lambda item: -item[1])),
            ]
        )


def program_of(seed: int, number: int) -> Program:
    """Program `number` of a seed: right, or with one or two mutations."""
    rng = random.Random(f"{seed}/{number}")
    program = right_program(rng, rng.choice(LEVELS))
    return mutated(program, rng, rng.choice((1, 1, 2))) if rng.random() < 0.5 else program


def agreement_on(program: Program) -> tuple[Agreement | None, int]:
    """The comparison of both sides, None for a program of no use; the number of runs."""
    truth = truth_of(program)
    if truth.invalid:
        return None, truth.runs
    agreement = compare(truth, lint(program.source, least=Severity.WARNING))
    return agreement, truth.runs


def examine(seed: int, numbers: range, shrink: bool = False) -> Count:
    """Some programs of a seed, in this process."""
    torch.set_num_threads(1)
    count = Count()
    with staged():
        for number in numbers:
            program = program_of(seed, number)
            agreement, runs = agreement_on(program)
            if agreement is None:
                count.numbers["unusable"] += 1
                continue
            _add(count, program, agreement, runs)
            if agreement.disagrees:
                small = _smallest(program, agreement) if shrink else program
                count.disagreements.append(_told(f"{seed}/{number}", small, agreement))
    return count


def campaign(seed: int, numbers: range, jobs: int, shrink: bool) -> Iterator[Count]:
    """The sums so far, after every part of the work."""
    total = Count()
    chunks = [numbers[i : i + CHUNK] for i in range(0, len(numbers), CHUNK)]
    if jobs == 1:
        for chunk in chunks:
            total.add(examine(seed, chunk, shrink))
            yield total
        return
    with ProcessPoolExecutor(jobs) as pool:
        for part in pool.map(examine, [seed] * len(chunks), chunks, [shrink] * len(chunks)):
            total.add(part)
            yield total


def _add(count: Count, program: Program, agreement: Agreement, runs: int) -> None:
    right = not program.note
    count.numbers.update(
        {
            "programs": 1,
            "right" if right else "mutated": 1,
            "runs": runs,
            "faults": agreement.faults,
            "missed": len(agreement.missed),
            "errors": agreement.errors,
            "false": len(agreement.false),
            "beyond": len(agreement.beyond),
            "right false": len(agreement.false) if right else 0,
        }
    )
    count.kinds.update(f"answered by {finding.code}: {fault.kind}" for fault, finding in agreement.answered)
    count.kinds.update(f"missed: {fault.kind}" for fault in agreement.missed)
    count.kinds.update(f"false: {finding.code}" for finding in agreement.false)
    count.kinds.update(f"beyond the catalogue: {fault.kind}" for fault in agreement.beyond)


def _smallest(program: Program, agreement: Agreement) -> Program:
    """The program with everything left out that does not matter for its first disagreement."""

    def same(candidate: Program) -> bool:
        found, _ = agreement_on(candidate)
        if found is None:
            return False
        if agreement.missed:
            return any(fault.kind == agreement.missed[0].kind for fault in found.missed)
        return any(finding.code == agreement.false[0].code for finding in found.false)

    return shrunk(program, same)


def _told(name: str, program: Program, agreement: Agreement) -> str:
    lines = [f"--- {name}: {'; '.join(program.note) or 'as it was written'}; driven by {program.drive!r}"]
    lines += [f"{number:4} {line}" for number, line in enumerate(program.source.splitlines(), 1)]
    lines += [f"missed: {fault.kind}, {fault.circumstances}, {sorted(fault.answers)}" for fault in agreement.missed]
    lines += [f"false: {finding}" for finding in agreement.false]
    return "\n".join(lines)
