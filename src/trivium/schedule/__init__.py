"""Who runs next: admission, budgets, order, preemption. Step out, StepResult in, Deltas out. Pure: integers only."""
