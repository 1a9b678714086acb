"""JUnit's XML, which nearly every CI server can show."""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING, TextIO
from xml.etree import ElementTree as Xml

from amplint.finding import Finding
from amplint.report import Options, where
from amplint.report.full import verdict_line

if TYPE_CHECKING:
    from amplint.run import InternalError, Run

#: characters that XML 1.0 cannot hold, in any notation
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(run: Run, stream: TextIO, options: Options) -> None:
    """A suite per file with findings, a failed test per finding; without findings, one test that passed."""
    root = Xml.Element("testsuites", name="amplint")
    for path, findings in groupby(run.findings, key=lambda finding: finding.place.path):
        _suite(root, path, [_case(finding) for finding in findings])
    for error in run.errors:
        _suite(root, error.path, [_error_case(error)])
    if not len(root):
        _suite(root, "amplint", [Xml.Element("testcase", name="no findings", classname="amplint", time="0")])
    for total in ("tests", "failures", "errors"):
        root.set(total, str(sum(int(suite.get(total, "0")) for suite in root)))
    root.set("time", f"{run.seconds:.3f}")
    Xml.indent(root)
    stream.write('<?xml version="1.0" encoding="UTF-8"?>\n')
    stream.write(Xml.tostring(root, encoding="unicode") + "\n")


def _suite(root: Xml.Element, name: str, cases: list[Xml.Element]) -> None:
    suite = Xml.SubElement(root, "testsuite", name=_legal(name), tests=str(len(cases)))
    for total, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(total, str(sum(case.find(tag) is not None for case in cases)))
    suite.set("time", "0")
    suite.extend(cases)


def _case(finding: Finding) -> Xml.Element:
    place = finding.place
    case = Xml.Element("testcase", classname=_legal(place.path), time="0")
    case.set("name", _legal(f"{finding.rule} {finding.name} at {where(place).removeprefix(place.path + ':')}"))
    if finding.verdict is not None and finding.verdict.status == "refuted":
        Xml.SubElement(case, "skipped", message=_legal(verdict_line(finding)))
        return case
    failure = Xml.SubElement(case, "failure", message=_legal(finding.message), type=str(finding.severity))
    lines = [f"{where(place)}: {finding.message}"]
    lines += [f"{where(step.place)}: {step.message}" for step in finding.steps]
    lines += [line for line in (verdict_line(finding), finding.url) if line]
    failure.text = _legal("\n".join(lines))
    return case


def _error_case(error: InternalError) -> Xml.Element:
    name = _legal(f"internal error {error.hash}")
    case = Xml.Element("testcase", name=name, classname=_legal(error.path), time="0")
    Xml.SubElement(case, "error", message=_legal(error.message), type="internal").text = _legal(error.traceback)
    return case


def _legal(text: str) -> str:
    return _ILLEGAL.sub("�", text)
