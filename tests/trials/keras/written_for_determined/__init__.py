"""Trials as users of Determined wrote them: only the lines that import `determined` are changed."""
