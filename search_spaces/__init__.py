"""Recipes: functions that return a complete `Experiment`.

A recipe can be derived from another with `replace`:

>>> from dataclasses import replace
>>> from search_spaces import digits
>>> usual = digits.sgd()
>>> def harder():
...     return replace(usual, name="digits-99", target=replace(usual.target, value=0.99))
>>> harder().target.value
0.99

Another search space, for example with a parameter fixed, is a new `SearchSpace`:

>>> from autotune import Fixed, SearchSpace
>>> space = SearchSpace({**usual.space.entries, "momentum": Fixed(0.9)})
>>> "momentum" in replace(usual, space=space).space.parameters()
False
"""
