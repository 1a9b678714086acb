"""Which library names an expression can stand for, judged by the bindings of the scopes around it.

For rules that look at code rather than at traces: nothing is executed, so that a function is looked at
whether or not anything calls it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amplint.program import (
    Assign,
    Attr,
    Call,
    Define,
    Expr,
    Import,
    Loop,
    Name,
    Region,
    Scope,
    Seq,
    Star,
    Stmt,
    Try,
    Yield,
)

if TYPE_CHECKING:
    from amplint.project import ModuleEnv

#: an alias of an alias of an alias is followed, and no further
_MAX_ALIASES = 3


class Names:
    """The bindings of a module, looked up scope by scope.

    A name that is bound several times (an import with a fallback, say) stands for all of the bindings; one of
    them that is no import and no alias makes the name unknown.
    """

    def __init__(self, env: ModuleEnv) -> None:
        self._env = env
        self._tables: dict[Scope, dict[str, list[Import | Expr | None]]] = {}

    def of(self, expr: Expr | None, scope: Scope, depth: int = 0) -> frozenset[str]:
        """The canonical dotted names that an expression can stand for in a scope; none where it is unknown."""
        if isinstance(expr, Attr):
            return frozenset(f"{base}.{expr.name}" for base in self.of(expr.base, scope, depth))
        if not isinstance(expr, Name) or depth > _MAX_ALIASES:
            return frozenset()
        at: Scope | None = scope
        while at is not None:
            if at is scope or at.kind != "class":
                bound = self._table(at).get(expr.id)
                if bound is not None:
                    return self._all(bound, at, depth)
            at = at.parent
        return frozenset()

    def import_of(self, name: str, scope: Scope) -> Import | None:
        """The import that binds a name in a scope, where nothing else does."""
        at: Scope | None = scope
        while at is not None:
            bound = self._table(at).get(name) if at is scope or at.kind != "class" else None
            if bound is not None:
                return bound[0] if len(bound) == 1 and isinstance(bound[0], Import) else None
            at = at.parent
        return None

    def _all(self, bound: list[Import | Expr | None], scope: Scope, depth: int) -> frozenset[str]:
        found: set[str] = set()
        for binding in bound:
            if isinstance(binding, Import):
                names = frozenset() if binding.level else frozenset((_full(binding),))
            else:
                names = self.of(binding, scope, depth + 1) if binding is not None else frozenset()
            if not names:
                return frozenset()
            found |= names
        return frozenset(found)

    def _table(self, scope: Scope) -> dict[str, list[Import | Expr | None]]:
        known = self._tables.get(scope)
        if known is None:
            known = self._tables[scope] = {}
            for param in scope.params:
                known.setdefault(param.name, []).append(None)
            for stmt in scope.statements:
                for name, binding in _bindings(stmt):
                    known.setdefault(name, []).append(binding)
            for name in scope.outer_names:
                known.pop(name, None)
        return known


def names_of(env: ModuleEnv) -> Names:
    """The bindings of a module, collected at most once."""
    known = env.shared.get("names")
    if known is None:
        known = env.shared["names"] = Names(env)
    return known


def _full(stmt: Import) -> str:
    return stmt.dotted if stmt.member is None else f"{stmt.dotted}.{stmt.member}"


def _bindings(stmt: Stmt) -> list[tuple[str, Import | Expr | None]]:
    if isinstance(stmt, Import):
        return [(stmt.name, stmt)] if stmt.member != "*" else []
    if isinstance(stmt, Assign):
        if isinstance(stmt.target, Name):
            return [(stmt.target.id, None if stmt.augmented else stmt.value)]
        return [(name, None) for name in _targets(stmt.target)]
    if isinstance(stmt, (Call, Yield)):
        return [(stmt.result, None)]
    if isinstance(stmt, Define):
        return [(stmt.scope.name, None)]
    if isinstance(stmt, (Loop, Region)) and stmt.target is not None:
        return [(name, None) for name in _targets(stmt.target)]
    if isinstance(stmt, Try):
        return [(handler.name, None) for handler in stmt.handlers if handler.name]
    return []


def _targets(target: Expr) -> list[str]:
    if isinstance(target, Name):
        return [target.id]
    if isinstance(target, Seq):
        return [name for item in target.items for name in _targets(item)]
    if isinstance(target, Star):
        return _targets(target.value)
    return []
