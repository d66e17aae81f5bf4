"""The step cache: settings, the decision for each row of each step, and the wrappers that carry it out."""
