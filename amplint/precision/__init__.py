"""Which tensors are 16 bit, statement by statement: the dtypes that autocast and casts by hand give them.

The result is a list of facts (`Fact`): operators, calls and item assignments whose operands are known well enough for
the rules to judge.

A dtype is certain where an operator of the list in `amplint.optable` or a cast gave it, and likely where an unknown
network computed it in a 16-bit region: most networks end in a matrix product.
"""

from amplint.precision.dtypes import VIEWS, is_unsupported
from amplint.precision.guesses import like_network
from amplint.precision.values import MORE, Fact, Library, Number, Opened, Own, Tensor, Unknown, Value, dtype_name
from amplint.precision.walk import facts_of

__all__ = [
    "MORE",
    "VIEWS",
    "Fact",
    "Library",
    "Number",
    "Opened",
    "Own",
    "Tensor",
    "Unknown",
    "Value",
    "dtype_name",
    "facts_of",
    "is_unsupported",
    "like_network",
]
