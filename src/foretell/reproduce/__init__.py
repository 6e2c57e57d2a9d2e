"""The paper's experiments: its results as data, the plan of its tables, the run and the tables beside the paper's."""
