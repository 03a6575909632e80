"""Train many jobs as one: each tensor operation of a local step works on the tensors of M jobs at once.

Launching an operation on a GPU needs 20 to 40 microseconds, and the kernels of a small network need less time than
that. M jobs with the same network and batch sizes need the same operations, so this package launches each operation
once for all of them.

* `kinds` decides which jobs can take their steps together, and which entries their steps read.
* `trees` converts the tensors of M jobs to one tensor with M rows, and back.
* `layers` computes the convolutions, norms and dropout of M networks in one operation each.
* `tick` runs one local step of M jobs: `torch.func.vmap` over the method's own loss.
* `optimizer` implements SGD and Adam for M jobs, with a norm, rate and step count per job.
* `log` collects the reports of a group's steps and reads them once.
* `asking` interrupts a `start` that requests a pass over images, `passes` makes the passes of all jobs together, and
  `batch_norms` measures the statistics of their static norms.
* `guard` compares the first step of each kind with the same jobs trained separately.
* `examine` does this for the jobs of a round, and builds the networks of their groups.
* `shared` has the state that runs share if they train together.
* `runner` and `engine` train groups and rounds.
* `together` trains the jobs of several runs of one cell as one, in one process.

Legend: M jobs of a group, N images of a batch, C channels, H W pixels, D classes.
"""
