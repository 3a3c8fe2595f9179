"""Pipeline parallelism: schedules, plans, and PyTorch modules that run according to them.

    from hetcomm import pipeline

    plan = pipeline.Plan.of(
        stages=[pipeline.Stage(ranks=[0], items=4), pipeline.Stage(ranks=[1], items=4)],
        tensors=[pipeline.Tensor("hidden", "float32", (8, 128, 512))],
        micro_batches=16, micro_batch_size=8, schedule="1f1b")
    trainer = pipeline.Pipeline(world, plan, [my_stage], loss=loss_function)   # world: a PyTorch group
    loss = trainer.step(inputs, targets=targets)

A plan assigns the items of a model to stages, and the stages to ranks. It specifies the schedule
and the tensors that are sent between stages. All ranks have the same plan. :class:`Schedule` and
:class:`Plan` need neither PyTorch nor a running job, and :class:`Runner` runs callbacks without
PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hetcomm.pipeline.plans import Boundary, Plan, Stage, Tensor
from hetcomm.pipeline.runner import Gradient, Runner
from hetcomm.pipeline.schedules import Schedule

if TYPE_CHECKING:
    from hetcomm.pipeline.modules import Pipeline

__all__ = ["Boundary", "Gradient", "Pipeline", "Plan", "Runner", "Schedule", "Stage", "Tensor"]


def __getattr__(name: str) -> Any:
    # The class requires PyTorch, which is imported on first use.
    if name == "Pipeline":
        from hetcomm.pipeline.modules import Pipeline

        return Pipeline
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
