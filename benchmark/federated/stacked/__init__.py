"""Train many jobs as one: each tensor operation of a local step works on the tensors of M jobs at once.

A GPU needs 20 to 40 microseconds to be told of an operation, and the kernels of a small network take less. M jobs with
the same network and batch sizes need the same operations; here they take them together.

* `kinds`: which jobs can take their steps together, and what their steps read.
* `trees`: the tensors of M jobs as one tensor with M rows, and back.
* `layers`: convolutions, norms and dropout of M networks in one operation each.
* `tick`: one local step of M jobs: `torch.func.vmap` over the method's own loss.
* `optimizer`: SGD and Adam of M jobs, whose norms, rates and step counts are each job's own.
* `log`: what the steps of a group report, read once.
* `guard`: the first step of each kind, compared with the same jobs alone.
* `runner`, `engine`: a group's training, and rounds.
* `together`: several runs of one cell in one process, whose jobs train as one.

Legend: M jobs of a group, N images of a batch, C channels, H W pixels, D classes.
"""
