"""Choose one level per module under a budget: exact solvers and a search over error priors."""
