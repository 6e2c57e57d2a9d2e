"""The public benchmarks of the paper, one file each."""
