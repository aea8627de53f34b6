"""Recipes: functions that return a complete `Experiment`.

Deriving one takes three lines: keep what is there, replace what differs.

>>> from dataclasses import replace
>>> from search_spaces import digits
>>> usual = digits.sgd()
>>> def harder():
...     return replace(usual, name="digits-99", target=replace(usual.target, value=0.99))
>>> harder().target.value
0.99

Another entry in the space, or a parameter that is no longer searched, is a new `SearchSpace`:

>>> from autotune.space import Fixed, SearchSpace
>>> space = SearchSpace({**usual.space.entries, "momentum": Fixed(0.9)})
>>> "momentum" in replace(usual, space=space).space.parameters()
False
"""
