"""Jobs one by one on the device, as the reference runs them: what starts every job, and trains those of any update."""

import torch
from torch import Tensor, nn

from benchmark.federated.batches import JobBatches, LocalBatch
from benchmark.federated.engines import JobRunner
from benchmark.federated.environment import Environment
from benchmark.federated.gpu.cohort import cohort_batches
from benchmark.federated.gpu.work import Placer, Result, Work, host_weights, result_of, to_host
from benchmark.federated.local import LocalModule, gradient, module_class, seed_job, train
from benchmark.federated.pseudo import PseudoLabelQuality
from benchmark.methods.protocol import Job, Local, Outcome, PartName, Reader, Tree, Weights
from benchmark.models.build import Model


class DeviceRunner(JobRunner):
    """A `JobRunner` whose networks and images are on a device, and which hands a job's start and end apart."""

    def __init__(self, environment: Environment, device: torch.device) -> None:
        super().__init__(environment)
        self.device = device

    def start(self, job: Job, round_number: int, private: Tree | None) -> Outcome | tuple[Local, JobBatches]:
        """The job's start and what it will draw; or its outcome, where there is nothing to train."""
        local = job.update.start(job.receives, private, self._reader(job, round_number, "train"))
        if local is None:
            return Outcome(key=job.key, sends={})
        if not local.trainable:
            given = self._given(job, local, round_number)
            sends = job.update.finish(local)
            return Outcome(key=job.key, sends=sends, private=local.private, metrics=given.metrics())
        return local, JobBatches(self._environment, job, round_number, selected=local.selected)

    def work(self, job: Job, round_number: int, local: Local, batches: list[LocalBatch]) -> Work:
        """The started job with its batches."""
        return Work(
            job=job,
            round_number=round_number,
            local=local,
            place=self._place(job, round_number, len(batches)),
            given=self._given(job, local, round_number),
            batches=batches,
        )

    def train(self, work: Work, placer: Placer) -> Result:
        """The job's local steps by the reference's own loop. Nothing is waited for, unless the update does."""
        module = self.module_for(work, placer)
        momentum = train(module, work.batches)
        losses_S = torch.stack(module.losses) if module.losses else torch.zeros(0)
        sums_A = torch.stack(list(module.totals.values())) if module.totals else torch.zeros(0)
        return result_of(
            module,
            momentum,
            losses_S=to_host(losses_S),
            sums=[(tuple(module.totals), to_host(sums_A))],
            counts=dict(module.counts),
            pseudo=module.pseudo.moved(to_host),
        )

    def module_for(self, work: Work, placer: Placer) -> LocalModule:
        """The reused module of the work's kind, loaded and seeded."""
        local = placer.placed(work.local)
        module = self._module(work.job, local, work.round_number, len(work.batches))
        module.pseudo = PseudoLabelQuality()
        return module

    def fresh_module(self, work: Work, placer: Placer) -> LocalModule:
        """A module that no other job uses, on the device."""
        local = placer.placed(work.local)
        experiment = self._environment.experiment
        network = self._network(work.job.network)
        module = module_class(work.job)(
            work.job, local, network, experiment.optimizer, work.place, precision=experiment.precision
        )
        seed_job(module, experiment.seed, work.round_number, work.job)
        return module

    def gradient(self, job: Job, round_number: int) -> dict[str, Weights]:
        local = job.update.start(job.receives, None, self._reader(job, round_number, "gradient"))
        if local is None or not local.trainable:
            return {}
        drawn = JobBatches(self._environment, job, round_number, purpose="gradient", selected=local.selected)
        module = self._module(job, Placer(self.device).placed(local), round_number, len(drawn), purpose="gradient")
        (batches,) = cohort_batches(self._environment, [drawn], self.device)
        found = gradient(module, batches)
        module.zero_grad(set_to_none=True)
        return {name: host_weights(weights) for name, weights in found.items()}

    def _network(self, model: Model | None) -> nn.Module:
        if model not in self._networks:
            self._networks[model] = self._environment.network(model).to(self.device)
        return self._networks[model]

    def _reader(self, job: Job, round_number: int, purpose: str) -> Reader:
        return HostReader(super()._reader(job, round_number, purpose))


class HostReader:
    """A `Reader` whose network is on a device, and whose answers are on the host, as `start` expects them."""

    def __init__(self, reader: Reader) -> None:
        self.draw = reader.draw
        self._reader = reader

    def predict(self, weights: Weights, part: PartName, view: str) -> Tensor:
        return self._reader.predict(weights, part, view).cpu()

    def statistics(self, weights: Weights, part: PartName, batch_size: int) -> tuple[Weights, int]:
        found, batches = self._reader.statistics(weights, part, batch_size)
        return {name: value.cpu() for name, value in found.items()}, batches

    def on_noise(self, weights: Weights) -> Tensor:
        return self._reader.on_noise(weights).cpu()
