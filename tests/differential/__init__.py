"""Random AMP programs that are executed on torch and linted; both must find the same faults.

    python -m tests.differential --seed 1 --count 20000

`grammar` writes programs, `mutation` breaks them, `stage` executes them with everything recorded, `truth` says what
was wrong in what happened, `agreement` compares that with what amplint reports, `shrink` makes a disagreement small.
`injection` breaks the hand-written programs in `programs/` in every way that a rule knows.
"""
